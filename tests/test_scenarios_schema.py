"""Timelines, links and round trips of resolved scenarios."""

from __future__ import annotations

import copy
import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from scenarios import Scenario, ScenarioError, Window, load

EVENT = {"action": "loss", "loss": "70%", "at": {"iteration": 4}, "duration": "1 iteration"}


def scenario(*events: dict[str, Any], iterations: int = 20, workers: int = 3) -> Scenario:
    return Scenario.model_validate(
        {
            "name": "t",
            "topology": {"workers": workers, "link": {"rate": "1gbit"}},
            "workload": {
                "model": "digits_cnn",
                "batch_size": 4,
                "iterations": iterations,
                "iterations_per_epoch": 5,
                "optimizer": {"lr": 0.1},
            },
            "transports": {"mlt": {"tolerance": {"policy": "fixed", "p": "0.8%"}}},
            "events": [EVENT | event for event in events],
        }
    )


def starts(at: dict[str, int], duration: str = "1 iteration", iterations: int = 20) -> list[int]:
    return [w.start for w in scenario({"at": at, "duration": duration}, iterations=iterations).timeline()]


def test_timeline_is_sorted_and_half_open() -> None:
    windows = scenario({"at": {"iteration": 9}}, {"at": {"iteration": 2}, "duration": "3 iterations"}).timeline()
    assert windows == [Window(event=1, start=2, stop=5), Window(event=0, start=9, stop=10)]


def test_every_starts_after_one_period_unless_told_and_ends_with_the_run() -> None:
    assert starts({"every": 6}) == [6, 12, 18]
    assert starts({"every": 6, "start": 0}) == [0, 6, 12, 18]
    assert scenario({"at": {"every": 6}, "duration": "4 iterations"}).timeline()[-1] == Window(0, 18, 20)


@given(st.integers(1, 6), st.integers(1, 5), st.integers(0, 10**6), st.integers(0, 40))
def test_random_bursts_fit_without_overlap(count: int, duration: int, seed: int, spare: int) -> None:
    iterations = count * duration + spare
    windows = scenario(
        {"at": {"random": count, "seed": seed}, "duration": f"{duration} iterations"}, iterations=iterations
    ).timeline()
    assert len(windows) == count
    assert all(w.stop - w.start == duration and w.stop <= iterations for w in windows)
    assert all(a.stop <= b.start for a, b in pairwise(windows))


def test_random_draw_is_the_same_for_ever() -> None:
    # Literal values: a change of the draw would silently move the bursts of published runs.
    assert starts({"random": 3, "seed": 7}) == [6, 8, 10]
    assert starts({"random": 3, "seed": 8}) != [6, 8, 10]


def test_links_of_an_event() -> None:
    all_up, some_both = scenario({}, {"selector": ["w3", "w1"], "direction": "both", "at": {"iteration": 7}}).events
    topology = scenario().topology
    assert all_up.links(topology) == [("w1", "to_server"), ("w2", "to_server"), ("w3", "to_server")]
    assert some_both.links(topology) == [
        ("w3", "to_server"),
        ("w3", "to_worker"),
        ("w1", "to_server"),
        ("w1", "to_worker"),
    ]


def test_overlap_counts_on_the_same_link_and_direction_only() -> None:
    scenario({"selector": ["w1"]}, {"selector": ["w2"]})
    scenario({"direction": "to_server"}, {"direction": "to_worker"})
    scenario({"duration": "2 iterations"}, {"at": {"iteration": 6}})
    with pytest.raises(ValidationError, match=r"overlaps events.0 on the link of w2 to_worker at iteration 4"):
        scenario({"direction": "both"}, {"selector": ["w2"], "direction": "to_worker"})


def test_model_chooses_its_data_set() -> None:
    assert scenario().workload.dataset == "digits"
    assert load("efficientnet").workload.dataset == "auto"


@pytest.mark.parametrize("pacing", ["share", "none", "{fixed: 300mbit}"])
def test_resolved_scenario_comes_back_from_json(pacing: str) -> None:
    resolved = load("periodic-straggler", overrides=[f"transports.dblp.pacing={pacing}", "topology.link.latency=1.5ms"])
    stored = json.loads(json.dumps(resolved.model_dump(mode="json")))
    assert Scenario.from_resolved(copy.deepcopy(stored)) == resolved
    assert stored["transports"]["mlt"]["tolerance"] == {"policy": "fixed", "p": 0.008}


def test_broken_resolved_scenario_is_a_scenario_error() -> None:
    stored = scenario({}).model_dump(mode="json")
    stored["events"][0]["loss"] = 70
    with pytest.raises(ScenarioError, match=r"resolved scenario: events.0.loss: 7000% is not between 0% and 100%"):
        Scenario.from_resolved(stored)


def test_scenarios_are_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        scenario().topology.workers = 4
