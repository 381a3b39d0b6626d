"""Timelines, links and round trips of resolved scenarios."""

from __future__ import annotations

import copy
import json
import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from scenarios import Scenario, ScenarioError, Spell, Window, json_schema, load
from scenarios.events import LossEvent

EVENT = {"action": "loss", "loss": "70%", "at": {"iteration": 4}, "duration": "1 iteration"}


def scenario(*events: dict[str, Any], iterations: int = 20, workers: int = 3) -> Scenario:
    return scenario_of(*(EVENT | event for event in events), iterations=iterations, workers=workers)


def scenario_of(*events: dict[str, Any], iterations: int = 20, workers: int = 3) -> Scenario:
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
            "events": list(events),
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


@pytest.mark.parametrize(
    ("name", "datasets", "image_size", "context"),
    [
        ("efficientnet", ("cifar10", "fashion_mnist"), None, None),
        ("resnet50", ("cifar100", "fashion_mnist"), None, None),
        ("alexnet", ("cifar100", "fashion_mnist"), 63, None),
        ("gpt2", ("wikitext2", "bible"), None, 512),
    ],
)
def test_a_model_brings_its_data_its_stand_in_and_its_sizes(
    name: str, datasets: tuple[str, ...], image_size: int | None, context: int | None
) -> None:
    workload = load(name).workload
    assert (workload.datasets, workload.image_size, workload.context) == (datasets, image_size, context)
    assert load(name, overrides=[f"workload.dataset={datasets[1]}"]).workload.datasets == datasets[1:]


@pytest.mark.parametrize(
    ("name", "override", "message"),
    [
        ("alexnet", "image_size=32", "workload.image_size: alexnet needs 63 pixels at least, not 32"),
        ("alexnet", "image_size=null", "workload.image_size: alexnet needs 63 pixels at least"),
        ("alexnet", "context=64", "workload.context: alexnet reads images"),
        ("gpt2", "image_size=64", "workload.image_size: gpt2_small reads text"),
        ("gpt2", "context=1025", "workload.context: gpt2_small reads 1 to 1024 tokens, not 1025"),
        ("gpt2", "context=null", "workload.context: gpt2_small reads 1 to 1024 tokens"),
        ("gpt2", "dataset=cifar10", "gpt2_small trains on 'auto', 'wikitext2' or 'bible', not 'cifar10'"),
        ("resnet50", "dataset=bible", "resnet50 trains on 'auto', 'cifar10', 'cifar100' or 'fashion_mnist'"),
        ("gpt2", "optimizer.momentum=0.9", "workload.optimizer.momentum: adamw keeps its own moments"),
    ],
)
def test_what_does_not_fit_the_model_is_refused(name: str, override: str, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        load(name, overrides=[f"workload.{override}"])


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


def test_the_json_schema_proposes_selectors_and_only_durations_that_an_event_can_have() -> None:
    events = {name: keys["properties"] for name, keys in json_schema()["$defs"].items() if name.endswith("Event")}
    for name, keys in events.items():
        _, names = keys["selector"]["anyOf"]
        assert names["examples"], name
        assert (["leaf1-spine1"] in names["examples"]) == (name not in ("TrafficEvent", "StopEvent", "KillEvent"))
        if name in ("PartitionEvent", "LinkDownEvent", "StopEvent"):
            assert keys["duration"]["examples"] == ["500ms"]


# Events of all kinds

AT = {"at": {"iteration": 4}, "duration": "1 iteration"}
EVENTS = [
    {"action": "loss", "loss": "25%", "correlation": "50%"} | AT,
    {"action": "loss", "gemodel": {"p": "1%", "r": "10%", "bad": "90%"}} | AT,
    {"action": "loss", "state": {"p13": "1%", "p31": "10%", "p32": "5%", "p23": "80%"}} | AT,
    {"action": "delay", "latency": "20ms", "jitter": "5ms", "distribution": "normal"} | AT,
    {"action": "reorder", "reorder": "25%", "latency": "1ms", "gap": 5} | AT,
    {"action": "duplicate", "duplicate": "5%"} | AT,
    {"action": "corrupt", "corrupt": "1%", "selector": "all"} | AT,
    {"action": "rate", "rate": "100mbit", "selector": ["srv"]} | AT,
    {"action": "partition"} | AT | {"duration": "500ms"},
    {"action": "link_down", "selector": ["w2"], "at": {"time": "1.5s"}, "duration": "0.25s"},
    {"action": "traffic", "kind": "tcp", "flows": 4} | AT,
    {"action": "stop", "selector": ["w2"], "at": {"every": 7}, "duration": "2s"},
    {"action": "kill", "selector": ["w2"], "at": {"random": 1, "seed": 1}},
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event["action"])
def test_each_action_survives_run_json(event: dict[str, Any]) -> None:
    plan = scenario_of(event)
    stored = json.loads(json.dumps(plan.model_dump(mode="json")))
    assert Scenario.from_resolved(stored) == plan
    assert bool(plan.spells()) == ("iteration" not in event.get("duration", ""))
    assert bool(plan.timeline()) != bool(plan.spells())


def test_what_two_events_may_do_at_once() -> None:
    loss, delay, reorder = EVENTS[0], EVENTS[3], EVENTS[4]
    scenario_of(loss, delay | {"protocol": "udp"}, EVENTS[5])
    with pytest.raises(ValidationError, match=r"overlaps events.0 on the link of w1 to_server"):
        scenario_of(delay, reorder)
    stop = {"action": "stop", "selector": ["w1"], "duration": "2s"}
    scenario_of(stop | {"at": {"time": "1s"}}, stop | {"at": {"time": "3s"}})
    with pytest.raises(ValidationError, match=r"overlaps events.0 on w1 at 2 s"):
        scenario_of(stop | {"at": {"time": "1s"}}, stop | {"at": {"time": "2s"}})


def test_spells_begin_with_an_iteration_or_by_the_clock() -> None:
    plan = scenario_of(EVENTS[9], EVENTS[11])
    assert plan.spells() == [Spell(1, 7, None, 2.0), Spell(1, 14, None, 2.0), Spell(0, None, 1.5, 0.25)]


def test_every_may_be_a_time() -> None:
    first = {"at": {"every": "5s"}, "duration": "500ms", "selector": ["w1"]}
    plan = scenario(first, {"at": {"every": "8s", "start": "0s"}, "duration": "1s", "selector": ["w2"]})
    assert plan.spells() == [Spell(1, None, 0.0, 1.0, 8.0), Spell(0, None, 5.0, 0.5, 5.0)]
    assert plan.timeline() == []
    assert Scenario.from_resolved(json.loads(json.dumps(plan.model_dump(mode="json")))) == plan


@pytest.mark.parametrize(
    ("event", "message"),
    [
        ({"at": {"every": "5s"}}, r"duration: an event at a time lasts a time"),
        ({"at": {"every": "5s"}, "duration": "6s"}, r"duration: a burst of 6s every 5s overlaps the next one"),
        ({"at": {"every": "5s", "start": 3}, "duration": "1s"}, r"start: 3 does not go with every 5s; write a time"),
        ({"at": {"every": 5, "start": "3s"}}, r"start: 3s does not go with every 5; write a number of iterations"),
        ({"at": {"every": 0}}, r"every: 0 should be above 0"),
        ({"at": {"every": "0s"}, "duration": "1s"}, r"every: 0s should be above 0"),
        ({"at": {"every": 2.5}}, r"2.5 is neither a number of iterations, such as 93, nor a time, such as '5s'"),
    ],
)
def test_periods_that_make_no_sense(event: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        scenario(event)


@pytest.mark.parametrize(
    ("one", "other", "meeting"),
    [
        ({"every": "5s"}, {"time": "15.2s"}, 15.2),
        ({"every": "5s"}, {"time": "15.5s"}, None),
        ({"every": "5s"}, {"time": "14.6s"}, 15),
        ({"time": "15.2s"}, {"every": "5s"}, 15.2),
        ({"every": "5s"}, {"every": "5s", "start": "2s"}, None),
        ({"every": "5s"}, {"every": "7s", "start": "1s"}, 15),     # of 7 n + 1: 1, 8, 15
        ({"every": "4s"}, {"every": "6s", "start": "1s"}, None),
        ({"every": "5s"}, {"time": "1s"}, None),
    ],
)
def test_bursts_by_the_clock_that_meet(one: dict[str, Any], other: dict[str, Any], meeting: float | None) -> None:
    events = [{"at": at, "duration": "500ms"} for at in (one, other)]
    if meeting is None:
        scenario(*events)
        return
    with pytest.raises(ValidationError, match=rf"overlaps events.0 on the link of w1 to_server at {meeting:g} s"):
        scenario(*events)


def test_an_event_on_the_servers_link_touches_the_gradients_of_all_workers() -> None:
    plan = scenario_of(EVENTS[7], EVENTS[11], EVENTS[10] | {"selector": ["w3"], "at": {"iteration": 9}})
    rate, stop, traffic = (event.channels(plan.topology) for event in plan.events)
    assert set(rate) == {(worker, way) for worker in ("w1", "w2", "w3") for way in ("to_server", "to_worker")}
    assert stop == [("w2", "to_server"), ("w2", "to_worker")]
    assert traffic == [("w3", "to_worker")]


def netem_walk(event: LossEvent, n: int = 400_000) -> float:
    """Share lost by the state machines of net/sched/sch_netem.c, walked here."""
    rng = random.Random(1)
    state, lost, last = 1, 0, 0.5
    for _ in range(n):
        r = rng.random()
        if event.model == "correlated":
            last = r * (1 - event.correlation) + last * event.correlation
            lost += last < event.loss
        elif event.model == "gemodel":
            ge = event.gemodel
            lost += rng.random() < (ge.good if state == 1 else ge.bad)
            state = (2 if r < ge.p else 1) if state == 1 else (1 if r < ge.r else 2)
        else:
            s = event.state
            match state:
                case 1:
                    state = 4 if r < s.p14 else 3 if r < s.p13 + s.p14 else 1
                case 2:
                    state = 3 if r < s.p23 else 2
                case 3:
                    state = 2 if r < s.p32 else 1 if r < s.p31 + s.p32 else 3
                case 4:
                    state = 1
            lost += state in (3, 4)
    return lost / n


@pytest.mark.parametrize("event", [*EVENTS[:3], EVENTS[2] | {"state": EVENTS[2]["state"] | {"p14": "3%"}}])
def test_expected_loss_is_what_the_chain_loses_in_the_long_run(event: dict[str, Any]) -> None:
    loss = scenario_of(event).events[0]
    assert loss.expected_loss == pytest.approx(netem_walk(loss), abs=0.01)
