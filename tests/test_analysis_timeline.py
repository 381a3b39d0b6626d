"""Timelines of scenarios: which bars stand in which lane, as a picture and as text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib.image
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from analysis import timeline
from analysis.timeline import Bar
from scenarios import Scenario, catalogue, load


def scenario(*events: dict[str, Any], iterations: int = 40, workers: int = 3) -> Scenario:
    document = load("examples/demo").model_dump(mode="json")
    document["topology"]["workers"] = workers
    document["workload"] |= {"iterations": iterations, "iterations_per_epoch": 10}
    common = {"action": "loss", "loss": 0.7, "duration": 1}
    return Scenario.from_resolved(document | {"events": [common | event for event in events]})


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts]


def test_lanes_are_the_links_that_are_hit_in_the_order_of_the_hosts() -> None:
    rows = timeline.lanes(scenario(
        {"at": {"iteration": 9}, "selector": ["w3", "w1"]},
        {"at": {"iteration": 4}, "selector": ["w1"], "direction": "both", "duration": 2},
    ))
    assert [row.name for row in rows] == ["w1 to_server", "w1 to_worker", "w3 to_server"]
    assert rows[0].bars == (Bar(1, "loss 70%", 4, 6), Bar(0, "loss 70%", 9, 10))


def test_an_event_is_described_by_what_is_not_default() -> None:
    describe = [timeline.describe(event) for event in scenario(
        {"at": {"iteration": 1}}, {"at": {"iteration": 3}, "loss": 0.001, "protocol": "all", "direction": "to_worker"},
    ).events]
    assert describe == ["loss 70%", "loss 0.1% protocol all"]


def test_many_links_with_the_same_bars_share_a_lane() -> None:
    rows = timeline.lanes(scenario(
        {"at": {"iteration": 2}}, {"at": {"iteration": 5}, "selector": ["w7"]}, workers=40,
    ))
    assert [row.name for row in rows] == ["w1, w2, ... w40 (39 hosts) to_server", "w7 to_server"]


def test_picture_has_a_bar_a_burst_and_the_epochs_above() -> None:
    figure = timeline.draw(load("efficientnet-microburst"))
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == [f"w{n} to_server" for n in (1, 2, 3)]
    assert sorted({patch.get_x() for patch in axes.patches}) == [279, 651]
    assert texts(figure) == ["loss 70%"] * 6
    assert axes.get_xlim() == (0, 930)
    (above,) = axes.child_axes
    assert list(above.get_xticks()) == [93 * epoch for epoch in range(10)]
    assert not figure.legends


def test_labels_without_room_stand_in_a_legend() -> None:
    figure = timeline.draw(scenario(*({"at": {"iteration": 2 * n}, "loss": n / 100} for n in range(1, 20))))
    labels = {text.get_text() for text in figure.legends[0].get_texts()} | set(texts(figure))
    assert labels == {f"loss {n}%" for n in range(1, 20)}


@pytest.mark.parametrize("name", [entry.name for entry in catalogue()])
def test_all_of_the_catalogue_can_be_drawn(name: str, tmp_path: Path) -> None:
    timeline.draw(load(name)).savefig(tmp_path / "t.png")
    assert matplotlib.image.imread(tmp_path / "t.png").std() > 0.02
    assert timeline.text(load(name), 80).plain.startswith(load(name).name)


def test_what_the_clock_begins_spans_its_lane_and_says_when() -> None:
    rows = timeline.lanes(scenario(
        {"at": {"time": 30.0}, "duration": "0.5s", "selector": ["w1"]},
        {"at": {"every": "5s", "start": "2s"}, "duration": "0.5s", "selector": ["w2"]},
    ))
    assert [bar for row in rows for bar in row.bars] == [
        Bar(0, "loss 70% for 500ms at 30s", None, 40, True),
        Bar(1, "loss 70% for 500ms every 5s from 2s", None, 40, True),
    ]


def test_no_events() -> None:
    assert texts(timeline.draw(scenario())) == ["no events"]
    assert timeline.text(scenario(), 80).plain.endswith("no events")


def lane_rows(plain: str) -> Iterator[str]:
    return (line[14:] for line in plain.splitlines() if line[:2] in ("w1", "w2", "w3"))


def test_text_has_whole_columns_for_iterations_where_there_is_room() -> None:
    lines = timeline.text(scenario({"at": {"iteration": 12}, "duration": 3}), 14 + 1 + 80).plain.splitlines()
    assert lines[1].split() == ["epoch", "0", "1", "2", "3"]
    assert lines[2].split() == ["iteration", "0", "10", "20", "30"]
    assert lines[3].index("█") == 14 + 24
    assert lines[3].count("█") == 6
    assert "█ loss 70%" in lines[3].replace("·", " ")
    assert lines[-1] == "events.0      loss 70% in iterations 12-14 on w1, w2, w3 to_server"


@given(
    st.integers(20, 200), st.integers(1, 5000),
    st.sets(st.integers(0, 4999), max_size=60), st.integers(1, 12),
)
def test_text_shows_every_lane_within_the_width(width: int, iterations: int, starts: set[int], duration: int) -> None:
    events, free = [], 0
    for start in sorted(starts):
        if start >= free and start + duration <= iterations:
            events.append({"at": {"iteration": start}, "duration": duration, "loss": 0.1 + 0.01 * len(events)})
            free = start + duration
    drawn = timeline.text(scenario(*events, iterations=iterations), width).plain
    rows = list(lane_rows(drawn))
    assert len(rows) == (3 if events else 0)
    for row in rows:
        assert "█" in row or "loss" in row
        assert len(row) <= max(width - 14, 21)
    assert drawn.count("events.") == len(events)
