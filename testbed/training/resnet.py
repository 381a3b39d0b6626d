"""ResNet-20, the small residual network of He et al. (2016, section 4.2) for 32x32 images."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

WIDTHS, BLOCKS = (16, 32, 64), 3  # channels of the three stages, and residual blocks of each


class Block(nn.Module):
    """Two convolutions of 3x3 and a shortcut without parameters (option A of the paper).

    Where the stage gets wider, the shortcut skips every other pixel and the new channels start at zero.
    """

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.stride = width // channels
        self.conv1 = nn.Conv2d(channels, width, 3, self.stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.added = width - channels

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = functional.relu(self.norm1(self.conv1(x)))
        out = self.norm2(self.conv2(out))
        shortcut = x[:, :, :: self.stride, :: self.stride]
        if self.added:
            shortcut = functional.pad(shortcut, (0, 0, 0, 0, self.added // 2, self.added - self.added // 2))
        return functional.relu(out + shortcut)


def resnet20(classes: int) -> nn.Module:
    """Images (N, 3, 32, 32) to logits (N, classes); 269,722 parameters for 10 classes."""
    channels = WIDTHS[0]
    layers: list[nn.Module] = [
        nn.Conv2d(3, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()
    ]
    for width in WIDTHS:
        for _ in range(BLOCKS):
            layers.append(Block(channels, width))
            channels = width
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return model
