"""Runs beside theory: passes, frames and speedups as docs/theory.md predicts them, and where each run lies on its axes.

A run is *polling* where its transports' senders wait for their control channel on every pass, as the paper's did, and
*plain* where a pass costs nothing but its frames.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from analysis import claims, metrics, theory
from analysis.load import Results
from protocol import TransportConfig
from scenarios.transports import DEFAULT_KIND

AGREE = 0.1
"""Measured and predicted passes and frames may differ by this share, or by the luck of few samples."""
_DEVIATIONS = 4
MODELS = {"efficientnet": "EfficientNetB0", "resnet50": "ResNet50"}
"""Models of which the paper gives latencies under bursts, by the stem of their scenarios."""

REGIMES = ("microburst", "polling")
"""Endings of those scenarios: passes that cost nothing, and passes that cost time."""


@dataclass(frozen=True)
class Point:
    """Where bursts of a scenario (or of the paper) lie: the cost of a pass, and speedups measured and predicted.

    ``cost`` is the per-pass cost over the time to send the model once; ``send_time`` and ``pass_cost`` in s, NaN if the
    paper's equations have no solution. ``bursts`` has the measured burst speedups. ``kind``: plain, polling or paper.
    """

    name: str
    model: str
    kind: str
    send_time: float
    pass_cost: float
    loss: float
    low: float
    high: float
    workers: int
    bursts: dict[int, metrics.Estimate]
    average: metrics.Estimate
    burst_share: float
    clr_share: float

    @property
    def cost(self) -> float:
        """The per-pass cost divided by the time to send the model once."""
        return self.pass_cost / self.send_time

    def predicted_burst(self) -> float:
        """Burst speedup by theory."""
        return theory.burst_speedup(self.cost, self.loss, self.low, self.high, self.workers)

    def predicted_average(self) -> float:
        """Average speedup by theory."""
        return theory.average_speedup(self.cost, self.loss, self.low, self.high, self.workers, self.burst_share,
                                      self.clr_share)


def is_plain_loss(burst: Any) -> bool:
    """Independent losses throughout whole iterations: what theory is about."""
    return burst.action == "loss" and burst.model == "random" and burst.whole


def send_time(run: dict[str, Any]) -> float:
    """Time that one link of the star needs for the model once, headers included (s); NaN where it is not recorded."""
    link = run["scenario"].get("topology", {}).get("link", {})
    frames = (run.get("model") or {}).get("frames")
    if not frames or "rate" not in link:
        return math.nan
    return frames * TransportConfig(mtu=link.get("mtu", 1500)).wire_bytes * 8 / link["rate"]


def polling_cost(run: dict[str, Any], transport: str) -> float:
    """What a pass costs a transport's sender by its settings (s): 0 unless it polls."""
    sender = (run["scenario"].get("transports", {}).get(transport) or {}).get("sender") or {}
    frames = (run.get("model") or {}).get("frames")
    return theory.polling_cost(frames, sender["poll_every"], sender["poll_wait"]) if sender and frames else 0.0


def predictions(results: Results) -> pd.DataFrame:
    """Passes and frames sent per frame of the model, predicted beside measured: in each burst, and without loss.

    Columns: scenario, where, burst (0 without loss), transport, tolerance and loss (means), samples, passes_predicted,
    passes, frames_predicted, frames, and whether both agree (``holds``: yes, no, or why it is not judged).
    """
    sample = metrics.samples(results)
    sample = sample[(sample["kind"] == DEFAULT_KIND) & (sample["policy"] != "unknown")]      # others have no tolerance
    dropped = results.queues[results.queues["burst"] == 0].groupby(["scenario", "transport"])["dropped"].sum()
    rows = []
    for (scenario, transport), own in sample.groupby(["scenario", "transport"]):
        windows = results.bursts[(results.bursts["scenario"] == scenario)].drop_duplicates("burst")
        for burst in filter(is_plain_loss, windows.sort_values("burst").itertuples()):
            if len(hit := metrics.under_burst(own, burst)):
                where = f"burst {burst.burst}"
                rows.append({"scenario": scenario, "where": where, "burst": burst.burst, "transport": transport,
                             **_compared(hit, burst.loss, "")})
        for where, calm in (("no loss", own[own["calm"]]), ("no loss, in the CLR", own[own["in_clr"] & ~own["burst"]])):
            if len(calm):
                note = "queues dropped frames" if dropped.get((scenario, transport), 0) else ""
                rows.append({"scenario": scenario, "where": where, "burst": 0, "transport": transport,
                             **_compared(calm, 0.0, note)})
    return pd.DataFrame(rows, columns=["scenario", "where", "burst", "transport", "tolerance", "loss", "samples",
                                       "passes_predicted", "passes", "frames_predicted", "frames", "holds"])


def _compared(rows: pd.DataFrame, loss: float, note: str) -> dict[str, Any]:
    expected = [_expected(p, loss, n) for p, n in zip(rows["tolerance"], rows["frames_total"], strict=True)]
    passes, deviation, frames = np.mean(expected, axis=0)
    measured = rows["passes"].mean(), (rows["frames_sent"] / rows["frames_total"]).mean()
    luck = _DEVIATIONS * deviation / math.sqrt(len(rows))
    holds = abs(measured[0] - passes) <= max(AGREE * passes, luck) and abs(measured[1] - frames) <= AGREE * frames
    return {
        "tolerance": rows["tolerance"].mean(), "loss": loss, "samples": len(rows), "passes_predicted": passes,
        "passes": measured[0], "frames_predicted": frames, "frames": measured[1],
        "holds": note or ("yes" if holds else "no"),
    }


@cache
def _expected(p: float, q: float, frames: int) -> tuple[float, float, float]:
    law = theory.passes(p, q, frames)
    return law.mean, law.deviation, theory.frames_sent(p, q, frames)


def points(results: Results, table: pd.DataFrame) -> list[Point]:
    """The scenarios of the paper's burst experiments that ran with DBLP and its baseline; then the paper itself."""
    ran = dict.fromkeys(results.runs["scenario"])
    found = [point for stem in MODELS for regime in REGIMES if f"{stem}-{regime}" in ran
             for point in _point(results, table, f"{stem}-{regime}", MODELS[stem])]
    return found + [point for stem in MODELS for point in _paper(stem)]


def _point(results: Results, table: pd.DataFrame, scenario: str, model: str) -> Iterator[Point]:
    who = metrics.roles(results, scenario)
    run = next(run for key, run in results.metadata.items() if key[0] == scenario)
    once = send_time(run)
    windows = results.bursts[results.bursts["scenario"] == scenario].drop_duplicates("burst")
    windows = [b for b in windows.itertuples() if is_plain_loss(b) and any(d == "to_server" for _, d in b.channels)]
    losses = {burst.loss for burst in windows}
    if len(who) < 2 or len(losses) != 1 or math.isnan(once):
        return
    loss, workers = losses.pop(), run["scenario"]["topology"]["workers"]
    dblp, baseline = who["dblp"], who["baseline"]
    settings = metrics.tolerance_of(run, dblp)

    def speedup(measure: str, burst: int = 0) -> metrics.Estimate:
        both = [metrics.pick(table, scenario, name, measure, burst) for name in (baseline, dblp)]
        if burst:        # in its CLR DBLP is the baseline
            inside = metrics.pick(table, scenario, dblp, "clr_at_burst", burst)
            both[1] = both[1][inside.reindex(both[1].index) == 0]
        return metrics.estimate(metrics.paired(*both))

    def share(measure: str) -> float:
        return metrics.pick(table, scenario, dblp, measure).mean()

    average = speedup("latency_average")
    if not average.n:        # one of the two has no run yet
        return
    polled = polling_cost(run, dblp)
    measured = [metrics.pick(table, scenario, baseline, "latency_burst", b.burst).mean() for b in windows]
    at = metrics.tolerance_of(run, baseline)["p"]
    beyond = np.nanmean(measured) - theory.floor(at, loss, workers, once)
    yield Point(
        name=scenario, model=model, kind="polling" if polled else "plain", send_time=once,
        pass_cost=polled or max(beyond, 0.0) / theory.passes_walked(at, loss), loss=loss, low=settings["low"],
        high=settings["high"], workers=workers,
        bursts={b.burst: e for b in windows if (e := speedup("latency_burst", b.burst)).n},
        average=average, burst_share=share("burst_share"), clr_share=share("clr_share"),
    )


def _paper(stem: str) -> Iterator[Point]:
    """The paper's bursts, with the send time and the cost of a pass that its mean latencies follow from."""
    scenario = f"{stem}-polling"

    def value(measure: str, burst: int = 0, **of: Any) -> float:
        return claims.paper_value(scenario, measure, burst, **of)

    numbers = [n for n in (1, 2, 3) if not math.isnan(value("latency_burst", n, of="dblp"))]
    low, high = (claims.paper_value(stem, f"tolerance_{end}", of="dblp") for end in ("low", "high"))
    loss = claims.paper_value(f"{stem}-microburst", "burst_loss", 1, of="dblp")
    law = [[theory.frames_sent(p, loss), theory.passes_walked(p, loss)] for p in (low, high)]
    mean = [np.mean([value("latency_burst", n, of=role) for n in numbers]) for role in ("baseline", "dblp")]
    once, cost = np.linalg.solve(law, mean)
    yield Point(
        name=f"paper, {MODELS[stem]}", model=MODELS[stem], kind="paper", send_time=float(once), pass_cost=float(cost),
        loss=loss, low=low, high=high, workers=3,
        bursts={n: metrics.Estimate(value("latency_burst", n, ratio=["baseline", "dblp"]), math.nan, 1)
                for n in numbers},
        average=metrics.Estimate(value("latency_average", ratio=["baseline", "dblp"]), math.nan, 1),
        burst_share=len(numbers) / claims.paper_value(f"{stem}-microburst", "iterations", of="dblp"), clr_share=0.0,
    )
