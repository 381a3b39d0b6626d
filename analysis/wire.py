"""What each round was, from captured packets alone, and where the run's own records differ.

Each frame of a channel passes two ports of the switch: where it enters, before the injector, and where it leaves,
behind injector and queue. The difference is what was lost. The records were made by the protocol's own code, so
agreement of the two is evidence for both.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table

from analysis.pcap import BITMAP, PROBE, ROUND, STOP, CaptureError, Channel, Frames, Point, channels

GSO_SEGMENTS = 64        # frames at most that a sender hands to its host's queue as one (docs/protocol.md, section 13)
# Copies, packets broken beyond recognition, cross traffic's drops in shared queues, what a port loses when it is down.
UNCOUNTED = {"duplicate", "corrupt", "traffic", "link_down"}
CLOCK_SLACK = 1e-3       # s by which a latency on the wire may exceed the recorded one, which contains it
DIRECTION_OF = {"to_server": "reduce", "to_worker": "broadcast"}


@dataclass(frozen=True)
class WireRound:
    """One gradient over one channel as the wire shows it; None where the captures cannot tell.

    Attributes:
        iteration, worker, direction: as in the records.
        passes: passes begun: one more than the BITMAPs that asked for another.
        frames_sent: data frames at the port where they enter the switch.
        lost: those that did not come out at the other port.
        retransmissions: frames sent again.
        late: frames that came out after STOP had passed the other way: sent in vain.
        duplicate_frames: frames that came out again before STOP.
        frames_delivered, stale, duplicate: what STOP tells: different frames at the receiver; dropped by it.
        unseen: frames that STOP calls delivered, but that never came out of the switch.
        tolerance, in_clr: as ROUND told.
        early_stop: no PROBE ended the last pass.
        latency_s: from the first frame to STOP, at the sender's port.
        goodput_bps: bits of gradient delivered over that time.
    """

    iteration: int
    worker: str
    direction: str
    passes: int
    frames_sent: int
    lost: int | None
    retransmissions: int
    late: int | None
    duplicate_frames: int | None
    frames_delivered: int | None
    stale: int | None
    duplicate: int | None
    unseen: int | None
    tolerance: float | None
    in_clr: bool | None
    early_stop: bool
    latency_s: float | None
    goodput_bps: float | None


@dataclass(frozen=True)
class Link:
    """All packets of one worker in one direction: what entered the switch and did not come out."""

    worker: str
    direction: str
    frames_lost: int
    segments_lost: int
    injected: int | None = None


@dataclass(frozen=True)
class Difference:
    """Wire and records disagree; `explanation` is None if nothing that was counted accounts for it."""

    where: str
    what: str
    wire: Any
    record: Any
    explanation: str | None


@dataclass(frozen=True)
class Evidence:
    """What the captures of one run say.

    Attributes:
        records: the run's folder that they were compared with, or None.
        overhead_s: median of recorded minus captured latency: time within the sending host.
    """

    rounds: list[WireRound]
    links: list[Link]
    differences: list[Difference] = field(default_factory=list)
    records: Path | None = None
    overhead_s: float | None = None

    def as_json(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "rounds": [asdict(each) for each in self.rounds], "links": [asdict(each) for each in self.links],
            "differences": [asdict(each) for each in self.differences],
            "records": self.records and str(self.records), "overhead_s": self.overhead_s,
        }


def examine(paths: Sequence[Path]) -> Evidence:
    """Read captures of one run, and compare them with its records if they lie in a run's folder.

    Args:
        paths: pcap files, or folders with them (a run's folder, its `captures`).

    Raises:
        CaptureError: nothing there, unreadable, or of several runs.
    """
    files = _files(paths)
    found = channels(files)
    rounds = [each for channel in found for each in _rounds(channel)]
    links = [each for channel in found for each in _links(channel)]
    rounds.sort(key=lambda each: (each.iteration, each.direction != "reduce", len(each.worker), each.worker))
    folders = {file.resolve().parent.parent for file in files}
    folder = folders.pop() if len(folders) == 1 else None
    if folder is None or not (folder / "rounds.parquet").exists():
        return Evidence(rounds, links)
    return _compare(Evidence(rounds, links, records=folder))


def _files(paths: Sequence[Path]) -> list[Path]:
    files: list[Path] = []
    for path in paths:
        inside = [file for folder in (path, path / "captures") for file in sorted(folder.glob("*.pcap"))]
        if path.is_dir() and not inside:
            raise CaptureError(f"{path}: no *.pcap here; `dblp run --capture` writes them")
        files += inside or [path]
    return files


# -- from the wire alone ---------------------------------------------------------------------------------------


def _ends(channel: Channel, direction: str) -> tuple[Point, Point | None]:
    """Where frames of this direction enter the switch and where they leave it: they pass the entry first."""
    def first(point: Point) -> float:
        stamps = getattr(point, direction).time
        return stamps[0] if len(stamps) else math.inf

    entry, *others = sorted(channel.points, key=first)
    return entry, max(others, key=lambda point: len(getattr(point, direction).time), default=None)


def _rounds(channel: Channel) -> Iterator[WireRound]:
    for parity, direction in enumerate(("reduce", "broadcast")):
        entry, exit_ = _ends(channel, direction)
        sent: Frames = getattr(entry, direction)
        ours = sent.round % 2 == parity
        numbers, first, index = np.unique(sent.round[ours], return_index=True, return_inverse=True)
        counts = np.bincount(index, minlength=len(numbers))
        different = _different(index, sent.sequence[ours], len(numbers), channel.chunks)
        begins = sent.time[ours][first]
        said = _said(entry, direction)
        told = {message.fields[0]: message for message in entry.downward if message.type == ROUND}
        outcome = _arrivals(channel, exit_, direction, numbers) if exit_ else {}
        for at, number in enumerate(numbers.tolist()):
            bitmaps, stop, probed = said.get(number, (0, None, set()))
            passes = 1 + bitmaps
            arrived, late, again, unseen = outcome.get(number, (None, None, None, None))
            delivered = latency = goodput = None
            if stop is not None:
                bits = np.unpackbits(np.frombuffer(stop.bits, np.uint8), count=channel.chunks)
                delivered = int(bits.sum())
                latency = (stop.time - int(begins[at])) / 1e9
                payload = delivered * channel.chunk_bytes
                if bits[-1]:
                    payload -= channel.chunk_bytes - _last_length(sent, channel)
                goodput = 8 * payload / latency if latency > 0 else None
            announced = told.get(number)
            yield WireRound(
                iteration=number // 2, worker=channel.worker, direction=direction, passes=passes,
                frames_sent=int(counts[at]), lost=None if arrived is None else int(counts[at]) - arrived,
                retransmissions=int(counts[at] - different[at]), late=late, duplicate_frames=again,
                frames_delivered=delivered, stale=stop and stop.fields[1], duplicate=stop and stop.fields[2],
                unseen=unseen, tolerance=announced and announced.fields[1], in_clr=announced and announced.fields[2],
                early_stop=passes not in probed, latency_s=latency, goodput_bps=goodput,
            )


def _different(index: np.ndarray, sequence: np.ndarray, rounds: int, chunks: int) -> np.ndarray:
    """(rounds,) how many different chunks each round has."""
    return np.bincount(np.unique(index * (chunks + 1) + np.minimum(sequence, chunks)) // (chunks + 1), minlength=rounds)


def _last_length(sent: Frames, channel: Channel) -> int:
    lengths = sent.length[sent.sequence == channel.chunks - 1]
    return int(lengths[0]) if len(lengths) else channel.chunk_bytes


def _said(point: Point, direction: str) -> dict[int, tuple[int, Any, set[int]]]:
    """Per round: BITMAPs, STOP (or None), and the passes that a PROBE ended."""
    forth, back = (point.upward, point.downward) if direction == "reduce" else (point.downward, point.upward)
    rounds: dict[int, list[Any]] = {}
    for message in (*forth, *back):
        if message.type not in (PROBE, BITMAP, STOP):
            continue
        entry = rounds.setdefault(message.fields[0], [0, None, set()])
        if message.type == PROBE:
            entry[2].add(message.fields[1])
        elif message.type == BITMAP:
            entry[0] += 1
        else:
            entry[1] = message
    return {number: tuple(entry) for number, entry in rounds.items()}


def _arrivals(
    channel: Channel, point: Point, direction: str, numbers: np.ndarray
) -> dict[int, tuple[int, int | None, int | None, int | None]]:
    """Per round, at the port where frames leave: frames, late ones, repeated ones, and delivered ones never seen."""
    came: Frames = getattr(point, direction)
    said = _said(point, direction)
    result: dict[int, tuple[int, int | None, int | None, int | None]] = {}
    order = np.argsort(came.round, kind="stable")
    bounds = np.searchsorted(came.round[order], np.stack([numbers, numbers + 1]))
    for number, start, end in zip(numbers.tolist(), *bounds, strict=True):
        chosen = order[start:end]
        stop = said[number][1] if number in said else None
        if stop is None:
            result[number] = len(chosen), None, None, None
            continue
        in_time = came.sequence[chosen[came.time[chosen] <= stop.time]]
        in_time = in_time[in_time < channel.chunks]
        seen = np.zeros(channel.chunks, bool)
        seen[in_time] = True
        bits = np.unpackbits(np.frombuffer(stop.bits, np.uint8), count=channel.chunks).view(bool)
        result[number] = (
            len(chosen), int((came.time[chosen] > stop.time).sum()), len(in_time) - int(seen.sum()),
            int((bits & ~seen).sum()),
        )
    return result


def _links(channel: Channel) -> Iterator[Link]:
    for which, direction in enumerate(("reduce", "broadcast")):
        entry, exit_ = _ends(channel, direction)
        if exit_ is not None:
            frames_lost = len(getattr(entry, direction).time) - len(getattr(exit_, direction).time)
            yield Link(channel.worker, direction, frames_lost, entry.segments[which] - exit_.segments[which])


# -- against the records ---------------------------------------------------------------------------------------

FROM_FRAMES = ("frames_sent",)
FROM_CONTROL = ("passes", "frames_delivered", "stale", "duplicate", "tolerance", "in_clr", "early_stop")


@dataclass(frozen=True)
class _Gaps:
    """What was counted that the captures cannot show: data frames, control packets, and where they went."""

    frames: int
    control: int
    where: str
    status: str
    uncounted: tuple[str, ...]      # actions of the scenario's events that change packets unseen by any counter

    def explain_frames(self, missing: int) -> str | None:
        """For frames that should have been captured and were not."""
        return self.where if 0 < missing <= self.frames else None

    def explain_control(self) -> str | None:
        return self.where if self.control else None

    def explain_loss(self, missing: int) -> str | None:
        """For packets lost at the switch, more or fewer than injector and queues have counted."""
        if missing <= self.frames + self.control:
            return self.where
        if self.uncounted:
            return f"events with {' and '.join(self.uncounted)} make or take packets that no counter tells"
        return None

    def explain_end(self) -> str | None:
        """For what a run that broke off had not recorded yet."""
        return None if self.status == "complete" else f"the run is {self.status}"


def _compare(evidence: Evidence) -> Evidence:
    folder = evidence.records
    assert folder is not None
    records = pd.read_parquet(folder / "rounds.parquet").set_index(["iteration", "worker", "direction"])
    last = _last_event(folder)
    gaps = _gaps(folder, last)
    differences: list[Difference] = []
    overheads = []
    rounds = {(each.iteration, each.worker, each.direction): each for each in evidence.rounds}
    for key in [*rounds, *(key for key in records.index if key not in rounds)]:
        where = "iteration {}, {}, {}".format(*key)
        if key not in rounds:
            why = gaps.explain_frames(int(records.loc[key]["frames_sent"]))
            differences.append(Difference(where, "round", "absent", "present", why))
            continue
        each = rounds[key]
        if each.unseen:
            why = gaps.explain_frames(each.unseen)
            differences.append(Difference(where, "delivered but never seen", each.unseen, 0, why))
        if key not in records.index:
            differences.append(Difference(where, "round", "present", "absent", gaps.explain_end()))
            continue
        record = records.loc[key]
        for name in (*FROM_FRAMES, *FROM_CONTROL):
            wire, recorded = getattr(each, name), record[name]
            if wire != recorded:
                why = gaps.explain_frames(recorded - wire) if name in FROM_FRAMES else gaps.explain_control()
                differences.append(Difference(where, name, wire, recorded, why))
        if each.latency_s is not None:
            latency = float(record["latency_s"])
            overheads.append(latency - each.latency_s)
            if latency < each.latency_s - CLOCK_SLACK:
                differences.append(Difference(where, "latency_s", each.latency_s, latency, None))
    links = evidence.links
    if last is not None:
        links, lost = _account(evidence.links, last, gaps)
        differences += lost
    overhead_s = float(np.median(overheads)) if overheads else None
    return Evidence(evidence.rounds, links, differences, folder, overhead_s)


def _account(
    links: Sequence[Link], last: dict[str, Any], gaps: _Gaps
) -> tuple[list[Link], list[Difference]]:
    """Hold what was lost between the ports against what injector and queues have dropped.

    All workers share the server's queue, so only their sum can be held against it.
    """
    injected = {
        (each["host"], DIRECTION_OF[each["direction"]]): each["dropped"] for each in last["counters"]
    }
    queues = {each["interface"]: each["dropped"] for each in last["queues"]}
    counted = [
        Link(each.worker, each.direction, each.frames_lost, each.segments_lost,
             injected.get((each.worker, each.direction), 0))
        for each in links
    ]
    groups = [("all workers to srv", [each for each in counted if each.direction == "reduce"], queues.get("s1-srv"))]
    groups += [
        (f"srv to {each.worker}", [each], queues.get(f"s1-{each.worker}"))
        for each in counted if each.direction == "broadcast"
    ]
    differences = []
    for where, group, queue in groups:
        lost = sum(each.frames_lost + each.segments_lost for each in group)
        dropped = sum(each.injected or 0 for each in group) + (queue or 0)
        if group and queue is not None and lost != dropped:
            why = gaps.explain_loss(abs(lost - dropped))
            differences.append(
                Difference(where, "packets lost at the switch, against injector and queue", lost, dropped, why)
            )
    return counted, differences


def _last_event(folder: Path) -> dict[str, Any] | None:
    """The last counters of the run, if it got to its end."""
    path = folder / "events.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    last = json.loads(lines[-1]) if lines else {}
    return last if last.get("kind") == "end" else None


def _gaps(folder: Path, last: dict[str, Any] | None) -> _Gaps:
    dropped = {"data": 0, "control": 0}
    places = []
    path = folder / "captures" / "capture.json"
    for interface, kinds in (json.loads(path.read_text()) if path.exists() else {}).items():
        for kind, counts in kinds.items():
            dropped[kind] += counts["dropped"]
            if counts["dropped"]:
                places.append(f"the capture dropped {counts['dropped']} {kind} packets at {interface}")
    for queue in last["queues"] if last else ():
        if queue["dropped"] and not queue["interface"].startswith("s1-"):
            dropped["data"] += queue["dropped"] * GSO_SEGMENTS
            places.append(f"the host's own queue {queue['interface']} dropped {queue['dropped']} trains of frames")
    run = json.loads((folder / "run.json").read_text())
    actions = {event["action"] for event in run["scenario"]["events"]}
    return _Gaps(
        dropped["data"], dropped["control"], "; ".join(places), run["status"], tuple(sorted(actions & UNCOUNTED))
    )


# -- for people ------------------------------------------------------------------------------------------------


def render(evidence: Evidence, console: Console) -> None:
    """Print the rounds, the links and the differences."""
    def cell(value: object) -> str:
        return "-" if value is None else str(value)

    table = Table(
        "iter", "worker", "direction", "passes", "sent", "lost", "again", "late", "dup", "delivered", "Mbit/s", "s",
        box=None, header_style="bold", padding=(0, 1, 0, 0), pad_edge=False,
    )
    for each in evidence.rounds:
        table.add_row(
            str(each.iteration), each.worker, each.direction,
            *map(cell, (each.passes, each.frames_sent, each.lost, each.retransmissions, each.late,
                        each.duplicate_frames, each.frames_delivered)),
            cell(each.goodput_bps and f"{each.goodput_bps / 1e6:.0f}"),
            cell(each.latency_s and f"{each.latency_s:.4f}"),
        )
    console.print(table)
    console.print()
    links = Table("link", "frames lost", "TCP segments lost", "injected", box=None, header_style="bold")
    for link in evidence.links:
        links.add_row(
            f"{link.worker} {link.direction}", str(link.frames_lost), str(link.segments_lost), cell(link.injected)
        )
    console.print(links)
    console.print()
    if evidence.records is None:
        console.print("No records beside these captures to compare with.")
        return
    for each in evidence.differences:
        why = f"explained: {each.explanation}" if each.explanation else "[red]unexplained[/]"
        console.print(f"{each.where}: {each.what}: wire {each.wire}, record {each.record} ({why})")
    if not evidence.differences:
        console.print(
            f"Wire and records agree in all {len(evidence.rounds)} rounds: {', '.join(FROM_FRAMES + FROM_CONTROL)}, "
            "and packets lost at the switch against those that injector and queues count."
        )
    if evidence.overhead_s is not None:
        console.print(f"Recorded latency exceeds that on the wire by {evidence.overhead_s * 1e3:.2f} ms (median).")
