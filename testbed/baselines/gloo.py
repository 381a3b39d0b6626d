"""torch.distributed's all-reduce with backend gloo, among the workers: over TCP, with no server.

The workers find each other through a store that the first of them keeps (torch.distributed.TCPStore). Hosts have no
names here, so gloo is told which interface to take its address from instead of looking its hostname up.
"""

from __future__ import annotations

import os
import time
from datetime import timedelta

import numpy as np
import torch
from torch import distributed

from protocol import PeerLostError, RoundStats
from protocol.handshake import Address
from protocol.sockets import listen_tcp
from testbed.baselines.quiet import Quiet


class Rendezvous:
    """Where the workers meet: kept by the one that has no address to go to.

    Args:
        address: of the store; port 0 to keep it, on any free port.
        timeout: s that the workers have to come, and that gloo waits for a peer before it gives up.
    """

    def __init__(self, address: Address, timeout: float) -> None:
        self.patience = timedelta(seconds=timeout)
        listener = None if address[1] else listen_tcp(*address)      # by itself a store listens on all addresses
        host, self.port = listener.getsockname() if listener else address
        self.store = distributed.TCPStore(
            host, self.port, is_master=listener is not None, timeout=self.patience, wait_for_workers=False,
            master_listen_fd=listener and listener.detach(),
        )


class GlooWorker:
    """A worker's end. A context manager.

    Raises:
        PeerLostError: gloo lost a peer; which one, it does not always say.
    """

    def __init__(self, meeting: Rendezvous, rank: int, workers: int, interface: str) -> None:
        os.environ["GLOO_SOCKET_IFNAME"] = interface
        self._name, self._workers, self._step = f"w{rank + 1}", workers, 0
        self.loop = Quiet()
        self.last: RoundStats | None = None
        try:
            distributed.init_process_group(
                "gloo", store=meeting.store, rank=rank, world_size=workers, timeout=meeting.patience
            )
        except RuntimeError as error:
            raise self._lost("before the first iteration", error) from None

    frames = {"chunk_bytes": 0, "frames": 0}
    """For the record of the run: gloo counts none."""

    def all_reduce(self, gradient: np.ndarray, out: np.ndarray) -> None:
        """The average of all workers' gradients; both (size,) float32."""
        np.copyto(out, gradient)
        begun = time.monotonic()
        try:
            distributed.all_reduce(torch.from_numpy(out))
        except RuntimeError as error:
            raise self._lost(f"in iteration {self._step}", error) from None
        latency = time.monotonic() - begun
        out *= np.float32(1 / self._workers)
        self.last = RoundStats(
            peer=self._name, direction="all_reduce", round=self._step, latency_s=latency, passes=1, frames_total=0,
            frames_sent=0, frames_delivered=0, stale=0, duplicate=0, tolerance=0.0, in_clr=False, early_stop=False,
        )
        self._step += 1

    def _lost(self, when: str, error: RuntimeError) -> PeerLostError:
        return PeerLostError("a worker", f"{self._name} lost a peer {when}: {str(error).splitlines()[0]}")

    def __enter__(self) -> GlooWorker:
        return self

    def __exit__(self, *exception: object) -> None:
        distributed.destroy_process_group()
