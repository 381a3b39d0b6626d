"""Quantities with units, as scenario files write them: `1gbit`, `1.5ms`, `70%`, `5 iterations`.

Unit names are those of tc(8), in lower case. A number without its unit is refused: 0.7 could be 70 % or 0.7 %.
The `Annotated` types at the end parse such strings into SI numbers; a resolved scenario (the one that `run.json`
holds) has plain SI numbers instead, which they take when the validation context says `{"resolved": True}`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationInfo,
    WithJsonSchema,
)

from scenarios.errors import did_you_mean

_NUMBER_AND_UNIT = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?) ?(?P<unit>[A-Za-z%]*)", re.ASCII)


def _decimal(**factors: str) -> dict[str, Decimal]:
    return {unit: Decimal(factor) for unit, factor in factors.items()}


@dataclass(frozen=True)
class Quantity:
    """One kind of quantity: the units it takes, each with its factor to the SI unit."""

    noun: str
    units: dict[str, Decimal]
    example: str

    def parse(self, value: object) -> float:
        """The value in SI units, rounded once to the nearest float; an int if it is whole.

        Raises ValueError, with the way to write it, for anything but a number with one of the units.
        """
        match = _NUMBER_AND_UNIT.fullmatch(value) if isinstance(value, str) else None
        bare_number = isinstance(value, int | float) and not isinstance(value, bool)
        if bare_number or (match and not match["unit"]):
            raise ValueError(f"{value} has no unit; write a {self.noun} such as '{self.example}'")
        if match is None:
            raise ValueError(f"{value!r} is not a {self.noun}; write it such as '{self.example}'")
        if match["unit"] not in self.units:
            raise ValueError(
                f"unknown unit in {value!r}; a {self.noun} takes {', '.join(self.units)}, "
                f"such as '{self.example}'{did_you_mean(match['unit'], self.units)}"
            )
        si = Decimal(match["number"]) * self.units[match["unit"]]
        return int(si) if si == si.to_integral_value() else float(si)

    def write(self, si: float) -> str:
        """The string of an SI value, in the largest unit that leaves at least 1: `parse` gives the value back."""
        exact = Decimal(repr(si))
        fitting = [factor for factor in self.units.values() if exact >= factor]
        smallest = min(self.units.values())
        usual = self.units[_NUMBER_AND_UNIT.match(self.example)["unit"]]
        factor = max(fitting, default=smallest) if exact else usual
        number = exact / factor
        names = [unit for unit in self.units if self.units[unit] == factor]  # `iteration` and `iterations`
        unit = names[0] if number == 1 else names[-1]
        return f"{number.normalize():f}{' ' if ' ' in self.example else ''}{unit}"

    def validate(self, value: object, info: ValidationInfo) -> object:
        """`parse` for pydantic; plain numbers pass where a resolved scenario is read back."""
        return value if (info.context or {}).get("resolved") else self.parse(value)

    @property
    def json_schema(self) -> dict[str, Any]:
        """JSON Schema of the strings that `parse` takes, for completion in editors."""
        units = "|".join(re.escape(unit) for unit in self.units)
        return {
            "type": "string",
            "pattern": rf"^[0-9]+(\.[0-9]+)? ?({units})$",
            "examples": [self.example],
        }


RATE = Quantity("rate", _decimal(bit="1", kbit="1e3", mbit="1e6", gbit="1e9"), "1gbit")
TIME = Quantity("time", _decimal(us="1e-6", ms="1e-3", s="1"), "20ms")
PERCENTAGE = Quantity("percentage", {"%": Decimal("0.01")}, "70%")
DURATION = Quantity("duration", _decimal(iteration="1", iterations="1"), "1 iteration")


class Seconds(float):
    """A duration by the clock, beside the int of one in iterations."""

    def __str__(self) -> str:
        return f"{format(Decimal(repr(float(self))).normalize(), 'f')}s"

    def __format__(self, specification: str) -> str:
        return format(float(self), specification) if specification else str(self)


Span = int | Seconds


def duration(value: object, resolved: bool = False) -> Span:
    """`5 iterations` as an int, `500ms` as Seconds. Raises ValueError.

    A resolved scenario has a plain number of iterations, or a string such as `0.5s`.
    """
    match = _NUMBER_AND_UNIT.fullmatch(value) if isinstance(value, str) else None
    if isinstance(value, Seconds):
        return value
    if match and match["unit"] in TIME.units:
        span: Span = Seconds(TIME.parse(value))
    else:
        span = value if resolved and not isinstance(value, str) else DURATION.parse(value)
        if not isinstance(span, int) or isinstance(span, bool):
            raise ValueError(f"{value!r} is not a whole number of iterations")
    if span <= 0:
        raise ValueError(f"{value!r} should be above 0")
    return span

def period(value: object) -> Span:
    """A number of iterations (int, not below 0), or a time such as `5s` as Seconds. Raises ValueError."""
    if isinstance(value, Seconds) or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        return value
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is neither a number of iterations, such as 93, nor a time, such as '5s'")
    return Seconds(TIME.parse(value))


QUANTITIES = {quantity.json_schema["pattern"]: quantity for quantity in (RATE, TIME, PERCENTAGE, DURATION)}
"""Each quantity by the pattern of its JSON Schema, which is how a schema tells that a key takes one."""


def quantity_of(schema: dict[str, Any]) -> Quantity | None:
    """The quantity that a key with this JSON Schema takes, also where it may be left empty; None for other keys."""
    branches = (schema, *schema.get("anyOf", ()))
    return next((QUANTITIES[b["pattern"]] for b in branches if b.get("pattern") in QUANTITIES), None)


def _field(quantity: Quantity) -> tuple[BeforeValidator, WithJsonSchema]:
    return BeforeValidator(quantity.validate), WithJsonSchema(quantity.json_schema)


def _write_span(span: Span) -> int | str:
    return str(span) if isinstance(span, Seconds) else span


def _at_most_all(share: float) -> float:
    if not 0 <= share <= 1:
        raise ValueError(f"{share * 100:g}% is not between 0% and 100%")
    return share


Rate = Annotated[int, Field(gt=0), *_field(RATE)]
"""Bit/s, a whole number."""
Time = Annotated[float, Field(ge=0), *_field(TIME)]
"""Seconds."""
Percentage = Annotated[float, AfterValidator(_at_most_all), *_field(PERCENTAGE)]
"""A fraction from 0 to 1."""
Duration = Annotated[
    Any,
    PlainValidator(lambda value, info: duration(value, bool((info.context or {}).get("resolved")))),
    PlainSerializer(_write_span),
    WithJsonSchema({"anyOf": [DURATION.json_schema, TIME.json_schema]}),
]
"""A whole number of iterations (int), or Seconds."""
Timespan = Annotated[Duration, WithJsonSchema(TIME.json_schema | {"examples": ["500ms"]})]
"""A Duration where nothing but Seconds makes sense, which the event says in its own words."""
Period = Annotated[
    Any,
    PlainValidator(period),
    PlainSerializer(_write_span),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0, "examples": [93]}, TIME.json_schema]}),
]
"""Iterations (int), written as a bare number, or Seconds; 0 or more of them."""
