"""Engine `single`: chunks of the gradient are zeroed at random in some epochs, in a results folder like others'."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from analysis.load import load
from scenarios import Drop, Scenario, ScenarioError
from scenarios import load as load_scenario
from testbed.engines.single import ChunkDrop
from testbed.runner import EngineError, Interruption, choose_engine, jobs, run_job
from testbed.training import data
from tests import tiny

pytest.importorskip("sklearn")

CHUNK_BYTES = 1456
DROPS = {"none": {"kind": "drop", "rate": "0%"}, "early": {"kind": "drop", "rate": "80%", "epochs": [1, 1]}}
DOCUMENT = yaml.safe_load(tiny.DOCUMENT) | {
    "topology": {"workers": 1, "link": {"rate": "1gbit"}}, "transports": DROPS,
}


def scenario(**changes: object) -> Scenario:
    return Scenario.model_validate(DOCUMENT | changes)


def drop(rate: str, epochs: list[int] | None = None, seed: int = 1) -> ChunkDrop:
    return ChunkDrop(Drop(kind="drop", rate=rate, epochs=epochs), 10, CHUNK_BYTES, seed)


def ones(chunks: int = 1000) -> np.ndarray:
    return np.ones(chunks * CHUNK_BYTES // 4 - 7, np.float32)      # the last chunk is shorter


def lost(gradient: np.ndarray) -> np.ndarray:
    """Which chunks are gone; a chunk is gone wholly or not at all."""
    padded = np.pad(gradient, (0, 7), mode="edge").reshape(-1, CHUNK_BYTES // 4)
    assert (padded.min(axis=1) == padded.max(axis=1)).all()
    return padded[:, 0] == 0


def test_whole_chunks_are_zeroed_at_the_rate_and_others_each_iteration() -> None:
    first, second = ones(), ones()
    drop("40%")(first, 0)
    drop("40%")(second, 1)
    assert lost(first).mean() == pytest.approx(0.4, abs=0.05)
    assert (lost(first) != lost(second)).any()


def test_a_run_repeats_for_its_seed() -> None:
    gradients = [ones() for _ in range(3)]
    for gradient, seed in zip(gradients, (1, 1, 2), strict=True):
        drop("40%", seed=seed)(gradient, 5)
    assert np.array_equal(gradients[0], gradients[1])
    assert not np.array_equal(gradients[0], gradients[2])


def test_only_the_epochs_asked_for_lose() -> None:
    losing = []
    for iteration in range(50):
        gradient = ones()
        drop("80%", epochs=[2, 3])(gradient, iteration)
        losing += [iteration] if (gradient == 0).any() else []
    assert losing == list(range(10, 30))


def test_runs_leave_the_same_folder_as_others_with_no_rounds(tmp_path: Path) -> None:
    digits = data.resolve(["digits"])
    with Interruption() as interruption:
        for job in jobs(scenario(), tmp_path):
            assert run_job(job, "single", digits, False, lambda *_: None, "dblp", interruption).status == "complete"
    results = load(tmp_path)
    assert list(results.runs["engine"]) == ["single", "single"]
    assert list(results.runs["iterations_done"]) == [12, 12]
    assert not results.problems
    assert results.rounds.empty
    assert set(results.evals["metric"]) == {"accuracy", "loss"}
    by = results.iterations.pivot_table(index="iteration", columns="transport", values="loss")
    assert by.loc[0, "none"] == by.loc[0, "early"]      # the same start and the same batch
    assert (by.loc[1:, "none"] != by.loc[1:, "early"]).all()
    record = json.loads((tmp_path / "tiny" / "none-s1" / "run.json").read_text())
    assert record["model"] == {
        "name": "digits_cnn", "parameters": 12298, "bytes": 49192, "chunk_bytes": 1456, "frames": 34
    }
    assert record["server_host"] is record["injector"] is None
    assert pd.read_parquet(tmp_path / "tiny" / "none-s1" / "iterations.parquet")["gradient_norm"].gt(0).all()


@pytest.mark.parametrize("asked", ["auto", "mininet", "local", "single"])
def test_without_a_network_the_engine_is_single_whatever_was_asked(asked: str) -> None:
    assert choose_engine(asked, scenario())[0] == "single"


def test_engine_single_is_nothing_for_a_network_and_captures_need_one() -> None:
    with pytest.raises(EngineError, match="no network, which tiny needs"):
        choose_engine("single", tiny.scenario())
    with pytest.raises(EngineError, match="tiny has no network"):
        choose_engine("auto", scenario(), capture=True)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("transports.late40.rate=101%", "transports.late40.rate: 101% is not between 0% and 100%"),
        ("transports.late40.epochs=[4, 10]", "transports.late40.epochs: the run has 9 epochs"),
        ("transports.late40.epochs=[5, 4]", "transports.late40.epochs: the first should not be after the last"),
        ("topology.workers=3", "topology.workers: .* one process"),
        ("transports.mlt={kind: tcp}", "transports.mlt: .* need no network, and mlt does"),
        ("events=[{action: loss, loss: 70%, at: {iteration: 3}, duration: 1 iteration}]", "events: there is no net"),
    ],
)
def test_what_one_process_cannot_do_is_refused(override: str, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        load_scenario("densenet169-phases", overrides=[override])
