"""Checking files and folders without running them."""

from __future__ import annotations

from pathlib import Path

import pytest

from scenarios import ScenarioError, catalogue, check, find


def write(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


def test_all_of_the_catalogue_is_in_order() -> None:
    for entry in catalogue():
        checked = check(str(entry.path))
        assert checked.problems == ()
        assert checked.scenario.name in entry.name


def test_profiles_are_checked_too_and_named(tmp_path: Path) -> None:
    source = write(tmp_path / "a.yaml", "extends: efficientnet\nprofiles:\n  tiny:\n    workload: {iterations: none}\n")
    checked = check(source)
    assert set(checked.profiles) == {"paper", "laptop", "smoke", "tiny"}
    (problem,) = checked.problems
    assert problem.where.endswith("a.yaml:4")
    assert problem.message.endswith("(with profile tiny)")
    assert check(source, "laptop").problems == ()
    assert check(source, "laptop").scenario.workload.iterations == 160


def test_what_is_wrong_everywhere_is_said_once(tmp_path: Path) -> None:
    source = write(tmp_path / "a.yaml", "extends: efficientnet\ntopology: {link: {rate: 5}, workers: none}\n")
    assert [problem.field for problem in check(source).problems] == ["topology.workers", "topology.link.rate"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("profiles: []\n", "required key 'name' is missing"),
        ("profiles: {laptop: 3}\n", "expected a mapping of changes"),
        ("a: [\n", "not valid YAML"),
        ("- 1\n", "expected a mapping"),
    ],
)
def test_nonsense_is_a_problem_and_no_exception(tmp_path: Path, text: str, message: str) -> None:
    checked = check(write(tmp_path / "a.yaml", text))
    assert any(message in problem.message for problem in checked.problems)


def test_unknown_profile(tmp_path: Path) -> None:
    assert "unknown profile 'laptop'" in check("examples/demo", "laptop").problems[0].message


def test_folders_give_their_scenario_files(tmp_path: Path) -> None:
    inner = [write(tmp_path / name, "") for name in ("a.yaml", "b/c.yml", "b/.hidden/d.yaml", ".e.yaml", "f.json")]
    assert find([str(tmp_path), "examples/demo", inner[0]]) == [inner[0], inner[1], "examples/demo"]
    with pytest.raises(ScenarioError, match="no scenario files"):
        find([str(tmp_path / "b" / ".hidden" / ".."), str(write(tmp_path / "x/y.txt", "") and tmp_path / "x")])


def test_a_wrong_key_hides_no_other_mistake(tmp_path: Path) -> None:
    text = """\
extends: examples/demo
topolgy: {}
workload: {iteration: 3, warmup: none}
transports:
  dblp: {tolerance: {policy: phase_aware, hihg: 3%, eta: -1}, pacing: {fixed: 3}}
events:
  - {action: loss, losss: 3%, at: {iteratio: 3}, duration: 2}
"""
    problems = check(write(tmp_path / "a.yaml", text)).problems
    assert [(problem.where.rpartition(":")[2], problem.field) for problem in problems] == [
        ("2", "topolgy"),
        ("3", "workload.iteration"),
        ("3", "workload.warmup"),
        ("5", "transports.dblp.tolerance.hihg"),
        ("5", "transports.dblp.tolerance.eta"),
        ("5", "transports.dblp.pacing"),
        ("7", "events.0.losss"),
        ("7", "events.0.at"),
        ("7", "events.0.duration"),
    ], "and none of them is a consequence of another"
    assert "write {iteration: 279}" in problems[-2].message
