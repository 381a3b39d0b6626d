"""Measures, theory, verdicts and conditions on runs whose laws are known."""

from __future__ import annotations

import math
from pathlib import Path

import analysis_tree as tree
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
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


def test_every_claim_is_computable_and_every_reason_exists() -> None:
    document = claims.document()
    ids = [claim["id"] for claim in document["claims"]]
    assert len(ids) == len(set(ids))
    for claim in document["claims"]:
        assert claim["measure"] in metrics.MEASURES
        assert set(claim["reasons"]) <= set(document["reasons"])
        assert sum(k in claim for k in ("of", "ratio", "difference")) == 1
        claims.show(claim["expected"], claim["unit"])


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


@settings(derandomize=True)
@given(tolerance=st.floats(0.01, 0.6), loss=st.floats(0.1, 0.8), seed=st.integers(0, 2**32 - 1))
def test_theory_holds_for_simulated_rounds(tolerance: float, loss: float, seed: int) -> None:
    passes, sent, delivered = tree.one_round(np.random.default_rng(seed), tolerance, loss)
    assert delivered >= (1 - tolerance) * tree.FRAMES
    assert abs(passes - metrics.expected_passes(tolerance, loss)) <= 2
    assert sent / tree.FRAMES == pytest.approx(metrics.expected_frames(tolerance, loss), rel=0.15)


def test_theory_at_its_edges() -> None:
    assert metrics.expected_passes(0.008, 0.7) == pytest.approx(13.54, abs=0.01)
    assert metrics.expected_frames(0.408, 0.7) == pytest.approx(1.973, abs=0.001)
    assert metrics.expected_passes(0.8, 0.7) == 1
    assert metrics.expected_passes(0.008, 0) == 1
    assert math.isnan(metrics.expected_passes(0, 0.7))
    assert metrics.expected_frames(0.1, 1) == math.inf


def test_roles_follow_names_then_policies(tmp_path: Path) -> None:
    ours = {"quick": tree.PAPER["dblp"], "strict": tree.PAPER["mlt"], "loose": tree.PAPER["mlt"]}
    for name in ("quick", "strict"):
        tree.write_run(tmp_path, "x", name, transports=ours)
    assert metrics.roles(load(tmp_path), "x") == {"dblp": "quick", "baseline": "strict"}
    tree.write_run(tmp_path, "x", "loose", transports=ours)
    assert metrics.roles(load(tmp_path), "x") == {"dblp": "quick"}  # two fixed ones: neither is the baseline


def _verdict(results: Results, name: str) -> claims.Verdict:
    return next(v for v in claims.evaluate(results) if v.id == name)


def test_verdicts_say_why(results: Results) -> None:
    speedup = _verdict(results, "burst1-speedup")
    assert speedup.verdict == claims.DIFFERS  # frames decide in the synthetic runs: 1.7
    assert speedup.measured == pytest.approx(1.68, rel=0.1)
    assert speedup.why.startswith("passes 1")
    assert speedup.reasons == ("pass_cost",)
    assert (speedup.seeds, speedup.half > 0) == (2, True)
    average = _verdict(results, "average-speedup")
    assert (average.verdict, average.reasons) == (claims.REPRODUCED, ())
    accuracy = _verdict(results, "accuracy-dblp")
    assert accuracy.verdict == claims.NOT_RUN
    assert accuracy.why == ("needs cifar10 (this run used fashion_mnist) and the profile `paper`: 930 iterations "
                            "(this run had 80)")
    assert accuracy.measured == pytest.approx(0.70, abs=0.03)
    assert _verdict(results, "time-degradation").measured > 0


def test_no_verdict_from_an_incomplete_or_a_missing_run(tmp_path: Path) -> None:
    tree.write_run(tmp_path, BURST, "dblp", bursts=tree.BURSTS)
    tree.write_run(tmp_path, BURST, "mlt", bursts=tree.BURSTS, status="interrupted", done=60)
    results = load(tmp_path)
    assert _verdict(results, "burst1-speedup").why == f"needs a complete run of {BURST} with transport mlt"
    assert _verdict(results, "burst1-dblp").verdict == claims.DIFFERS
    assert _verdict(results, "time-calm").why == "needs a run of efficientnet with transport mlt"


def test_a_burst_in_the_regime_is_said_and_not_judged(tmp_path: Path) -> None:
    tree.write_run(tmp_path, BURST, "dblp", bursts=tree.BURSTS, clr=((0, 12), (20, 30)))
    tree.write_run(tmp_path, BURST, "mlt", bursts=tree.BURSTS)
    results = load(tmp_path)
    assert _verdict(results, "burst1-speedup").why.startswith("DBLP was in its CLR there; passes 14")
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
