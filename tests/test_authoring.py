"""The console program's commands that need no network and train nothing."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import matplotlib.image
import pytest

from scenarios import load
from testbed import cli, runner
from testbed.results import ResultsError, RunFolder


@pytest.fixture
def dblp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Runs a command line in an empty folder; gives status, standard output and standard error."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["dblp", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return (ended.value.code or 0, *capsys.readouterr())

    return run


def test_new_scenario_is_ready_to_run_and_never_overwrites(dblp, tmp_path: Path) -> None:
    status, out, _ = dblp("new-scenario", "mine", "--from", "periodic-straggler")
    assert status == 0
    assert "dblp check mine.yaml" in out
    assert load(tmp_path / "mine.yaml").timeline() == load("periodic-straggler").timeline()
    text = (tmp_path / "mine.yaml").read_text()
    rules = text.splitlines()[0].removeprefix("# yaml-language-server: $schema=")
    jsonschema.Draft202012Validator.check_schema(json.loads((tmp_path / rules).read_text()))
    (tmp_path / "mine.yaml").write_text(text + "# changed\n")
    status, _, err = dblp("new-scenario", "mine")
    assert status == 2
    assert "mine.yaml exists" in err
    assert (tmp_path / "mine.yaml").read_text().endswith("# changed\n")


def test_new_scenario_refuses_before_it_writes(dblp, tmp_path: Path) -> None:
    assert dblp("new-scenario", "Mine")[0] == 2
    assert dblp("new-scenario", "mine", "--from", "nothing")[0] == 2
    assert "no/x.yaml" not in dblp("new-scenario", "mine", "--out", "no/x.yaml")[1]
    assert list(tmp_path.iterdir()) == []


def test_schema_goes_into_a_file(dblp, tmp_path: Path) -> None:
    assert dblp("schema", "--out", "rules.json")[:2] == (0, "")
    assert json.loads((tmp_path / "rules.json").read_text()) == json.loads(dblp("schema")[1])


def test_check_says_a_line_for_each_and_fails_when_one_is_wrong(dblp, tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "good.yaml").write_text("extends: examples/demo\n")
    assert dblp("check", "s/good.yaml")[0] == 0
    (tmp_path / "s" / "bad.yaml").write_text("extends: examples/demo\nworkload:\n  iteration: 3\n")
    status, out, _ = dblp("check", "s")
    assert status == 2
    bad, good, total = out.splitlines()
    assert bad.startswith("s/bad.yaml:3: workload.iteration: unknown key")
    assert good.startswith("ok s/good.yaml: 16 iterations")
    assert total == "2 scenarios, 1 wrong"
    said = json.loads(dblp("check", "s", "--json")[1])
    assert [each["ok"] for each in said] == [False, True]
    assert said[0]["problems"][0]["where"] == "s/bad.yaml:3"
    assert said[1]["lanes"][0] == {
        "link": "w1 to_server",
        "bars": [{"event": 0, "label": "loss 70%", "start": 10, "stop": 11, "timed": False}],
    }


def test_check_draws_one_in_the_terminal_and_many_into_a_folder(dblp, tmp_path: Path) -> None:
    _, out, _ = dblp("check", "examples/demo")
    assert "w3 to_server" in out
    assert "█" in out
    status, out, _ = dblp("check", "examples/demo", "paper/efficientnet-microburst", "--timeline", "pictures")
    assert status == 0
    assert "█" not in out
    names = {path.name for path in (tmp_path / "pictures").iterdir()}
    assert names == {"demo.png", "efficientnet-microburst.png"}
    assert dblp("check", "efficientnet-microburst", "--profile", "laptop", "--timeline", "one.png")[0] == 0
    assert matplotlib.image.imread(tmp_path / "one.png").std() > 0.02


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("examples/demo", "examples/random-broadcast", "--timeline", "a.png"), "need a folder"),
        (("examples/demo", "--timeline", "a.gif"), "pictures are written as .png, .svg, .pdf"),
        (("examples/demo", "demo.yaml", "--timeline", "a"), "same name"),
        (("empty",), "no scenario files"),
    ],
)
def test_check_refuses(dblp, tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "demo.yaml").write_text("extends: examples/demo\n")
    status, _, err = dblp("check", *arguments)
    assert status == 2
    assert message in err


def complete(path: Path, profile: str | None) -> None:
    folder = RunFolder(path)
    folder.create(False, profile=profile)
    folder.update(status="complete")


def test_run_refuses_before_the_first_run_when_a_later_folder_is_taken(dblp, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(runner, "run_job", lambda *_: pytest.fail("a run has started"))
    complete(tmp_path / "results" / "efficientnet" / "mlt-s1", "paper")
    status, _, err = dblp("run", "examples/demo", "efficientnet", "--profile", "laptop", "--engine", "local")
    assert status == 2
    assert "unknown profile 'laptop'" in err     # demo has none; nothing has started either
    status, _, err = dblp("run", "efficientnet", "--profile", "laptop", "--engine", "local")
    assert status == 2
    assert "results/efficientnet/mlt-s1 holds a complete run with profile 'paper'" in err.replace("\n", " ")
    assert "this one would be with profile 'laptop'" in err.replace("\n", " ")
    assert not (tmp_path / "results" / "efficientnet" / "dblp-s1").exists()


def test_all_taken_folders_are_named_and_overwrite_takes_them(tmp_path: Path) -> None:
    scenario = load("efficientnet", "laptop")
    todo = runner.jobs(scenario, tmp_path)
    for job in todo:
        complete(job.path, "laptop")
    with pytest.raises(ResultsError, match="complete run") as refused:
        runner.refuse_taken_folders(todo, overwrite=False)
    lines = str(refused.value).splitlines()
    assert len(lines) == 2
    assert "profile" not in lines[0]
    runner.refuse_taken_folders(todo, overwrite=True)
    RunFolder(todo[0].path).update(status="failed")
    RunFolder(todo[1].path).update(status="interrupted")
    runner.refuse_taken_folders(todo, overwrite=False)


def test_two_scenarios_of_one_name_do_not_share_folders(tmp_path: Path) -> None:
    twice = [*runner.jobs(load("examples/demo"), tmp_path), *runner.jobs(load("examples/demo"), tmp_path)]
    with pytest.raises(ResultsError, match="two of the scenarios are named 'demo'"):
        runner.refuse_taken_folders(twice, overwrite=True)
