"""Data sets say what they are, shares are disjoint, batches repeat, and no network means a clear error."""

from __future__ import annotations

import hashlib
import io
import zipfile
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest

from testbed.training import data, download, images, text

pytest.importorskip("sklearn")


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise URLError(OSError(-2, "Name or service not known"))

    monkeypatch.setattr(download, "urlopen", unreachable)


@pytest.fixture
def no_debian_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(images, "DEBIAN_FASHION_MNIST", tmp_path / "not-installed")


def numbered(count: int) -> images.Images:
    """Images whose label is their number."""
    return images.Images(data.DATASETS["digits"], np.zeros((count, 1, 8, 8), np.uint8), np.arange(count))


def test_digits_are_split_without_overlap() -> None:
    info = data.resolve(["digits"])
    train, test = data.load("digits", "train"), data.load("digits", "test")
    assert (len(train), len(test)) == (info.train, info.test) == (1437, 360)
    assert set(train.labels) == set(test.labels) == set(range(info.classes))
    assert train.pixels.dtype == np.uint8
    assert train.pixels.max() == 255


@pytest.mark.skipif(not images.DEBIAN_FASHION_MNIST.is_dir(), reason="needs the package dataset-fashion-mnist")
def test_fashion_mnist_comes_from_the_debian_package(tmp_path: Path, no_network: None) -> None:
    info = data.resolve(["fashion_mnist"], tmp_path)
    test = data.load("fashion_mnist", "test", tmp_path)
    assert info.source == str(images.DEBIAN_FASHION_MNIST)
    assert test.pixels.shape == (info.test, 1, 32, 32)
    assert not test.pixels[:, :, :2].any()  # the border it is padded with
    assert (np.bincount(test.labels) == 1000).all()
    assert abs(test.tensors()[0].mean()) < 0.01


@pytest.mark.skipif(not images.DEBIAN_FASHION_MNIST.is_dir(), reason="needs the package dataset-fashion-mnist")
def test_auto_falls_back_and_says_what_for_and_why(tmp_path: Path, no_network: None) -> None:
    info = data.resolve(["cifar10", "fashion_mnist"], tmp_path)
    assert (info.name, info.stands_in_for) == ("fashion_mnist", "cifar10")
    assert "could not be had" in info.note
    assert "Name or service not known" in info.note
    assert str(tmp_path) not in info.note  # the note goes into results that are shared


def test_no_network_is_one_clear_line(tmp_path: Path, no_network: None) -> None:
    with pytest.raises(data.DataError) as error:
        data.resolve(["cifar10"], tmp_path)
    message = str(error.value)
    assert "\n" not in message
    for part in ("CIFAR-10", str(tmp_path), "https://", "Name or service not known", "DBLP_DATA"):
        assert part in message


def test_auto_without_any_data_names_the_package(tmp_path: Path, no_network: None, no_debian_package: None) -> None:
    with pytest.raises(data.DataError, match=r"apt install dataset-fashion-mnist"):
        data.resolve(["cifar10", "fashion_mnist"], tmp_path)


def test_loading_never_downloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "urlopen", lambda *_: pytest.fail("opened a connection"))
    with pytest.raises(data.DataError, match=r"'cifar10'.*dblp doctor"):
        data.load("cifar10", "train", tmp_path)


def test_a_half_downloaded_cifar_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "cifar-10-batches-py").mkdir()
    (tmp_path / "cifar-10-batches-py" / "data_batch_1").write_bytes(b"half")
    assert data.locate("cifar10", tmp_path) is None


def test_an_unknown_data_set_is_named_with_the_choices() -> None:
    with pytest.raises(ValueError, match=r"'mnist'.*cifar10, cifar100, fashion_mnist"):
        data.resolve(["mnist"])


@pytest.mark.parametrize("name", ["cifar100", "wikitext2"])
def test_the_other_downloads_say_the_same(name: str, tmp_path: Path, no_network: None) -> None:
    with pytest.raises(data.DataError, match=r"cannot be downloaded \(https://.*Name or service not known.*DBLP_DATA"):
        data.resolve([name], tmp_path)


def test_text_is_cut_into_sequences_and_what_follows_each_token() -> None:
    sequences = text.Sequences.cut("bible", np.arange(10, dtype=np.uint8), context=4)
    inputs, targets = sequences.select(np.array([1, 0])).tensors()
    assert len(sequences) == 2  # the third would lack the token behind its last one
    assert inputs.tolist() == [[4, 5, 6, 7], [0, 1, 2, 3]]
    assert targets.tolist() == [[5, 6, 7, 8], [1, 2, 3, 4]]


def test_workers_read_different_text_and_batches_repeat() -> None:
    whole = text.Sequences.cut("bible", np.arange(200, dtype=np.uint8), context=4)
    shards = [data.Shard(whole, rank=rank, workers=3, batch_size=4, seed=1) for rank in range(3)]
    starts = np.concatenate([shard.samples.starts for shard in shards])
    assert sorted(starts) == list(whole.starts)
    assert shards[0].batch(7)[0].equal(shards[0].batch(7)[0])
    assert not shards[0].batch(0)[0].equal(shards[0].batch(1)[0])


def test_wikitext_is_encoded_without_loss_and_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    texts = {"train": " = Löwe = \n\n The lion is a large cat . \n" * 50, "test": " The cat is large — a <unk> . \n"}
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        for split, name in data.DATASETS["wikitext2"].splits.items():
            file.writestr(name, texts[split])
    monkeypatch.setattr(text._WikiText2, "sha256", hashlib.sha256(archive.getvalue()).hexdigest())
    monkeypatch.setattr(text, "urlopen", lambda _: io.BytesIO(archive.getvalue()))
    monkeypatch.setattr(download, "urlopen", lambda _: io.BytesIO())
    info = data.resolve(["wikitext2", "bible"], tmp_path)
    assert (info.name, info.stands_in_for, info.classes) == ("wikitext2", None, 50_257)
    folder = data.locate("wikitext2", tmp_path)
    coder = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    for split, count in (("train", info.train), ("test", info.test)):
        tokens = data.load("wikitext2", split, tmp_path, context=8).tokens
        assert coder.decode(tokens) == texts[split]
        assert len(tokens) == count < len(texts[split].encode())  # words have tokens of their own


def test_a_wikitext_of_other_content_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "urlopen", lambda _: io.BytesIO(b"not the archive"))
    monkeypatch.setattr(download, "urlopen", lambda _: io.BytesIO())
    with pytest.raises(data.DataError, match="checksum"):
        data.resolve(["wikitext2"], tmp_path)
    assert data.locate("wikitext2", tmp_path) is None


def test_the_bible_is_read_in_bytes_from_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bible"
    program.write_text("#!/bin/sh\n[ \"$*\" = '-f gen1:1-rev22:21' ] && printf '0123456789%.0s' 1 2 3 4 5\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    info = data.resolve(["bible"], tmp_path)
    assert (info.source, info.train, info.test, info.classes) == (str(program), 45, 5, 256)
    assert bytes(data.load("bible", "train", tmp_path, context=8).tokens) == b"0123456789" * 4 + b"01234"
    assert bytes(data.load("bible", "test", tmp_path, context=4).tokens) == b"56789"


def test_without_the_bible_its_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(data.DataError, match="apt install bible-kjv"):
        data.resolve(["bible"], tmp_path)


def test_the_data_folder_can_be_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DBLP_DATA", str(tmp_path))
    assert data.default_root() == tmp_path


def test_shards_are_disjoint_and_cover_the_training_set() -> None:
    shards = [data.Shard(numbered(100), rank=rank, workers=3, batch_size=4, seed=1) for rank in range(3)]
    labels = np.concatenate([shard.samples.labels for shard in shards])
    assert sorted(labels) == list(range(100))
    assert max(map(len, (shard.samples for shard in shards))) == 34


def test_a_pass_shows_each_image_once_and_the_next_pass_another_order() -> None:
    shard = data.Shard(numbered(12), rank=0, workers=1, batch_size=4, seed=1)
    passes = [np.concatenate([shard.batch(3 * walk + step)[1] for step in range(3)]) for walk in range(2)]
    assert sorted(passes[0]) == sorted(passes[1]) == list(range(12))
    assert list(passes[0]) != list(passes[1])


def test_a_batch_larger_than_the_shard_is_refused() -> None:
    with pytest.raises(ValueError, match=r"batch_size is 40.*33 samples of digits"):
        data.Shard(numbered(100), rank=2, workers=3, batch_size=40, seed=1)


def test_only_images_seen_before_are_augmented_and_batches_repeat() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (8, 1, 32, 32), dtype=np.uint8)
    samples = images.Images(data.DATASETS["fashion_mnist"], pixels, np.arange(8))
    shard = data.Shard(samples, rank=0, workers=1, batch_size=8, seed=1)
    (first, first_labels), (second, second_labels) = shard.batch(0), shard.batch(1)
    original, _ = samples.tensors()
    assert first.shape == (8, 3, 32, 32)
    assert first.equal(original[first_labels])
    assert not second.equal(original[second_labels])
    assert second.equal(shard.batch(1)[0])


def test_a_crop_is_a_shift_by_at_most_the_padding() -> None:
    pixels = np.zeros((64, 3, 32, 32), np.uint8)
    pixels[:, :, 16, 16] = 255
    out = images.crop_and_flip(pixels, np.random.default_rng(0))
    image, _, row, column = np.nonzero(out)
    assert out.shape == pixels.shape
    assert len(image) == 64 * 3  # the bright pixel is never lost, in any channel
    assert np.abs(row - 16).max() == images.CROP_PADDING
    assert {*column} <= {*range(16 - 5, 16 + 5)}  # a mirrored column 16 is column 15
