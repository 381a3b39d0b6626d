"""Data sets say what they are, shares are disjoint, batches repeat, and no network means a clear error."""

from __future__ import annotations

from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest

from testbed.training import data

pytest.importorskip("sklearn")


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise URLError(OSError(-2, "Name or service not known"))

    monkeypatch.setattr(data, "urlopen", unreachable)


@pytest.fixture
def no_debian_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(data, "DEBIAN_FASHION_MNIST", tmp_path / "not-installed")


def numbered(count: int) -> data.Images:
    """Images whose label is their number."""
    return data.Images(np.zeros((count, 1, 8, 8), np.uint8), np.arange(count))


def test_digits_are_split_without_overlap() -> None:
    info = data.resolve("digits")
    train, test = data.load("digits", "train"), data.load("digits", "test")
    assert (len(train), len(test)) == (info.train, info.test) == (1437, 360)
    assert set(train.labels) == set(test.labels) == set(range(info.classes))
    assert train.pixels.dtype == np.uint8
    assert train.pixels.max() == 255


@pytest.mark.skipif(not data.DEBIAN_FASHION_MNIST.is_dir(), reason="needs the package dataset-fashion-mnist")
def test_fashion_mnist_comes_from_the_debian_package(tmp_path: Path, no_network: None) -> None:
    info = data.resolve("fashion_mnist", tmp_path)
    test = data.load("fashion_mnist", "test", tmp_path)
    assert info.source == str(data.DEBIAN_FASHION_MNIST)
    assert test.pixels.shape == (info.test, 1, 32, 32)
    assert not test.pixels[:, :, :2].any()  # the border it is padded with
    assert (np.bincount(test.labels) == 1000).all()
    assert abs(data.normalise("fashion_mnist", test.pixels).mean()) < 0.01


@pytest.mark.skipif(not data.DEBIAN_FASHION_MNIST.is_dir(), reason="needs the package dataset-fashion-mnist")
def test_auto_falls_back_and_says_what_for_and_why(tmp_path: Path, no_network: None) -> None:
    info = data.resolve("auto", tmp_path)
    assert (info.name, info.stands_in_for) == ("fashion_mnist", "cifar10")
    assert "could not be downloaded" in info.note
    assert "Name or service not known" in info.note
    assert str(tmp_path) not in info.note  # the note goes into results that are shared


def test_no_network_is_one_clear_line(tmp_path: Path, no_network: None) -> None:
    with pytest.raises(data.DataError) as error:
        data.resolve("cifar10", tmp_path)
    message = str(error.value)
    assert "\n" not in message
    for part in ("CIFAR-10", str(tmp_path), "https://", "Name or service not known", "DBLP_DATA"):
        assert part in message


def test_auto_without_any_data_names_the_package(tmp_path: Path, no_network: None, no_debian_package: None) -> None:
    with pytest.raises(data.DataError, match=r"apt install dataset-fashion-mnist"):
        data.resolve("auto", tmp_path)


def test_loading_never_downloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "urlopen", lambda *_: pytest.fail("opened a connection"))
    with pytest.raises(data.DataError, match=r"'cifar10'.*dblp doctor"):
        data.load("cifar10", "train", tmp_path)


def test_a_half_downloaded_cifar_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "cifar-10-batches-py").mkdir()
    (tmp_path / "cifar-10-batches-py" / "data_batch_1").write_bytes(b"half")
    assert data.locate("cifar10", tmp_path) is None


def test_an_unknown_data_set_is_named_with_the_choices() -> None:
    with pytest.raises(ValueError, match=r"'mnist'.*auto, cifar10, fashion_mnist, digits"):
        data.resolve("mnist")


def test_the_data_folder_can_be_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DBLP_DATA", str(tmp_path))
    assert data.default_root() == tmp_path


def test_shards_are_disjoint_and_cover_the_training_set() -> None:
    shards = [data.Shard("digits", numbered(100), rank=rank, workers=3, batch_size=4, seed=1) for rank in range(3)]
    labels = np.concatenate([shard.images.labels for shard in shards])
    assert sorted(labels) == list(range(100))
    assert max(map(len, (shard.images for shard in shards))) == 34


def test_a_pass_shows_each_image_once_and_the_next_pass_another_order() -> None:
    shard = data.Shard("digits", numbered(12), rank=0, workers=1, batch_size=4, seed=1)
    passes = [np.concatenate([shard.batch(3 * walk + step)[1] for step in range(3)]) for walk in range(2)]
    assert sorted(passes[0]) == sorted(passes[1]) == list(range(12))
    assert list(passes[0]) != list(passes[1])


def test_a_batch_larger_than_the_shard_is_refused() -> None:
    with pytest.raises(ValueError, match=r"batch_size is 40.*33 images of digits"):
        data.Shard("digits", numbered(100), rank=2, workers=3, batch_size=40, seed=1)


def test_only_images_seen_before_are_augmented_and_batches_repeat() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (8, 1, 32, 32), dtype=np.uint8)
    images = data.Images(pixels, np.arange(8))
    shard = data.Shard("fashion_mnist", images, rank=0, workers=1, batch_size=8, seed=1)
    (first, first_labels), (second, second_labels) = shard.batch(0), shard.batch(1)
    original = data.normalise("fashion_mnist", pixels)
    assert first.shape == (8, 3, 32, 32)
    assert first.equal(original[first_labels])
    assert not second.equal(original[second_labels])
    assert second.equal(shard.batch(1)[0])


def test_a_crop_is_a_shift_by_at_most_the_padding() -> None:
    pixels = np.zeros((64, 3, 32, 32), np.uint8)
    pixels[:, :, 16, 16] = 255
    out = data.crop_and_flip(pixels, np.random.default_rng(0))
    image, _, row, column = np.nonzero(out)
    assert out.shape == pixels.shape
    assert len(image) == 64 * 3  # the bright pixel is never lost, in any channel
    assert np.abs(row - 16).max() == data.CROP_PADDING
    assert {*column} <= {*range(16 - 5, 16 + 5)}  # a mirrored column 16 is column 15
