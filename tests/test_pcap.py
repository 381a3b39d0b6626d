"""Rounds read from captured packets: by hand-made captures, by scapy on the same ones, and beside records."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
import pytest
import tiny
from captures import START, step
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.inet import IP, TCP, UDP
from scapy.packet import Raw
from scapy.utils import rdpcap

from analysis import proof
from analysis.balance import balances
from analysis.dissector import DataFrame, control_messages
from analysis.pcap import CaptureError, channels, messages, read
from analysis.wire import Link

RECORD = {
    "iteration": 0, "worker": "w1", "direction": "reduce", "latency_s": 0.0195, "passes": 2, "frames_sent": 13,
    "frames_delivered": 8, "stale": 0, "duplicate": 1, "tolerance": 0.2, "in_clr": False, "early_stop": True,
}
BROADCAST = {
    "iteration": 0, "worker": "w1", "direction": "broadcast", "latency_s": 0.014, "passes": 1, "frames_sent": 10,
    "frames_delivered": 10, "stale": 0, "duplicate": 0, "tolerance": 0.0, "in_clr": False, "early_stop": False,
}


def agree_with_scapy(path: Path) -> int:
    """Hold each frame and each control stream of a file, as numpy reads them, against scapy; frames compared."""
    packets = rdpcap(str(path))
    frames = [
        (round(packet.time * 10**9), packet[DataFrame].round, packet[DataFrame].sequence, packet[DataFrame].length)
        for packet in packets if DataFrame in packet
    ]
    compared = 0
    for channel in channels([path]):
        [point] = channel.points
        for mine in (point.reduce, point.broadcast):
            rows = list(zip(*(column.tolist() for column in mine), strict=True))
            assert set(rows) <= set(frames)
            compared += len(rows)
    assert compared == len(frames)
    streams = {}
    for packet in packets:
        if TCP in packet and packet[TCP].payload and packet[IP].len > 40:
            segment = packet[TCP]
            data = bytes(segment.payload)[: packet[IP].len - 4 * packet[IP].ihl - 4 * segment.dataofs]
            streams.setdefault((packet[IP].src, segment.sport, packet[IP].dst, segment.dport), []).append(
                (segment.seq, data)
            )
    theirs = sorted(
        (message.type, bytes(message)) for pieces in streams.values() for message in control_messages(assemble(pieces))
    )
    ours = [m.type for channel in channels([path]) for m in (*channel.points[0].upward, *channel.points[0].downward)]
    assert sorted(ours) == [kind for kind, _ in theirs]
    return compared


def assemble(pieces: list[tuple[int, bytes]]) -> bytes:
    """A stream out of segments in any order, from the one that all others follow."""
    start = next(seq for seq, _ in pieces if all((other - seq) % 2**32 < 2**31 for other, _ in pieces))
    stream: dict[int, int] = {}
    for seq, data in pieces:
        for place, byte in enumerate(data):
            stream.setdefault((seq - start) % 2**32 + place, byte)
    return bytes(stream[place] for place in range(len(stream)))


def run_folder(
    folder: Path, *rows: dict, dropped: int = 0, injected: int = 3, queue: int = 0, status: str = "complete",
    event: dict | None = None, before: int = 0, begun: float = START,
) -> Path:
    """A run with `step()` captured, and these records.

    With an event, the log has its start, at a time (s since the epoch) when `before` packets had been dropped by the
    queue, and its stop 100 ms later.
    """
    (folder / "captures").mkdir(parents=True)
    step().write(folder / "captures")
    pd.DataFrame(rows).to_parquet(folder / "rounds.parquet")
    whole = [{"at": {"iteration": 0}, "duration": "1 iteration", "selector": ["w1"]} | event] if event else []
    plan = tiny.scenario(topology={"workers": 1, "link": {"rate": "1gbit", "limit": 1}}, events=whole)
    (folder / "run.json").write_text(json.dumps({"status": status, "scenario": plan.model_dump(mode="json")}))
    kinds = {"data": {"packets": 20, "dropped": dropped}, "control": {"packets": 20, "dropped": 0}}
    (folder / "captures" / "capture.json").write_text(json.dumps({"s1-w1": kinds}))
    def line(kind: str, at: float, seen: int, injected: int, queue: int) -> str:
        return json.dumps({
            "kind": kind, "event": 0, "wall": datetime.fromtimestamp(at, UTC).isoformat(),
            "counters": [{"host": "w1", "direction": "to_server", "seen": seen, "dropped": injected}],
            "queues": [{"interface": "s1-srv", "dropped": queue}, {"interface": "s1-w1", "dropped": 0}],
        })

    flips = [line("burst_start", begun, 0, 0, before), line("burst_stop", begun + 0.1, 13, injected, queue)]
    log = [*(flips if event else []), line("end", begun + 9, 13, injected, queue)]
    (folder / "events.jsonl").write_text("\n".join(log) + "\n")
    return folder


def test_a_round_is_read_from_both_ports(tmp_path: Path) -> None:
    evidence = proof.examine(step().write(tmp_path))
    reduce, broadcast = evidence.rounds
    assert (reduce.iteration, reduce.worker, reduce.direction) == (0, "w1", "reduce")
    assert (reduce.passes, reduce.frames_sent, reduce.lost, reduce.retransmissions) == (2, 13, 3, 3)
    assert (reduce.late, reduce.duplicate_frames, reduce.duplicate, reduce.frames_delivered) == (1, 1, 1, 8)
    assert (reduce.unseen, reduce.tolerance, reduce.in_clr, reduce.early_stop) == (0, 0.2, False, True)
    assert reduce.latency_s == pytest.approx(0.0185, abs=1e-6)      # from 10 ms to 27.5 + 1 ms, at the worker's port
    assert reduce.goodput_bps == pytest.approx(8 * (7 * 64 + 8) / 0.0185, rel=1e-4)
    assert (broadcast.passes, broadcast.lost, broadcast.early_stop, broadcast.late) == (1, 0, False, 0)
    assert broadcast.latency_s == pytest.approx(0.013, abs=1e-6)
    assert [(link.direction, link.frames_lost, link.segments_lost) for link in evidence.links] == [
        ("reduce", 3, 0), ("broadcast", 0, 0)
    ]


def test_one_port_alone_does_not_tell_what_was_lost(tmp_path: Path) -> None:
    reduce, _ = proof.examine(step().write(tmp_path)[:1]).rounds
    assert (reduce.frames_sent, reduce.lost, reduce.late) == (13, None, None)
    assert reduce.passes == 2


def test_numpy_and_scapy_read_the_same(tmp_path: Path) -> None:
    for path in step().write(tmp_path):
        assert agree_with_scapy(path) >= 20


def test_records_that_agree(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", RECORD, BROADCAST)
    evidence = proof.examine([folder])
    assert evidence.differences == []
    assert evidence.links[0].injected == 3
    assert evidence.overhead_s == pytest.approx(0.001, abs=1e-6)
    json.dumps(evidence.as_json())


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"passes": 3}, "passes"), ({"frames_sent": 14}, "frames_sent"), ({"frames_delivered": 9}, "frames_delivered"),
        ({"stale": 1}, "stale"), ({"duplicate": 0}, "duplicate"), ({"tolerance": 0.1}, "tolerance"),
        ({"in_clr": True}, "in_clr"), ({"early_stop": False}, "early_stop"), ({"latency_s": 0.017}, "latency_s"),
        ({"iteration": 1}, "round"),
    ],
)
def test_a_record_that_differs_is_named(tmp_path: Path, change: dict, what: str) -> None:
    evidence = proof.examine([run_folder(tmp_path / "run", {**RECORD, **change}, BROADCAST)])
    assert {each.what for each in evidence.differences} == {what}
    assert {each.explanation for each in evidence.differences} == {None}


def test_a_loss_that_nobody_counted_is_a_difference(tmp_path: Path) -> None:
    [difference] = proof.examine([run_folder(tmp_path / "run", RECORD, BROADCAST, injected=2)]).differences
    assert (difference.wire, difference.record, difference.explanation) == (3, 2, None)
    assert proof.examine([run_folder(tmp_path / "other", RECORD, BROADCAST, injected=1, queue=2)]).differences == []


def test_what_the_capture_dropped_explains_as_many_frames_and_no_more(tmp_path: Path) -> None:
    sent = {**RECORD, "frames_sent": 15}
    [difference] = proof.examine([run_folder(tmp_path / "two", sent, BROADCAST, dropped=2)]).differences
    assert difference.explanation == "the capture dropped 2 data packets at s1-w1"
    [difference] = proof.examine([run_folder(tmp_path / "one", sent, BROADCAST, dropped=1)]).differences
    assert difference.explanation is None
    passes = {**RECORD, "passes": 3}
    [difference] = proof.examine([run_folder(tmp_path / "passes", passes, BROADCAST, dropped=9)]).differences
    assert difference.explanation is None


@pytest.mark.parametrize(
    ("event", "counted", "explanation"),
    [
        # Of 13 packets, three were lost. A copy that is lost counts, and never entered.
        ({"action": "duplicate", "duplicate": "10%"}, {"injected": 7}, "events.0 (duplicate) made at most 7 copies"),
        ({"action": "duplicate", "duplicate": "10%"}, {"injected": 11}, None),
        ({"action": "duplicate", "duplicate": "10%"}, {"injected": 2}, None),
        ({"action": "duplicate", "duplicate": "10%", "correlation": "5%"}, {"injected": 11},
         "events.0 (duplicate) made at most 13 copies"),
        ({"action": "corrupt", "corrupt": "1%"}, {"injected": 1}, "events.0 (corrupt) damaged at most 2 packets beyond "
         "recognition"),
        ({"action": "corrupt", "corrupt": "1%"}, {"injected": 0}, None),
        ({"action": "corrupt", "corrupt": "99%"}, {"injected": 4}, None),
        ({"action": "traffic", "selector": "server"}, {"injected": 2, "queue": 5, "before": 1},
         "events.0 (traffic) had at most 4 of the drops of shared queues"),
        ({"action": "traffic", "selector": "server"}, {"queue": 4},
         "events.0 (traffic) had at most 4 of the drops of shared queues"),
        ({"action": "traffic", "selector": "server"}, {"queue": 4, "before": 4}, None),
        ({"action": "link_down", "duration": "100ms"}, {"injected": 0},
         "events.0 (link_down) took at most the 13 frames that entered meanwhile, 0 in queues, and TCP segments, of "
         "which only the number is known: 0"),
        ({"action": "link_down", "duration": "100ms"}, {"injected": 0, "begun": START + 60}, None),
        ({"action": "loss", "loss": "50%"}, {"injected": 2}, None),
    ],
)
def test_what_no_counter_tells_explains_no_more_than_it_can_have_done(
    tmp_path: Path, event: dict, counted: dict, explanation: str | None
) -> None:
    [difference] = proof.examine([run_folder(tmp_path / "run", RECORD, BROADCAST, event=event, **counted)]).differences
    assert difference.where == "w1 to srv"
    assert difference.explanation == explanation


def star_of_three(links: list[Link], queues: dict[str, int], counters: dict[str, int], **topology: object) -> list:
    """Balances of links, with these drops of queues and, to the server, of the injector."""
    plan = tiny.scenario({"at": {"iteration": 0}}, topology={"workers": 3, "link": {"rate": "1gbit"}} | topology)
    end = {
        "kind": "end", "queues": [{"interface": name, "dropped": number} for name, number in queues.items()],
        "counters": [
            {"host": name, "direction": "to_server", "seen": 99, "dropped": number} for name, number in counters.items()
        ],
    }
    return [(each.where, each.lost, each.dropped) for each in balances(plan, [end], links, [])]


def test_ways_are_told_apart_until_they_share_what_dropped_their_packets() -> None:
    links = [Link(f"w{n}", "reduce", n, 0) for n in (1, 2, 3)]
    apart = star_of_three(links, {"s1-srv": 0}, {"w1": 1, "w2": 2, "w3": 3})
    assert sorted(apart) == [("w1 to srv", 1, 1), ("w2 to srv", 2, 2), ("w3 to srv", 3, 3)]
    assert star_of_three(links, {"s1-srv": 3}, {"w1": 1, "w2": 2}) == [("w1, w2, w3 to srv", 6, 6)]
    assert star_of_three(links, {}, {"srv": 6}) == [("w1, w2, w3 to srv", 6, 6)]
    assert star_of_three(links[:2], {"s1-srv": 3}, {"w1": 1}) == [], "w3 may have had a part in the drops"
    two_tiers = {"kind": "leaf_spine", "leaves": 2, "oversubscription": 4}      # w3 alone is on leaf2
    both = star_of_three(links, {"spine1-leaf1": 1, "leaf2-w3": 9}, {"leaf2-spine1": 2, "w1": 1, "w2": 2}, **two_tiers)
    assert sorted(both) == [("w1 to srv", 1, 1), ("w2 to srv", 2, 2), ("w3 to srv", 3, 3)]


def test_a_run_that_broke_off_may_lack_its_last_records(tmp_path: Path) -> None:
    [difference] = proof.examine([run_folder(tmp_path / "failed", RECORD, status="failed")]).differences
    assert (difference.where, difference.explanation) == ("iteration 0, w1, broadcast", "the run is failed")
    [difference] = proof.examine([run_folder(tmp_path / "complete", RECORD)]).differences
    assert difference.explanation is None


def test_joined_packets_are_refused(tmp_path: Path) -> None:
    exchange = step()
    packet = next(packet for packet in exchange.ports["s1-w1"] if UDP in packet)
    packet[UDP].payload = Raw(bytes(3 * 80))
    with pytest.raises(CaptureError, match=r"longer than a frame of 80 bytes.*GSO"):
        proof.examine(exchange.write(tmp_path))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a pcap file"), (b"\n\r\r\n" + bytes(40), "not a pcap file; convert it"),
        (bytes.fromhex("d4c3b2a1") + bytes(16) + b"\x71\0\0\0", "link type 113"),
        (bytes.fromhex("d4c3b2a1 0200 0400") + bytes(12) + b"\1\0\0\0", "no handshake"),
    ],
)
def test_files_that_cannot_be_read_are_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "odd.pcap"
    path.write_bytes(content)
    with pytest.raises(CaptureError, match=f"odd.pcap: {message}"):
        proof.examine([path])


def test_a_folder_without_captures_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="dblp run --capture"):
        proof.examine([tmp_path])
    with pytest.raises(CaptureError, match="No such file"):
        proof.examine([tmp_path / "none.pcap"])


@pytest.fixture(scope="module")
def bytes_of_a_capture(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    [path, _] = step().write(tmp_path_factory.mktemp("hostile"))
    return path, path.read_bytes()


@given(cut=st.integers(0, 6000), flips=st.lists(st.tuples(st.integers(24, 5999), st.integers(0, 255)), max_size=12))
def test_cut_and_damaged_captures_never_raise(
    bytes_of_a_capture: tuple[Path, bytes], cut: int, flips: list[tuple[int, int]]
) -> None:
    path, whole = bytes_of_a_capture
    damaged = bytearray(whole)
    for at, value in flips:
        damaged[at % len(damaged)] = value
    path.write_bytes(damaged[: cut if cut < len(damaged) else None])
    try:
        evidence = proof.examine([path])
    except CaptureError:
        return
    assert all(each.frames_sent > 0 and each.retransmissions >= 0 for each in evidence.rounds)


@given(st.binary(max_size=60))
def test_streams_of_anything_never_raise(data: bytes) -> None:
    messages(data)
    messages(len(data).to_bytes(4, "big") + data)


def test_packets_come_in_order_of_time(tmp_path: Path) -> None:
    exchange = step()
    exchange.ports["s1-w1"].reverse()
    assert (pd.Series(read(exchange.write(tmp_path)[0]).time).diff().dropna() >= 0).all()
