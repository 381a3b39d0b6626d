"""The scenario models: what a scenario file may say, with defaults, units and checks.

All models are frozen and refuse unknown keys. Quantities are held in SI units. The docstring under each field is
also its description in the JSON Schema.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, StringConstraints, ValidationError, model_validator

from scenarios import events
from scenarios.base import Count, CountFromZero, Positive, Strict
from scenarios.errors import KeyPath, ScenarioError, explain, located
from scenarios.events import AtEvery, Event, Spell, Window
from scenarios.topology import AnyTopology
from scenarios.transports import AnyTransport
from scenarios.units import Seconds

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]*$", max_length=64)]
"""Names of scenarios and transports are names of folders in results/, hence lower case and no spaces."""
Model = Literal[
    "efficientnet_b0", "resnet50", "alexnet", "densenet169", "gpt2_small", "resnet20", "gpt_tiny", "digits_cnn"
]
Dataset = Literal["auto", "cifar10", "cifar100", "fashion_mnist", "wikitext2", "bible", "digits"]

IMAGES = ("cifar10", "cifar100", "fashion_mnist")
# What `auto` tries, in order: the data set that the paper trains the model on (or one like it), and what stands in.
AUTO: dict[str, tuple[str, ...]] = {
    "efficientnet_b0": ("cifar10", "fashion_mnist"),
    "resnet50": ("cifar100", "fashion_mnist"),
    "alexnet": ("cifar100", "fashion_mnist"),
    "densenet169": ("cifar10", "fashion_mnist"),
    "resnet20": ("cifar10", "fashion_mnist"),
    "gpt2_small": ("wikitext2", "bible"),
    "gpt_tiny": ("bible",),
}
TEXT_MODELS = ("gpt2_small", "gpt_tiny")
ALEXNET_IMAGE = 63  # pixels; from a smaller image nothing is left before its last pooling
POSITIONS = 1024  # longest sequence of the language models


def _fitting(model: str | None) -> tuple[str, ...]:
    """The data sets that a model can be trained on."""
    return ("digits",) if model == "digits_cnn" else ("wikitext2", "bible") if model in TEXT_MODELS else IMAGES


def _default_size(model: str | None) -> int | None:
    return ALEXNET_IMAGE if model == "alexnet" else None


class Optimizer(Strict):
    """Optimizer that each worker steps with the averaged gradient; fields as in torch.optim."""

    name: Literal["sgd", "adamw"] = "sgd"
    """Stochastic gradient descent, or AdamW."""
    lr: Positive
    """Peak learning rate."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Momentum factor of sgd."""
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """L2 penalty; with adamw, decoupled from the gradient."""
    nesterov: Annotated[bool, Field(strict=True)] = False
    """Nesterov momentum; needs a momentum above 0."""

    @model_validator(mode="after")
    def _fields_fit(self) -> Self:
        if self.name == "adamw" and self.momentum:
            raise located([(("momentum",), "adamw keeps its own moments; leave this out")])
        if self.nesterov and not self.momentum:
            raise located([(("nesterov",), "needs a momentum above 0")])
        return self


class Workload(Strict):
    """The training job."""

    model: Model
    """Model to train. Of the paper: torchvision's EfficientNetB0, ResNet50, AlexNet and DenseNet169, and GPT-2 small.
    For studies of accuracy on a CPU: ResNet-20, and a GPT of two layers. For tests: a small CNN on digits."""
    dataset: Dataset = Field(default_factory=lambda data: "digits" if data.get("model") == "digits_cnn" else "auto")
    """Data set. `auto` is the one that the paper trains the model on (CIFAR-10 or CIFAR-100, WikiText-2) if it is there
    or can be downloaded, else one that stands in (Fashion-MNIST, a Bible); the run records which. gpt_tiny takes the
    Bible, digits_cnn trains on `digits`."""
    image_size: Count | None = Field(default_factory=lambda data: _default_size(data.get("model")))
    """Images are scaled to this many pixels a side; null takes them as they are. alexnet needs 63 at least."""
    context: Count | None = Field(default_factory=lambda data: 64 if data.get("model") in TEXT_MODELS else None)
    """Tokens of a sequence, for language models; null for others."""
    batch_size: Count
    """Samples per worker and iteration."""
    iterations: Count
    """Length of the run. Iterations count from 0."""
    iterations_per_epoch: Count
    """The model is evaluated after every so many iterations."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute; `auto` takes a GPU if there is one."""
    optimizer: Optimizer
    """Optimizer and its settings."""
    schedule: Literal["constant", "cosine"] = "constant"
    """Learning rate after the warmup: constant, or falling to 0 over the run along a cosine."""
    warmup: CountFromZero = 0
    """Iterations in which the learning rate rises linearly to its peak."""
    eval_samples: CountFromZero = 0
    """Test samples (images, or sequences) per evaluation; 0 takes the whole test set."""

    @property
    def datasets(self) -> tuple[str, ...]:
        """The data set, then what may stand in for it where it is not to be had."""
        return AUTO[self.model] if self.dataset == "auto" else (self.dataset,)

    @model_validator(mode="after")
    def _fields_fit_model(self) -> Self:
        if problems := [*self._wrong_dataset(), *self._wrong_size()]:
            raise located(problems)
        return self

    def _wrong_dataset(self) -> list[tuple[KeyPath, str]]:
        fitting = (*(["auto"] if self.model in AUTO else []), *_fitting(self.model))
        if self.dataset in fitting:
            return []
        names = " or ".join(filter(None, (", ".join(map(repr, fitting[:-1])), repr(fitting[-1]))))
        return [(("dataset",), f"{self.model} trains on {names}, not {self.dataset!r}")]

    def _wrong_size(self) -> list[tuple[KeyPath, str]]:
        text = self.model in TEXT_MODELS
        problems: list[tuple[KeyPath, str]] = []
        if text and self.image_size is not None:
            problems.append((("image_size",), f"{self.model} reads text; leave this out"))
        if self.model == "alexnet" and (self.image_size or 0) < ALEXNET_IMAGE:
            problems.append((("image_size",), f"alexnet needs {ALEXNET_IMAGE} pixels at least, not {self.image_size}"))
        if not text and self.context is not None:
            problems.append((("context",), f"{self.model} reads images; leave this out"))
        if text and not 1 <= (self.context or 0) <= POSITIONS:
            problems.append((("context",), f"{self.model} reads 1 to {POSITIONS} tokens, not {self.context}"))
        return problems


class Scenario(Strict):
    """One experiment: a workload, trained over each of the transports on one topology under the same events."""

    FILE_KEYS: ClassVar = ("extends", "profiles")
    """Keys of scenario files that loading resolves, see `scenarios.loader`."""

    name: Name
    """Name of the scenario and of its folder of results."""
    description: str = ""
    """One line for the list of scenarios."""
    profile: str | None = None
    """The profile that was applied."""
    topology: AnyTopology
    """Hosts and links."""
    workload: Workload
    """The training job."""
    transports: Annotated[dict[Name, AnyTransport], Field(min_length=1)]
    """The transports to compare, each under a name of your choice."""
    events: list[Event] = []
    """The bursts."""
    seeds: Annotated[list[CountFromZero], Field(min_length=1)] = [1]
    """Each transport runs once per seed (initial weights, order of the data, losses)."""

    @classmethod
    def keys(cls) -> list[str]:
        return [*cls.FILE_KEYS, *(key for key in cls.model_fields if key != "profile")]

    @classmethod
    def from_resolved(cls, data: dict[str, Any]) -> Self:
        """The scenario that `model_dump(mode="json")` gave, as in `run.json`. Raises ScenarioError."""
        try:
            return cls.model_validate(data, context={"resolved": True})
        except ValidationError as error:
            raise ScenarioError(explain(error, data, lambda _: "resolved scenario")) from error

    def timeline(self) -> list[Window]:
        """The windows of all events over whole iterations, sorted by start."""
        return events.windows(self.events, self.workload.iterations)

    def spells(self) -> list[Spell]:
        """The spells of all events that last a time."""
        return events.spells(self.events, self.workload.iterations)

    @property
    def networked(self) -> bool:
        """Whether gradients cross a network; else each run is one process that trains alone."""
        return any(transport.network for transport in self.transports.values())

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        problems = [*self._repeated_seeds(), *self._misnamed(), *self._past_the_end(), *self._beyond_one_process()]
        if problems := problems or self._overlaps():
            raise located(problems)
        return self

    def _repeated_seeds(self) -> list[tuple[KeyPath, str]]:
        repeated = len(set(self.seeds)) < len(self.seeds)
        return [(("seeds",), f"each seed is run once, so they should differ: {self.seeds}")] if repeated else []

    def _misnamed(self) -> list[tuple[KeyPath, str]]:
        return [
            (("events", index, "selector", *place), message)
            for index, event in enumerate(self.events)
            for place, message in events.misnamed(event.selector, self.topology, event.hosts_only)
        ]

    def _past_the_end(self) -> list[tuple[KeyPath, str]]:
        end = self.workload.iterations
        problems: list[tuple[KeyPath, str]] = []
        for index, event in enumerate(self.events):
            whole = not isinstance(event.at, AtEvery) and not isinstance(event.span, Seconds)
            last = max((start + (event.span if whole else 1) for start in event.starts(end)), default=0)
            if last > end:
                message = (
                    f"the burst runs to iteration {last - 1}, but the last of the run is {end - 1} "
                    f"(workload.iterations is {end}, counted from 0); "
                    "start it earlier or lengthen the run"
                )
                problems.append((("events", index, "at"), message))
        return problems

    def _beyond_one_process(self) -> list[tuple[KeyPath, str]]:
        """What a scenario cannot have whose transports drop without a network."""
        alone = {name: each for name, each in self.transports.items() if not each.network}
        if not alone:
            return []
        problems: list[tuple[KeyPath, str]] = [
            (("transports", name), f"{', '.join(alone)} need no network, and {name} does; write two scenarios")
            for name in self.transports
            if name not in alone
        ]
        if self.topology.workers > 1:
            problems.append((("topology", "workers"), "without a network there is one process: write 1"))
        if self.events:
            problems.append((("events",), "there is no network that they could happen to"))
        epochs = -(-self.workload.iterations // self.workload.iterations_per_epoch)
        problems += [
            (("transports", name, "epochs"), f"the run has {epochs} epochs")
            for name, each in alone.items()
            if each.epochs and each.epochs[1] > epochs
        ]
        return problems

    def _overlaps(self) -> list[tuple[KeyPath, str]]:
        clashes = events.overlaps(self.events, self.topology, self.workload.iterations)
        return [(("events", later, "at"), message) for (_, later), message in clashes.items()]
