"""Three replicas that exchange a mean gradient learn, stay equal, and repeat for the same seed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from scenarios import Workload
from testbed.training import data, models
from testbed.training.trainer import Trainer

pytest.importorskip("sklearn")


DIGITS = data.resolve(["digits"])
OPTIMIZER = {"lr": 0.1, "momentum": 0.9}


def workload(**changes: object) -> Workload:
    fields = {"model": "digits_cnn", "batch_size": 16, "iterations": 60, "iterations_per_epoch": 20, "device": "cpu"}
    return Workload.model_validate(fields | {"optimizer": OPTIMIZER, "schedule": "cosine"} | changes)


def trainers(workers: int = 3, seed: int = 1, **changes: object) -> list[Trainer]:
    return [
        Trainer(workload(**changes), rank=rank, workers=workers, seed=seed, dataset=DIGITS) for rank in range(workers)
    ]


def step(replicas: list[Trainer], iteration: int) -> None:
    for replica in replicas:
        replica.compute(iteration)
    averaged = np.mean([replica.gradient for replica in replicas], axis=0)
    for replica in replicas:
        replica.apply(averaged)


def flat_in_memory(gradient: torch.Tensor) -> np.ndarray:
    channels_last = gradient.permute(0, 2, 3, 1) if gradient.ndim == 4 else gradient
    return channels_last.numpy().ravel()


def test_three_replicas_learn_the_digits_and_stay_equal() -> None:
    replicas = trainers()
    start = replicas[0].evaluate()
    for iteration in range(60):
        step(replicas, iteration)
    vectors = [replica.parameters_vector() for replica in replicas]
    assert np.array_equal(vectors[0], vectors[1])
    assert np.array_equal(vectors[0], vectors[2])
    assert start["accuracy"] < 0.3
    assert replicas[0].evaluate()["accuracy"] > 0.85


def test_a_run_repeats_for_its_seed() -> None:
    ends = []
    for seed in (1, 1, 2):
        replicas = trainers(seed=seed)
        for iteration in range(3):
            step(replicas, iteration)
        ends.append(replicas[0].parameters_vector())
    assert np.array_equal(ends[0], ends[1])
    assert not np.array_equal(ends[0], ends[2])


def test_the_flat_gradient_is_the_models_in_the_order_of_tensors() -> None:
    (trainer,) = trainers(workers=1)
    trainer.compute(0)
    reference = models.build("digits_cnn", classes=10, seed=1)
    train = data.load("digits", "train")
    images, labels = data.Shard(train, rank=0, workers=1, batch_size=16, seed=1).batch(0)
    torch.nn.functional.cross_entropy(reference(images), labels).backward()
    expected = np.concatenate([flat_in_memory(parameter.grad) for parameter in reference.parameters()])
    np.testing.assert_allclose(trainer.gradient, expected, rtol=1e-4, atol=1e-6)
    assert trainer.tensors[0] == ("0.weight", (16, 3, 3, 3), "float32")
    assert trainer.size == len(expected) == sum(int(np.prod(shape)) for _, shape, _ in trainer.tensors)


def test_gradients_of_an_iteration_do_not_pile_up() -> None:
    (trainer,) = trainers(workers=1)
    trainer.compute(0)
    once = trainer.gradient.copy()
    trainer.compute(0)
    np.testing.assert_array_equal(once, trainer.gradient)


def test_apply_takes_the_averaged_gradient_and_not_the_own_one() -> None:
    (trainer,) = trainers(workers=1, optimizer={"lr": 0.5}, schedule="constant")
    before = trainer.parameters_vector()
    trainer.compute(0)
    averaged = np.zeros(trainer.size, np.float32)
    averaged[7] = 2.0
    averaged.flags.writeable = False  # a transport may lend a view of its buffer
    trainer.apply(averaged)
    np.testing.assert_allclose(before - trainer.parameters_vector(), averaged * 0.5, atol=1e-6)


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [("constant", [1 / 3, 2 / 3, 1, 1, 1, 1]), ("cosine", [1 / 3, 2 / 3, 1, 0.75, 0.25, 0])],
)
def test_learning_rate_warms_up_then_follows_the_schedule(schedule: str, rates: list[float]) -> None:
    (trainer,) = trainers(workers=1, optimizer={"lr": 1.0}, schedule=schedule, warmup=2, iterations=5)
    ones, applied = np.ones(trainer.size, np.float32), []
    for _ in rates:
        before = trainer.parameters_vector()
        trainer.apply(ones)
        applied.append(float(np.mean(before - trainer.parameters_vector())))
    np.testing.assert_allclose(applied, rates, atol=1e-3)


def test_the_workers_share_the_test_images_and_evaluation_changes_nothing() -> None:
    replicas = trainers(eval_samples=60)
    alone = trainers(workers=1, eval_samples=60)[0]
    before = replicas[0].parameters_vector()
    results = [replica.evaluate() for replica in replicas]
    for metric, value in alone.evaluate().items():
        assert np.mean([result[metric] for result in results]) == pytest.approx(value)
    assert np.array_equal(before, replicas[0].parameters_vector())


def text_trainer(program: Path, **changes: object) -> Trainer:
    """A tiny GPT on a text that repeats ten bytes."""
    program.write_text("#!/bin/sh\ni=0; while [ $i -lt 500 ]; do printf 0123456789; i=$((i+1)); done\n")
    program.chmod(0o755)
    fields = {"model": "gpt_tiny", "context": 16, "batch_size": 4, "optimizer": {"name": "adamw", "lr": 0.003}}
    return Trainer(workload(**fields | changes), rank=0, workers=1, seed=1, dataset=data.resolve(["bible"]))


def test_a_language_model_learns_and_is_judged_by_its_perplexity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    trainer = text_trainer(tmp_path / "bible")
    start = trainer.evaluate()
    for iteration in range(30):
        trainer.compute(iteration)
        trainer.apply(trainer.gradient.copy())
    end = trainer.evaluate()
    assert start["perplexity"] == pytest.approx(256, rel=0.2)
    assert end["perplexity"] == pytest.approx(np.exp(end["loss"]))
    assert end["perplexity"] < 15
    assert set(end) == {"perplexity", "loss"}


def test_images_are_scaled_to_the_size_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    cnn = models.MODELS["digits_cnn"]
    monkeypatch.setitem(models.MODELS, "digits_cnn", cnn._replace(make=lambda classes: Spy(cnn.make(classes), seen)))
    (trainer,) = trainers(workers=1, image_size=20)
    trainer.compute(0)
    assert seen == [(16, 3, 20, 20)]


class Spy(torch.nn.Sequential):
    """Notes the shapes of what a model reads."""

    def __init__(self, model: torch.nn.Module, seen: list[tuple[int, ...]]) -> None:
        super().__init__(model)
        self.seen = seen

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.seen.append(tuple(images.shape))
        return super().forward(images)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_missing_gpu_is_said_and_auto_takes_the_cpu() -> None:
    with pytest.raises(ValueError, match=r"workload.device is 'cuda'.*'auto' or 'cpu'"):
        trainers(device="cuda")
    assert trainers(workers=1, device="auto")[0].device == "cpu"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_gradients_arrive_in_pinned_memory_and_replicas_stay_equal() -> None:
    replicas = trainers(device="cuda")
    for iteration in range(5):
        step(replicas, iteration)
    assert np.abs(replicas[0].gradient).sum() > 0
    assert torch.from_numpy(replicas[0].gradient).is_pinned()
    assert np.array_equal(replicas[0].parameters_vector(), replicas[2].parameters_vector())
