"""Measures and conditions on runs whose laws are known."""

from __future__ import annotations

import math
from pathlib import Path

import analysis_tree as tree
import numpy as np
import pandas as pd
import pytest
from scipy import stats

from analysis import claims, conditions, metrics
from analysis.load import Results, load

BURST = "efficientnet-microburst"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return load(tree.write_tree(tmp_path_factory.mktemp("results"), seeds=(1, 2)))


@pytest.fixture(scope="module")
def measured(results: Results) -> pd.DataFrame:
    return metrics.measures(results)


def test_measures_agree_with_a_computation_by_hand(results: Results, measured: pd.DataFrame) -> None:
    run = f"scenario == '{BURST}' and transport == 'mlt' and seed == 1"
    reduce = results.rounds.query(f"{run} and direction == 'reduce'")
    grid = reduce.pivot_table(index="iteration", columns="worker", values="latency_s").to_numpy()
    line = grid.mean(axis=1)

    def value(measure: str, burst: int = 0) -> float:
        return metrics.pick(measured, BURST, "mlt", measure, burst)[1]

    assert value("latency_burst", 1) == pytest.approx(line[24])
    assert value("latency_burst", 2) == pytest.approx(line[56])
    assert value("latency_tail") == pytest.approx(line.max())
    assert value("latency_average") == pytest.approx(grid.mean())
    assert value("latency_p99") == pytest.approx(np.quantile(grid, 0.99))
    calm = np.delete(grid, tree.BURSTS, axis=0)
    assert value("latency_median_calm") == pytest.approx(np.median(calm))
    assert value("tail_at_burst") == 1
    assert value("burst_share") == 2 / tree.ITERATIONS
    total = results.iterations.query(run)["total_s"].sum()
    assert value("training_time") == pytest.approx(total / 3)


def test_calm_leaves_out_bursts_and_the_regime_of_phase_aware_transports(results: Results) -> None:
    sample = metrics.samples(results).query(f"scenario == '{BURST}' and seed == 1")
    calm = sample[sample["calm"]].groupby("transport")["iteration"].agg(lambda s: set(s))
    assert calm["mlt"] == set(range(tree.ITERATIONS)) - set(tree.BURSTS)
    outside = set(range(12, 40)) | set(range(48, tree.ITERATIONS))
    assert calm["dblp"] == outside - set(tree.BURSTS)


def test_estimate_is_students_interval() -> None:
    values = pd.Series([1.0, 2.0, 4.0])
    low, high = stats.t.interval(0.95, 2, loc=values.mean(), scale=stats.sem(values))
    found = metrics.estimate(values)
    assert (found.mean - found.half, found.mean + found.half) == pytest.approx((low, high))
    assert math.isnan(metrics.estimate(values[:1]).half)
    assert metrics.estimate(values[:0]).n == 0


def test_ratios_are_paired_by_seed() -> None:
    a, b = pd.Series({1: 2.0, 2: 9.0}), pd.Series({2: 3.0, 1: 1.0, 3: 100.0})
    assert metrics.paired(a, b).to_dict() == {1: 2.0, 2: 3.0}
    assert metrics.paired(a, b, "difference").to_dict() == {1: 1.0, 2: 6.0}
    assert metrics.paired(a, pd.Series({7: 11.0})).tolist() == [0.5]  # no shared seed: of the means
    assert metrics.paired(a, pd.Series(dtype=float)).dropna().empty


def test_roles_follow_names_then_policies(tmp_path: Path) -> None:
    ours = {"quick": tree.PAPER["dblp"], "strict": tree.PAPER["mlt"], "loose": tree.PAPER["mlt"]}
    for name in ("quick", "strict"):
        tree.write_run(tmp_path, "x", name, transports=ours)
    assert metrics.roles(load(tmp_path), "x") == {"dblp": "quick", "baseline": "strict"}
    tree.write_run(tmp_path, "x", "loose", transports=ours)
    assert metrics.roles(load(tmp_path), "x") == {"dblp": "quick"}  # two fixed ones: neither is the baseline


def test_a_burst_in_the_regime_is_said_and_not_judged(tmp_path: Path) -> None:
    tree.write_run(tmp_path, BURST, "dblp", bursts=tree.BURSTS, clr=((0, 12), (20, 30)))
    tree.write_run(tmp_path, BURST, "mlt", bursts=tree.BURSTS)
    results = load(tmp_path)
    speedup = next(v for v in claims.evaluate(results) if v.id == f"{BURST}/burst1-speedup")
    assert speedup.why.startswith("DBLP was in its CLR there; passes 14")
    table = conditions.conditions(results, metrics.measures(results)).set_index("Condition")["Holds"]
    assert table["Latency at burst 1, dblp / mlt"] == "not judged: dblp was in its CLR there"
    assert table["Latency at burst 2, dblp / mlt"] == "yes"


def test_conditions_hold_in_sound_runs(results: Results, measured: pd.DataFrame) -> None:
    table = conditions.conditions(results, measured)
    assert set(table["Holds"]) == {"yes", "for information"}
    in_bursts = table[table["Condition"].str.contains("in burst 1")]
    assert in_bursts["Measured"].str.startswith("70.0").all()


def test_conditions_find_wrong_loss_leaks_and_exceeded_tolerances(results: Results, measured: pd.DataFrame) -> None:
    counters = results.counters.copy()
    counters.loc[counters["burst"] == 1, "dropped"] = counters["seen"] // 2
    counters.loc[counters["burst"] == 0, "dropped"] = 1
    rounds = results.rounds.copy()
    rounds.loc[(rounds["transport"] == "mlt") & (rounds["iteration"] == 3), "frames_delivered"] -= 1
    broken = Results(**{**vars(results), "counters": counters, "rounds": rounds})
    table = conditions.conditions(broken, measured)
    no = set(table.loc[(table["Holds"] == "no") & (table["Scenario"] == BURST), "Condition"])
    assert no == {
        "Injected loss in burst 1, dblp, to_server", "Injected loss in burst 1, mlt, to_server",
        "Injected loss outside bursts, dblp, to_server", "Injected loss outside bursts, mlt, to_server",
        "Missing frames within the tolerance, mlt",
    }


def test_settings_and_the_last_evaluation_are_measures(tmp_path: Path) -> None:
    folder = tree.write_run(tmp_path, "gpt2", "mlt", bursts=tree.BURSTS)
    evals = pd.read_parquet(folder / "evals.parquet").assign(metric="perplexity", value=lambda f: 10.0 - f["epoch"])
    evals.to_parquet(folder / "evals.parquet")
    table = metrics.measures(load(tmp_path)).set_index(["measure", "burst"])["value"]
    assert table["perplexity", 0] == 10 - evals["epoch"].max()
    assert ("accuracy", 0) not in table
    assert table["tolerance_fixed", 0] == tree.LOW
    assert table["parameters", 0] == pytest.approx(4.02, abs=0.01)
    assert (table["burst_place", 2], table["burst_loss", 2], table["burst_length", 2]) == (56 / 80, 0.7, 1)
    assert table["delivered_least", 0] >= 1 - tree.LOW


def test_a_scenario_with_evaluations_and_no_rounds(tmp_path: Path) -> None:
    folder = tree.write_run(tmp_path, "phases", "mlt")
    for name in ("rounds", "iterations"):
        pd.read_parquet(folder / f"{name}.parquet").iloc[:0].to_parquet(folder / f"{name}.parquet")
    measured = set(metrics.measures(load(tmp_path))["measure"])
    assert "accuracy" in measured
    assert not measured & {"training_time", "latency_average", "communication_per_iteration"}
