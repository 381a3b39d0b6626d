"""Bounded-loss gradient transport: UDP data, TCP control, tolerance that follows the training phase.

A worker's loop, next to `loss.backward()` and `optimizer.step()`:

    with Worker(("10.0.0.1", 7000), rank=0, size=gradient.size) as worker:
        for batch in data:
            gradient = compute_gradient(batch)
            average = worker.all_reduce(gradient)

and the server beside it:

    with Server(("10.0.0.1", 7000), workers=3, tolerance=PhaseAware(low=0.008, high=0.408)) as server:
        server.serve()
"""

from protocol.config import Polling, Timeouts, TransportConfig
from protocol.errors import (
    DblpError,
    DropReason,
    LocalProtocolError,
    PeerLostError,
    PortInUseError,
    RemoteProtocolError,
)
from protocol.server import Server, ServerStep
from protocol.stats import RoundStats
from protocol.tolerance import Fixed, PhaseAware, Random, Reliable, ToleranceSchedule
from protocol.wire import Tensor
from protocol.worker import Worker

__all__ = [
    "DblpError",
    "DropReason",
    "Fixed",
    "LocalProtocolError",
    "PeerLostError",
    "PhaseAware",
    "Polling",
    "PortInUseError",
    "Random",
    "Reliable",
    "RemoteProtocolError",
    "RoundStats",
    "Server",
    "ServerStep",
    "Tensor",
    "Timeouts",
    "ToleranceSchedule",
    "TransportConfig",
    "Worker",
]
