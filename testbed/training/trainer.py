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
    from scenarios import Optimizer, Workload

EVAL_BATCH = 250  # images
EVAL_TOKENS = 512  # at a time, in sequences: each of GPT-2's has 50,257 logits


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
        dataset: the data set, resolved once for all workers.
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
        dataset: data.DatasetInfo,
        data_root: Path | None = None,
    ) -> None:
        self._workload = workload
        self.device = _device(workload.device)
        if self.device == "cpu":
            torch.set_num_threads(1)  # the workers of a testbed share the machine's cores
        train = data.load(dataset.name, "train", data_root, workload.context)
        self._shard = data.Shard(train, rank=rank, workers=workers, batch_size=workload.batch_size, seed=seed)
        test = data.load(dataset.name, "test", data_root, workload.context)
        self._test = _some(test, workload.eval_samples).select(np.s_[rank::workers])
        self._model = models.build(workload.model, dataset.classes, seed).to(self.device)
        self.tensors = [
            (name, tuple(parameter.shape), str(parameter.dtype).removeprefix("torch."))
            for name, parameter in self._model.named_parameters()
        ]
        self._flat = _flatten(self._model)
        self.size = self._flat.numel()
        self._eval_batch = max(1, EVAL_TOKENS // workload.context) if workload.context else EVAL_BATCH
        on_gpu = self.device == "cuda"
        self._host = torch.zeros(self.size, pin_memory=True) if on_gpu else self._flat.grad
        self.gradient: np.ndarray = self._host.numpy()
        self._optimizer = _optimizer(workload.optimizer, self._flat)
        self._scheduler = torch.optim.lr_scheduler.LambdaLR(self._optimizer, self._lr_factor)

    def compute(self, iteration: int) -> float:
        """Forward and backward on this worker's batch of `iteration`; `gradient` holds the result.

        Returns the mean cross-entropy of the batch, in nats.
        """
        inputs, targets = self._shard.batch(iteration)
        self._model.train()
        self._flat.grad.zero_()  # in place: the parameters' .grad stay views of the flat one
        loss = _cross_entropy(self._model(self._to_device(inputs)), targets.to(self.device))
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
        """How well this replica does on this worker's part of the test samples.

        `loss` is the mean cross-entropy; beside it stands `accuracy` (0 to 1) of a classifier, or `perplexity`, the
        exponential of the loss, of a language model. The mean over the workers is the job's: each sample is judged by
        one replica, so that no worker waits for another.
        """
        self._model.eval()
        correct, total, count = 0, 0.0, 0
        for start in range(0, len(self._test), self._eval_batch):
            inputs, targets = self._test.select(np.s_[start : start + self._eval_batch]).tensors()
            logits = self._model(self._to_device(inputs)).cpu()
            correct += int((logits.argmax(-1) == targets).sum())
            total += _cross_entropy(logits, targets, reduction="sum").item()
            count += targets.numel()
        loss = total / count
        if self._workload.context:
            return {"perplexity": math.exp(loss), "loss": loss}
        return {"accuracy": correct / count, "loss": loss}

    def parameters_vector(self) -> np.ndarray:
        """A copy of all parameters, (size,) float32 in flat order; without buffers (batch statistics)."""
        return self._flat.detach().cpu().numpy().copy()

    def _to_device(self, inputs: torch.Tensor) -> torch.Tensor:
        if inputs.ndim < 4:  # tokens
            return inputs.to(self.device)
        images = inputs.to(self.device, memory_format=torch.channels_last)
        if (size := self._workload.image_size) is None:
            return images
        return functional.interpolate(images, size=(size, size), mode="bilinear", align_corners=False)

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


def _optimizer(settings: Optimizer, flat: nn.Parameter) -> torch.optim.Optimizer:
    if settings.name == "adamw":
        return torch.optim.AdamW([flat], lr=settings.lr, weight_decay=settings.weight_decay, fused=True)
    return torch.optim.SGD(
        [flat],
        lr=settings.lr,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
        nesterov=settings.nesterov,
        fused=True,
    )


def _cross_entropy(logits: torch.Tensor, targets: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
    """Over images, logits (N, classes), or over all tokens of sequences, logits (N, T, vocabulary)."""
    return functional.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction=reduction)


def _some(samples: data.Samples, count: int) -> data.Samples:
    """The same `count` random samples in every run (0: all of them)."""
    if count == 0 or count >= len(samples):
        return samples
    return samples.select(np.random.default_rng(0).permutation(len(samples))[:count])


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
