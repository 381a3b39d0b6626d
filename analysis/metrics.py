"""What is computed from a run: one tidy table of measures, and estimates over seeds.

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
from scenarios.transports import DEFAULT_KIND, KINDS

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
    "perplexity": "Perplexity on the test set after the last epoch, mean over workers",
    "replica_drift": "Relative distance of the workers' replicas after the last epoch, mean over workers",
    "communication_per_iteration": "Time in the all-reduce, mean over iterations and workers (s)",
    "communication_median": "The same, median of the samples: a worker in an iteration (s)",
    "communication_p99": "The same, 99th percentile of the samples (s)",
    "communication_at_bursts": "Time in the all-reduce over all iterations that a burst touches, mean over workers and "
    "bursts (s)",
    "burst_cost": "The same, less as many times the median: what a burst costs (s)",
    "clr_share": "Share of iterations in the critical learning regime",
    "burst_share": "Share of iterations with a burst",
    "clr_at_burst": "1 where the burst fell into the CLR, else 0",
    "frames_at_burst": "Frames sent per frame of the model in a burst, workers under loss",
    "passes_at_burst": "Passes over the missing frames in a burst, workers under loss",
    "lost_at_burst": "Share of the frames sent in a burst that did not arrive, workers under loss, whatever lost them",
    "tolerance_at_burst": "Tolerance in force in a burst",
    "tolerance_calm": "Median tolerance without burst and outside the CLR",
    "frames_calm": "Frames sent per frame of the model without burst and outside the CLR, mean of the samples",
    "passes_calm": "Passes without burst and outside the CLR, mean of the samples",
    "bytes_sent": "Models sent by a worker in an iteration, mean: frames sent per frame of the model",
    "delivered_least": "Smallest share of a model's frames that arrived, over all workers and iterations",
    "parameters": "Parameters of the model, in millions",
    "workers": "Workers",
    "iterations": "Iterations of the run",
    "epochs": "Epochs of the run",
    "eta": "Threshold of the detector",
    "tolerance_fixed": "The tolerance of a transport that has one",
    "tolerance_low": "Tolerance in the CLR",
    "tolerance_high": "Tolerance outside the CLR",
    "burst_place": "First iteration of a burst, as a share of the run",
    "burst_loss": "Loss in a burst, as the scenario has it",
    "burst_length": "Iterations of a burst",
}
"""Every measure with its definition; measures ending in ``burst`` (and ``spike``) exist per burst."""

CLR_POLICIES = ("phase_aware", "random")
"""Policies of a tolerance that is low in a critical learning regime, or in what stands for one."""

FRAMED = [name for name, kind in KINDS.items() if kind.frames]
"""Kinds of transports that send the frames of docs/protocol.md."""


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
    frame = reduce.merge(results.runs[[*KEYS, "kind", "policy"]], on=KEYS)
    frame["in_clr"] = frame["in_clr"].astype(bool) & frame["policy"].isin(CLR_POLICIES)
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
            *_settings(results.metadata[tuple(key)], key[1], _of(results.bursts, key)),
            *_latencies(_of(sample, key), _of(lines, key)),
            *_at_bursts(_of(sample, key), _of(lines, key), _of(results.bursts, key)),
            *(_totals(*(_of(getattr(results, name), key) for name in ("iterations", "evals", "bursts"))) if complete
              else ()),
        ]
        rows += [(*key, *row) for row in found]
    return pd.DataFrame(rows, columns=[*KEYS, "measure", "burst", "value"])


def _settings(run: dict[str, Any], transport: str, bursts: pd.DataFrame) -> Iterator[tuple[str, int, float]]:
    scenario, parameters = run["scenario"], (run.get("model") or {}).get("parameters")
    workload, tolerance = scenario.get("workload", {}), tolerance_of(run, transport)
    if parameters:
        yield "parameters", 0, parameters / 1e6
    if workers := scenario.get("topology", {}).get("workers"):
        yield "workers", 0, workers
    for name, key in (("eta", "eta"), ("tolerance_fixed", "p"), ("tolerance_low", "low"), ("tolerance_high", "high")):
        if key in tolerance:
            yield name, 0, tolerance[key]
    if iterations := workload.get("iterations"):
        yield "iterations", 0, iterations
        yield "epochs", 0, iterations / workload.get("iterations_per_epoch", iterations)
        for burst in bursts.itertuples():
            yield "burst_place", burst.burst, burst.start / iterations
            yield "burst_loss", burst.burst, burst.loss
            yield "burst_length", burst.burst, burst.stop - burst.start


def tolerance_of(run: dict[str, Any], transport: str) -> dict[str, Any]:
    """The tolerance of a transport as run.json has it; empty where it has none."""
    return (run["scenario"].get("transports", {}).get(transport) or {}).get("tolerance") or {}


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
    yield "bytes_sent", 0, (sample["frames_sent"] / sample["frames_total"]).mean()
    yield "delivered_least", 0, (sample["frames_delivered"] / sample["frames_total"]).min()
    calm = sample[sample["calm"]]
    if len(calm):
        yield "frames_calm", 0, (calm["frames_sent"] / calm["frames_total"]).mean()
        yield "passes_calm", 0, calm["passes"].mean()
        yield "latency_median_calm", 0, calm["latency_s"].median()
        yield "tolerance_calm", 0, calm["tolerance"].median()


def _totals(
    iterations: pd.DataFrame, evals: pd.DataFrame, bursts: pd.DataFrame
) -> Iterator[tuple[str, int, float]]:
    if len(iterations):
        for measure, column in (("training", "total"), ("compute", "compute"), ("communication", "communication")):
            yield f"{measure}_time", 0, iterations.groupby("worker")[f"{column}_s"].sum().mean()
        yield from _all_reduce(iterations, bursts)
    last = evals[evals["iteration"] == evals["iteration"].max()]
    for metric, rows in last[last["metric"].isin(["accuracy", "perplexity"])].groupby("metric"):
        yield metric, 0, rows["value"].mean()
    if len(last):
        yield "replica_drift", 0, last["replica_drift"].mean()


def _all_reduce(iterations: pd.DataFrame, bursts: pd.DataFrame) -> Iterator[tuple[str, int, float]]:
    times = iterations["communication_s"]
    median = times.median()
    yield "communication_per_iteration", 0, times.mean()
    yield "communication_median", 0, median
    yield "communication_p99", 0, times.quantile(0.99)
    touched = [set(range(burst.start, burst.stop)) for burst in bursts.itertuples()]
    sums = [iterations.groupby("iteration")["communication_s"].mean().reindex(sorted(each)).sum() for each in touched]
    if sums:
        yield "communication_at_bursts", 0, float(np.mean(sums))
        beyond = [spent - median * len(each) for spent, each in zip(sums, touched, strict=True)]
        yield "burst_cost", 0, float(np.mean(beyond))


def _at_bursts(
    sample: pd.DataFrame, line: pd.DataFrame, bursts: pd.DataFrame
) -> Iterator[tuple[str, int, float]]:
    average = line["latency_s"].mean()
    for burst in bursts.itertuples():
        inside = line[line["iteration"].between(burst.start, burst.stop - 1)]
        hit = under_burst(sample, burst)
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


def under_burst(sample: pd.DataFrame, burst: Any) -> pd.DataFrame:
    """Those of ``samples`` whose gradients crossed a link of a burst, in its iterations."""
    workers = {worker for worker, direction in burst.channels if direction == "to_server"}
    return sample[sample["iteration"].between(burst.start, burst.stop - 1) & sample["worker"].isin(workers)]


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


def by_epoch(results: Results) -> pd.DataFrame:
    """Accuracy or perplexity after each epoch, mean over workers: scenario, transport, seed, metric, epoch, value."""
    return results.evals.groupby([*KEYS, "metric", "epoch"], as_index=False).agg(value=("value", "mean"))


def missing_share(results: Results) -> pd.DataFrame:
    """Share of a model's frames that never arrived, by transport, direction and CLR, beside the tolerance.

    Columns: scenario, transport, direction, in_clr, rounds (number), bounded, tolerance (median), mean, largest and
    ``exceeded``, the number of rounds with more missing than the tolerance allows (floor(p * n) frames). Only where
    ``bounded`` is true does a tolerance bound what is missing. Transports without frames have no row.
    """
    kinds = results.runs.loc[results.runs["kind"].isin(FRAMED), [*KEYS, "kind"]]
    frame = results.rounds.merge(kinds, on=KEYS)
    frame["bounded"] = frame["kind"] == DEFAULT_KIND
    lost = frame["frames_total"] - frame["frames_delivered"]
    frame["missing"] = lost / frame["frames_total"]
    # The product p * n may fall a rounding error below the integer it stands for.
    frame["over"] = lost > np.floor(frame["tolerance"] * frame["frames_total"] + 1e-6)
    return frame.groupby(["scenario", "transport", "bounded", "direction", "in_clr"], as_index=False).agg(
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
