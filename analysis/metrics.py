"""What is computed from a run: one tidy table of measures, estimates over seeds, and the theory of loss.

Send latency is the time from a worker's first frame of a round to the server's STOP (direction ``reduce``,
workers to server). One worker in one iteration is one sample. Distributions, medians and percentiles use the
samples; the value of an iteration, hence of a burst, the tail and the average, is the mean over the workers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from analysis.load import KEYS, Results

MEASURES = {
    "latency_burst": "Mean send latency over the iterations of a burst (s)",
    "latency_tail": "Largest send latency of an iteration (s), the paper's 'tail'",
    "tail_at_burst": "1 where the largest send latency of the run falls into a burst, else 0",
    "latency_average": "Mean send latency over all iterations (s)",
    "latency_p99": "99th percentile of the samples of send latency (s)",
    "latency_median_calm": "Median of the samples without burst and outside the CLR (s)",
    "spike": "Send latency of a burst divided by the average send latency",
    "training_time": "Sum over iterations of computation and communication, mean over workers (s); without "
    "evaluation and start-up",
    "compute_time": "Part of the training time in forward, backward and optimizer step (s)",
    "communication_time": "Part of the training time in the all-reduce (s)",
    "accuracy": "Accuracy on the test set after the last epoch, mean over workers",
    "clr_share": "Share of iterations in the critical learning regime",
    "burst_share": "Share of iterations with a burst",
    "clr_at_burst": "1 where the burst fell into the CLR, else 0",
    "frames_at_burst": "Frames sent per frame of the model in a burst, workers under loss",
    "passes_at_burst": "Passes over the missing frames in a burst, workers under loss",
    "lost_at_burst": "Share of the frames sent in a burst that did not arrive, workers under loss, whatever lost them",
    "tolerance_at_burst": "Tolerance in force in a burst",
    "tolerance_calm": "Median tolerance without burst and outside the CLR",
}
"""Every measure with its definition; measures ending in ``burst`` (and ``spike``) exist per burst."""


@dataclass(frozen=True)
class Estimate:
    """Mean over seeds with the half-width of its 95 % confidence interval (Student's t; NaN for one seed)."""

    mean: float
    half: float
    n: int


def estimate(values: pd.Series) -> Estimate:
    """Estimate of the mean of ``values``, one per seed; NaN where there are none."""
    values = values.dropna()
    n = len(values)
    half = float(stats.t.ppf(0.975, n - 1) * stats.sem(values)) if n > 1 else math.nan
    return Estimate(float(values.mean()) if n else math.nan, half, n)


def samples(results: Results) -> pd.DataFrame:
    """Send latency of each worker in each iteration (s), with ``in_clr``, ``burst``, ``calm`` and ``frames_arrived``.

    ``calm``: no burst in that iteration and, for a phase-aware transport, outside its CLR. ``frames_arrived``: of the
    frames sent; those under way at the STOP arrive in the worker's next round, as stale; after the last there is none.
    """
    reduce = results.rounds[results.rounds["direction"] == "reduce"].sort_values("iteration", kind="stable")
    late = reduce.groupby([*KEYS, "worker"])["stale"].shift(-1, fill_value=0)
    reduce = reduce.assign(frames_arrived=reduce["frames_delivered"] + reduce["duplicate"] + late)
    frame = reduce.merge(results.runs[[*KEYS, "policy"]], on=KEYS)
    frame["in_clr"] = frame["in_clr"].astype(bool) & (frame["policy"] == "phase_aware")
    frame["burst"] = frame.groupby([*KEYS, "iteration"])["burst"].transform("any").astype(bool)
    frame["calm"] = ~frame["burst"] & ~frame["in_clr"]
    return frame


def by_iteration(sample: pd.DataFrame) -> pd.DataFrame:
    """Send latency of each iteration: the mean over the workers of ``samples`` (s)."""
    return sample.groupby([*KEYS, "iteration"], as_index=False).agg(
        latency_s=("latency_s", "mean"), in_clr=("in_clr", "any"), burst=("burst", "any")
    )


def measures(results: Results) -> pd.DataFrame:
    """Every measure of every run: columns scenario, transport, seed, measure, burst (0 = the run), value.

    A run that did not complete has no training time and no final accuracy.
    """
    sample = samples(results)
    lines = by_iteration(sample)
    rows = []
    for *key, complete in results.runs[[*KEYS, "complete"]].itertuples(index=False, name=None):
        found = [
            *_latencies(_of(sample, key), _of(lines, key)),
            *_at_bursts(_of(sample, key), _of(lines, key), _of(results.bursts, key)),
            *(_totals(_of(results.iterations, key), _of(results.evals, key)) if complete else ()),
        ]
        rows += [(*key, *row) for row in found]
    return pd.DataFrame(rows, columns=[*KEYS, "measure", "burst", "value"])


def _of(frame: pd.DataFrame, key: Sequence[Any]) -> pd.DataFrame:
    return frame[(frame["scenario"] == key[0]) & (frame["transport"] == key[1]) & (frame["seed"] == key[2])]


def _latencies(sample: pd.DataFrame, line: pd.DataFrame) -> Iterator[tuple[str, int, float]]:
    if not len(line):
        return
    yield "latency_average", 0, line["latency_s"].mean()
    yield "latency_tail", 0, line["latency_s"].max()
    yield "tail_at_burst", 0, float(line.loc[line["latency_s"].idxmax(), "burst"])
    yield "latency_p99", 0, sample["latency_s"].quantile(0.99)
    yield "clr_share", 0, line["in_clr"].mean()
    yield "burst_share", 0, line["burst"].mean()
    calm = sample[sample["calm"]]
    if len(calm):
        yield "latency_median_calm", 0, calm["latency_s"].median()
        yield "tolerance_calm", 0, calm["tolerance"].median()


def _totals(iterations: pd.DataFrame, evals: pd.DataFrame) -> Iterator[tuple[str, int, float]]:
    for measure, column in (("training", "total"), ("compute", "compute"), ("communication", "communication")):
        yield f"{measure}_time", 0, iterations.groupby("worker")[f"{column}_s"].sum().mean()
    accuracy = evals[evals["metric"] == "accuracy"]
    if len(accuracy):
        yield "accuracy", 0, accuracy.loc[accuracy["iteration"] == accuracy["iteration"].max(), "value"].mean()


def _at_bursts(
    sample: pd.DataFrame, line: pd.DataFrame, bursts: pd.DataFrame
) -> Iterator[tuple[str, int, float]]:
    average = line["latency_s"].mean()
    for burst in bursts.itertuples():
        inside = line[line["iteration"].between(burst.start, burst.stop - 1)]
        under = {worker for worker, direction in burst.channels if direction == "to_server"}
        hit = sample[sample["iteration"].between(burst.start, burst.stop - 1) & sample["worker"].isin(under)]
        if not len(inside):
            continue
        latency = inside["latency_s"].mean()
        yield "latency_burst", burst.burst, latency
        yield "spike", burst.burst, latency / average
        yield "clr_at_burst", burst.burst, float(inside["in_clr"].any())
        if len(hit):
            yield "frames_at_burst", burst.burst, (hit["frames_sent"] / hit["frames_total"]).mean()
            yield "passes_at_burst", burst.burst, hit["passes"].mean()
            yield "lost_at_burst", burst.burst, 1 - hit["frames_arrived"].sum() / hit["frames_sent"].sum()
            yield "tolerance_at_burst", burst.burst, hit["tolerance"].mean()


def pick(table: pd.DataFrame, scenario: str, transport: str | None, measure: str, burst: int = 0) -> pd.Series:
    """One measure of one transport as a series over seeds (empty where it was not measured)."""
    rows = table[(table["scenario"] == scenario) & (table["transport"] == transport)
                 & (table["measure"] == measure) & (table["burst"] == burst)]
    return rows.set_index("seed")["value"]


def paired(a: pd.Series, b: pd.Series, operation: str = "ratio") -> pd.Series:
    """``a / b`` (or ``a - b``) seed by seed; of the means where the two share no seed."""
    shared = a.index.intersection(b.index)
    if not len(shared):
        a, b = (pd.Series([s.mean()], dtype=float) if len(s) else pd.Series(dtype=float) for s in (a, b))
    else:
        a, b = a.loc[shared], b.loc[shared]
    return a / b if operation == "ratio" else a - b


def roles(results: Results, scenario: str) -> dict[str, str]:
    """Which transport plays the paper's ``dblp`` (phase-aware) and its ``baseline`` (fixed tolerance).

    The names ``dblp``, ``mlt`` and ``baseline`` decide; else the only transport of that policy does.
    """
    runs = results.runs[results.runs["scenario"] == scenario].drop_duplicates("transport")
    found = {}
    for role, policy, names in (("dblp", "phase_aware", ["dblp"]), ("baseline", "fixed", ["mlt", "baseline"])):
        candidates = runs.loc[runs["policy"] == policy, "transport"].tolist()
        named = [name for name in names if name in candidates]
        if named or len(candidates) == 1:
            found[role] = (named or candidates)[0]
    return found


def expected_frames(tolerance: float, loss: float) -> float:
    """Frames sent per frame of the model, at least, until a share 1 - tolerance arrived: (1-p) / (1-q)."""
    return (1 - tolerance) / (1 - loss) if loss < 1 else math.inf


def expected_passes(tolerance: float, loss: float) -> float:
    """Passes until the missing share q^n is at most the tolerance: n = ln p / ln q, at least 1.

    NaN for p = 0, where the number of frames decides.
    """
    if tolerance <= 0 or not 0 < loss < 1:
        return math.nan if loss > 0 else 1.0
    return max(1.0, math.log(tolerance) / math.log(loss))


def accuracy_by_epoch(results: Results) -> pd.DataFrame:
    """Accuracy after each epoch, mean over workers: scenario, transport, seed, epoch, accuracy."""
    rows = results.evals[results.evals["metric"] == "accuracy"]
    return rows.groupby([*KEYS, "epoch"], as_index=False).agg(accuracy=("value", "mean"))


def missing_share(results: Results) -> pd.DataFrame:
    """Share of a model's frames that never arrived, by transport, direction and CLR, beside the tolerance.

    Columns: scenario, transport, direction, in_clr, rounds (number), tolerance (median), mean, largest and
    ``exceeded``, the number of rounds with more missing than the tolerance allows (floor(p * n) frames).
    """
    frame = results.rounds.copy()
    lost = frame["frames_total"] - frame["frames_delivered"]
    frame["missing"] = lost / frame["frames_total"]
    # The product p * n may fall a rounding error below the integer it stands for.
    frame["over"] = lost > np.floor(frame["tolerance"] * frame["frames_total"] + 1e-6)
    return frame.groupby(["scenario", "transport", "direction", "in_clr"], as_index=False).agg(
        rounds=("missing", "size"), tolerance=("tolerance", "median"), mean=("missing", "mean"),
        largest=("missing", "max"), exceeded=("over", "sum"),
    )


def injected_loss(results: Results) -> pd.DataFrame:
    """Loss by the injector's counters, all links and seeds of a transport together.

    Columns: scenario, transport, burst (0 = outside every window), direction, seen, dropped, loss, and ``asked`` and
    ``model``, the loss of the scenario and how it is drawn.
    """
    keys = ["scenario", "transport", "burst", "direction"]
    frame = results.counters.groupby(keys, as_index=False)[["seen", "dropped"]].sum()
    asked = results.bursts.groupby(["scenario", "transport", "burst"], as_index=False).agg(
        asked=("loss", "first"), model=("model", "first")
    )
    frame = frame.merge(asked, how="left", on=keys[:3]).fillna({"asked": 0.0, "model": "random"})
    return frame.assign(loss=frame["dropped"] / frame["seen"].where(frame["seen"] > 0))
