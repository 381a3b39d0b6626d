"""Cross traffic overflows the queue in front of the server in its burst and at no other time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from console import Dblp, engine_or_skip
from tiny import DOCUMENT

import analysis.load
from analysis import causes, metrics

pytestmark = pytest.mark.root
RUN = Path("runs") / "tiny" / "mlt-s1"
QUEUE, CONTROL = "s1-srv", 60
# Three gradients of 34 frames and the control messages between fit into the queue; cross traffic sends twice what the
# port can pass. The TCP flows stop in the middle of what they would like to send.
EVENTS = """\
events:
  - {action: loss, loss: 50%, at: {iteration: 2}, duration: 1 iteration}
  - {action: traffic, kind: udp, senders: 2, at: {iteration: 4}, duration: 3 iterations}
  - {action: traffic, kind: tcp, senders: 1, flows: 2, at: {iteration: 9}, duration: 1 iteration}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dblp]:
    """The program after its run."""
    engine_or_skip("mininet")
    folder = tmp_path_factory.mktemp("traffic")
    document = DOCUMENT.replace("rate: 20mbit", f"rate: 20mbit, limit: {3 * 34 + CONTROL}")
    one_transport = "".join(line for line in document.splitlines(keepends=True) if "dblp:" not in line)
    (folder / "my.yaml").write_text(one_transport + EVENTS)
    dblp = Dblp(folder, "run", "my.yaml", "--engine", "mininet", "--out", "runs")
    try:
        assert dblp.wait() == 0, dblp.output
        yield dblp
    finally:
        dblp.end()


@pytest.fixture
def results(program: Dblp) -> analysis.load.Results:
    return analysis.load.load(program.folder / RUN)


def test_the_run_completes_and_leaves_nothing(program):
    assert json.loads((program.folder / RUN / "run.json").read_text())["status"] == "complete"
    assert program.left() == ""


def test_the_queue_overflows_in_the_burst_and_at_no_other_time(results):
    drops = results.queues.groupby(["interface", "burst"])["dropped"].sum()
    assert drops[QUEUE, 2] > 0
    assert drops[QUEUE, 0] == drops[QUEUE, 1] == 0
    others = drops.drop(QUEUE)[lambda drops: ~drops.index.get_level_values("interface").str.startswith("x")]
    assert (others == 0).all(), "at a queue that cross traffic does not pass"


def test_what_was_sent_is_on_record(results):
    bursts = results.bursts.set_index("burst")
    drops = results.queues.groupby("burst")["dropped"].sum()
    assert bursts["cross_traffic"][1] == bursts["cross_traffic"][3] == 0, "TCP counts no datagrams"
    assert bursts["cross_traffic"][2] > drops[2] / 2


def test_tcp_flows_sent(program):
    lines = [json.loads(line) for line in (program.folder / RUN / "events.jsonl").read_text().splitlines()]
    stop = next(line for line in lines if line["kind"] == "burst_stop" and line["event"] == 2)
    assert sum(sender["bytes"] for sender in stop["sent"].values()) > 0


def test_every_lost_frame_is_one_of_the_queue_s_drops(results):
    sample = metrics.samples(results).set_index("iteration")
    lost = sample["frames_sent"] - sample["frames_arrived"]
    drops = results.queues.groupby("burst")["dropped"].sum()
    assert 0 <= lost.loc[4:6].sum() <= drops[2]
    # Frames under way at the last STOP of all have no later one to be told in.
    calm = lost.drop([2, 4, 5, 6, 9, 11])
    assert (calm == 0).all(), "a frame is missing that no queue and no injector has dropped"


def test_the_report_can_compare_it_with_the_injected_loss(results):
    table = causes.comparison(results, metrics.measures(results), "tiny")
    assert list(table["Cause"]) == ["no burst", "50% loss", "traffic"]
    assert table["Frames lost"][0] == "0.00%"
