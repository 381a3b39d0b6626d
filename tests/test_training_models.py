"""The models start alike on all workers and at the loss of a uniform guess."""

from __future__ import annotations

import math

import pytest
import torch

from testbed.training import models


def parameters_of(model: torch.nn.Module) -> torch.Tensor:
    return torch.nn.utils.parameters_to_vector(model.parameters())


SIZES = {
    "efficientnet_b0": (10, 4_020_358), "resnet50": (100, 23_712_932), "alexnet": (100, 57_413_540),
    "densenet169": (10, 12_501_130), "gpt2_small": (50_257, 124_439_808), "resnet20": (10, 269_722),
    "gpt_tiny": (256, 560_640), "digits_cnn": (10, 12_298),
}
SMALL = ("efficientnet_b0", "resnet20", "gpt_tiny", "digits_cnn")


def count(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", models.MODELS)
def test_models_have_the_known_sizes(name: str) -> None:
    classes, size = SIZES[name]
    with torch.device("meta"):
        assert count(models.build(name, classes, seed=1)) == size


@pytest.mark.parametrize("name", ["resnet50", "gpt2_small"])
def test_a_data_set_that_stands_in_leaves_the_gradient_its_size(name: str) -> None:
    with torch.device("meta"):
        assert count(models.build(name, classes=10, seed=1)) == SIZES[name][1]


def test_a_data_set_with_more_labels_gets_them_all() -> None:
    images = torch.zeros(2, 3, 32, 32)
    assert models.build("resnet20", classes=100, seed=1)(images).shape == (2, 100)


def test_a_gpt_looks_at_what_came_before_only() -> None:
    model = models.build("gpt_tiny", classes=256, seed=1)
    tokens = torch.arange(16).view(2, 8)
    changed = tokens.clone()
    changed[:, 5] = 99
    before, after = model(tokens), model(changed)
    assert before.shape == (2, 8, 256)
    assert torch.allclose(before[:, :5], after[:, :5], atol=1e-5)
    assert not torch.allclose(before[:, 5:], after[:, 5:], atol=1e-3)


@pytest.mark.parametrize("name", ["resnet20", "gpt_tiny"])
def test_the_small_models_start_at_a_uniform_guess(name: str) -> None:
    model, classes = models.build(name, SIZES[name][0], seed=1), SIZES[name][0]
    generator = torch.Generator().manual_seed(0)
    text = torch.randint(0, 256, (4, 64), generator=generator)
    inputs = text if name == "gpt_tiny" else torch.randn(64, 3, 32, 32, generator=generator)
    logits = model(inputs).flatten(0, -2)
    loss = torch.nn.functional.cross_entropy(logits, torch.arange(len(logits)) % classes).item()
    assert loss == pytest.approx(math.log(classes), abs=0.5)


@pytest.mark.parametrize("name", SMALL)
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


def test_efficientnet_starts_at_a_uniform_guess() -> None:
    model = models.build("efficientnet_b0", classes=10, seed=1)
    images = torch.randn(16, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    loss = torch.nn.functional.cross_entropy(model(images), torch.arange(16) % 10).item()
    assert loss == pytest.approx(math.log(10), abs=0.3)


def test_efficientnet_draws_nothing_in_training() -> None:
    model = models.build("efficientnet_b0", classes=10, seed=1)
    images = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert torch.equal(model(images), model(images))


def test_an_unknown_model_is_named_with_the_choices() -> None:
    with pytest.raises(ValueError, match=r"'resnet'.*efficientnet_b0, resnet50"):
        models.build("resnet", classes=10, seed=1)
