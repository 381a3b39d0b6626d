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
from scenarios.transports import Transport
from scenarios.units import Seconds

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]*$", max_length=64)]
"""Names of scenarios and transports are names of folders in results/, hence lower case and no spaces."""
Model = Literal["efficientnet_b0", "digits_cnn"]
Dataset = Literal["auto", "cifar10", "fashion_mnist", "digits"]


class Optimizer(Strict):
    """Optimizer that each worker steps with the averaged gradient; fields as in torch.optim.SGD."""

    name: Literal["sgd"] = "sgd"
    """Which optimizer."""
    lr: Positive
    """Peak learning rate."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Momentum factor."""
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """L2 penalty."""
    nesterov: Annotated[bool, Field(strict=True)] = False
    """Nesterov momentum; needs a momentum above 0."""

    @model_validator(mode="after")
    def _nesterov_has_momentum(self) -> Self:
        if self.nesterov and not self.momentum:
            raise located([(("nesterov",), "needs a momentum above 0")])
        return self


class Workload(Strict):
    """The training job."""

    model: Model
    """Model to train: torchvision's EfficientNetB0, or a small CNN for tests."""
    dataset: Dataset = Field(default_factory=lambda data: "digits" if data.get("model") == "digits_cnn" else "auto")
    """Data set. `auto` is CIFAR-10 if it is there or can be downloaded, else Fashion-MNIST (the run records which).
    digits_cnn trains on `digits`."""
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
    """Test samples per evaluation; 0 takes the whole test set."""

    @model_validator(mode="after")
    def _dataset_fits_model(self) -> Self:
        if (self.model == "digits_cnn") != (self.dataset == "digits"):
            fits = "'digits'" if self.model == "digits_cnn" else "'auto', 'cifar10' or 'fashion_mnist'"
            raise located([(("dataset",), f"{self.model} trains on {fits}, not {self.dataset!r}")])
        return self


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
    transports: Annotated[dict[Name, Transport], Field(min_length=1)]
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

    @model_validator(mode="after")
    def _events_fit(self) -> Self:
        problems = [*self._repeated_seeds(), *self._misnamed(), *self._past_the_end()]
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

    def _overlaps(self) -> list[tuple[KeyPath, str]]:
        clashes = events.overlaps(self.events, self.topology, self.workload.iterations)
        return [(("events", later, "at"), message) for (_, later), message in clashes.items()]
