"""The image data sets: where they come from, and how their images reach a model."""

from __future__ import annotations

import gzip
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from testbed.training.download import DataError, download

if TYPE_CHECKING:
    import torch

DEBIAN_FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")  # the package dataset-fashion-mnist
CROP_PADDING = 4


@dataclass(frozen=True)
class Images:
    """Images (N, 1 or 3, H, W) uint8 with labels (N,) int64, not yet normalised; `kind` is their data set."""

    kind: _ImageSet
    pixels: np.ndarray
    labels: np.ndarray

    @property
    def dataset(self) -> str:
        return self.kind.name

    def __len__(self) -> int:
        return len(self.labels)

    def select(self, indices: np.ndarray | slice) -> Images:
        return Images(self.kind, self.pixels[indices], self.labels[indices])

    def tensors(self, rng: np.random.Generator | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Images (N, 3, H, W) float32 of mean 0 and deviation 1, and labels (N,); with `rng`, cropped and mirrored."""
        import torch

        pixels = crop_and_flip(self.pixels, rng) if rng is not None and self.kind.augmented else self.pixels
        mean = torch.tensor(self.kind.mean).view(-1, 1, 1)
        std = torch.tensor(self.kind.std).view(-1, 1, 1)
        scaled = (torch.from_numpy(pixels).float() / 255 - mean) / std
        return scaled.expand(-1, 3, -1, -1).contiguous(), torch.from_numpy(self.labels)


# --- one class per data set ---------------------------------------------------------------------------


class _ImageSet:
    """What the image data sets have in common: their sizes are known before they are there."""

    name: str
    title: str
    note: str
    train: int
    test: int
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augmented = True

    def counts(self, place: Path) -> tuple[int, int, int]:
        return self.train, self.test, self.classes


class _Cifar10(_ImageSet):
    name, title, note = "cifar10", "CIFAR-10", "CIFAR-10, 32x32 colour"
    train, test, classes = 50_000, 10_000, 10
    mean, std = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    folder, loader = "cifar-10-batches-py", "CIFAR10"

    def _stored(self):
        """torchvision's class of this data set."""
        from torchvision import datasets

        return getattr(datasets, self.loader)

    def locate(self, root: Path) -> Path | None:
        folder = root / self.folder
        if not folder.is_dir():
            return None
        stored = self._stored()
        return folder if _complete(folder, stored.train_list + stored.test_list) else None

    def download(self, root: Path) -> None:
        stored = self._stored()
        download(self.title, stored.url, root, lambda: stored(root, download=True))

    def read(self, folder: Path, split: str, context: int | None = None) -> Images:
        stored = self._stored()(folder.parent, train=split == "train")
        return Images(self, stored.data.transpose(0, 3, 1, 2), np.array(stored.targets, dtype=np.int64))


class _Cifar100(_Cifar10):
    name, title, note = "cifar100", "CIFAR-100", "CIFAR-100, 32x32 colour"
    classes = 100
    mean, std = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)
    folder, loader = "cifar-100-python", "CIFAR100"


class _FashionMnist(_ImageSet):
    name, title, note = "fashion_mnist", "Fashion-MNIST", "Fashion-MNIST, grey, padded to 32x32"
    train, test, classes = 60_000, 10_000, 10
    mean, std = (0.2190,), (0.3318,)  # of the padded training images

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
            download(self.title, url, root, lambda: FashionMNIST(root, download=True))
        except DataError as error:
            remedy = "on Debian and Ubuntu `apt install dataset-fashion-mnist` brings it too"
            raise DataError(f"{error}; {remedy}", error.reason) from error

    def read(self, folder: Path, split: str, context: int | None = None) -> Images:
        prefix = "train" if split == "train" else "t10k"
        with gzip.open(folder / f"{prefix}-images-idx3-ubyte.gz") as file:
            pixels = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 1, 28, 28)
        with gzip.open(folder / f"{prefix}-labels-idx1-ubyte.gz") as file:
            labels = np.frombuffer(file.read(), np.uint8, offset=8).astype(np.int64)
        return Images(self, np.pad(pixels, ((0, 0), (0, 0), (2, 2), (2, 2))), labels)


class _Digits(_ImageSet):
    name, title, note = "digits", "the digits", "UCI handwritten digits, 8x8 grey"
    train, test, classes = 1_437, 360, 10
    mean, std = (0.3055,), (0.3759,)
    augmented = False  # a mirrored or shifted 8x8 digit is often another digit

    def locate(self, root: Path) -> Path | None:
        package = importlib.util.find_spec("sklearn")
        return Path(package.origin).parent / "datasets" / "data" if package and package.origin else None

    def download(self, root: Path) -> None:
        raise DataError("the data set 'digits' needs scikit-learn; install it by `pip install scikit-learn`")

    def read(self, folder: Path, split: str, context: int | None = None) -> Images:
        # Read here, as importing scikit-learn takes longer than training on it. 64 pixels of 0 to 16, then the label.
        stored = np.loadtxt(folder / "digits.csv.gz", delimiter=",")
        pixels = np.round(stored[:, :-1] * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)
        order = np.random.default_rng(0).permutation(len(pixels))
        chosen = order[: self.train] if split == "train" else order[self.train :]
        return Images(self, pixels[chosen], stored[chosen, -1].astype(np.int64))


def _complete(folder: Path, files: list[tuple[str, str]]) -> bool:
    """Whether all (name, MD5 sum) are there and right."""
    from torchvision.datasets.utils import check_integrity

    return all(check_integrity(str(folder / name), md5) for name, md5 in files)


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


DATASETS = (_Cifar10(), _Cifar100(), _FashionMnist(), _Digits())
