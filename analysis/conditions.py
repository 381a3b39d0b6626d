"""Did the runs have the conditions that their conclusions need? Injected loss, theory, medians, CLR."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pandas as pd

from analysis import metrics, regimes, tables
from analysis.load import Results

LOSS_SLACK = 0.01
"""Injected loss may differ from the scenario's by one point, or by four deviations where few frames were seen."""
BURST_SLACK, CALM_SLACK = 1.17, 1.09
"""Factors above the ratio that frames alone give; control messages and waiting take the same time in both."""

Row = dict[str, str]


def conditions(results: Results, table: pd.DataFrame) -> pd.DataFrame:
    """One row a condition: scenario, condition, expected, measured, holds (yes, no, or why it is not judged)."""
    rows: list[Row] = []
    predicted = regimes.predictions(results)
    for scenario in tables.scenarios(results):
        for part in (_injected(results, scenario), _queues(results, scenario), _overflows(results, scenario),
                     _theory(predicted[predicted["scenario"] == scenario]), _against_baseline(results, table, scenario),
                     _clr(results, table, scenario), _missing(results, scenario)):
            rows += [{"Scenario": scenario} | row for row in part]
    return pd.DataFrame(rows, columns=["Scenario", "Condition", "Expected", "Measured", "Holds"])


def _row(condition: str, expected: str, measured: str, holds: bool | str) -> Row:
    text = holds if isinstance(holds, str) else "yes" if holds else "no"
    return {"Condition": condition, "Expected": expected, "Measured": measured, "Holds": text}


def _spread(values: pd.Series, digits: int = 2) -> str:
    """Mean, and the range over seeds where there are several."""
    low, mean, high = (f"{value:.{digits}f}" for value in (values.min(), values.mean(), values.max()))
    return mean if low == high else f"{mean} ({low} to {high})"


def _injected(results: Results, scenario: str) -> Iterator[Row]:
    frame = metrics.injected_loss(results)
    for row in frame[frame["scenario"] == scenario].itertuples():
        where = f"in burst {row.burst}" if row.burst else "outside bursts"
        name = f"Injected loss {where}, {row.transport}, {row.direction}"
        measured = f"{row.loss:.2%} ({row.dropped:,} of {row.seen:,} frames)" if row.seen else "no frames"
        if row.burst:
            slack = max(LOSS_SLACK, 4 * math.sqrt(row.asked * (1 - row.asked) / max(row.seen, 1)))
            holds = abs(row.loss - row.asked) <= slack if row.seen else "no frames"
            if row.model != "random":  # its losses come in spells, so few frames say little
                holds = f"for information: {row.model}"
            yield _row(name, f"{row.asked:.0%} ± {slack:.0%}", measured, holds)
        else:
            yield _row(name, "0", measured, bool(row.dropped == 0))


def _queues(results: Results, scenario: str) -> Iterator[Row]:
    frame = results.queues[results.queues["scenario"] == scenario]
    for transport, rows in frame.groupby("transport"):
        inside = rows.loc[rows["burst"] > 0, "dropped"].sum()
        outside = rows.loc[rows["burst"] == 0, "dropped"].sum()
        worst = rows.groupby("interface")["dropped"].sum().sort_values()
        most = f"; most at {worst.index[-1]}" if worst.iloc[-1] else ""
        yield _row(f"Queue drops, {transport}", "reported apart",
                   f"{inside:,} in bursts, {outside:,} outside{most}", "for information")


def _overflows(results: Results, scenario: str) -> Iterator[Row]:
    """The loss in cross traffic, which nobody injects: frames that did not arrive beside the drops of the queues.

    Of transports with frames of their own: what TCP sends again need not have been lost.
    """
    sample = metrics.samples(results)
    sample = sample[sample["kind"].isin(metrics.FRAMED)]
    for burst in filter(lambda burst: burst.action == "traffic", tables.bursts(results, scenario).itertuples()):
        for name in tables.transports(results, scenario):
            def of(frame: pd.DataFrame, transport: str = name) -> pd.DataFrame:
                return frame[(frame["scenario"] == scenario) & (frame["transport"] == transport)]

            inside = of(sample)
            inside = inside[inside["iteration"].between(burst.start, burst.stop - 1)]
            sent, arrived = inside["frames_sent"].sum(), inside["frames_arrived"].sum()
            queues, bursts = of(results.queues), of(results.bursts)
            dropped = queues.loc[queues["burst"] == burst.burst, "dropped"].sum()
            cross = bursts.loc[bursts["burst"] == burst.burst, "cross_traffic"].sum()
            if sent:
                yield _row(f"Frames lost in cross traffic, burst {burst.burst}, {name}",
                           f"at most the queues' {dropped:,} drops",
                           f"{1 - arrived / sent:.2%} ({sent - arrived:,} of {sent:,} frames; beside them {cross:,} "
                           "datagrams of cross traffic)", bool(sent - arrived <= dropped))


def _theory(frame: pd.DataFrame) -> Iterator[Row]:
    judged = frame[frame["holds"].isin(["yes", "no"])]
    for name, rows in judged.groupby("transport"):
        off = pd.concat([(rows[part] / rows[f"{part}_predicted"] - 1).abs() for part in ("passes", "frames")])
        yield _row(f"Passes and frames sent against theory, {name}", f"within {regimes.AGREE:.0%}",
                   f"{off.max():.1%} off at most, in {len(rows)} kinds of iterations",
                   bool((rows["holds"] == "yes").all()))


def _against_baseline(results: Results, table: pd.DataFrame, scenario: str) -> Iterator[Row]:
    who = metrics.roles(results, scenario)
    if len(who) < 2:
        return
    dblp, baseline = who["dblp"], who["baseline"]
    tolerances = [metrics.pick(table, scenario, name, "tolerance_calm") for name in (dblp, baseline)]
    if all(map(len, tolerances)):
        least = (1 - tolerances[0].mean()) / (1 - tolerances[1].mean())
        calm = metrics.paired(*(metrics.pick(table, scenario, t, "latency_median_calm") for t in (dblp, baseline)))
        limit = least * CALM_SLACK
        yield _row(f"Median latency without burst, outside the CLR, {dblp} / {baseline}",
                   f"(1-p_high)/(1-p_low) = {least:.2f}, at most {limit:.2f}", _spread(calm),
                   bool((calm <= limit).all()))
    for burst in filter(regimes.is_plain_loss, tables.bursts(results, scenario).itertuples()):
        name = f"Latency at burst {burst.burst}, {dblp} / {baseline}"
        in_clr = metrics.pick(table, scenario, dblp, "clr_at_burst", burst.burst)
        outside = in_clr[in_clr == 0].index
        latency = [metrics.pick(table, scenario, t, "latency_burst", burst.burst) for t in (dblp, baseline)]
        at_burst = [metrics.pick(table, scenario, t, "tolerance_at_burst", burst.burst) for t in (dblp, baseline)]
        if not len(in_clr) or not len(latency[1]) or not all(map(len, at_burst)):
            continue
        if not len(outside):
            ratio = metrics.paired(*latency)
            yield _row(name, "about 1: in the CLR the tolerances are equal", _spread(ratio),
                       f"not judged: {dblp} was in its CLR there")
            continue
        p = [at_burst[0].loc[outside].mean(), at_burst[1].mean()]
        least = (1 - p[0]) / (1 - p[1])
        ratio = metrics.paired(latency[0].loc[outside], latency[1])
        apart = "" if len(outside) == len(in_clr) else f" ({len(outside)} of {len(in_clr)} runs, outside the CLR)"
        yield _row(name, f"frames alone {least:.2f}, less where passes cost; at most {least * BURST_SLACK:.2f}",
                   _spread(ratio) + apart, bool((ratio <= least * BURST_SLACK).all()))


def _clr(results: Results, table: pd.DataFrame, scenario: str) -> Iterator[Row]:
    runs = results.runs[(results.runs["scenario"] == scenario) & results.runs["policy"].isin(metrics.CLR_POLICIES)]
    for name in dict.fromkeys(runs["transport"]):
        share = metrics.pick(table, scenario, name, "clr_share")
        if len(share):
            yield _row(f"Iterations in the CLR, {name}", "a minority", f"{_spread(share * 100, 1)}%",
                       bool((share < 0.5).all()))


def _missing(results: Results, scenario: str) -> Iterator[Row]:
    frame = metrics.missing_share(results)
    for name, rows in frame[(frame["scenario"] == scenario) & frame["bounded"]].groupby("transport"):
        over, rounds = int(rows["exceeded"].sum()), int(rows["rounds"].sum())
        yield _row(f"Missing frames within the tolerance, {name}", "every round",
                   f"{over:,} of {rounds:,} rounds above it; largest share {rows['largest'].max():.2%}",
                   over == 0)
