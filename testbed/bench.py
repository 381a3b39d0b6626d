"""Send latency on idle links: `make bench`, or `python -m testbed.bench` as root and then `python -m analysis.bench`.

One server and N workers on the emulated star exchange a random gradient, the tolerances in turn round by round, so
that a slow moment of the machine hits them all.
"""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import typer
from rich.console import Console

from protocol import Server, TransportConfig, Worker
from protocol.config import DATA_PORT_BASE
from testbed import environment
from testbed.isolation import ISOLATE
from testbed.topology import SERVER, host_ip, worker_names

PORT = 7000      # of the server, alone in its namespace
WARM_UP = 2      # rounds of each tolerance that do not count


@dataclass(frozen=True)
class Setting:
    """What is measured.

    Attributes:
        workers: how many.
        size: float32 values of the gradient.
        rate: bit/s of every link.
        loss: share of the frames to the server that is lost at the switch.
        tolerances: in turn.
        rounds: counted rounds of each tolerance.
    """

    workers: int
    size: int
    rate: float
    loss: float
    tolerances: tuple[float, ...]
    rounds: int

    def config(self) -> TransportConfig:
        """Settings of all endpoints."""
        return TransportConfig(link_rate=self.rate, data_port_base=DATA_PORT_BASE)


class InTurn:
    """A tolerance schedule that takes the next value each step."""

    in_clr = False

    def __init__(self, tolerances: tuple[float, ...]) -> None:
        self._tolerances = tolerances
        self.tolerance = tolerances[0]

    def observe(self, step: int, gradient_norm: float) -> None:
        self.tolerance = self._tolerances[(step + 1) % len(self._tolerances)]


def node(name: str, setting: Setting) -> None:
    """The program in each host; prints a row per round as JSON."""
    steps = (setting.rounds + WARM_UP) * len(setting.tolerances)
    if name == SERVER:
        with Server((host_ip(SERVER), PORT), setting.workers, setting.config(), InTurn(setting.tolerances)) as server:
            server.accept()
            while (step := server.all_reduce()) is not None:
                for stats in step.broadcasts:
                    print(json.dumps({"step": step.step, **asdict(stats)}))
        return
    rank = worker_names(setting.workers).index(name)
    gradient = np.random.default_rng(rank).standard_normal(setting.size, np.float32)
    with Worker((host_ip(SERVER), PORT), rank, setting.size, setting.config(), name) as worker:
        for step in range(steps):
            worker.all_reduce(gradient)
            print(json.dumps({"step": step, **asdict(worker.last)}))


def inside(setting: Setting) -> list[dict]:
    """Build the star and run the nodes; called in namespaces of its own."""
    from mininet.log import setLogLevel

    from scenarios import Star
    from testbed import shaping
    from testbed.bursts import LinkEnd, choose_injector
    from testbed.topology import build_network, switch_interface

    setLogLevel("critical")
    star = Star.model_validate({"workers": setting.workers, "link": {"rate": f"{setting.rate:.0f}bit"}})
    network = build_network(star)
    names = worker_names(setting.workers)
    injector = choose_injector() if setting.loss else None
    try:
        network.start()
        shaping.apply(network, shaping.link_ends(star))
        if injector:
            injector.prepare([LinkEnd(name, "to_server", switch_interface(name), "udp", "ingress") for name in names])
            for name in names:
                injector.set_loss(name, "to_server", setting.loss)
        argument = json.dumps(asdict(setting))
        processes = [
            network[name].popen([sys.executable, "-m", "testbed.bench", "--node", name, "--setting", argument],
                                stdout=subprocess.PIPE, stderr=sys.stderr, text=True)
            for name in (SERVER, *names)
        ]
        with ThreadPoolExecutor() as pool:      # at once: a full pipe would halt its process, and with it all others
            outputs = list(pool.map(lambda process: process.communicate()[0], processes))
        if any(process.returncode for process in processes):
            raise RuntimeError("a process of the benchmark failed; its error stands above")
        return [json.loads(line) for output in outputs for line in output.splitlines()]
    finally:
        if injector:
            injector.close()
        network.stop()


def main(
    workers: Annotated[int, typer.Option(help="Workers.")] = 3,
    megabytes: Annotated[float, typer.Option(help="Gradient, in MB (10^6 bytes).")] = 20.0,
    gbit: Annotated[float, typer.Option(help="Rate of every link, in Gbit/s.")] = 1.0,
    loss: Annotated[float, typer.Option(help="Share of the frames to the server that is lost, 0 to 0.99.")] = 0.0,
    rounds: Annotated[int, typer.Option(help="Counted rounds of each tolerance.")] = 12,
    out: Annotated[Path, typer.Option(help="Folder for the raw rounds and bench.json.")] = Path("results/bench"),
    node_: Annotated[str | None, typer.Option("--node", hidden=True)] = None,
    setting_: Annotated[str | None, typer.Option("--setting", hidden=True)] = None,
) -> None:
    """Measure send latency."""
    if setting_ is not None:
        fields = json.loads(setting_)
        setting = Setting(**{**fields, "tolerances": tuple(fields["tolerances"])})
        if node_ is not None:
            node(node_, setting)
        else:
            print(json.dumps(inside(setting)))
        return
    setting = Setting(workers, round(megabytes * 1e6 / 4), gbit * 1e9, loss, (0.0, 0.008, 0.408), rounds)
    console = Console()
    console.print(
        f"{workers} workers, {megabytes:g} MB, {gbit:g} Gbit/s, {loss:.0%} loss, {rounds} rounds of each tolerance ..."
    )
    done = subprocess.run(
        [*ISOLATE, sys.executable, "-m", "testbed.bench", "--setting", json.dumps(asdict(setting))],
        stdout=subprocess.PIPE, text=True,
    )
    if done.returncode:
        console.print("[red]error:[/] the benchmark failed; it needs root and what `dblp doctor` lists for mininet")
        raise typer.Exit(1)
    rows = pd.DataFrame(json.loads(done.stdout))
    out.mkdir(parents=True, exist_ok=True)
    rows.to_parquet(out / "rounds.parquet", index=False)
    record = {
        "setting": asdict(setting), "machine": environment.machine(), "versions": environment.versions(),
        "git": environment.git_state(),
    }
    (out / "bench.json").write_text(json.dumps(record, indent=1) + "\n")
    console.print(f"raw rounds: {out}/rounds.parquet")


if __name__ == "__main__":
    typer.run(main)
