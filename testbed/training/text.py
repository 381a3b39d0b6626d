"""The texts of the language models: WikiText-2 in tokens of its own BPE vocabulary, and a Bible in bytes."""

from __future__ import annotations

import hashlib
import io
import shutil
import subprocess
import zipfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import urlopen

import numpy as np

from testbed.training.download import DataError, download

if TYPE_CHECKING:
    import torch

VOCABULARY = 50_257  # of GPT-2; the BPE vocabulary is trained to this size
BIBLE_TEST_SHARE = 10  # the last tenth of the Bible is the test split


@dataclass(frozen=True)
class Sequences:
    """A text cut into sequences of `context` tokens.

    Attributes:
        dataset: name of the data set.
        tokens: the whole text, unsigned integers.
        starts: where each sequence begins; the token behind its last one is there, too.
        context: tokens of a sequence.
    """

    dataset: str
    tokens: np.ndarray
    starts: np.ndarray
    context: int

    @classmethod
    def cut(cls, dataset: str, tokens: np.ndarray, context: int) -> Sequences:
        """All sequences of a text, one behind the other."""
        return cls(dataset, tokens, np.arange(0, len(tokens) - context, context), context)

    def __len__(self) -> int:
        return len(self.starts)

    def select(self, indices: np.ndarray | slice) -> Sequences:
        return Sequences(self.dataset, self.tokens, self.starts[indices], self.context)

    def tensors(self, rng: np.random.Generator | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens (N, context) int64, and the token that follows each, likewise. Text is not augmented."""
        import torch

        both = torch.from_numpy(self.tokens[self.starts[:, None] + np.arange(self.context + 1)].astype(np.int64))
        return both[:, :-1], both[:, 1:]


class _WikiText2:
    """WikiText-2 (Merity et al., 2017), raw: the archive as its authors made it, from a mirror at a fixed commit."""

    name, title = "wikitext2", "WikiText-2"
    note = "WikiText-2, raw, byte-pair encoding trained on its training split"
    url = (
        "https://huggingface.co/datasets/ggml-org/ci/resolve/"
        "927b3642933080f1b0e811e2f916e14c292992f9/wikitext-2-raw-v1.zip"
    )
    sha256 = "ef7edb566e3e2b2d31b29c1fdb0c89a4cc683597484c3dc2517919c615435a11"
    splits = {"train": "wikitext-2-raw/wiki.train.raw", "test": "wikitext-2-raw/wiki.test.raw"}

    def locate(self, root: Path) -> Path | None:
        folder = root / self.name
        return folder if (folder / "test.npy").is_file() else None  # written last

    def download(self, root: Path) -> None:
        download(self.title, self.url, root, lambda: self._fetch(root / self.name))

    def _fetch(self, folder: Path) -> None:
        with urlopen(self.url) as answer:
            archive = answer.read()
        if hashlib.sha256(archive).hexdigest() != self.sha256:
            raise RuntimeError("the archive fails its checksum")
        with zipfile.ZipFile(io.BytesIO(archive)) as files:
            texts = {split: files.read(name).decode() for split, name in self.splits.items()}
        self.encode(texts, folder)

    def encode(self, texts: dict[str, str], folder: Path) -> None:
        """Train the vocabulary on the text `train`, and leave it and each text in its tokens in `folder`."""
        try:
            import tokenizers
        except ImportError as error:
            raise DataError("WikiText-2 needs the package tokenizers; `make setup` installs it", str(error)) from error

        coder = tokenizers.ByteLevelBPETokenizer()
        coder.train_from_iterator(texts["train"].splitlines(keepends=True), VOCABULARY, show_progress=False)
        folder.mkdir(parents=True, exist_ok=True)
        coder.save(str(folder / "tokenizer.json"))
        for split, text in texts.items():
            lines = coder.encode_batch(text.splitlines(keepends=True))
            tokens = np.concatenate([np.array(line.ids, np.uint16) for line in lines])
            partial = folder / f".{split}.npy"
            np.save(partial, tokens)
            partial.rename(folder / f"{split}.npy")

    def counts(self, place: Path) -> tuple[int, int, int]:
        train, test = (len(np.load(place / f"{split}.npy", mmap_mode="r")) for split in self.splits)
        return train, test, VOCABULARY

    def read(self, place: Path, split: str, context: int) -> Sequences:
        return Sequences.cut(self.name, np.load(place / f"{split}.npy"), context)


class _Bible:
    """The King James Bible as Debian's package bible-kjv prints it, verse by verse, in bytes."""

    name, title = "bible", "the King James Bible"
    note = "King James Bible of Debian's package bible-kjv, in bytes; the last tenth is the test split"
    verses = "gen1:1-rev22:21"

    def locate(self, root: Path) -> Path | None:
        program = shutil.which("bible")
        return Path(program) if program else None

    def download(self, root: Path) -> None:
        raise DataError(
            "the data set 'bible' is not here; on Debian and Ubuntu `apt install bible-kjv` brings it",
            "the package bible-kjv is not installed",
        )

    def counts(self, place: Path) -> tuple[int, int, int]:
        text = _bible(place)
        return len(text) - len(text) // BIBLE_TEST_SHARE, len(text) // BIBLE_TEST_SHARE, 256

    def read(self, place: Path, split: str, context: int) -> Sequences:
        text = np.frombuffer(_bible(place), np.uint8)
        border = len(text) - len(text) // BIBLE_TEST_SHARE
        return Sequences.cut(self.name, text[:border] if split == "train" else text[border:], context)


@cache
def _bible(program: Path) -> bytes:
    done = subprocess.run([program, "-f", _Bible.verses], capture_output=True, check=True)
    return done.stdout


DATASETS = (_WikiText2(), _Bible())
