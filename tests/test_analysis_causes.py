"""Bursts compared by their cause, on synthetic runs in which the second burst is cross traffic."""

from __future__ import annotations

import json
from pathlib import Path

import analysis_tree as tree
import pytest

from analysis import causes, conditions, metrics, report, theory
from analysis.load import Results, load

NAME = "mine"


def with_cross_traffic(root: Path, dropped: int, **changes: object) -> Results:
    """DBLP and MLT with a burst of injected loss and one at a queue, which has dropped so many packets by its end."""
    for transport in tree.PAPER:
        folder = tree.write_run(root, NAME, transport, bursts=tree.BURSTS, **changes)
        lines = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
        for line in lines:
            line["queues"] = [{"interface": "s1-srv", "dropped": 0}]
            if line.get("event") == 1:
                ways = [[worker, "to_server"] for worker in ("w1", "w2", "w3")]
                line |= {"action": "traffic", "loss": 0.0, "links": [["srv", "to_server"]], "channels": ways}
                line["sent"] = {"x1 to srv": {"datagrams": 70 if line["kind"] == "burst_start" else 1070, "bytes": 0}}
            if line["kind"] == "end" or (line.get("event") == 1 and line["kind"] == "burst_stop"):
                line["queues"][0]["dropped"] = dropped
        (folder / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return load(root)


def test_each_cause_has_its_loss_and_its_speedup(tmp_path: Path) -> None:
    results = with_cross_traffic(tmp_path, 100_000)
    rows = causes.comparison(results, metrics.measures(results), NAME).set_index(["Cause", "Transport"])
    assert list(dict.fromkeys(rows.index.get_level_values("Cause"))) == ["no burst", "70% loss", "traffic"]
    for cause in ("70% loss", "traffic"):  # the same law of loss behind both
        for transport, frames in (("dblp", theory.frames_sent(tree.HIGH, tree.LOSS)),
                                  ("mlt", theory.frames_sent(tree.LOW, tree.LOSS))):
            row = rows.loc[cause, transport]
            assert float(row["Frames lost"].rstrip("%")) == pytest.approx(70, abs=1)
            assert float(row["Frames sent / model"]) == pytest.approx(frames, abs=0.1)
        assert float(rows.loc[(cause, "dblp"), "Speedup of dblp"].rstrip(" x")) == pytest.approx(1.7, abs=0.2)


def test_a_burst_in_the_clr_is_not_compared(tmp_path: Path) -> None:
    results = with_cross_traffic(tmp_path, 100_000, clr=((0, 12), (50, 60)))
    frame = causes.by_cause(results, metrics.measures(results), NAME)
    assert list(frame.loc[frame["cause"] == "traffic", "transport"]) == ["mlt"]


@pytest.mark.parametrize(("dropped", "holds"), [(100_000, "yes"), (5, "no")])
def test_frames_lost_in_cross_traffic_must_be_among_the_queue_s_drops(tmp_path: Path, dropped: int, holds: str) -> None:
    results = with_cross_traffic(tmp_path, dropped)
    table = conditions.conditions(results, metrics.measures(results))
    rows = table[table["Condition"].str.startswith("Frames lost in cross traffic, burst 2")]
    assert list(rows["Holds"]) == [holds, holds]
    assert rows["Measured"].str.contains("beside them 1,000 datagrams of cross traffic").all()


def test_the_report_shows_the_comparison_where_there_is_one(tmp_path: Path) -> None:
    with_cross_traffic(tmp_path / "both", 100_000)
    text = report.write([tmp_path / "both"], tmp_path / "out").markdown.read_text()
    assert f"](causes-{NAME}.png)" in text
    assert "| traffic | dblp | 1 |" in text
