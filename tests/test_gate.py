"""The gate: who waits, what is flipped in between, what is written, and what happens when a node is lost."""

from __future__ import annotations

import json
import select
import socket
import subprocess
import time
from pathlib import Path

import pytest
import tiny
import yaml

from scenarios import Scenario, Spell, Window
from testbed.bursts import Counters, Injector
from testbed.bursts.director import Director
from testbed.bursts.gate import Gate, GateClient, GateError, gate_iterations

NODES = ("srv", "w1", "w2")


class RecordingInjector(Injector):
    """Notes what is set; counts as if 10 datagrams passed each link between two looks."""

    name = "recording"

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, list[float]]] = []
        self.failure: Exception | None = None
        self._seen = 0

    def prepare(self, links) -> None: ...

    def close(self) -> None: ...

    def set(self, changes) -> None:
        if self.failure:
            raise self.failure
        for link, events in changes.items():
            self.calls.append((*link, [event.expected_loss for event in events]))

    def counters(self) -> dict[tuple[str, str], Counters]:
        self._seen += 10
        return {("w1", "to_server"): Counters(self._seen, 0)}


def scenario(*events: dict) -> Scenario:
    burst = tiny.BURST | {"duration": "2 iterations"}
    return tiny.scenario(
        topology={"workers": 2, "link": {"rate": "1gbit"}},
        workload=yaml.safe_load(tiny.DOCUMENT)["workload"] | {"iterations": 20},
        events=[event if "action" in event else burst | event for event in events],
    )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def injector() -> RecordingInjector:
    return RecordingInjector()


def answer(client: GateClient) -> dict:
    """What the gate says to a waiting node."""
    ready, _, _ = select.select([client], [], [], 10)
    assert ready, "the gate did not answer"
    reply = client.poll_go()
    assert reply is not None
    return reply


def silent(client: GateClient) -> bool:
    return not select.select([client], [], [], 0.05)[0] and client.poll_go() is None


def log() -> list[dict]:
    return [json.loads(line) for line in Path("events.jsonl").read_text().splitlines()]


def make(injector: RecordingInjector, plan: Scenario, **callbacks) -> Gate:
    return Gate("gate.sock", plan, Director(plan, injector), "events.jsonl", **callbacks)


def test_iterations_are_the_edges_of_the_windows_inside_the_run():
    timeline = [Window(0, 3, 5), Window(1, 5, 6), Window(0, 18, 20)]
    assert gate_iterations(timeline, 20) == [3, 5, 6, 18]
    assert gate_iterations([], 20) == []


def test_events_that_last_a_time_need_a_meeting_where_they_begin_and_the_clock_one_at_iteration_0():
    assert gate_iterations([Window(0, 3, 5)], 20, [Spell(1, 7, None, 0.5), Spell(1, 14, None, 0.5)]) == [3, 5, 7, 14]
    assert gate_iterations([], 20, [Spell(0, None, 30.0, 0.5)]) == [0]


def test_flips_when_all_nodes_wait_and_not_before(folder, injector):
    plan = scenario({"at": {"iteration": 3}}, {"at": {"iteration": 5}, "loss": "20%", "selector": ["w2"]})
    queues = [{"interface": "s1-srv", "dropped": 4, "sent_packets": 9, "sent_bytes": 999}]
    flips: list[dict] = []
    with make(injector, plan, queues=lambda: queues, on_flip=flips.append):
        clients = [GateClient("gate.sock", node) for node in NODES]
        for client in clients[:2]:
            client.send_barrier(3)
        assert all(silent(client) for client in clients)
        assert injector.calls == []

        clients[2].send_barrier(3)
        assert [answer(client) for client in clients] == [{"go": 3}] * 3
        assert injector.calls == [("w1", "to_server", [0.7]), ("w2", "to_server", [0.7])]

        injector.calls.clear()
        for client in clients:
            client.send_barrier(5)
        assert [answer(client) for client in clients] == [{"go": 5}] * 3
        # One event's end comes before the other's start on the same link.
        assert injector.calls == [("w1", "to_server", []), ("w2", "to_server", []), ("w2", "to_server", [0.2])]

        for client in clients:
            client.send_barrier(7)
        assert answer(clients[0]) == {"go": 7}
        for client in clients:
            client.close()
    lines = log()
    assert [(line["kind"], line.get("iteration"), line.get("event")) for line in lines] == [
        ("start", None, None),
        ("burst_start", 3, 0),
        ("burst_stop", 5, 0),
        ("burst_start", 5, 1),
        ("burst_stop", 7, 1),
        ("end", None, None),
    ]
    assert lines[1:-1] == flips
    assert lines[1]["links"] == [["w1", "to_server"], ["w2", "to_server"]]
    assert lines[1]["loss"] == 0.7
    assert [line["counters"][0]["seen"] for line in lines] == [10, 20, 30, 40, 50, 60]
    assert all(line["queues"] == queues for line in lines)
    assert [line["time_s"] for line in lines] == sorted(line["time_s"] for line in lines)
    assert not Path("gate.sock").exists()


def test_a_burst_that_ends_with_the_run_is_switched_off(folder, injector):
    with make(injector, scenario({"at": {"iteration": 18}})):
        clients = [GateClient("gate.sock", node) for node in NODES]
        for client in clients:
            client.send_barrier(18)
        answer(clients[0])
        for client in clients:
            client.close()
    assert injector.calls[-2:] == [("w1", "to_server", []), ("w2", "to_server", [])]
    assert [line["kind"] for line in log()] == ["start", "burst_start", "burst_stop", "end"]


def test_a_burst_that_the_run_does_not_see_the_end_of_stops_in_the_iteration_it_came_to(folder, injector):
    with make(injector, scenario({"at": {"iteration": 3}, "duration": "10 iterations"})):
        clients = [GateClient("gate.sock", node) for node in NODES]
        for client in clients:
            client.send_barrier(3)
        answer(clients[0])
        for iteration in (3, 4):
            clients[1].report(iteration=iteration)
        clients[2].report(iteration=3)      # w1 is in iteration 5, w2 in 4, when both are gone
    stop = next(line for line in log() if line["kind"] == "burst_stop")
    assert stop["iteration"] == 6


def test_a_lost_node_is_named_to_those_that_wait_and_to_those_that_come_later(folder, injector):
    lost: list[str] = []
    with make(injector, scenario({"at": {"iteration": 3}}), on_disconnect=lost.append):
        server, first, second = (GateClient("gate.sock", node) for node in NODES)
        server.send_barrier(3)
        second._socket.close()  # as the kernel does for a killed process
        assert answer(server) == {"abort": "w2 disconnected"}
        assert answer(first) == {"abort": "w2 disconnected"}
        first.send_barrier(3)
        assert answer(first) == {"abort": "w2 disconnected"}
        assert lost == ["w2"]
    assert injector.calls == []


def test_nodes_that_wait_for_one_that_ended_are_told(folder, injector):
    lost: list[str] = []
    with make(injector, scenario({"at": {"iteration": 3}}), on_disconnect=lost.append):
        server, first, second = (GateClient("gate.sock", node) for node in NODES)
        second.report(done=True)
        second.close()
        server.send_barrier(3)
        first.send_barrier(3)
        assert "w2 has ended" in answer(first)["abort"]
    assert lost == []


def test_nodes_at_different_iterations_are_an_error(folder, injector):
    with make(injector, scenario({"at": {"iteration": 3}})):
        clients = [GateClient("gate.sock", node) for node in NODES]
        clients[0].send_barrier(3)
        assert silent(clients[0])
        clients[1].send_barrier(5)
        assert answer(clients[2])["abort"] == "w1 is at iteration 5, srv at 3"


def test_the_engine_can_abort(folder, injector):
    with make(injector, scenario({"at": {"iteration": 3}})) as gate:
        client = GateClient("gate.sock", "w1")
        client.send_barrier(3)
        gate.abort("interrupted")
        assert answer(client) == {"abort": "interrupted"}


def test_a_failing_injector_ends_the_run_with_its_error(folder, injector):
    injector.failure = OSError("tc is gone")
    with pytest.raises(OSError, match="tc is gone"):
        abort_text(injector)


def abort_text(injector: RecordingInjector) -> None:
    with make(injector, scenario({"at": {"iteration": 3}})):
        clients = [GateClient("gate.sock", node) for node in NODES]
        for client in clients:
            client.send_barrier(3)
        assert answer(clients[1])["abort"] == "the gate failed: tc is gone"


def test_reports_reach_the_engine_with_their_node(folder, injector):
    reports: list[tuple[str, dict]] = []
    with make(injector, scenario({"at": {"iteration": 3}}), on_report=lambda *report: reports.append(report)):
        clients = [GateClient("gate.sock", node) for node in NODES]
        clients[1].report(iteration=1, loss=0.5)
        clients[1].report(text="x" * 200_000)  # comes in several pieces
        for client in clients:
            client.send_barrier(3)
        answer(clients[0])
    assert reports == [("w1", {"iteration": 1, "loss": 0.5}), ("w1", {"text": "x" * 200_000})]


def test_what_nodes_said_before_the_gate_closed_is_heard(folder, injector):
    reports: list[int] = []
    plan = scenario({"at": {"iteration": 3}})
    with make(injector, plan, on_report=lambda node, fields: reports.append(fields["number"])):
        clients = [GateClient("gate.sock", node) for node in NODES]
        for client in clients:
            for number in range(300):
                client.report(number=number)
            client.close()
    assert sorted(reports) == sorted([*range(300)] * 3)


@pytest.mark.parametrize(
    "hello", [b'{"hello": "w9"}\n', b'{"hello": "w1"}\n', b"nonsense\n", b"[1]\n", b'{"barrier": 1}\n']
)
def test_strangers_are_turned_away_and_harm_nobody(folder, injector, hello):
    with make(injector, scenario({"at": {"iteration": 3}})):
        clients = [GateClient("gate.sock", node) for node in NODES]
        clients[1].report(here=True)
        stranger = GateClient.__new__(GateClient)
        stranger._socket, stranger._buffer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), b""
        stranger._socket.connect("gate.sock")
        stranger._socket.sendall(hello)
        assert "abort" in answer(stranger)
        for client in clients:
            client.send_barrier(3)
        assert answer(clients[0])["go"] == 3


def test_a_gate_that_closes_is_an_error_for_its_nodes(folder, injector):
    with make(injector, scenario({"at": {"iteration": 3}})):
        client = GateClient("gate.sock", "w1")
    with pytest.raises(GateError, match="closed the gate"):
        answer(client)
    client.close()
    client.close()


def test_paths_that_no_socket_can_have_are_refused(folder, injector):
    with pytest.raises(GateError, match="107 bytes"):
        GateClient("d" * 108, "w1")
    with pytest.raises(GateError, match="is the engine running"):
        GateClient("gate.sock", "w1")


def test_the_socket_of_a_killed_run_is_replaced(folder, injector):
    Path("gate.sock").touch()
    with make(injector, scenario({"at": {"iteration": 3}})):
        GateClient("gate.sock", "w1").close()


# -- by the clock ----------------------------------------------------------------------------------------------


def pass_gate(clients: list[GateClient], iteration: int) -> None:
    for client in clients:
        client.send_barrier(iteration)
    for client in clients:
        assert answer(client) == {"go": iteration}


def wait_for(kind: str, count: int) -> list[dict]:
    """The lines of a kind, as soon as there are so many."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        lines = [line for line in log() if line["kind"] == kind]
        if len(lines) >= count:
            return lines
        time.sleep(0.01)
    raise AssertionError(f"{kind} did not come: {log()}")


def test_an_event_that_lasts_a_time_begins_at_the_gate_and_ends_by_itself(folder, injector):
    plan = scenario({"at": {"iteration": 3}, "duration": "50ms", "selector": ["w1"]})
    with make(injector, plan):
        clients = [GateClient("gate.sock", node) for node in NODES]
        pass_gate(clients, 3)
        clients[1].report(iteration=3)  # w1 is in its iteration 4 when the burst ends
        (stop,) = wait_for("burst_stop", 1)
    (start,) = wait_for("burst_start", 1)
    assert injector.calls == [("w1", "to_server", [0.7]), ("w1", "to_server", [])]
    assert (start["iteration"], stop["iteration"]) == (3, 5)
    assert start["time_s"] + 0.04 < stop["planned_s"] <= stop["time_s"]


def test_the_clock_starts_when_all_are_ready_for_the_first_iteration(folder, injector):
    plan = scenario(
        {"at": {"time": "50ms"}, "duration": "20ms"}, {"at": {"time": "100s"}, "duration": "20ms", "selector": ["w2"]}
    )
    with make(injector, plan):
        clients = [GateClient("gate.sock", node) for node in NODES]
        time.sleep(0.1)
        assert injector.calls == []
        pass_gate(clients, 0)
        ready = log()[0]["time_s"]
        for client in clients[1:]:
            client.report(iteration=1)
        (stop,) = wait_for("burst_stop", 1)
    start, missed = wait_for("burst_start", 1)[0], wait_for("missed", 1)[0]
    assert ready + 0.15 < start["planned_s"] <= start["time_s"] < stop["time_s"]
    assert (start["iteration"], stop["iteration"]) == (2, 3)
    assert (missed["event"], missed["planned_s"]) == (1, 100.0)


def test_the_clock_begins_bursts_again_and_again(folder, injector):
    plan = scenario({"at": {"every": "60ms", "start": "20ms"}, "duration": "20ms", "selector": ["w1"]})
    with make(injector, plan):
        clients = [GateClient("gate.sock", node) for node in NODES]
        pass_gate(clients, 0)
        wait_for("burst_stop", 3)
    starts = [line for line in log() if line["kind"] == "burst_start"]
    planned = [line["planned_s"] - starts[0]["planned_s"] for line in starts]
    assert planned[:3] == pytest.approx([0, 0.06, 0.12], abs=2e-6)
    assert all(line["planned_s"] <= line["time_s"] for line in starts)
    assert injector.calls[:4] == [("w1", "to_server", [0.7]), ("w1", "to_server", [])] * 2
    assert not [line for line in log() if line["kind"] == "missed"]


def test_different_actions_on_a_link_combine_and_each_ends_alone(folder, injector):
    plan = scenario(
        {"at": {"iteration": 2}, "selector": ["w1"]},
        {"action": "partition", "at": {"iteration": 3}, "duration": "20ms", "selector": ["w1"],
         "direction": "to_server"},
    )
    with make(injector, plan):
        clients = [GateClient("gate.sock", node) for node in NODES]
        pass_gate(clients, 2)
        pass_gate(clients, 3)
        wait_for("burst_stop", 1)
        pass_gate(clients, 4)
    assert [losses for _, _, losses in injector.calls] == [[0.7], [0.7, 1.0], [0.7], []]


def test_processes_stand_still_go_on_and_die(folder, injector):
    processes = {"w2": subprocess.Popen(["sleep", "60"])}
    state = Path(f"/proc/{processes['w2'].pid}/stat")
    document = scenario().model_dump(mode="json") | {"events": [
        {"action": "stop", "at": {"iteration": 2}, "duration": "0.05s", "selector": ["w2"]},
        {"action": "kill", "at": {"iteration": 4}, "selector": ["w2"]},
    ]}
    plan = Scenario.from_resolved(document)
    director = Director(plan, injector, process=processes.get)
    try:
        director.start(0)
        assert wait_state(state, "T")
        director.stop(0)
        assert wait_state(state, "S")
        assert director.killed_by("w2") is None
        director.start(1)
        assert processes["w2"].wait(10) == -9
        assert director.killed_by("w2") == 1
        assert director.killed_by("w1") is None
        director.stop(1)
    finally:
        processes["w2"].kill()
        processes["w2"].wait()


def wait_state(stat: Path, letter: str) -> bool:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if stat.read_text().rsplit(")", 1)[1].split()[0] == letter:
            return True
        time.sleep(0.01)
    return False
