"""Every number of the paper has a claim; verdicts say what they rest on."""

from __future__ import annotations

import re
from pathlib import Path

import analysis_tree as tree
import pytest

from analysis import claims, metrics
from analysis.load import Results, load

BURST = "efficientnet-microburst"

# The paper's tables as they stand in it, and the numbers of its text that are not in a table.
TABLES = {
    "Table I": [
        [5, 0.8, 0.8, 40.8], [25, 2.4, 2.4, 42.4], [61, 0.8, 0.8, 40.8], [125, 0.8, 0.8, 40.8],
    ],
    "Table II": [
        [0.4621, 2.1629, 4.68], [0.3619, 2.1293, 5.88], [1.1305, 2.1629, 1.91], [0.5907, 0.9236, 1.56],
    ],
    "Table III": [
        [2.3017, 10.1180, 4.40], [2.4367, 10.0079, 4.11], [2.6885, 10.0118, 3.72], [5.6665, 10.1180, 1.79],
        [3.1966, 4.8519, 1.52],
    ],
    "Table IV": [[70.78, 72.33], [82.78, 83.54]],
    "Table V": [[1.2386, 1.1744, 1.1978, 1.1751, 1.3393, 1.3357]],
    "Table VI": [[71.01, 71.30], [82.74, 83.22], [70.10, 69.97], [1.6463, 1.5981]],
    "Section V-B": [[930, 10, 70, 1395, 15, -1.55, -0.76]],
    "Section V-C": [[6.42, 0.215]],
    "Section V-D": [[99.59, 99.42, 99.2]],
    "Section IV-E": [[0.5]],
    "Section V-A": [[3]],
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return load(tree.write_tree(tmp_path_factory.mktemp("results"), seeds=(1, 2)))


def verdicts(results: Results) -> dict[str, claims.Verdict]:
    return {verdict.id: verdict for verdict in claims.evaluate(results)}


@pytest.mark.parametrize("source", TABLES)
def test_every_number_of_the_paper_has_a_claim(source: str) -> None:
    # Differences of accuracies are claimed where the tables are, and the text of Section V-B repeats them.
    own = {c["source"] for c in claims.claims() if re.search(rf"\b{source}\b", c["source"])}
    sources = own | ({"Table IV"} if source == "Section V-B" else set())
    found = []
    for claim in claims.claims():
        if claim["source"] in sources:
            factor = 100 if claim["unit"] in ("share", "points") else 1
            found.append(round(claim["expected"] * factor, 4))
    wanted = [float(number) for row in TABLES[source] for number in row]
    missing = [number for number in wanted if found.count(number) < min(wanted.count(number), 1)]
    assert missing == []
    for number in set(wanted):      # 0.8 stands in Table I more than once, and so it does here
        assert found.count(number) >= wanted.count(number), number


def test_every_figure_of_the_paper_has_a_claim() -> None:
    sources = " ".join(claim["source"] for claim in claims.claims())
    for figure in ("1", "2a", "2b", "2c", "2d", "3", "4", "5", "6a", "6b", "6c", "6d"):
        assert re.search(rf"Figure {figure}\b", sources), figure


def test_every_claim_is_computable_and_says_what_it_depends_on() -> None:
    ids = [claim["id"] for claim in claims.claims()]
    assert len(ids) == len(set(ids))
    for claim in claims.claims():
        assert claim["measure"] in metrics.MEASURES
        assert claim["depends"]
        assert set(claim["depends"]) <= set(claims.document()["depends"])
        assert sum(k in claim for k in ("of", "ratio", "difference")) == 1, claim["id"]
        assert claim["tolerance"].keys() <= {"relative", "absolute"}
        assert claim["compare"] in ("within", "at_most", "at_least")
        claims.show(claim["expected"], claim["unit"])


def test_what_happens_at_bursts_is_judged_in_both_regimes() -> None:
    scenarios = {claim["scenario"] for claim in claims.claims() if claim["id"].endswith("/burst1-speedup")}
    assert scenarios == {"efficientnet-polling", BURST, "resnet50-polling", "resnet50-microburst"}
    texts = [claim["text"] for claim in claims.claims() if claim["id"].endswith("/burst1-speedup")]
    assert [text.rpartition("(")[2] for text in texts] == ["polling)", "plain)"] * 2


def test_verdicts_say_why(results: Results) -> None:
    said = verdicts(results)
    speedup = said[f"{BURST}/burst1-speedup"]
    assert speedup.verdict == claims.DIFFERS  # frames decide in the synthetic runs: 1.7
    assert speedup.measured == pytest.approx(1.68, rel=0.1)
    assert speedup.why.startswith("passes 1")
    assert speedup.depends == ("pass_cost",)
    assert (speedup.seeds, speedup.half > 0) == (2, True)
    assert [Path(run).name for run in speedup.runs] == ["dblp-s1", "dblp-s2", "mlt-s1", "mlt-s2"]
    assert speedup.command == "dblp run paper/efficientnet-microburst --profile laptop"
    assert said[f"{BURST}/average-speedup"].verdict == claims.REPRODUCED
    accuracy = said["efficientnet/accuracy-dblp"]
    assert accuracy.verdict == claims.NOT_RUN
    assert accuracy.why == ("needs cifar10 (this run used fashion_mnist) and the profile `paper`: 930 iterations "
                            "(this run had 80)")
    assert accuracy.measured == pytest.approx(0.70, abs=0.03)
    assert said[f"{BURST}/time-degradation"].measured > 0


def test_no_verdict_from_an_incomplete_or_a_missing_run(tmp_path: Path) -> None:
    tree.write_run(tmp_path, BURST, "dblp", bursts=tree.BURSTS)
    tree.write_run(tmp_path, BURST, "mlt", bursts=tree.BURSTS, status="interrupted", done=60)
    said = verdicts(load(tmp_path))
    assert said[f"{BURST}/burst1-speedup"].why == f"needs a complete run of {BURST} with transport mlt"
    assert said[f"{BURST}/burst1-dblp"].verdict == claims.DIFFERS
    assert said["efficientnet/time"].why == "needs a run of efficientnet with transport mlt"
    missing = said["efficientnet-polling/burst1-speedup"]
    assert (missing.verdict, missing.runs) == (claims.NOT_RUN, ())


def test_a_claim_over_scenarios_waits_for_all_of_them(tmp_path: Path, results: Results) -> None:
    waiting = verdicts(results)["efficientnet/time-mean"]
    assert waiting.why == "needs a run of resnet50-microburst with transport mlt"
    for name in (BURST, "efficientnet", "resnet50-microburst", "resnet50", "alexnet", "gpt2"):
        for transport in tree.PAPER:
            tree.write_run(tmp_path, name, transport, bursts=tree.BURSTS if name.endswith("burst") else ())
    said = verdicts(load(tmp_path))
    mean, largest = said["efficientnet/time-mean"], said["efficientnet/time-max"]
    assert mean.verdict != claims.NOT_RUN
    assert 1 < mean.measured <= largest.measured
    assert len(mean.runs) == 12


def test_figure_1_compares_transports_by_name(tmp_path: Path) -> None:
    names = {name: tree.PAPER["mlt"] for name in ("none", "late40", "late80", "early40", "early80")}
    for name in names:
        tree.write_run(tmp_path, "densenet169-phases", name, transports=names)
    said = verdicts(load(tmp_path))
    late, early = (said[f"densenet169-phases/{name}"] for name in ("late40", "early80"))
    assert late.verdict == claims.REPRODUCED          # all are the same here, within noise
    assert early.measured == pytest.approx(0, abs=0.03)


@pytest.mark.parametrize(("value", "unit", "half", "text"), [
    (0.5, "number", float("nan"), "0.5"), (1.6463, "number", 0.01, "1.6463 ± 0.0100"), (3.0, "number", 0.0, "3"),
    (4.02, "millions", float("nan"), "4.0 M"), (-0.0155, "points", float("nan"), "-1.55 points"),
    (0.00215, "share", float("nan"), "0.215%"), (float("nan"), "s", float("nan"), "-"),
])
def test_values_in_their_units(value: float, unit: str, half: float, text: str) -> None:
    assert claims.show(value, unit, half) == text
