"""The image data sets of the workloads: where they come from, and each worker's share of them.

`resolve` runs once before a run and may download; `load` runs in the workers and never does, since their
network namespaces reach nothing but the emulated switch.

torch, torchvision and scikit-learn are imported where they are used: `dblp run` resolves a data set without waiting
for them, and a worker loads only what its workload needs.
"""

from __future__ import annotations

import gzip
import importlib.util
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import Request, urlopen

import numpy as np

from testbed.errors import UserError

if TYPE_CHECKING:
    import torch

DEBIAN_FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")  # the package dataset-fashion-mnist
CROP_PADDING = 4
DOWNLOAD_TIMEOUT_S = 5.0  # to connect, and for each read: an unreachable host must not hold up a run


class DataError(UserError):
    """A data set is not there; the message names it and the remedy, `reason` says why it could not be had."""

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class DatasetInfo:
    """What a run was trained on, as it stands in its metadata.

    Attributes:
        name: the data set that is really used.
        source: where its files lie.
        train, test: number of images in each split.
        classes: number of labels.
        stands_in_for: the data set asked for, where this one replaces it.
        note: what a reader of the results should know about the data.
    """

    name: str
    source: str
    train: int
    test: int
    classes: int
    stands_in_for: str | None = None
    note: str = ""


@dataclass(frozen=True)
class Images:
    """Images (N, 1 or 3, H, W) uint8 with labels (N,) int64, not yet normalised."""

    pixels: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def select(self, indices: np.ndarray) -> Images:
        return Images(self.pixels[indices], self.labels[indices])


def default_root() -> Path:
    """The folder of downloaded data: $DBLP_DATA, else `data/` beside the code."""
    return Path(os.environ.get("DBLP_DATA") or Path(__file__).resolve().parents[2] / "data")


# --- one class per data set ---------------------------------------------------------------------------


class _Cifar10:
    info = DatasetInfo("cifar10", "", 50_000, 10_000, 10, note="CIFAR-10, 32x32 colour")
    mean, std = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    augmented = True

    def locate(self, root: Path) -> Path | None:
        folder = root / "cifar-10-batches-py"
        if not folder.is_dir():
            return None
        from torchvision.datasets import CIFAR10

        return folder if _complete(folder, CIFAR10.train_list + CIFAR10.test_list) else None

    def download(self, root: Path) -> None:
        from torchvision.datasets import CIFAR10

        _download("CIFAR-10", CIFAR10.url, root, lambda: CIFAR10(root, download=True))

    def read(self, folder: Path, split: str) -> Images:
        from torchvision.datasets import CIFAR10

        stored = CIFAR10(folder.parent, train=split == "train")
        return Images(stored.data.transpose(0, 3, 1, 2), np.array(stored.targets, dtype=np.int64))


class _FashionMnist:
    info = DatasetInfo("fashion_mnist", "", 60_000, 10_000, 10, note="Fashion-MNIST, grey, padded to 32x32")
    mean, std = (0.2190,), (0.3318,)  # of the padded training images
    augmented = True

    def locate(self, root: Path) -> Path | None:
        names = [f"{split}-{kind}-ubyte.gz" for split in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]
        if all((DEBIAN_FASHION_MNIST / name).is_file() for name in names):
            return DEBIAN_FASHION_MNIST  # dpkg has checked it; Debian compresses anew, so the md5 sums differ
        folder = root / "FashionMNIST" / "raw"
        if not folder.is_dir():
            return None
        from torchvision.datasets import FashionMNIST

        return folder if _complete(folder, FashionMNIST.resources) else None

    def download(self, root: Path) -> None:
        from torchvision.datasets import FashionMNIST

        url = FashionMNIST.mirrors[0] + FashionMNIST.resources[0][0]
        try:
            _download("Fashion-MNIST", url, root, lambda: FashionMNIST(root, download=True))
        except DataError as error:
            remedy = "on Debian and Ubuntu `apt install dataset-fashion-mnist` brings it too"
            raise DataError(f"{error}; {remedy}", error.reason) from error

    def read(self, folder: Path, split: str) -> Images:
        prefix = "train" if split == "train" else "t10k"
        with gzip.open(folder / f"{prefix}-images-idx3-ubyte.gz") as file:
            pixels = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 1, 28, 28)
        with gzip.open(folder / f"{prefix}-labels-idx1-ubyte.gz") as file:
            labels = np.frombuffer(file.read(), np.uint8, offset=8).astype(np.int64)
        return Images(np.pad(pixels, ((0, 0), (0, 0), (2, 2), (2, 2))), labels)


class _Digits:
    info = DatasetInfo("digits", "", 1_437, 360, 10, note="UCI handwritten digits, 8x8 grey")
    mean, std = (0.3055,), (0.3759,)
    augmented = False  # a mirrored or shifted 8x8 digit is often another digit

    def locate(self, root: Path) -> Path | None:
        package = importlib.util.find_spec("sklearn")
        return Path(package.origin).parent / "datasets" / "data" if package and package.origin else None

    def download(self, root: Path) -> None:
        raise DataError("the data set 'digits' needs scikit-learn; install it by `pip install scikit-learn`")

    def read(self, folder: Path, split: str) -> Images:
        # Read here, as importing scikit-learn takes longer than training on it. 64 pixels of 0 to 16, then the label.
        stored = np.loadtxt(folder / "digits.csv.gz", delimiter=",")
        pixels = np.round(stored[:, :-1] * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)
        order = np.random.default_rng(0).permutation(len(pixels))
        chosen = order[: self.info.train] if split == "train" else order[self.info.train :]
        return Images(pixels[chosen], stored[chosen, -1].astype(np.int64))


DATASETS = {kind.info.name: kind() for kind in (_Cifar10, _FashionMnist, _Digits)}


def _complete(folder: Path, files: list[tuple[str, str]]) -> bool:
    """Whether all (name, MD5 sum) are there and right."""
    from torchvision.datasets.utils import check_integrity

    return all(check_integrity(str(folder / name), md5) for name, md5 in files)


def _download(title: str, url: str, root: Path, fetch: Callable[[], object]) -> None:
    """Run torchvision's download (which checks the checksum) once its host answers, else raise DataError."""
    previous = socket.getdefaulttimeout()
    socket.setdefaulttimeout(DOWNLOAD_TIMEOUT_S)  # torchvision passes none of its own
    try:
        urlopen(Request(url, method="HEAD")).close()
        fetch()
    except (OSError, RuntimeError) as error:  # no host or a timeout; a wrong checksum
        cause = getattr(error, "reason", error)
        reason = f"{url}: {getattr(cause, 'strerror', None) or str(cause).splitlines()[0]}"
        raise DataError(
            f"{title} is not in {root} and cannot be downloaded ({reason}); "
            "put it there, or name the folder that holds it in DBLP_DATA",
            reason,
        ) from error
    finally:
        socket.setdefaulttimeout(previous)


# --- what a run uses ----------------------------------------------------------------------------------


def resolve(name: str, root: Path | None = None) -> DatasetInfo:
    """Say which data set a run gets, downloading it to `root` where it is missing.

    `auto` is CIFAR-10 where it is there or can be downloaded, else Fashion-MNIST; then `stands_in_for` is set
    and `note` has the reason.

    Raises:
        DataError: it is not there and cannot be downloaded.
        ValueError: no data set of that name.
    """
    root = root or default_root()
    if name == "auto":
        try:
            return resolve("cifar10", root)
        except DataError as error:
            stand_in = resolve("fashion_mnist", root)
            note = f"{stand_in.note}; stands in for CIFAR-10, which could not be downloaded ({error.reason})"
            return replace(stand_in, stands_in_for="cifar10", note=note)
    dataset = _find(name)
    folder = dataset.locate(root)
    if folder is None:
        dataset.download(root)
        folder = dataset.locate(root)
        if folder is None:
            raise DataError(f"{name} in {root} fails its checksums; delete it and try again")
    return replace(dataset.info, source=str(folder))


def locate(name: str, root: Path | None = None) -> Path | None:
    """The folder that holds a complete copy of the data set, or None. Never downloads."""
    return _find(name).locate(root or default_root())


def load(name: str, split: str, root: Path | None = None) -> Images:
    """Read the `train` or `test` split of a resolved data set. Never downloads.

    Raises:
        DataError: it is not there.
        ValueError: no data set of that name.
    """
    root = root or default_root()
    folder = locate(name, root)
    if folder is None:
        raise DataError(f"the data set {name!r} is not in {root}; `dblp doctor` says how to get it")
    return _find(name).read(folder, split)


def _find(name: str) -> _Cifar10 | _FashionMnist | _Digits:
    if name not in DATASETS:
        raise ValueError(f"unknown data set {name!r}; choose one of auto, {', '.join(DATASETS)}")
    return DATASETS[name]


def normalise(name: str, pixels: np.ndarray) -> torch.Tensor:
    """Pixels (N, 1 or 3, H, W) uint8 to a float32 tensor (N, 3, H, W) of mean 0 and deviation 1."""
    import torch

    dataset = _find(name)
    mean = torch.tensor(dataset.mean).view(-1, 1, 1)
    std = torch.tensor(dataset.std).view(-1, 1, 1)
    scaled = (torch.from_numpy(pixels).float() / 255 - mean) / std
    return scaled.expand(-1, 3, -1, -1).contiguous()


class Shard:
    """One worker's share of the training set, in batches that depend on (seed, rank, iteration) alone.

    The workers' shares are disjoint and differ by at most one image. A share is walked in a new random order
    on each pass over it; the images that do not fill a last batch are left for another pass.

    Args:
        name: a resolved data set.
        images: its whole training split.
        rank, workers: this worker (from 0) of how many.
        batch_size: images per batch.
        seed: of the run; the same for all workers.

    Raises:
        ValueError: the share is smaller than one batch.
    """

    def __init__(self, name: str, images: Images, *, rank: int, workers: int, batch_size: int, seed: int) -> None:
        order = np.random.default_rng(seed).permutation(len(images))
        self.images = images.select(order[rank::workers])
        self._name, self._rank, self._batch_size, self._seed = name, rank, batch_size, seed
        if len(self.images) < batch_size:
            raise ValueError(
                f"workload.batch_size is {batch_size}, but each of {workers} workers has only "
                f"{len(self.images)} images of {name}; choose a smaller batch"
            )

    def batch(self, iteration: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Normalised images (batch_size, 3, H, W) and labels (batch_size,) of an iteration.

        CIFAR-10 and Fashion-MNIST are augmented from the second pass on. A run that ends within its first pass
        sees no image twice, and would only learn slower: EfficientNetB0 on Fashion-MNIST reaches 0.74 in 160
        iterations of 3 x 16 without, 0.58 with augmentation.
        """
        import torch

        walk, step = divmod(iteration, len(self.images) // self._batch_size)
        order = np.random.default_rng((self._seed, self._rank, 0, walk)).permutation(len(self.images))
        chosen = self.images.select(order[step * self._batch_size : (step + 1) * self._batch_size])
        pixels = chosen.pixels
        if walk > 0 and _find(self._name).augmented:  # an image seen for the first time needs no disguise
            pixels = crop_and_flip(pixels, np.random.default_rng((self._seed, self._rank, 1, iteration)))
        return normalise(self._name, pixels), torch.from_numpy(chosen.labels)


def crop_and_flip(pixels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The usual light augmentation: a crop of the image padded by 4 black pixels, mirrored half the time."""
    count, _, height, width = pixels.shape
    border = (CROP_PADDING, CROP_PADDING)
    padded = np.pad(pixels, ((0, 0), (0, 0), border, border))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (height, width), axis=(2, 3))
    top, left = rng.integers(0, 2 * CROP_PADDING + 1, size=(2, count))
    cropped = windows[np.arange(count), :, top, left]
    mirrored = rng.random(count) < 0.5
    cropped[mirrored] = cropped[mirrored][..., ::-1]
    return cropped
