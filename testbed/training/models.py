"""The models of the workloads, each initialised identically on every worker from one seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn

from testbed.training.gpt import gpt2_small, gpt_tiny
from testbed.training.resnet import resnet20


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


def resnet50(classes: int) -> nn.Module:
    """torchvision's ResNet50 from random weights; 23,712,932 parameters for 100 classes.

    Its residual branches start at zero (Goyal et al., 2017, section 5.1): with the small batches of a CPU the first
    gradients would be thousands of times as long as later ones otherwise.
    """
    import torchvision

    return torchvision.models.resnet50(num_classes=classes, zero_init_residual=True)


def alexnet(classes: int) -> nn.Module:
    """torchvision's AlexNet from random weights; 57,413,540 parameters for 100 classes.

    Images have at least 63x63 pixels. Dropout is 0, for the reason it is in :func:`efficientnet_b0`.
    """
    import torchvision

    return torchvision.models.alexnet(num_classes=classes, dropout=0.0)


def densenet169(classes: int) -> nn.Module:
    """torchvision's DenseNet169 from random weights; 12,501,130 parameters for 10 classes."""
    import torchvision

    return torchvision.models.densenet169(num_classes=classes)


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


class Entry(NamedTuple):
    """How a model is made, and for how many outputs at least.

    `outputs` are the classes, or tokens, of the data set that the paper trains the model on. A data set that has fewer
    and stands in leaves the last ones unused: the gradient keeps its size.
    """

    make: Callable[[int], nn.Module]
    outputs: int


MODELS = {
    "efficientnet_b0": Entry(efficientnet_b0, 10),
    "resnet50": Entry(resnet50, 100),
    "alexnet": Entry(alexnet, 100),
    "densenet169": Entry(densenet169, 10),
    "gpt2_small": Entry(gpt2_small, 50_257),
    "resnet20": Entry(resnet20, 10),
    "gpt_tiny": Entry(gpt_tiny, 256),
    "digits_cnn": Entry(digits_cnn, 10),
}


def build(name: str, classes: int, seed: int) -> nn.Module:
    """Build a model whose weights depend on `seed` alone; the global random state stays as it was.

    Args:
        name: a key of `MODELS`.
        classes: labels, or size of the vocabulary, of the data set.
        seed: of the run.

    Raises:
        ValueError: no model of that name.
    """
    if name not in MODELS:
        raise ValueError(f"unknown model {name!r}; choose one of {', '.join(MODELS)}")
    model = MODELS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return model.make(max(classes, model.outputs))
