"""Loading: merging, profiles, --set, and the error that each kind of mistake gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from scenarios import ScenarioError, load

BASE = """\
name: mine
topology: {workers: 3, link: {rate: 1gbit}}
workload:
  model: efficientnet_b0
  batch_size: 4
  iterations: 100
  iterations_per_epoch: 10
  optimizer: {lr: 1e-3}
transports:
  dblp:
    tolerance: {policy: phase_aware, low: 0.8%, high: 40.8%, eta: 0.5, frequency: 10}
  mlt:
    tolerance: {policy: fixed, p: 0.8%}
events:
  - action: loss
    loss: 70%
    at: {iteration: 99}
    duration: 1 iteration
profiles:
  short:
    workload: {iterations: 10}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, so that errors name files as `mine.yaml`."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(old: str = "", new: str = "", name: str = "mine.yaml") -> str:
    """The base scenario with one replacement, as a file; its name."""
    assert BASE.count(old) == 1 or not old
    Path(name).write_text(BASE.replace(old, new) if old else BASE)
    return name


def error(source: str | Path, profile: str | None = None, *overrides: str) -> str:
    with pytest.raises(ScenarioError) as caught:
        load(source, profile, overrides)
    return str(caught.value)


# What loading does


def test_exponents_without_a_dot_are_numbers() -> None:
    # YAML 1.1 reads 1e-3 as a string.
    assert load(write()).workload.optimizer.lr == 1e-3


def test_extends_merges_mappings_and_replaces_lists(folder: Path) -> None:
    write(name="base.yaml")
    (folder / "sub").mkdir()
    Path("sub/mine.yaml").write_text("extends: ../base.yaml\nworkload: {batch_size: 8}\nevents: []\n")
    scenario = load("sub/mine.yaml")
    assert (scenario.name, scenario.workload.batch_size, scenario.workload.iterations) == ("mine", 8, 100)
    assert scenario.events == []


def test_extends_takes_a_catalogue_name() -> None:
    Path("mine.yaml").write_text("extends: efficientnet-microburst\nname: mine\n")
    assert len(load("mine.yaml").events) == 2


def test_another_tolerance_policy_replaces_the_one_below() -> None:
    write(name="base.yaml")
    Path("mine.yaml").write_text("extends: base.yaml\ntransports: {dblp: {tolerance: {policy: reliable}}}\n")
    assert load("mine.yaml").transports["dblp"].tolerance.policy == "reliable"


@pytest.mark.parametrize(
    ("at", "duration", "moved"),
    [
        ("{iteration: 33}", "1 iteration", [3]),
        ("{iteration: 35}", "1 iteration", [4]),
        ("{iteration: 99}", "1 iteration", [9]),  # rounding alone would give 10, past the end
        ("{iteration: 95}", "5 iterations", [5]),
        ("{every: 30, start: 10}", "1 iteration", [1, 4, 7]),
        ("{every: 10}", "3 iterations", [3, 6, 9]),  # not more often than they last
    ],
)
def test_profile_keeps_the_relative_place_of_events(at: str, duration: str, moved: list[int]) -> None:
    write("at: {iteration: 99}\n    duration: 1 iteration", f"at: {at}\n    duration: {duration}")
    scenario = load("mine.yaml", "short")
    assert [window.start for window in scenario.timeline()] == moved
    assert scenario.profile == "short"


def test_events_of_a_profile_stay_where_they_are() -> None:
    event = "[{action: loss, loss: 5%, at: {iteration: 2}, duration: 1 iteration}]"
    write("workload: {iterations: 10}", f"workload: {{iterations: 10}}\n    events: {event}")
    assert [window.start for window in load("mine.yaml", "short").timeline()] == [2]


def test_override_is_applied_last_and_as_it_stands() -> None:
    overrides = [
        "workload.iterations=200",
        "events.0.loss=50%",
        "transports.dblp.tolerance.high=30%",
        "workload.optimizer.momentum=0.5",
        "topology.link={rate: 500mbit, limit: 50}",
    ]
    scenario = load(write(), "short", overrides)
    assert scenario.events[0].at.iteration == 9  # placed for the 10 iterations of the profile
    assert scenario.events[0].loss == 0.5
    assert scenario.transports["dblp"].tolerance.high == 0.3
    assert scenario.workload.optimizer.momentum == 0.5
    assert (scenario.topology.link.rate, scenario.topology.link.limit) == (500_000_000, 50)


def test_override_reaches_one_of_two_aliased_values() -> None:
    write("    duration: 1 iteration\n", "    duration: 1 iteration\n  - {<<: &e {loss: 1%}, " + SECOND + "}\n")
    assert [event.loss for event in load("mine.yaml", None, ["events.0.loss=2%"]).events] == [0.02, 0.01]


SECOND = "action: loss, at: {iteration: 5}, duration: 1 iteration"


# Mistakes


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("loss: 70%", "losss: 70%", "mine.yaml:16: events.0.losss: unknown key 'losss'; did you mean 'loss'?"),
        ("workers: 3", "wrokers: 3", "mine.yaml:2: topology.wrokers: unknown key 'wrokers'; did you mean 'workers'?"),
        ("name: mine", "extend: x\nname: mine", "mine.yaml:1: extend: unknown key 'extend'; did you mean 'extends'?"),
        (
            "name: mine",
            "profile: x\nname: mine",
            "mine.yaml:1: profile: unknown key 'profile'; did you mean 'profiles'?",
        ),
        ("rate: 1gbit", "rate: 1gbps", "mine.yaml:2: topology.link.rate: unknown unit in '1gbps'; a rate takes bit,"),
        ("loss: 70%", "loss: 0.7", "mine.yaml:16: events.0.loss: 0.7 has no unit; write a percentage such as '70%'"),
        ("loss: 70%", "loss: 170%", "mine.yaml:16: events.0.loss: 170% is not between 0% and 100%"),
        ("p: 0.8%", "p: 100%", "mine.yaml:13: transports.mlt.tolerance.p: should be below 100%"),
        (
            "duration: 1 iteration",
            "duration: 1",
            "mine.yaml:18: events.0.duration: 1 has no unit; write a duration such",
        ),
        (
            "iteration: 99}",
            "iteration: 100}",
            "mine.yaml:17: events.0.at: the burst runs to iteration 100, but the last",
        ),
        (
            "{iteration: 99}",
            "{every: 9, start: 100}",
            "mine.yaml:17: events.0.at: the burst runs to iteration 100, but",
        ),
        (
            "{iteration: 99}",
            "{random: 101, seed: 1}",
            "mine.yaml:17: events.0.at: the burst runs to iteration 100, but",
        ),
        ("{iteration: 99}", "{tiem: 3s}", "mine.yaml:17: events.0.at: write {iteration: 279}, {time: 30s}, {every:"),
        ("{iteration: 99}", "{time: 3s}", "mine.yaml:18: events.0.duration: an event at a time lasts a time: write"),
        ("action: loss", "action: los", "mine.yaml:15: events.0.action: 'los' is not 'loss', 'delay',"),
        ("loss: 70%\n", "correlation: 5%\n", "mine.yaml:15: events.0: required key 'loss' is missing (or 'gemodel'"),
        (
            "loss: 70%\n",
            "loss: 70%\n    gemodel: {p: 1%, r: 10%}\n",
            "mine.yaml:17: events.0.gemodel: 'loss' says already how datagrams are lost",
        ),
        (
            "action: loss\n    loss: 70%\n",
            "action: partition\n",
            "mine.yaml:17: events.0.duration: no iteration ends while nothing passes; give it a time, such as '500ms'",
        ),
        ("1 iteration", "5 epochs", "mine.yaml:18: events.0.duration: unknown unit in '5 epochs'; a duration takes"),
        ("1 iteration", "0ms", "mine.yaml:18: events.0.duration: '0ms' should be above 0"),
        (
            "{iteration: 99}",
            "{every: 5, strat: 1}",
            "mine.yaml:17: events.0.at.strat: unknown key 'strat'; did you mean",
        ),
        (
            "{iteration: 99}",
            "{every: 0}",
            "mine.yaml:17: events.0.at.every: 0 should be above 0",
        ),
        ("{iteration: 99}", "{random: 2}", "mine.yaml:17: events.0.at.seed: required key 'seed' is missing"),
        (
            "policy: fixed",
            "policy: fixd",
            "mine.yaml:13: transports.mlt.tolerance.policy: 'fixd' is not 'fixed', 'phase_",
        ),
        ("policy: fixed, ", "", "mine.yaml:13: transports.mlt.tolerance: required key 'policy' is missing"),
        ("low: 0.8%", "low: 50%", "mine.yaml:11: transports.dblp.tolerance.low: should be at most 'high'"),
        (
            "model: efficientnet_b0",
            "model: efficientnet",
            "mine.yaml:4: workload.model: 'efficientnet' is not 'efficient",
        ),
        (
            "model: efficientnet_b0",
            "model: digits_cnn\n  dataset: auto",
            "mine.yaml:5: workload.dataset: digits_cnn trains",
        ),
        (
            "batch_size: 4",
            "batch_size: four",
            "mine.yaml:5: workload.batch_size: should be a valid integer, not 'four'",
        ),
        ("  iterations: 100\n", "", "mine.yaml:3: workload.iterations: required key 'iterations' is missing"),
        ("rate: 1gbit", "rate: 1gbit, jitter: 1ms", "mine.yaml:2: topology.link.jitter: should be at most the latency"),
        ("{lr: 1e-3}", "{lr: 1, nesterov: true}", "mine.yaml:8: workload.optimizer.nesterov: needs a momentum above 0"),
        ("{lr: 1e-3}", "adam", "mine.yaml:8: workload.optimizer: expected a mapping, not 'adam'"),
        ("  mlt:", "  My MLT:", "mine.yaml:12: transports.My MLT: 'My MLT' should start with a letter or digit"),
        ("name: mine", "name: ../mine", "mine.yaml:1: name: '../mine' should start with a letter or digit"),
        ("name: mine", "name: mine\nseeds: [1, 1]", "mine.yaml:2: seeds: each seed is run once"),
        (
            "name: mine",
            "name: mine\nname: yours",
            "mine.yaml:2: not valid YAML: duplicate key 'name', first used in line 1",
        ),
        ("{workers: 3", "{workers: 3]", "mine.yaml:2: not valid YAML: expected ',' or '}'"),
        ("name: mine", "name: &a [*a]", "mine.yaml:1: not valid YAML: an alias to a value around itself"),
    ],
)
def test_mistake_is_named_with_its_line_and_remedy(old: str, new: str, message: str) -> None:
    assert error(write(old, new)).startswith(message)


@pytest.mark.parametrize(
    ("pacing", "message"),
    [
        ("shared", "'shared' is not 'share', 'none' or 'fixed'; did you mean 'share'?"),
        ("fixed", "write 'share', 'none' or {fixed: 300mbit}"),
        ("{fixed: 300}", "300 has no unit; write a rate such as '1gbit'"),
    ],
)
def test_bad_pacing(pacing: str, message: str) -> None:
    write("  mlt:", f"  mlt:\n    pacing: {pacing}")
    assert error("mine.yaml") == f"mine.yaml:13: transports.mlt.pacing: {message}"


@pytest.mark.parametrize(
    ("selector", "message"),
    [
        ("[w1, w4]", "mine.yaml:15: events.0.selector.1: unknown host 'w4'; valid: w1, w2, w3, srv"),
        ("[srv-1]", "mine.yaml:15: events.0.selector.0: unknown host 'srv-1'; did you mean 'srv'?"),
        (
            "w1",
            "mine.yaml:15: events.0.selector: write 'workers', 'server', 'all', 'trunks', or a list of different "
            "names such as [w1, w3] or [leaf1-spine1], not 'w1'",
        ),
    ],
)
def test_unknown_host(selector: str, message: str) -> None:
    assert error(write("  - action: loss", f"  - selector: {selector}\n    action: loss")) == message


def test_overlapping_bursts() -> None:
    write(
        "    duration: 1 iteration\n", "    duration: 1 iteration\n  - {loss: 1%, " + SECOND.replace("5", "99") + "}\n"
    )
    assert error("mine.yaml").startswith("mine.yaml:19: events.1.at: overlaps events.0 on the link of w1 to_server at")


def test_burst_that_overlaps_its_own_repetition() -> None:
    write("{iteration: 99}\n    duration: 1 iteration", "{every: 2}\n    duration: 3 iterations")
    assert error("mine.yaml") == (
        "mine.yaml:18: events.0.duration: a burst of 3 iterations every 2 overlaps the next one"
    )


def test_all_mistakes_are_reported_at_once() -> None:
    write("rate: 1gbit", "rate: 1")
    problems = error("mine.yaml", None, "events.0.loss=7", "workload.batch_size=0").splitlines()
    assert [line.split(": ")[0] for line in problems] == [
        "mine.yaml:2",
        "--set workload.batch_size=0",
        "--set events.0.loss=7",
    ]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("transports.dbpl.tolerance.high=30%", "unknown transport 'dbpl'; did you mean 'dblp'?"),
        ("events.1.loss=30%", "no entry 1 in events; events has 1 entry, counted from 0"),
        ("events.first.loss=30%", "no entry first in events; events has 1 entry, counted from 0"),
        ("topology.link.rate.max=1gbit", "topology.link.rate is '1gbit', which has no 'max'"),
        ("workload.iterations", "write dotted.key=value, such as workload.iterations=20"),
        ("seeds=[1", "the value '[1' is not valid YAML"),
        ("extends=other.yaml", "'extends' cannot be set; change the scenario file"),
        ("wrkload.iterations=20", "wrkload: unknown key 'wrkload'; did you mean 'workload'?"),
    ],
)
def test_bad_override(override: str, message: str) -> None:
    assert error(write(), None, override).endswith(message)
    assert "--set " + override in error("mine.yaml", None, override) or "wrkload" in message


def test_unknown_profile() -> None:
    assert error(write(), "shrt") == "mine.yaml:19: profiles: unknown profile 'shrt'; did you mean 'short'?"
    Path("plain.yaml").write_text(BASE.split("profiles:")[0])
    assert error("plain.yaml", "laptop") == "plain.yaml: profiles: unknown profile 'laptop'; valid: none"


def test_profile_cannot_extend() -> None:
    write("workload: {iterations: 10}", "extends: other.yaml")
    assert error("mine.yaml", "short").startswith("mine.yaml:21: extends: a profile cannot have this")


def test_error_in_the_extended_file_names_that_file() -> None:
    write("loss: 70%", "loss: 7", name="base.yaml")
    Path("mine.yaml").write_text("extends: base.yaml\nworkload: {batch_size: -1}\n")
    lines = error("mine.yaml").splitlines()
    assert lines[0].startswith("mine.yaml:2: workload.batch_size: should be greater than or equal to 1")
    assert lines[1].startswith("base.yaml:16: events.0.loss: 7 has no unit")


def test_extends_cycle_and_missing_base() -> None:
    Path("a.yaml").write_text("name: a\nextends: b.yaml\n")
    Path("b.yaml").write_text("extends: a.yaml\n")
    assert error("a.yaml") == "b.yaml:1: extends: a file cannot extend itself: a.yaml -> b.yaml -> a.yaml"
    Path("c.yaml").write_text("name: c\nextends: nowhere.yaml\n")
    assert error("c.yaml").startswith("c.yaml:2: extends: no such file")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("nowhere.yaml", "nowhere.yaml: no such file; `dblp scenarios` lists the catalogue"),
        (
            "efficientnet-microbrust",
            "efficientnet-microbrust: no such file or scenario of the catalogue; "
            "did you mean 'efficientnet-microburst'?",
        ),
    ],
)
def test_missing_file(source: str, message: str) -> None:
    assert error(source) == message
    assert error(Path(source)) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "x.yaml: expected a mapping (name:, topology:, ...), found nothing"),
        (b"- 1", "x.yaml: expected a mapping (name:, topology:, ...), found a list"),
        (b"name: \xff", "x.yaml: cannot be read: "),
    ],
)
def test_file_that_is_no_scenario(text: bytes, message: str) -> None:
    Path("x.yaml").write_bytes(text)
    assert error("x.yaml").startswith(message)
