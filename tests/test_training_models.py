"""The models start alike on all workers and at the loss of a uniform guess."""

from __future__ import annotations

import math

import pytest
import torch

from testbed.training import models


def parameters_of(model: torch.nn.Module) -> torch.Tensor:
    return torch.nn.utils.parameters_to_vector(model.parameters())


@pytest.mark.parametrize("name", models.MODELS)
def test_the_seed_alone_decides_the_weights(name: str) -> None:
    torch.manual_seed(5)
    first = parameters_of(models.build(name, classes=10, seed=1))
    torch.manual_seed(6)
    assert torch.equal(first, parameters_of(models.build(name, classes=10, seed=1)))
    assert not torch.equal(first, parameters_of(models.build(name, classes=10, seed=2)))


def test_building_leaves_the_global_random_state_alone() -> None:
    before = torch.get_rng_state()
    models.build("digits_cnn", classes=10, seed=1)
    assert torch.equal(before, torch.get_rng_state())


def test_efficientnet_has_the_known_size_and_starts_at_a_uniform_guess() -> None:
    model = models.build("efficientnet_b0", classes=10, seed=1)
    assert sum(parameter.numel() for parameter in model.parameters()) == 4_020_358
    images = torch.randn(16, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    loss = torch.nn.functional.cross_entropy(model(images), torch.arange(16) % 10).item()
    assert loss == pytest.approx(math.log(10), abs=0.3)


def test_efficientnet_draws_nothing_in_training() -> None:
    model = models.build("efficientnet_b0", classes=10, seed=1)
    images = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert torch.equal(model(images), model(images))


def test_an_unknown_model_is_named_with_the_choices() -> None:
    with pytest.raises(ValueError, match=r"'resnet'.*efficientnet_b0, digits_cnn"):
        models.build("resnet", classes=10, seed=1)
