"""Captures of a run held against its records.

The records were made by the protocol's own code and the captures were not: agreement of the two is evidence for both.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table

from analysis.balance import Balance, balances
from analysis.pcap import CaptureError, Channel, channels
from analysis.wire import Link, WireRound, links, rounds
from scenarios import Scenario

GSO_SEGMENTS = 64        # frames at most that a sender hands to its host's queue as one (docs/protocol.md, section 13)
CLOCK_SLACK = 1e-3       # s by which a latency on the wire may exceed the recorded one, which contains it
DIRECTION_OF = {"to_server": "reduce", "to_worker": "broadcast"}


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
    seen = [each for channel in found for each in rounds(channel)]
    ends = [each for channel in found for each in links(channel)]
    seen.sort(key=lambda each: (each.iteration, each.direction != "reduce", len(each.worker), each.worker))
    folders = {file.resolve().parent.parent for file in files}
    folder = folders.pop() if len(folders) == 1 else None
    if folder is None or not (folder / "rounds.parquet").exists():
        return Evidence(seen, ends)
    return _compare(Evidence(seen, ends, records=folder), found)


def _files(paths: Sequence[Path]) -> list[Path]:
    files: list[Path] = []
    for path in paths:
        inside = [file for folder in (path, path / "captures") for file in sorted(folder.glob("*.pcap"))]
        if path.is_dir() and not inside:
            raise CaptureError(f"{path}: no *.pcap here; `dblp run --capture` writes them")
        files += inside or [path]
    return files


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

    def explain_frames(self, missing: int) -> str | None:
        """For frames that should have been captured and were not."""
        return self.where if 0 < missing <= self.frames else None

    def explain_control(self) -> str | None:
        return self.where if self.control else None

    def explain_loss(self, balance: Balance) -> str | None:
        """For packets lost at the switches, more or fewer than injector and queues have counted."""
        if balance.explains(self.frames + self.control):
            return "; ".join(filter(None, [self.where, balance.why]))
        return None

    def explain_end(self) -> str | None:
        """For what a run that broke off had not recorded yet."""
        return None if self.status == "complete" else f"the run is {self.status}"


def _compare(evidence: Evidence, found: Sequence[Channel]) -> Evidence:
    folder = evidence.records
    assert folder is not None
    records = pd.read_parquet(folder / "rounds.parquet").set_index(["iteration", "worker", "direction"])
    run = json.loads((folder / "run.json").read_text())
    scenario, log = Scenario.from_resolved(run["scenario"]), _log(folder)
    gaps = _gaps(folder, run, scenario.topology.host_names, log)
    differences: list[Difference] = []
    overheads = []
    seen = {(each.iteration, each.worker, each.direction): each for each in evidence.rounds}
    for key in [*seen, *(key for key in records.index if key not in seen)]:
        where = "iteration {}, {}, {}".format(*key)
        if key not in seen:
            why = gaps.explain_frames(int(records.loc[key]["frames_sent"]))
            differences.append(Difference(where, "round", "absent", "present", why))
            continue
        each = seen[key]
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
    ends = evidence.links
    if log:
        ends, lost = _account(evidence.links, found, scenario, log, gaps)
        differences += lost
    overhead_s = float(np.median(overheads)) if overheads else None
    return Evidence(evidence.rounds, ends, differences, folder, overhead_s)


def _account(
    ends: Sequence[Link], found: Sequence[Channel], scenario: Scenario, log: Sequence[dict[str, Any]], gaps: _Gaps
) -> tuple[list[Link], list[Difference]]:
    """The links with what was injected on each, and the balances that are not even."""
    injected = {(each["host"], DIRECTION_OF[each["direction"]]): each["dropped"] for each in log[-1]["counters"]}
    counted = [replace(each, injected=injected.get((each.worker, each.direction), 0)) for each in ends]
    what = "packets lost at the switch, against injector and queue"
    return counted, [
        Difference(each.where, what, each.lost, each.dropped, gaps.explain_loss(each))
        for each in balances(scenario, log, counted, found) if each.lost != each.dropped
    ]


def _log(folder: Path) -> list[dict[str, Any]]:
    """The lines of the run's log, if it got to its end."""
    path = folder / "events.jsonl"
    try:
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    except ValueError:      # a run that was killed may leave half of its last line
        return []
    return lines if lines and lines[-1]["kind"] == "end" else []


def _gaps(folder: Path, run: dict[str, Any], hosts: Sequence[str], log: Sequence[dict[str, Any]]) -> _Gaps:
    dropped = {"data": 0, "control": 0}
    places = []
    path = folder / "captures" / "capture.json"
    for interface, kinds in (json.loads(path.read_text()) if path.exists() else {}).items():
        for kind, counts in kinds.items():
            dropped[kind] += counts["dropped"]
            if counts["dropped"]:
                places.append(f"the capture dropped {counts['dropped']} {kind} packets at {interface}")
    for queue in log[-1]["queues"] if log else ():
        if queue["dropped"] and queue["interface"].partition("-")[0] in hosts:
            dropped["data"] += queue["dropped"] * GSO_SEGMENTS
            places.append(f"the host's own queue {queue['interface']} dropped {queue['dropped']} trains of frames")
    return _Gaps(dropped["data"], dropped["control"], "; ".join(places), run["status"])


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
    ends = Table("link", "frames lost", "TCP segments lost", "injected", box=None, header_style="bold")
    for link in evidence.links:
        ends.add_row(
            f"{link.worker} {link.direction}", str(link.frames_lost), str(link.segments_lost), cell(link.injected)
        )
    console.print(ends)
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
