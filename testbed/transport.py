"""From a scenario's transport to the settings of the protocol package."""

from __future__ import annotations

from dataclasses import replace

from protocol import Fixed, PhaseAware, Polling, Random, Reliable, Timeouts, ToleranceSchedule, TransportConfig
from scenarios import BoundedLoss, Scenario

SECRET_VARIABLE = "DBLP_SECRET"      # environment of a run's processes; never in a file or a command line
# s until all workers must be there. They load torch, their model and their data first, minutes on a busy machine, and
# the engine sees at once when one of them fails.
CONNECT_TIMEOUT = 600.0


def transport_config(scenario: Scenario, transport: str, data_port_base: int, secret: str) -> TransportConfig:
    """Settings of every endpoint of a run: all hosts have the same link, and narrower ones are in the shares."""
    link, settings = scenario.topology.link, scenario.transports[transport]
    config = TransportConfig(
        mtu=link.mtu,
        pacing=settings.pacing.mode,
        fixed_rate=settings.pacing.rate,
        repair=settings.repair,
        link_rate=link.rate,
        shares=tuple(scenario.topology.shares()),
        data_port_base=data_port_base,
        secret=secret.encode(),
        timeouts=Timeouts(connect=CONNECT_TIMEOUT),
    )
    if not isinstance(settings, BoundedLoss):
        return config
    polling = settings.sender
    return replace(
        config,
        broadcast=settings.broadcast,
        order=settings.order,
        aggregate=settings.aggregate,
        error_feedback=settings.error_feedback,
        polling=polling and Polling(polling.poll_every, polling.poll_wait),
    )


def tolerance_schedule(scenario: Scenario, transport: str, seed: int) -> ToleranceSchedule:
    """A fresh tolerance policy for one run."""
    settings = scenario.transports[transport]
    if not isinstance(settings, BoundedLoss):
        return Reliable()      # of one pass: its end decides, and before it only the last chunk does
    tolerance = settings.tolerance
    match tolerance.policy:
        case "fixed":
            return Fixed(tolerance.p)
        case "phase_aware":
            return PhaseAware(tolerance.low, tolerance.high, tolerance.eta, tolerance.frequency)
        case "random":
            return Random(tolerance.low, tolerance.high, tolerance.probability, tolerance.frequency, seed)
        case "reliable":
            return Reliable()
