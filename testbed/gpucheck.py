"""What a GPU makes of the workloads: `make gpu-check`, or `python -m testbed.gpucheck`; no root, no network.

Three parts, under 8 minutes together on a data-centre GPU:

1. steps of the paper's four models at the batch sizes of profile `paper`: forward and backward with the gradient
   copied to the host, and the optimizer's step with the average copied back, and the GPU memory that they take;
2. how fast gradients of those sizes are copied to the host and back, from pinned and from pageable memory;
3. EfficientNetB0 with three workers that share the GPU, over both transports with their bursts (engine `local`).
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

import scenarios
from scenarios import Workload
from testbed import environment
from testbed.errors import UserError
from testbed.training import data

SCENARIOS = ("efficientnet", "resnet50", "alexnet", "gpt2")
RUN = "paper/efficientnet-microburst"
WARM_UP, STEPS = 3, 10
COPIES = 10


@dataclass(frozen=True)
class Steps:
    """Training steps of one model on one device; times are medians in s.

    Attributes:
        model, batch_size, parameters: what was trained.
        dataset: what it was trained on.
        compute_s: forward and backward, the gradient on the host at the end.
        apply_s: the average back on the device and the optimizer's step.
        to_host_pinned, to_host_pageable, to_device_pinned, to_device_pageable: bytes/s of a copy of the gradient; None
            where the device is the host.
        memory: most bytes of GPU memory, or None.
    """

    model: str
    batch_size: int
    parameters: int
    dataset: str
    compute_s: float
    apply_s: float
    to_host_pinned: float | None = None
    to_host_pageable: float | None = None
    to_device_pinned: float | None = None
    to_device_pageable: float | None = None
    memory: int | None = None


def dataset_at_hand(workload: Workload) -> data.DatasetInfo | None:
    """The first of the workload's data sets that is there; nothing is downloaded."""
    name = next((name for name in workload.datasets if data.locate(name) is not None), None)
    return data.resolve([name]) if name else None


def measure_steps(workload: Workload, dataset: data.DatasetInfo, steps: int = STEPS) -> Steps:
    """Train a few steps as worker 1 of 3, each with its own gradient for the average.

    Raises:
        ValueError: the workload asks for a GPU that is not there.
    """
    import torch

    from testbed.training.trainer import Trainer

    trainer = Trainer(workload, rank=0, workers=3, seed=1, dataset=dataset)
    on_gpu = trainer.device == "cuda"
    synchronize: Callable[[], None] = torch.cuda.synchronize if on_gpu else lambda: None
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    computed, applied = [], []
    for iteration in range(WARM_UP + steps):
        begin = time.perf_counter()
        trainer.compute(iteration)
        synchronize()
        middle = time.perf_counter()
        trainer.apply(trainer.gradient.copy())
        synchronize()
        computed.append(middle - begin)
        applied.append(time.perf_counter() - middle)
    memory = torch.cuda.max_memory_allocated() if on_gpu else None
    size, parameters = 4 * trainer.size, trainer.size
    del trainer
    speeds = copy_speeds(size) if on_gpu else {}
    if on_gpu:
        torch.cuda.empty_cache()      # the next model starts with all of the memory
    return Steps(
        workload.model, workload.batch_size, parameters, dataset.name,
        statistics.median(computed[WARM_UP:]), statistics.median(applied[WARM_UP:]), **speeds, memory=memory,
    )


def copy_speeds(size: int) -> dict[str, float]:
    """Bytes/s of copies of `size` bytes between the GPU and pinned or pageable memory of the host, medians."""
    import torch

    on_device = torch.zeros(size // 4, device="cuda")
    speeds = {}
    for kind in ("pinned", "pageable"):
        on_host = torch.zeros(size // 4, pin_memory=kind == "pinned")
        for direction, target, source in (("to_host", on_host, on_device), ("to_device", on_device, on_host)):
            took = []
            for _ in range(COPIES):
                torch.cuda.synchronize()
                begin = time.perf_counter()
                target.copy_(source)
                torch.cuda.synchronize()
                took.append(time.perf_counter() - begin)
            speeds[f"{direction}_{kind}"] = size / statistics.median(took)
    return speeds


def device_facts() -> dict[str, object]:
    """The GPU and what drives it."""
    import torch

    if not torch.cuda.is_available():
        return {"name": "cpu", "torch": torch.__version__}
    properties = torch.cuda.get_device_properties(0)
    return {
        "name": properties.name, "memory": properties.total_memory, "processors": properties.multi_processor_count,
        "torch": torch.__version__, "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(),
    }


def table(rows: list[Steps]) -> Table:
    """For people."""
    shown = Table(
        "model", "batch", "parameters", "data", "compute (ms)", "apply (ms)", "to host, pinned / pageable (GB/s)",
        "to device (GB/s)", "GPU memory (GiB)", box=None,
    )
    for row in rows:
        shown.add_row(
            row.model, str(row.batch_size), f"{row.parameters:,}", row.dataset, f"{row.compute_s * 1e3:.1f}",
            f"{row.apply_s * 1e3:.1f}", _pair(row.to_host_pinned, row.to_host_pageable),
            _pair(row.to_device_pinned, row.to_device_pageable),
            "-" if row.memory is None else f"{row.memory / 2**30:.1f}",
        )
    return shown


def _pair(pinned: float | None, pageable: float | None) -> str:
    return "-" if pinned is None else f"{pinned / 1e9:.1f} / {pageable / 1e9:.1f}"


def train_together(device: str, out: Path) -> int:
    """`dblp run` and `dblp report` of EfficientNetB0 with bursts by engine `local`; the exit status."""
    dblp = [sys.executable, "-m", "testbed.cli"]
    # A step costs a GPU next to nothing: the paper profile's batches, in as many iterations as on a laptop.
    batch = scenarios.load(RUN, "paper").workload.batch_size
    on_gpu = ["--profile", "laptop", "--set", f"workload.batch_size={batch}", "--set", "workload.device=cuda"]
    chosen = on_gpu if device == "cuda" else ["--profile", "smoke", "--set", "workload.device=cpu"]
    commands = [["run", RUN, *chosen, "--engine", "local", "--out", str(out), "--overwrite"], ["report", str(out)]]
    for command in commands:
        if status := subprocess.run([*dblp, *command], stdout=sys.stderr).returncode:
            return status
    return 0


def main(
    device: Annotated[str, typer.Option(help="cuda; or cpu, a reduced form without a GPU.")] = "cuda",
    out: Annotated[Path, typer.Option(help="Folder for gpu-check.json and the runs.")] = Path("results/gpu-check"),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of the table.")] = False,
) -> None:
    """Check what a GPU makes of the workloads."""
    import torch

    console, errors = Console(stderr=as_json), Console(stderr=True)
    if device not in ("cuda", "cpu"):
        errors.print(f"[red]error:[/] --device {device}: choose cuda or cpu")
        raise typer.Exit(2)
    if device == "cuda" and not torch.cuda.is_available():
        errors.print("[red]error:[/] PyTorch finds no CUDA device; `--device cpu` runs a reduced form without one")
        raise typer.Exit(2)
    rows, missing = [], []
    for name in SCENARIOS:
        workload = scenarios.load(f"paper/{name}", "paper" if device == "cuda" else "smoke").workload
        dataset = dataset_at_hand(workload)
        if dataset is None:
            missing.append(f"{workload.model}: none of {', '.join(workload.datasets)} is there; see `dblp doctor`")
            continue
        console.print(f"{workload.model}, batch {workload.batch_size}, on {dataset.name} ...")
        settings = workload.model_copy(update={"device": device})
        rows.append(measure_steps(settings, dataset, STEPS if device == "cuda" else 1))
    out.mkdir(parents=True, exist_ok=True)
    record = {
        "device": device_facts(), "machine": environment.machine(), "versions": environment.versions(),
        "git": environment.git_state(), "steps": [asdict(row) for row in rows], "missing": missing,
    }
    (out / "gpu-check.json").write_text(json.dumps(record, indent=1) + "\n")
    if as_json:
        print(json.dumps(record, indent=1))
    else:
        console.print(table(rows))
    for line in missing:
        errors.print(f"[yellow]left out[/] {line}")
    status = train_together(device, out)
    if status or missing:
        raise typer.Exit(status or 1)


if __name__ == "__main__":
    try:
        typer.run(main)
    except UserError as error:
        raise SystemExit(f"error: {error}") from error
