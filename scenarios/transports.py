"""The transports that a scenario compares: the paper's, with its loss bounds (Table I), and what others would use.

A kind says what engines must know of it. Its two ends stand in the testbed.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from scenarios.base import Count, Positive, Strict
from scenarios.errors import located
from scenarios.topology import Topology
from scenarios.units import RATE, Percentage, Rate, Time


def _below_all(share: float) -> float:
    if share >= 1:
        raise ValueError("should be below 100%, or a round would end before anything arrived")
    return share


LossBound = Annotated[Percentage, AfterValidator(_below_all), Field(examples=["0.8%"])]


def _low_below_high(bounds: Any) -> Any:
    if bounds.low > bounds.high:
        raise located([(("low",), "should be at most 'high'")])
    return bounds


class FixedTolerance(Strict):
    """The same loss bound in every round: MLT, the paper's baseline."""

    policy: Literal["fixed"]
    """Loss bound of each round."""
    p: LossBound
    """Share of the chunks that may be missing."""


class PhaseAwareTolerance(Strict):
    """DBLP: a high loss bound, lowered where training is sensitive (a critical learning regime, CLR)."""

    policy: Literal["phase_aware"]
    """Loss bound of each round."""
    low: LossBound
    """Bound at the start and within a CLR (P_low in Table I)."""
    high: LossBound
    """Bound outside a CLR (P_high in Table I)."""
    eta: Positive
    """A CLR is where the gradient norm changed by at least this fraction since the last check."""
    frequency: Count
    """Iterations between two checks."""

    _check = model_validator(mode="after")(_low_below_high)


class RandomTolerance(Strict):
    """The control of `phase_aware`: low and high loss bounds at times drawn by chance, with the seed of the run."""

    policy: Literal["random"]
    """Loss bound of each round."""
    low: LossBound
    """Bound at the start and where it was drawn."""
    high: LossBound
    """Bound elsewhere."""
    probability: Annotated[Percentage, Field(examples=["10%"])]
    """Chance of the low bound at each draw."""
    frequency: Count
    """Iterations between two draws."""

    _check = model_validator(mode="after")(_low_below_high)


class ReliableTolerance(Strict):
    """Every chunk is delivered."""

    policy: Literal["reliable"]
    """Loss bound of each round."""


class Pacing(Strict):
    """At which rate a sender sends. Written `share`, `none` or `{fixed: 300mbit}`."""

    mode: Literal["share", "none", "fixed"]
    rate: Rate | None = None

    @classmethod
    def keys(cls) -> list[str]:
        return ["fixed"]

    @model_validator(mode="before")
    @classmethod
    def _spelled_out(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"mode": value}
        if isinstance(value, dict):
            return {"mode": "fixed"} | {"rate" if key == "fixed" else key: value[key] for key in value}
        return value

    @model_validator(mode="after")
    def _fixed_has_rate(self) -> Self:
        if (self.mode == "fixed") != (self.rate is not None):
            raise located([((), "write 'share', 'none' or {fixed: 300mbit}")])
        return self


class PollingSender(Strict):
    """A sender that looks at its control connection as often and as long as the paper's authors' prototype did."""

    poll_every: Annotated[Count, Field(examples=[100])]
    """Chunks between two looks, counted over all chunks in every pass, whether they are sent again or not."""
    poll_wait: Annotated[Time, Field(examples=["1ms"])]
    """How long each look takes; nothing is sent meanwhile."""


_PACING_SCHEMA = {
    "anyOf": [
        {"enum": ["share", "none"]},
        {
            "type": "object",
            "properties": {"fixed": RATE.json_schema},
            "required": ["fixed"],
            "additionalProperties": False,
        },
    ],
    "default": "share",
}


DEFAULT_KIND = "bounded_loss"
AnyPacing = Annotated[Pacing, WithJsonSchema(_PACING_SCHEMA)]


class Transport(Strict):
    """What all kinds of transports have; each runs under the same events and seeds."""

    kind: str
    """Which kind of transport."""

    network: ClassVar[bool] = True
    """Gradients cross a network; without it, one process trains alone."""
    server: ClassVar[bool] = True
    """The server averages the gradients; without it, the workers do so among themselves."""
    frames: ClassVar[bool] = False
    """Gradients travel in the frames of docs/protocol.md: to the data ports of the UDP block, counted one by one."""

    def hosts(self, topology: Topology) -> tuple[str, ...]:
        """The hosts that run a process. The first one listens, the others connect to it."""
        return topology.host_names if self.server else topology.worker_names


class BoundedLoss(Transport):
    """The paper's transport: UDP frames, repaired until the share that may be missing is reached."""

    kind: Literal["bounded_loss"] = "bounded_loss"
    """Which kind of transport; `bounded_loss` unless said otherwise."""
    tolerance: Annotated[
        FixedTolerance | PhaseAwareTolerance | RandomTolerance | ReliableTolerance, Field(discriminator="policy")
    ]
    """How much of a gradient may be missing."""
    pacing: AnyPacing = Field(default_factory=lambda: Pacing(mode="share"))
    """`share`: each sender aims at its share of the server's link; `none`: as fast as the host can, as in the
    paper; `{fixed: rate}`."""
    repair: Literal["per_pass"] = "per_pass"
    """Missing chunks are asked for after each pass over them, as in Algorithm 1."""
    broadcast: Literal["lossy", "agreed", "complete"] = "lossy"
    """What the loss bound means for the way back. `lossy`, as in the paper: each worker may miss other chunks of the
    average, so that replicas drift apart; `agreed`: the server leaves out the same chunks for all, the last in its
    order, and delivers the others to each; `complete`: nothing is left out."""
    order: Literal["sequential", "rotating", "by_norm"] = "sequential"
    """In which order chunks are sent; the last ones may be left out. `sequential`, as in the paper: as in the model;
    `rotating`: the same, beginning elsewhere each iteration; `by_norm`: the largest first."""
    aggregate: Literal["zero_fill", "contributors"] = "zero_fill"
    """The server's mean of each chunk. `zero_fill`, as in the paper: over all workers, with zeros for what is missing;
    `contributors`: over the workers whose chunk arrived."""
    error_feedback: Annotated[bool, Field(strict=True)] = False
    """Each worker adds what did not arrive of its gradient to its next one, and the server what it left out of an
    agreed broadcast."""
    sender: PollingSender | None = None
    """Makes every pass of a sender cost time, on workers and server; by default a pass costs its frames only."""

    frames = True


class Udp(Transport):
    """The same frames without repair: one pass over them, and what is lost stays zero."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"kind": "udp"}]})

    kind: Literal["udp"]
    """Which kind of transport."""
    pacing: AnyPacing = Field(default_factory=lambda: Pacing(mode="share"))
    """`share`: each sender aims at its share of the server's link; `none`: as fast as the host can; `{fixed: rate}`."""

    frames = True
    repair: ClassVar = "none"


class Tcp(Transport):
    """The same star over plain TCP, one connection a worker: nothing is lost, all of it is waited for."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"kind": "tcp"}]})

    kind: Literal["tcp"]
    """Which kind of transport."""


class Gloo(Transport):
    """PyTorch's all-reduce over TCP between the workers (torch.distributed, backend gloo), without the server."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"kind": "gloo"}]})

    kind: Literal["gloo"]
    """Which kind of transport."""

    server = False


class Drop(Transport):
    """No transport at all: one process trains, and chunks of its own gradient are zeroed at random (Figure 1)."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"kind": "drop", "rate": "40%"}]})

    kind: Literal["drop"]
    """Which kind of transport."""
    rate: Percentage
    """Share of the chunks that are zeroed."""
    epochs: Annotated[list[Count], Field(min_length=2, max_length=2, examples=[[4, 9]])] | None = None
    """First and last epoch in which they are, counted from 1; by default all."""

    network = False
    server = False

    @model_validator(mode="after")
    def _first_before_last(self) -> Self:
        if self.epochs and self.epochs[0] > self.epochs[1]:
            raise located([(("epochs",), "the first should not be after the last")])
        return self

    def drops_in(self, epoch: int) -> bool:
        """Whether gradients lose anything in an epoch, counted from 0."""
        first, last = self.epochs or (1, epoch + 1)
        return self.rate > 0 and first <= epoch + 1 <= last


KINDS: dict[str, type[Transport]] = {
    get_args(each.model_fields["kind"].annotation)[0]: each for each in (BoundedLoss, Udp, Tcp, Gloo, Drop)
}
"""By name."""


def _kind_by_default(value: Any) -> Any:
    return {"kind": DEFAULT_KIND, **value} if isinstance(value, dict) else value


AnyTransport = Annotated[
    BoundedLoss | Udp | Tcp | Gloo | Drop, Field(discriminator="kind"), BeforeValidator(_kind_by_default)
]
