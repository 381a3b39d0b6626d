"""Synthetic result folders for the tests of ``analysis``: drawn from a seed, with the laws of loss built in.

Nothing here is measured. A round is simulated as passes over the missing frames with independent loss, its
latency is frames at line rate plus a fixed cost per pass, so the expected ratios are known.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

FRAMES = 4000
FRAME_S, PASS_S = 1e-4, 5e-3
LOW, HIGH, LOSS = 0.008, 0.408, 0.7
ITERATIONS, PER_EPOCH, BURSTS = 80, 16, (24, 56)


def scenario(name: str, bursts: tuple[int, ...], transports: dict[str, Any], iterations: int = ITERATIONS) -> dict:
    """A resolved scenario as run.json holds it, as far as the analysis reads it."""
    return {
        "name": name,
        "profile": "laptop",
        "topology": {"workers": 3, "link": {"rate": 1e9}},
        "workload": {"model": "efficientnet_b0", "iterations": iterations, "iterations_per_epoch": PER_EPOCH,
                     "batch_size": 16},
        "transports": transports,
        "events": [{"action": "loss", "loss": LOSS, "at": {"iteration": k}} for k in bursts],
        "seeds": [1],
    }


PAPER = {
    "dblp": {"tolerance": {"policy": "phase_aware", "low": LOW, "high": HIGH, "eta": 0.5, "frequency": 10}},
    "mlt": {"tolerance": {"policy": "fixed", "p": LOW}},
}


def one_round(rng: np.random.Generator, tolerance: float, loss: float) -> tuple[int, int, int]:
    """Passes, frames sent and frames delivered until at most floor(p n) are missing."""
    missing, passes, sent = FRAMES, 0, 0
    allowed = math.floor(tolerance * FRAMES)
    while missing > allowed:
        passes += 1
        lost = int(rng.binomial(missing, loss)) if loss else 0
        if lost <= allowed:  # STOP arrives in mid-pass
            sent += round(missing * (missing - allowed) / (missing - lost))
            missing = allowed
        else:
            sent, missing = sent + missing, lost
    return passes, sent, FRAMES - missing


def write_run(
    root: Path, name: str, transport: str, seed: int = 1, bursts: tuple[int, ...] = (), *,
    transports: dict[str, Any] | None = None, status: str = "complete", done: int = ITERATIONS,
    clr: tuple[tuple[int, int], ...] = ((0, 12),), **changes: Any,
) -> Path:
    """One run's folder; ``clr`` are iterations [start, stop) in the CLR of a phase-aware transport."""
    transports = transports or PAPER
    tolerance = transports[transport]["tolerance"]
    rng = np.random.default_rng([seed, len(transport), len(bursts)])
    folder = root / name / f"{transport}-s{seed}"
    folder.mkdir(parents=True)
    seen, dropped = {w: 0 for w in ("w1", "w2", "w3")}, {w: 0 for w in ("w1", "w2", "w3")}
    rounds, iterations, events = [], [], [_event("start", None, seen, dropped)]
    for k in range(done):
        in_clr = tolerance["policy"] == "phase_aware" and any(a <= k < b for a, b in clr)
        p = tolerance["p"] if tolerance["policy"] == "fixed" else tolerance["low" if in_clr else "high"]
        burst = k in bursts
        if burst:
            events.append(_event("burst_start", k, seen, dropped, bursts.index(k)))
        for worker in seen:
            total = 0.2
            for direction in ("reduce", "broadcast"):
                hit = burst and direction == "reduce"
                passes, sent, delivered = one_round(rng, p, LOSS if hit else 0.0)
                latency = (3 * sent * FRAME_S + passes * PASS_S) * rng.lognormal(0, 0.02)
                total += latency
                if direction == "reduce":
                    seen[worker] += sent
                    dropped[worker] += round(sent * LOSS) if hit else 0
                rounds.append((k, worker, direction, latency, passes, FRAMES, sent, delivered, 0, 0, p, in_clr, burst,
                               delivered < FRAMES))
            iterations.append((k, worker, 0.2, total - 0.2, total, 2.3 * 0.98**k, 1.0))
        if burst:
            events.append(_event("burst_stop", k + 1, seen, dropped, bursts.index(k)))
    events.append(_event("end", None, seen, dropped))
    evals = [(PER_EPOCH * e, e - 1, w, "accuracy", 0.72 - 0.5 * 0.5**e + rng.normal(0, 0.004), 0.01)
             for e in range(1, done // PER_EPOCH + 1) for w in seen]
    _table(folder, "rounds", rounds, "iteration worker direction latency_s passes frames_total frames_sent "
           "frames_delivered stale duplicate tolerance in_clr burst early_stop")
    _table(folder, "iterations", iterations, "iteration worker compute_s communication_s total_s loss gradient_norm")
    _table(folder, "evals", evals, "iteration epoch worker metric value replica_drift")
    (folder / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in events))
    run = {
        "format": 1, "status": status, "error": None, "scenario": scenario(name, bursts, transports),
        "transport": transport, "seed": seed, "engine": "mininet", "injector": "bpf",
        "dataset": {"name": "fashion_mnist", "source": "synthetic, for tests", "train": 60000, "test": 10000,
                    "classes": 10, "stands_in_for": "cifar10", "note": ""},
        "model": {"name": "efficientnet_b0", "parameters": 4_020_358, "frames": FRAMES}, "device": "cpu",
        "machine": {"cpu": "synthetic", "cores": 2, "memory_gib": 8, "kernel": "6.12", "os": "none"},
        "versions": {"python": "3.12"}, "git": {"commit": "0" * 40, "dirty": False},
        "started": "2026-01-01T00:00:00+00:00", "finished": None, "duration_s": 60.0, "links": [],
        "command": f"dblp run {name}",
    }
    (folder / "run.json").write_text(json.dumps(run | changes))
    return folder


def write_tree(root: Path, seeds: tuple[int, ...] = (1,)) -> Path:
    """Both paper scenarios with both transports."""
    for seed in seeds:
        for transport in PAPER:
            write_run(root, "efficientnet-microburst", transport, seed, BURSTS, clr=((0, 12), (40, 48)))
            write_run(root, "efficientnet", transport, seed, clr=((0, 12), (40, 48)))
    return root


def _event(kind: str, iteration: int | None, seen: dict, dropped: dict, event: int | None = None) -> dict:
    line: dict[str, Any] = {"time_s": 0.0, "wall": "2026-01-01T00:00:00+00:00", "kind": kind}
    if event is not None:
        links = [[w, "to_server"] for w in seen]
        line |= {"iteration": iteration, "event": event, "links": links, "loss": LOSS if kind == "burst_start" else 0.0}
    counters = [{"host": w, "direction": "to_server", "seen": seen[w], "dropped": dropped[w]} for w in seen]
    return line | {"counters": counters, "queues": [{"interface": "s1-srv", "dropped": seen["w1"] // 10000}]}


def _table(folder: Path, name: str, rows: list[tuple], columns: str) -> None:
    pd.DataFrame(rows, columns=columns.split()).to_parquet(folder / f"{name}.parquet")
