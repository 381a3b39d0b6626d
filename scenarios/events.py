"""Events: what happens to which links or hosts, when and for how long. One class an action.

Fields have the names of Chaos Mesh and tc-netem(8). Times are seconds, shares fractions. An event over whole iterations
begins and ends while nothing is on the wire; one over a time runs by the clock.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Protocol, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, WithJsonSchema, model_validator

from scenarios.base import Count, CountFromZero, Strict
from scenarios.errors import located, unknown
from scenarios.units import Duration, Percentage, Rate, Seconds, Span, Time

SERVER = "srv"
LinkDirection = Literal["to_server", "to_worker"]
LinkKey = tuple[str, LinkDirection]
DIRECTIONS: tuple[LinkDirection, ...] = ("to_server", "to_worker")


class Hosts(Protocol):
    """What events ask of a topology."""

    @property
    def worker_names(self) -> Sequence[str]: ...


# -- when ----------------------------------------------------------------------------------------------------


class AtIteration(Strict):
    """Once."""

    iteration: CountFromZero
    """Iteration in which the burst starts; the first is 0."""

    def starts(self, iterations: int, duration: int) -> list[int]:
        return [self.iteration]


class AtTime(Strict):
    """Once, by the clock."""

    time: Time
    """Time since all hosts were ready for the first iteration: `30s`, `500ms`. Needs a duration in time."""

    def starts(self, iterations: int, duration: int) -> list[int]:
        return []


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


_TRIGGER_TAGS = {"iteration": "AtIteration", "time": "AtTime", "every": "AtEvery", "random": "AtRandom"}


def _kind_of_trigger(value: Any) -> str | None:
    keys = value if isinstance(value, dict) else vars(value) if isinstance(value, Strict) else ()
    return next((tag for key, tag in _TRIGGER_TAGS.items() if key in keys), None)


Trigger = Annotated[
    Annotated[AtIteration, Tag("AtIteration")]
    | Annotated[AtTime, Tag("AtTime")]
    | Annotated[AtEvery, Tag("AtEvery")]
    | Annotated[AtRandom, Tag("AtRandom")],
    Discriminator(
        _kind_of_trigger,
        custom_error_type="value",
        custom_error_message="write {iteration: 279}, {time: 30s}, {every: 93} or {random: 2, seed: 7}",
    ),
]


# -- where ---------------------------------------------------------------------------------------------------

ROLES = ("workers", "server", "all")


def _selector(value: Any) -> str | tuple[str, ...]:
    if value in ROLES:
        return value
    hosts = list(value) if isinstance(value, list | tuple) else []
    if not hosts or not all(isinstance(host, str) for host in hosts) or len(set(hosts)) < len(hosts):
        raise ValueError(
            f"write 'workers', 'server', 'all', or a list of different hosts such as [w1, w3], not {value!r}"
        )
    return tuple(hosts)


Selector = Annotated[
    Literal["workers", "server", "all"] | tuple[str, ...],
    BeforeValidator(_selector),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": list(ROLES)},
                {
                    "type": "array",
                    "items": {"type": "string", "pattern": "^(w[1-9][0-9]*|srv)$"},
                    "minItems": 1,
                    "uniqueItems": True,
                },
            ],
        }
    ),
]


def select(selector: str | tuple[str, ...], topology: Hosts) -> tuple[str, ...]:
    """The hosts that a selector names."""
    workers = tuple(topology.worker_names)
    match selector:
        case "workers":
            return workers
        case "server":
            return (SERVER,)
        case "all":
            return (SERVER, *workers)
        case _:
            return selector


# -- what events have in common ------------------------------------------------------------------------------


class _Event(Strict):
    at: Trigger
    """When it starts: `{iteration: 279}`, `{every: 93, start: 10}`, `{random: 2, seed: 7}` or `{time: 30s}`."""

    slots: ClassVar[tuple[str, ...]]
    """What the event sets on a link or host: of one slot, only one event can be in force there at a time."""
    expected_loss: ClassVar[float] = 0.0
    """Share of the datagrams on its links that the injector should drop meanwhile."""
    endless: ClassVar[str | None] = None
    """Why an iteration cannot end while the event lasts, or None if it can; then the event must last a time."""

    @property
    def span(self) -> Span:
        """Iterations (int), or Seconds."""
        return self.duration  # type: ignore[attr-defined]

    def starts(self, iterations: int) -> list[int]:
        """Iterations at which it begins; none for an event by the clock."""
        return self.at.starts(iterations, 1 if isinstance(self.span, Seconds) else self.span)

    def hosts(self, topology: Hosts) -> tuple[str, ...]:
        """The selected hosts."""
        return select(self.selector, topology)  # type: ignore[attr-defined]

    def links(self, topology: Hosts) -> list[LinkKey]:
        """(host, direction) of each link that the event hits; none for an event that hits hosts."""
        return []

    def channels(self, topology: Hosts) -> list[LinkKey]:
        """(worker, direction) of each gradient's way that the event touches: all workers' for the server's link."""
        touched = self.links(topology) or [(host, way) for host in self.hosts(topology) for way in DIRECTIONS]
        workers = topology.worker_names
        each = [(worker, way) for host, way in touched for worker in (workers if host == SERVER else [host])]
        return list(dict.fromkeys(each))

    def places(self, topology: Hosts) -> set[tuple[str, ...]]:
        """(slot, host, direction) of all that it sets; direction is empty for a host."""
        where = self.links(topology) or [(host, "") for host in self.hosts(topology)]
        return {(slot, *place) for slot in self.slots for place in where}

    @model_validator(mode="after")
    def _times_fit(self) -> Self:
        if isinstance(self.span, Seconds):
            return self
        if isinstance(self.at, AtTime):
            raise located([(("duration",), "an event at a time lasts a time: write '500ms' or '2s'")])
        if self.endless:
            raise located([(("duration",), f"{self.endless}; give it a time, such as '500ms'")])
        if isinstance(self.at, AtEvery) and self.at.every < self.span:
            message = f"a burst of {self.span} iterations every {self.at.every} overlaps the next one"
            raise located([(("duration",), message)])
        return self


class _LinkEvent(_Event):
    """Hits datagrams at the switch port of the chosen links."""

    duration: Duration
    """How long it lasts: `1 iteration`, `5 iterations`, or a time: `500ms`."""
    selector: Selector = "workers"
    """Whose links: `workers`, `server`, `all`, or a list such as `[w1, w3]`."""
    direction: Literal["to_server", "to_worker", "both"] = "to_server"
    """`to_server` hits the gradients, `to_worker` the averaged gradient on its way back."""
    protocol: Literal["udp", "all"] = "udp"
    """`udp` hits the data frames of the transport only, `all` also its control messages over TCP."""

    def links(self, topology: Hosts) -> list[LinkKey]:
        directions = DIRECTIONS if self.direction == "both" else (self.direction,)
        return [(host, direction) for host in self.hosts(topology) for direction in directions]


# -- what happens --------------------------------------------------------------------------------------------


class GilbertElliott(Strict):
    """Loss in bursts, as `loss gemodel` of tc-netem(8): a good and a bad state, each with its own loss."""

    p: Percentage
    """Probability, per datagram, to go from the good state to the bad one."""
    r: Percentage
    """Probability to go from the bad state to the good one; 1 / r is the mean length of a bad spell."""
    bad: Percentage = 1.0
    """Loss in the bad state (netem's 1-h)."""
    good: Percentage = 0.0
    """Loss in the good state (netem's 1-k)."""

    @model_validator(mode="after")
    def _moves(self) -> Self:
        if self.p + self.r == 0:
            raise located([(("p",), "p and r are both 0%, so the state never changes; use `loss` instead")])
        return self


class FourStates(Strict):
    """Loss by a Markov chain of four states, as `loss state` of tc-netem(8).

    State 1 is good reception, 2 good reception within a burst, 3 loss within a burst, 4 a single loss in a gap.
    """

    p13: Percentage
    """Probability to go from good reception to a burst of losses."""
    p31: Percentage
    """Probability to go from a burst back to good reception."""
    p32: Percentage = 0.0
    """Probability to receive within a burst."""
    p23: Percentage = 1.0
    """Probability to lose again after a reception within a burst."""
    p14: Percentage = 0.0
    """Probability of a single loss outside of bursts."""

    @model_validator(mode="after")
    def _chain(self) -> Self:
        for first, second in (("p13", "p14"), ("p31", "p32")):
            if getattr(self, first) + getattr(self, second) > 1:
                raise located([((second,), f"{first} and {second} together are above 100%")])
        if self.p13 and not self.p31:
            raise located([(("p31",), "should be above 0%, or a burst of losses never ends")])
        return self


class LossEvent(_LinkEvent):
    """Datagrams are lost at the switch port: independently, with correlation, or in the bursts of a Markov chain."""

    action: Literal["loss"]
    """What happens."""
    loss: Percentage | None = None
    """Probability that a datagram is lost. Or write `gemodel` or `state`."""
    correlation: Percentage = 0.0
    """How much each draw depends on the last, as in tc-netem; the share lost then differs from `loss`."""
    gemodel: GilbertElliott | None = None
    """Gilbert-Elliott loss: `{p: 1%, r: 10%, bad: 100%, good: 0%}`."""
    state: FourStates | None = None
    """Four-state Markov loss: `{p13: 1%, p31: 10%, p32: 5%, p23: 80%, p14: 0.1%}`."""

    slots = ("loss",)

    @model_validator(mode="after")
    def _one_model(self) -> Self:
        given = [name for name in ("loss", "gemodel", "state") if getattr(self, name) is not None]
        if not given:
            raise located([((), "required key 'loss' is missing (or 'gemodel', or 'state')")])
        if len(given) > 1:
            raise located([((given[1],), f"{given[0]!r} says already how datagrams are lost; keep one of them")])
        if self.correlation and self.loss is None:
            raise located([(("correlation",), f"goes with 'loss'; {given[0]!r} has its own")])
        if self.correlation == 1:
            raise located([(("correlation",), "should be below 100%, or every draw repeats the first")])
        return self

    @property
    def model(self) -> str:
        """`random`, `correlated`, `gemodel` or `state`."""
        if self.loss is not None:
            return "correlated" if self.correlation else "random"
        return "gemodel" if self.gemodel is not None else "state"

    @property
    def expected_loss(self) -> float:  # type: ignore[override]
        """Share of the datagrams that is lost in the long run."""
        if self.loss is not None:
            return _share_below(self.loss, self.correlation)
        if (ge := self.gemodel) is not None:
            return (ge.p * ge.bad + ge.r * ge.good) / (ge.p + ge.r)
        s = self.state
        # Balance of the chain, in units of the time in state 1.
        in_burst = s.p13 / s.p31 if s.p13 else 0.0
        between = in_burst * s.p32 / s.p23 if s.p23 else 0.0
        return (in_burst + s.p14) / (1 + in_burst + between + s.p14)


def _share_below(threshold: float, correlation: float, grid: int = 400) -> float:
    """P(v < threshold) for netem's correlated draw v' = (1 - c) u + c v, u uniform: its distribution's fixed point."""
    if not correlation:
        return threshold
    c = correlation
    share = [i / grid for i in range(grid + 1)]  # the distribution function of v on the grid
    for _ in range(200):
        area = [0.0]  # its integral
        for a, b in pairwise(share):
            area.append(area[-1] + (a + b) / 2 / grid)

        def integral(x: float, area: list[float] = area) -> float:
            if x <= 0:
                return 0.0
            if x >= 1:
                return area[-1] + x - 1
            place, rest = divmod(x * grid, 1)
            return area[int(place)] + rest * (area[int(place) + 1] - area[int(place)])

        width = (1 - c) / c
        after = [(integral(i / grid / c) - integral(i / grid / c - width)) / width for i in range(grid + 1)]
        moved = max(abs(a - b) for a, b in zip(after, share, strict=True))
        share = after
        if moved < 1e-7:
            break
    place, rest = divmod(threshold * grid, 1)
    if place >= grid:
        return 1.0
    return share[int(place)] + rest * (share[int(place) + 1] - share[int(place)])


class DelayEvent(_LinkEvent):
    """Datagrams are delayed. Needs netem."""

    action: Literal["delay"]
    """What happens."""
    latency: Time
    """Mean delay: `20ms`."""
    jitter: Time = 0.0
    """Variation of the delay, at most the latency; datagrams overtake each other."""
    correlation: Percentage = 0.0
    """How much each delay depends on the last."""
    distribution: Literal["uniform", "normal", "pareto", "paretonormal"] = "uniform"
    """Distribution of the delays around the latency; all but `uniform` need a jitter."""

    slots = ("delay",)

    @model_validator(mode="after")
    def _delay_makes_sense(self) -> Self:
        if not self.latency:
            raise located([(("latency",), "should be above 0ms")])
        if self.jitter > self.latency:
            raise located([(("jitter",), "should be at most the latency, or delays would be negative")])
        if not self.jitter and (self.correlation or self.distribution != "uniform"):
            field = "correlation" if self.correlation else "distribution"
            raise located([((field,), "needs a jitter above 0ms")])
        return self


class ReorderEvent(_LinkEvent):
    """A share of the datagrams overtakes the others, which are delayed. Needs netem."""

    action: Literal["reorder"]
    """What happens."""
    reorder: Percentage
    """Share of the datagrams that go at once."""
    latency: Time
    """Delay of the others."""
    correlation: Percentage = 0.0
    """How much each draw depends on the last."""
    gap: Count = 1
    """Only every so many datagrams may overtake."""

    slots = ("delay",)

    @model_validator(mode="after")
    def _others_are_late(self) -> Self:
        if not self.latency:
            raise located([(("latency",), "should be above 0ms, or there is nothing to overtake")])
        return self


class DuplicateEvent(_LinkEvent):
    """Datagrams arrive twice."""

    action: Literal["duplicate"]
    """What happens."""
    duplicate: Percentage
    """Probability that a datagram is doubled."""
    correlation: Percentage = 0.0
    """How much each draw depends on the last; above 0% it needs netem."""

    slots = ("duplicate",)


class CorruptEvent(_LinkEvent):
    """A bit of a datagram is flipped, so that the receiving host drops it by its checksum. Needs netem."""

    action: Literal["corrupt"]
    """What happens."""
    corrupt: Percentage
    """Probability that a datagram is damaged."""
    correlation: Percentage = 0.0
    """How much each draw depends on the last."""

    slots = ("corrupt",)


class PartitionEvent(_LinkEvent):
    """Nothing passes, control messages over TCP included."""

    action: Literal["partition"]
    """What happens."""
    direction: Literal["to_server", "to_worker", "both"] = "both"
    """Which way is cut; `both` by default."""
    protocol: Literal["udp", "all"] = "all"
    """`all`: nothing passes; `udp`: the control messages still do."""

    slots = ("partition",)
    expected_loss = 1.0
    endless = "no iteration ends while nothing passes"


class RateEvent(_Event):
    """The links have another rate."""

    action: Literal["rate"]
    """What happens."""
    rate: Rate
    """The rate while the event lasts: `100mbit`."""
    duration: Duration
    """How long it lasts: `1 iteration`, `5 iterations`, or a time: `500ms`."""
    selector: Selector = "workers"
    """Whose links: `workers`, `server`, `all`, or a list such as `[w1, w3]`."""
    direction: Literal["to_server", "to_worker", "both"] = "both"
    """Which direction of the links; `both` by default."""

    slots = ("rate",)
    links = _LinkEvent.links


class LinkDownEvent(_Event):
    """The switch port goes down and comes back: both directions, and the queue in front of the link is lost."""

    action: Literal["link_down"]
    """What happens."""
    duration: Duration
    """How long the port is down, a time: `500ms`."""
    selector: Selector = "workers"
    """Whose links: `workers`, `server`, `all`, or a list such as `[w1, w3]`."""

    slots = ("link_down",)
    expected_loss = 1.0
    endless = "no iteration ends while the link is down"

    def links(self, topology: Hosts) -> list[LinkKey]:
        return [(host, direction) for host in self.hosts(topology) for direction in DIRECTIONS]


class TrafficEvent(_Event):
    """Cross traffic from hosts of its own fills the switch's queue towards the chosen hosts: loss by congestion."""

    action: Literal["traffic"]
    """What happens."""
    kind: Literal["udp", "tcp"] = "udp"
    """`udp`: an incast of datagrams at `rate`; `tcp`: bulk flows, as iperf3 sends them."""
    senders: Annotated[int, Field(strict=True, ge=1, le=16)] = 2
    """Number of hosts, added for this, that send to each chosen host."""
    rate: Rate | None = None
    """Rate of each UDP sender; by default the rate of the links."""
    flows: Count = 1
    """TCP connections of each sender."""
    duration: Duration
    """How long it lasts: `1 iteration`, `5 iterations`, or a time: `500ms`."""
    selector: Selector = "server"
    """Towards whom; by default the server, whose queue the gradients share."""

    slots = ("traffic",)

    @model_validator(mode="after")
    def _fields_fit_kind(self) -> Self:
        if self.kind == "tcp" and self.rate is not None:
            raise located([(("rate",), "goes with kind 'udp'; TCP finds its own rate")])
        if self.kind == "udp" and self.flows != 1:
            raise located([(("flows",), "goes with kind 'tcp'")])
        return self

    def links(self, topology: Hosts) -> list[LinkKey]:
        return [(host, "to_server" if host == SERVER else "to_worker") for host in self.hosts(topology)]


class StopEvent(_Event):
    """The processes of the chosen hosts are stopped (SIGSTOP) and go on afterwards (SIGCONT): a straggler."""

    action: Literal["stop"]
    """What happens."""
    duration: Duration
    """How long they stand still, a time: `500ms`."""
    selector: Selector
    """Who: `workers`, `server`, `all`, or a list such as `[w2]`."""

    slots = ("stop",)
    endless = "no iteration ends while a host stands still"


class KillEvent(_Event):
    """The processes of the chosen hosts are killed (SIGKILL). The run fails and names them."""

    action: Literal["kill"]
    """What happens."""
    selector: Selector
    """Who: `workers`, `server`, `all`, or a list such as `[w2]`."""

    slots = ("kill",)

    @property
    def span(self) -> Span:
        return Seconds(0)


Event = Annotated[
    LossEvent
    | DelayEvent
    | ReorderEvent
    | DuplicateEvent
    | CorruptEvent
    | PartitionEvent
    | RateEvent
    | LinkDownEvent
    | TrafficEvent
    | StopEvent
    | KillEvent,
    Field(discriminator="action"),
]
LinkImpairment = LossEvent | DelayEvent | ReorderEvent | DuplicateEvent | CorruptEvent | PartitionEvent
"""Events that an injector carries out on the datagrams of a link."""


# -- the plan ------------------------------------------------------------------------------------------------


class Window(NamedTuple):
    """The iterations from `start` up to, not including, `stop` in which `Scenario.events[event]` is active."""

    event: int
    start: int
    stop: int


class Spell(NamedTuple):
    """A stretch of time in which `Scenario.events[event]` is active.

    It begins with an iteration, or `time` s after all hosts were ready for the first one; the other is None.
    """

    event: int
    iteration: int | None
    time: float | None
    seconds: float


def windows(events: Sequence[Event], iterations: int) -> list[Window]:
    """Of the events over whole iterations, sorted by start. The last windows of `every` end with the run."""
    found = [
        Window(index, start, min(start + event.span, iterations))
        for index, event in enumerate(events)
        if not isinstance(event.span, Seconds)
        for start in event.starts(iterations)
    ]
    return sorted(found, key=lambda window: (window.start, window.event))


def spells(events: Sequence[Event], iterations: int) -> list[Spell]:
    """Of the events that last a time: those that begin with an iteration in their order, then those by the clock."""
    timed = [(index, event) for index, event in enumerate(events) if isinstance(event.span, Seconds)]
    by_iteration = [
        Spell(index, start, None, float(event.span)) for index, event in timed for start in event.starts(iterations)
    ]
    by_clock = [
        Spell(index, None, event.at.time, float(event.span)) for index, event in timed if isinstance(event.at, AtTime)
    ]
    return [
        *sorted(by_iteration, key=lambda spell: (spell.iteration, spell.event)),
        *sorted(by_clock, key=lambda spell: (spell.time, spell.event)),
    ]


def unknown_hosts(event: Event, topology: Hosts) -> list[tuple[int, str]]:
    """(place in the selector's list, message) of each name that the topology has not."""
    names = (*topology.worker_names, SERVER)
    if event.selector in ROLES:
        return []
    return [(at, unknown("host", host, names)) for at, host in enumerate(event.selector) if host not in names]


def overlaps(events: Sequence[Event], topology: Hosts, iterations: int) -> dict[tuple[int, int], str]:
    """(earlier event, later event) -> message, where two would set the same on one link or host at one time.

    Windows of iterations are compared with each other, and so are times; whether an iteration and a time meet shows in
    the run alone, where the later one counts.
    """
    by_place: dict[tuple[str, ...], list[tuple[int, float]]] = {}
    clashes: dict[tuple[int, int], str] = {}
    clock = [spell for spell in spells(events, iterations) if spell.time is not None]
    plans = (
        [(w.event, w.start, w.stop, f"at iteration {w.start}") for w in windows(events, iterations)],
        [(s.event, s.time, s.time + s.seconds, f"at {s.time:g} s") for s in clock],
    )
    for plan in plans:
        by_place.clear()
        for index, start, stop, when in plan:
            for slot, host, direction in sorted(events[index].places(topology)):
                before = by_place.setdefault((slot, host, direction), [])
                if before and before[-1][1] > start:
                    earlier, later = sorted((before[-1][0], index))
                    where = f"on the link of {host} {direction}" if direction else f"on {host}"
                    message = f"overlaps events.{earlier} {where} {when}; move one of them, or write one event for both"
                    clashes.setdefault((earlier, later), message)
                before.append((index, stop))
    return clashes
