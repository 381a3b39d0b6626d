"""The transports that a scenario compares: loss bounds (Table I of the paper), pacing, repair."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, WithJsonSchema, model_validator

from scenarios.base import Count, Positive, Strict
from scenarios.errors import located
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


class Transport(Strict):
    """One transport that the workload is trained over; each runs under the same events and seeds."""

    tolerance: Annotated[
        FixedTolerance | PhaseAwareTolerance | RandomTolerance | ReliableTolerance, Field(discriminator="policy")
    ]
    """How much of a gradient may be missing."""
    pacing: Annotated[Pacing, WithJsonSchema(_PACING_SCHEMA)] = Field(default_factory=lambda: Pacing(mode="share"))
    """`share`: each sender aims at its share of the server's link; `none`: as fast as the host can, as in the
    paper; `{fixed: rate}`."""
    repair: Literal["per_pass"] = "per_pass"
    """Missing chunks are asked for after each pass over them, as in Algorithm 1."""
    sender: PollingSender | None = None
    """Makes every pass of a sender cost time, on workers and server; by default a pass costs its frames only."""
