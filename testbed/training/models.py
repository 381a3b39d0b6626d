"""The models of the workloads, each initialised identically on every worker from one seed."""

from __future__ import annotations

import torch
from torch import nn


def efficientnet_b0(classes: int) -> nn.Module:
    """torchvision's EfficientNetB0 from random weights: images (N, 3, H, W) to logits (N, classes).

    Three departures from torchvision's defaults, which are made for 350 epochs of ImageNet:

    - The head is drawn from N(0, 0.01). torchvision scales its uniform draw by the number of *classes*,
      so with 10 classes the logits of 1280 features start at a loss of 4 to 14 instead of ln(10).
    - Stochastic depth and dropout are 0: in a few hundred iterations the model is far from overfitting,
      and replicas that draw different layers would add noise to the gradient norm that detects the CLR.

    The stem keeps its stride of 2, so 32x32 images reach the head as 1x1 maps. A stride of 1 learns more per
    iteration, but its step takes 1.5 times as long; the parameters (4,020,358 for 10 classes) are the same.
    """
    import torchvision  # seconds, which the other models do not need

    model = torchvision.models.efficientnet_b0(num_classes=classes, dropout=0.0, stochastic_depth_prob=0.0)
    head = model.classifier[-1]
    nn.init.normal_(head.weight, std=0.01)
    nn.init.zeros_(head.bias)
    return model


def digits_cnn(classes: int) -> nn.Module:
    """A two-layer CNN of 12,298 parameters (10 classes) that learns 8x8 digits in seconds on a CPU."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 64, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveMaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 2 * 2, classes),
    )


MODELS = {"efficientnet_b0": efficientnet_b0, "digits_cnn": digits_cnn}


def build(name: str, classes: int, seed: int) -> nn.Module:
    """Build a model whose weights depend on `seed` alone; the global random state stays as it was.

    Raises:
        ValueError: no model of that name.
    """
    if name not in MODELS:
        raise ValueError(f"unknown model {name!r}; choose one of {', '.join(MODELS)}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return MODELS[name](classes)
