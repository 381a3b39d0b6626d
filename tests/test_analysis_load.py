"""Reading result folders: what is found, what is refused, what is named."""

from __future__ import annotations

import json
from pathlib import Path

import analysis_tree as tree
import pandas as pd
import pytest

from analysis.load import ResultsError, load


def test_reads_every_run_below_a_folder(tmp_path: Path) -> None:
    results = load(tree.write_tree(tmp_path, seeds=(1, 2)))
    assert len(results.runs) == 8
    assert results.problems == []
    assert len(results.rounds) == 8 * tree.ITERATIONS * 3 * 2
    assert set(results.runs["policy"]) == {"fixed", "phase_aware"}


def test_reads_a_single_run_folder(tmp_path: Path) -> None:
    folder = tree.write_run(tmp_path, "efficientnet", "mlt")
    assert load(folder).runs["path"].tolist() == [folder.resolve()]
    assert len(load([folder, tmp_path]).runs) == 1  # the same folder twice is one run


def test_burst_windows_and_counters_come_from_the_event_log(tmp_path: Path) -> None:
    results = load(tree.write_run(tmp_path, "x", "mlt", bursts=tree.BURSTS))
    assert results.bursts[["burst", "start", "stop", "loss"]].values.tolist() == [[1, 24, 25, 0.7], [2, 56, 57, 0.7]]
    assert results.bursts["links"][0] == [("w1", "to_server"), ("w2", "to_server"), ("w3", "to_server")]
    dropped = results.counters.groupby("burst")["dropped"].sum()
    assert dropped[0] == 0
    assert dropped[1] > 20_000
    sent = results.rounds.query("direction == 'reduce' and iteration == 24")["frames_sent"].sum()
    assert results.counters.query("burst == 1")["seen"].sum() == sent


def test_counters_belong_to_the_windows_open_on_their_link(tmp_path: Path) -> None:
    """Two windows of different links that overlap: what one link drops is not the other's."""
    folder = tree.write_run(tmp_path, "x", "mlt", bursts=tree.BURSTS)

    def line(kind: str, w1: int, w2: int, **more: object) -> dict:
        counters = [{"host": host, "direction": "to_server", "seen": n, "dropped": n // 2}
                    for host, n in (("w1", w1), ("w2", w2))]
        return {"kind": kind, "counters": counters, "queues": []} | more

    links = {1: [["w1", "to_server"]], 2: [["w2", "to_server"]]}
    lines = [
        line("start", 0, 0),
        line("burst_start", 10, 10, event=0, iteration=24, loss=0.5, links=links[1]),
        line("burst_start", 30, 10, event=1, iteration=25, loss=0.5, links=links[2]),
        line("burst_stop", 60, 50, event=0, iteration=26, loss=0.0, links=links[1]),
        line("end", 60, 90),
    ]
    (folder / "events.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    results = load(folder)
    seen = results.counters.groupby(["burst", "host"])["seen"].sum()
    assert (seen[1, "w1"], seen[2, "w2"], seen[0, "w1"], seen[0, "w2"]) == (50, 80, 10, 10)
    assert results.bursts["stop"].tolist() == [26, tree.ITERATIONS]  # the second window never closed
    assert "disagree" in results.problems[0]  # and the rounds' own marks say something else


def test_an_incomplete_run_is_named_and_gives_way_to_a_complete_one(tmp_path: Path) -> None:
    tree.write_run(tmp_path, "efficientnet", "mlt", 1)
    tree.write_run(tmp_path, "efficientnet", "mlt", 2, status="interrupted", done=30)
    tree.write_run(tmp_path, "efficientnet", "dblp", 1, status="failed", done=20, error="w2 disconnected")
    results = load(tmp_path)
    assert "dblp, seed 1: failed (w2 disconnected) after 20 of 80" in results.problems[0]
    assert "mlt, seed 2: interrupted after 30 of 80" in results.problems[1]
    usable = results.usable().runs
    assert list(zip(usable["transport"], usable["seed"], strict=True)) == [("dblp", 1), ("mlt", 1)]
    assert set(results.complete().rounds["transport"]) == {"mlt"}


def test_a_killed_run_may_lack_files_and_half_a_line(tmp_path: Path) -> None:
    folder = tree.write_run(tmp_path, "x", "mlt", bursts=tree.BURSTS, status="running", done=40)
    (folder / "rounds.parquet").write_bytes(b"PAR1 and no footer")
    (folder / "evals.parquet").unlink()
    events = (folder / "events.jsonl").read_text()
    (folder / "events.jsonl").write_text(events[:-20])
    results = load(folder)
    text = "\n".join(results.problems)
    assert "rounds.parquet is cut short" in text
    assert "evals.parquet is missing" in text
    assert "did not end (still running, or killed)" in text
    assert len(results.bursts) == 1


def test_runs_of_one_scenario_with_different_settings_are_named(tmp_path: Path) -> None:
    tree.write_run(tmp_path, "x", "mlt")
    other = tree.scenario("x", (), tree.PAPER)
    other["topology"]["link"]["rate"] = 1e8
    tree.write_run(tmp_path, "x", "dblp", scenario=other)
    assert load(tmp_path).problems == ["x: its runs differ in topology.link.rate, so they can't be compared."]


def _no_run(folder: Path) -> None:
    (folder / "run.json").unlink()


def _bad_json(folder: Path) -> None:
    (folder / "run.json").write_text('{"format": 1,\n broken')


def _new_format(folder: Path) -> None:
    (folder / "run.json").write_text('{"format": 2}')


def _no_transport(folder: Path) -> None:
    run = json.loads((folder / "run.json").read_text())
    del run["transport"]
    (folder / "run.json").write_text(json.dumps(run))


def _no_rounds(folder: Path) -> None:
    (folder / "rounds.parquet").unlink()


def _no_column(folder: Path) -> None:
    pd.read_parquet(folder / "rounds.parquet").drop(columns="passes").to_parquet(folder / "rounds.parquet")


def _half_events(folder: Path) -> None:
    (folder / "events.jsonl").write_text('{"kind": "start", "counters"')


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_no_run, "holds no run .*give a folder that `dblp run SCENARIO` wrote"),
        (_bad_json, "run.json:2: not valid JSON"),
        (_new_format, "run.json: format 2, this version reads 1"),
        (_no_transport, "run.json: the field 'transport' is missing"),
        (_no_rounds, "rounds.parquet: is missing, though the run is marked complete"),
        (_no_column, "rounds.parquet: column passes is missing"),
        (_half_events, "events.jsonl:1: not valid JSON"),
    ],
)
def test_a_broken_complete_run_is_refused(tmp_path: Path, damage, message: str) -> None:
    damage(tree.write_run(tmp_path, "x", "mlt"))
    with pytest.raises(ResultsError, match=message):
        load(tmp_path)


def test_the_same_run_in_two_places_is_refused(tmp_path: Path) -> None:
    for place in ("a", "b"):
        tree.write_run(tmp_path / place, "x", "mlt")
    with pytest.raises(ResultsError, match="both hold scenario x, transport mlt, seed 1"):
        load(tmp_path)


def test_a_path_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match="nowhere: does not exist"):
        load(tmp_path / "nowhere")
