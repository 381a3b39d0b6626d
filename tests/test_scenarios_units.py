"""Quantities: what they parse to, and that only a number with its unit passes."""

from __future__ import annotations

import re
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenarios.units import DURATION, PERCENTAGE, RATE, TIME, Quantity, quantity_of

QUANTITIES = [RATE, TIME, PERCENTAGE, DURATION]
# Up to 15 significant digits: what a double holds exactly in decimal.
NUMBERS = st.decimals(min_value=0, max_value=10**9, places=6).map(lambda number: number.normalize())


@pytest.mark.parametrize(
    ("quantity", "text", "value"),
    [
        (RATE, "1gbit", 10**9),
        (RATE, "2.5 mbit", 2_500_000),
        (TIME, "0ms", 0),
        (TIME, "20us", 20e-6),
        (TIME, "1.5s", 1.5),
        (PERCENTAGE, "70%", 0.7),
        (PERCENTAGE, "40.8%", 0.408),  # 40.8 / 100 in floats is 0.40799999999999997
        (DURATION, "1 iteration", 1),
        (DURATION, "5 iterations", 5),
    ],
)
def test_written_quantity_becomes_si(quantity: Quantity, text: str, value: float) -> None:
    assert quantity.parse(text) == value


@given(st.sampled_from(QUANTITIES), NUMBERS, st.data())
def test_round_trip_through_si(quantity: Quantity, number: Decimal, data: st.DataObject) -> None:
    unit = data.draw(st.sampled_from(sorted(quantity.units)))
    text = f"{number:f}{unit}"
    si = quantity.parse(text)
    back = Decimal(repr(si)) / quantity.units[unit]
    assert float(back) == pytest.approx(float(number), rel=1e-15)
    assert quantity.parse(f"{back:f}{unit}") == si


@given(st.sampled_from(QUANTITIES), st.text(max_size=12) | st.from_regex(r"[0-9.]{1,4} ?[a-z%]{0,5}", fullmatch=True))
def test_json_schema_accepts_what_the_parser_accepts(quantity: Quantity, text: str) -> None:
    try:
        quantity.parse(text)
        parsed = True
    except ValueError:
        parsed = False
    # \Z, as ECMA-262 (the dialect of JSON Schema) has no match of $ before a final line break.
    assert parsed == bool(re.search(quantity.json_schema["pattern"].replace("$", r"\Z"), text))


@pytest.mark.parametrize("value", [1000, 0.7, "1000", "0.7"])
def test_bare_number_says_how_to_write_it(value: object) -> None:
    with pytest.raises(ValueError, match=rf"{value} has no unit; write a rate such as '1gbit'"):
        RATE.parse(value)


def test_wrong_unit_names_the_valid_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown unit in '1Gbit'; a rate takes bit, .*did you mean 'gbit'\?"):
        RATE.parse("1Gbit")


@pytest.mark.parametrize("value", ["fast", "-1gbit", "1e9bit", "", None, True, [1]])
def test_anything_else_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="is not a rate; write it such as '1gbit'"):
        RATE.parse(value)


@given(st.sampled_from(QUANTITIES), NUMBERS, st.data())
def test_what_is_written_parses_back(quantity: Quantity, number: Decimal, data: st.DataObject) -> None:
    value = quantity.parse(f"{number:f}{data.draw(st.sampled_from(list(quantity.units)))}")
    assert quantity.parse(quantity.write(value)) == value


@pytest.mark.parametrize(
    ("quantity", "value", "text"),
    [
        (RATE, 10**9, "1gbit"),
        (RATE, 1_500_000, "1.5mbit"),
        (TIME, 0.0, "0ms"),
        (TIME, 20e-6, "20us"),
        (TIME, 2, "2s"),
        (PERCENTAGE, 0.408, "40.8%"),
        (DURATION, 1, "1 iteration"),
        (DURATION, 5, "5 iterations"),
    ],
)
def test_quantities_are_written_as_a_person_would(quantity: Quantity, value: float, text: str) -> None:
    assert quantity.write(value) == text


def test_a_schema_tells_its_quantity() -> None:
    assert quantity_of(RATE.json_schema) is RATE
    assert quantity_of({"anyOf": [TIME.json_schema, {"type": "null"}]}) is TIME
    assert quantity_of({"type": "string", "pattern": "^x$"}) is None
