"""The gate: bursts begin and end between two iterations, while nothing is on the wire.

Before each iteration at which a burst starts or stops, every node (server and workers) reports at the gate once its
senders are idle, and goes on when the gate says so. In between, with all of them waiting, the engine
switches the events. Other iterations pass without any of this.

Events that last a time end by the clock, and those `at` a time begin by it, in the midst of whatever goes on. The clock
starts when all nodes have met before iteration 0.

Nodes talk to the engine over a Unix stream socket, which works across network namespaces, in JSON lines::

    node -> gate   {"hello": "w1"}
    node -> gate   {"barrier": 48}
    gate -> node   {"go": 48}
    gate -> node   {"abort": "w2 disconnected"}     instead of go, and the last line
    node -> gate   {"report": {...}}                one way: progress, errors
    node -> gate   {"bye": true}                    an end in order

`server` is the engine's side of the socket, `client` a node's; `flips` is what the gate does when all have met, and by
the clock.
"""

from testbed.bursts.gate.client import GateClient
from testbed.bursts.gate.common import GateError
from testbed.bursts.gate.flips import Flips, gate_iterations
from testbed.bursts.gate.server import Gate

__all__ = ["Flips", "Gate", "GateClient", "GateError", "gate_iterations"]
