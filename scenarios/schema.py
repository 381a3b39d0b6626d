"""The scenario models: what a scenario file may say, with defaults, units and checks.

All models are frozen and refuse unknown keys. Quantities are held in SI units. The docstring under each field is
also its description in the JSON Schema.
"""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    ValidationError,
    WithJsonSchema,
    model_validator,
)

from scenarios.base import Count, CountFromZero, Positive, Strict
from scenarios.errors import KeyPath, ScenarioError, explain, located, unknown
from scenarios.topology import AnyTopology, Topology
from scenarios.transports import Transport
from scenarios.units import Duration, Percentage

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]*$", max_length=64)]
"""Names of scenarios and transports are names of folders in results/, hence lower case and no spaces."""
Model = Literal["efficientnet_b0", "digits_cnn"]
Dataset = Literal["auto", "cifar10", "fashion_mnist", "digits"]
LinkDirection = Literal["to_server", "to_worker"]


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


class AtIteration(Strict):
    """Once."""

    iteration: CountFromZero
    """Iteration in which the burst starts; the first is 0."""

    def starts(self, iterations: int, duration: int) -> list[int]:
        return [self.iteration]


class AtEvery(Strict):
    """Periodically, to the end of the run."""

    every: Count
    """Iterations from the start of one burst to the start of the next."""
    start: CountFromZero = Field(default_factory=lambda data: data.get("every", 0))
    """Iteration of the first burst; `every` by default."""

    def starts(self, iterations: int, duration: int) -> list[int]:
        return list(range(self.start, iterations, self.every)) or [self.start]


class AtRandom(Strict):
    """At random iterations without overlap, drawn once: the same for all transports and all seeds of the run."""

    random: Count
    """Number of bursts."""
    seed: CountFromZero
    """Seed of the draw; another seed gives other iterations."""

    def starts(self, iterations: int, duration: int) -> list[int]:
        # Draw places as if every burst were one iteration long, then make room for the rest of each. Sorting by
        # random() is reproducible: of Python's generator, only random() promises the same values in all versions.
        places = range(max(iterations - self.random * (duration - 1), self.random))
        draw = random.Random(self.seed)
        chosen = sorted(sorted(places, key=lambda _: draw.random())[: self.random])
        return [place + n * (duration - 1) for n, place in enumerate(chosen)]


_TRIGGER_TAGS = {"iteration": "AtIteration", "every": "AtEvery", "random": "AtRandom"}


def _kind_of_trigger(value: Any) -> str | None:
    keys = value if isinstance(value, dict) else vars(value) if isinstance(value, Strict) else ()
    return next((tag for key, tag in _TRIGGER_TAGS.items() if key in keys), None)


Trigger = Annotated[
    Annotated[AtIteration, Tag("AtIteration")]
    | Annotated[AtEvery, Tag("AtEvery")]
    | Annotated[AtRandom, Tag("AtRandom")],
    Discriminator(
        _kind_of_trigger,
        custom_error_type="value",
        custom_error_message="write {iteration: 279}, {every: 93} or {random: 2, seed: 7}",
    ),
]


def _selector(value: Any) -> str | tuple[str, ...]:
    if value == "workers":
        return value
    hosts = list(value) if isinstance(value, list | tuple) else []
    if not hosts or not all(isinstance(host, str) for host in hosts) or len(set(hosts)) < len(hosts):
        raise ValueError(f"write 'workers', or a list of different hosts such as [w1, w3], not {value!r}")
    return tuple(hosts)


Selector = Annotated[
    Literal["workers"] | tuple[str, ...],
    BeforeValidator(_selector),
    WithJsonSchema(
        {
            "anyOf": [
                {"const": "workers"},
                {
                    "type": "array",
                    "items": {"type": "string", "pattern": "^w[1-9][0-9]*$"},
                    "minItems": 1,
                    "uniqueItems": True,
                },
            ],
        }
    ),
]


class Event(Strict):
    """A burst: datagrams are lost at random, independently, at the switch port of the chosen links."""

    action: Literal["loss"]
    """What happens."""
    loss: Percentage
    """Probability that a datagram is lost."""
    at: Trigger
    """When it starts: `{iteration: 279}`, `{every: 93, start: 10}` or `{random: 2, seed: 7}`."""
    duration: Duration
    """How long each burst lasts: `1 iteration`, `5 iterations`."""
    selector: Selector = "workers"
    """Whose links: all `workers`, or a list such as `[w1, w3]`."""
    direction: Literal["to_server", "to_worker", "both"] = "to_server"
    """`to_server` hits the gradients, `to_worker` the averaged gradient on its way back."""
    protocol: Literal["udp", "all"] = "udp"
    """`udp` hits the data frames of the transport only, `all` also its control messages over TCP."""

    @model_validator(mode="after")
    def _no_overlap_with_itself(self) -> Self:
        if isinstance(self.at, AtEvery) and self.at.every < self.duration:
            message = f"a burst of {self.duration} iterations every {self.at.every} overlaps the next one"
            raise located([(("duration",), message)])
        return self

    def links(self, topology: Topology) -> list[tuple[str, LinkDirection]]:
        """(worker, direction) of each link that the event hits; `both` gives two for each worker."""
        hosts = topology.worker_names if self.selector == "workers" else self.selector
        directions: tuple[LinkDirection, ...] = (
            ("to_server", "to_worker") if self.direction == "both" else (self.direction,)
        )
        return [(host, direction) for host in hosts for direction in directions]


class Window(NamedTuple):
    """The iterations from `start` up to, not including, `stop` in which `Scenario.events[event]` is active."""

    event: int
    start: int
    stop: int


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
        """All windows of all events, sorted by start. The last windows of `every` end with the run."""
        end = self.workload.iterations
        windows = [
            Window(index, start, min(start + event.duration, end))
            for index, event in enumerate(self.events)
            for start in event.at.starts(end, event.duration)
        ]
        return sorted(windows, key=lambda window: (window.start, window.event))

    @model_validator(mode="after")
    def _events_fit(self) -> Self:
        problems = [*self._repeated_seeds(), *self._unknown_hosts(), *self._past_the_end()]
        if problems := problems or self._overlaps():
            raise located(problems)
        return self

    def _repeated_seeds(self) -> list[tuple[KeyPath, str]]:
        repeated = len(set(self.seeds)) < len(self.seeds)
        return [(("seeds",), f"each seed is run once, so they should differ: {self.seeds}")] if repeated else []

    def _unknown_hosts(self) -> list[tuple[KeyPath, str]]:
        names = self.topology.worker_names
        return [
            (("events", index, "selector", place), unknown("host", host, names))
            for index, event in enumerate(self.events)
            if event.selector != "workers"
            for place, host in enumerate(event.selector)
            if host not in names
        ]

    def _past_the_end(self) -> list[tuple[KeyPath, str]]:
        end = self.workload.iterations
        problems: list[tuple[KeyPath, str]] = []
        for index, event in enumerate(self.events):
            starts = event.at.starts(end, event.duration)
            last = starts[-1] + (1 if isinstance(event.at, AtEvery) else event.duration)
            if last > end:
                message = (
                    f"the burst runs to iteration {last - 1}, but the last of the run is {end - 1} "
                    f"(workload.iterations is {end}, counted from 0); "
                    "start it earlier or lengthen the run"
                )
                problems.append((("events", index, "at"), message))
        return problems

    def _overlaps(self) -> list[tuple[KeyPath, str]]:
        by_link: dict[tuple[str, str], list[Window]] = defaultdict(list)
        clashes: dict[tuple[int, int], str] = {}
        for window in self.timeline():
            for host, direction in self.events[window.event].links(self.topology):
                link = by_link[host, direction]
                if link and link[-1].stop > window.start:
                    earlier, later = sorted((link[-1].event, window.event))
                    clashes.setdefault(
                        (earlier, later),
                        f"overlaps events.{earlier} on the link of {host} {direction} at iteration {window.start}; "
                        "move one of them, or write one event for both",
                    )
                link.append(window)
        return [(("events", later, "at"), message) for (_, later), message in clashes.items()]
