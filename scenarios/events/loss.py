"""Action `loss`: its keys. What it does stands in `testbed/bursts/actions/loss.py`."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal, Self

from pydantic import model_validator

from scenarios.base import Strict
from scenarios.errors import located
from scenarios.events.common import LinkEvent
from scenarios.units import Percentage


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


class LossEvent(LinkEvent):
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
