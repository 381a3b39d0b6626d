"""A GPT in plain torch: the decoder of GPT-2 (Radford et al., 2019), in the size of the paper and in a small one.

Names and layout follow the paper of GPT-2: learned positions, layer normalisation before each block, an output layer
that shares its weights with the token embedding. Dropout is left out: runs here are far too short to overfit, and
replicas that draw different masks would add noise to the gradient norm that detects the critical learning regime.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

STD = 0.02  # of the initial weights


@dataclass(frozen=True)
class Shape:
    """Size of a GPT.

    Attributes:
        layers: number of transformer blocks.
        heads: attention heads of each block; they share `width`.
        width: features per token.
        positions: longest sequence.
    """

    layers: int
    heads: int
    width: int
    positions: int


SMALL = Shape(layers=12, heads=12, width=768, positions=1024)
TINY = Shape(layers=2, heads=4, width=128, positions=1024)


class Attention(nn.Module):
    """Causal self-attention of several heads: (N, T, width) to (N, T, width)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.qkv = nn.Linear(shape.width, 3 * shape.width)
        self.project = nn.Linear(shape.width, shape.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count, length, width = x.shape
        parts = self.qkv(x).view(count, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)  # each (N, heads, T, width / heads)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.project(mixed.transpose(1, 2).reshape(count, length, width))


class Block(nn.Module):
    """Attention, then a two-layer perceptron, each added to what it reads."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(shape.width)
        self.attention = Attention(shape)
        self.norm_mlp = nn.LayerNorm(shape.width)
        self.expand = nn.Linear(shape.width, 4 * shape.width)
        self.project = nn.Linear(4 * shape.width, shape.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm_attention(x))
        hidden = functional.gelu(self.expand(self.norm_mlp(x)), approximate="tanh")
        return x + self.project(hidden)


class Gpt(nn.Module):
    """Tokens (N, T) int64 to logits (N, T, vocabulary) of the token that follows each.

    Args:
        shape: how large.
        vocabulary: number of tokens.
    """

    def __init__(self, shape: Shape, vocabulary: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, shape.width)
        self.positions = nn.Embedding(shape.positions, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.apply(_initialise)
        # Each block adds to the stream twice: scaled so that its variance at the end does not grow with the depth.
        for block in self.blocks:
            for layer in (block.attention.project, block.project):
                nn.init.normal_(layer.weight, std=STD / math.sqrt(2 * shape.layers))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(places)
        for block in self.blocks:
            x = block(x)
        return functional.linear(self.norm(x), self.tokens.weight)


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=STD)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)


def gpt2_small(vocabulary: int) -> Gpt:
    """GPT-2 small: 124,439,808 parameters for its vocabulary of 50,257."""
    return Gpt(SMALL, vocabulary)


def gpt_tiny(vocabulary: int) -> Gpt:
    """Two layers of 128: 560,640 parameters for bytes, for studies of accuracy on a CPU."""
    return Gpt(TINY, vocabulary)
