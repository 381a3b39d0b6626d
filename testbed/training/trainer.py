"""One worker's training step around a single flat gradient, which is what travels over the network."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from testbed.training import data, models

if TYPE_CHECKING:
    from scenarios import Workload

EVAL_BATCH = 250


class Trainer:
    """Trains one replica. Each iteration: `compute`, exchange `gradient`, `apply` the average.

        loss = trainer.compute(iteration)
        trainer.apply(all_reduce(trainer.gradient))

    Parameters and gradients are each one flat vector of which the model's tensors are views, so nothing is
    gathered or scattered per step, and the optimizer works on one tensor. Convolution weights lie channels-last
    (out, height, width, in) in both: a step of EfficientNetB0 on a CPU takes a third less time so.

    Args:
        workload: the scenario's workload.
        rank: this worker, from 0.
        workers: how many share the training set.
        seed: of the run. Replicas of one seed start from the same weights and draw different data.
        dataset: a resolved data set, or its name (not `auto`: resolve it once for all workers).
        data_root: folder of downloaded data; None is `data.default_root()`.

    Attributes:
        tensors: (name, shape, dtype) of each parameter in flat order, which is the model's own.
        size: number of float32 values in the flat gradient.
        gradient: (size,) float32 on the host, written by `compute`; pinned memory where the device is a GPU.
        device: 'cpu' or 'cuda'.

    Raises:
        ValueError: the workload asks for a GPU that is not there, or for a batch larger than the shard.
        data.DataError: the data set is not there.
    """

    def __init__(
        self,
        workload: Workload,
        *,
        rank: int,
        workers: int,
        seed: int,
        dataset: data.DatasetInfo | str,
        data_root: Path | None = None,
    ) -> None:
        self._workload = workload
        self._dataset = dataset if isinstance(dataset, str) else dataset.name
        self.device = _device(workload.device)
        if self.device == "cpu":
            torch.set_num_threads(1)  # the workers of a testbed share the machine's cores
        train = data.load(self._dataset, "train", data_root)
        classes = int(train.labels.max()) + 1
        self._shard = data.Shard(
            self._dataset, train, rank=rank, workers=workers, batch_size=workload.batch_size, seed=seed
        )
        self._test = _test_images(self._dataset, workload.eval_samples, data_root).select(np.s_[rank::workers])
        self._model = models.build(workload.model, classes, seed).to(self.device)
        self.tensors = [
            (name, tuple(parameter.shape), str(parameter.dtype).removeprefix("torch."))
            for name, parameter in self._model.named_parameters()
        ]
        self._flat = _flatten(self._model)
        self.size = self._flat.numel()
        on_gpu = self.device == "cuda"
        self._host = torch.zeros(self.size, pin_memory=True) if on_gpu else self._flat.grad
        self.gradient: np.ndarray = self._host.numpy()
        optimizer = workload.optimizer
        self._optimizer = torch.optim.SGD(
            [self._flat],
            lr=optimizer.lr,
            momentum=optimizer.momentum,
            weight_decay=optimizer.weight_decay,
            nesterov=optimizer.nesterov,
            fused=True,
        )
        self._scheduler = torch.optim.lr_scheduler.LambdaLR(self._optimizer, self._lr_factor)

    def compute(self, iteration: int) -> float:
        """Forward and backward on this worker's batch of `iteration`; `gradient` holds the result.

        Returns the mean cross-entropy of the batch, in nats.
        """
        images, labels = self._shard.batch(iteration)
        self._model.train()
        self._flat.grad.zero_()  # in place: the parameters' .grad stay views of the flat one
        loss = functional.cross_entropy(self._model(self._to_device(images)), labels.to(self.device))
        loss.backward()
        if self._host is not self._flat.grad:
            self._host.copy_(self._flat.grad)
        return loss.item()

    def apply(self, averaged: np.ndarray) -> None:
        """One optimizer step with an averaged gradient (size,) float32, then one step of the schedule."""
        np.copyto(self.gradient, averaged)
        if self._host is not self._flat.grad:
            self._flat.grad.copy_(self._host)
        self._optimizer.step()
        self._scheduler.step()

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Accuracy (0 to 1) and mean cross-entropy of this replica on this worker's part of the test images.

        The mean over the workers is the job's accuracy: each image is judged by one replica, so that no worker waits
        for another.
        """
        self._model.eval()
        correct, loss = 0, 0.0
        for start in range(0, len(self._test), EVAL_BATCH):
            part = self._test.select(np.s_[start : start + EVAL_BATCH])
            logits = self._model(self._to_device(data.normalise(self._dataset, part.pixels))).cpu()
            labels = torch.from_numpy(part.labels)
            correct += int((logits.argmax(1) == labels).sum())
            loss += functional.cross_entropy(logits, labels, reduction="sum").item()
        return {"accuracy": correct / len(self._test), "loss": loss / len(self._test)}

    def parameters_vector(self) -> np.ndarray:
        """A copy of all parameters, (size,) float32 in flat order; without buffers (batch statistics)."""
        return self._flat.detach().cpu().numpy().copy()

    def _to_device(self, images: torch.Tensor) -> torch.Tensor:
        return images.to(self.device, memory_format=torch.channels_last)

    def _lr_factor(self, step: int) -> float:
        """Linear warm-up over the first iterations, then constant or half a cosine down to 0."""
        workload = self._workload
        if step < workload.warmup:
            return (step + 1) / (workload.warmup + 1)
        if workload.schedule == "constant":
            return 1.0
        progress = (step - workload.warmup) / max(1, workload.iterations - workload.warmup)
        return 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))


def _device(asked: str) -> str:
    available = torch.cuda.is_available()
    if asked == "auto":
        return "cuda" if available else "cpu"
    if asked == "cuda" and not available:
        raise ValueError("workload.device is 'cuda', but PyTorch finds no CUDA device; use 'auto' or 'cpu'")
    return asked


def _test_images(dataset: str, count: int, root: Path | None) -> data.Images:
    """The same `count` random test images in every run (0: all of them)."""
    images = data.load(dataset, "test", root)
    if count == 0 or count >= len(images):
        return images
    return images.select(np.random.default_rng(0).permutation(len(images))[:count])


def _flatten(model: nn.Module) -> nn.Parameter:
    """Move the parameters into one vector and their gradients into another; the model's become views."""
    parameters = list(model.parameters())
    flat = nn.Parameter(torch.cat([_channels_last(parameter.detach()).reshape(-1) for parameter in parameters]))
    flat.grad = torch.zeros_like(flat)
    offset = 0
    for parameter in parameters:
        end = offset + parameter.numel()
        stored = _channels_last(parameter).shape
        parameter.data = _channels_first(flat.data[offset:end].view(stored))
        parameter.grad = _channels_first(flat.grad[offset:end].view(stored))
        offset = end
    return flat


def _channels_last(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.permute(0, 2, 3, 1) if tensor.ndim == 4 else tensor


def _channels_first(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.permute(0, 3, 1, 2) if tensor.ndim == 4 else tensor
