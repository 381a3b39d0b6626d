"""Send latency of a benchmark beside its floor: `python -m analysis.bench FOLDER`, which `make bench` ends with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer
from rich.console import Console
from rich.table import Table

from analysis import theory
from protocol import TransportConfig
from protocol.wire import model_frames


def floor(setting: dict[str, Any], direction: str, tolerance: float) -> float:
    """s that the busiest link needs for one gradient of each worker; frames are lost on the way to the server only."""
    config = TransportConfig()
    frames = len(model_frames(4 * setting["size"], 0, config))
    once = frames * config.wire_bytes * 8 / setting["rate"]
    return theory.floor(tolerance, setting["loss"] if direction == "reduce" else 0.0, setting["workers"], once, frames)


def summarise(rows: pd.DataFrame, setting: dict[str, Any]) -> pd.DataFrame:
    """Median and p99 of the send latency (s) per direction and tolerance, beside the floor (s); without warm-up."""
    counted = rows[rows["step"] > rows["step"].max() - setting["rounds"] * len(setting["tolerances"])]
    table = counted.groupby(["direction", "tolerance"])["latency_s"].agg(
        rounds="size", median_s="median", p99_s=lambda values: values.quantile(0.99)
    ).reset_index()
    table["floor_s"] = [floor(setting, *key) for key in zip(table["direction"], table["tolerance"], strict=True)]
    table["ratio"] = table["median_s"] / table["floor_s"]
    return table.sort_values(["direction", "tolerance"], ascending=[False, True], ignore_index=True)


def main(folder: Annotated[Path, typer.Argument(help="What `python -m testbed.bench` wrote.")]) -> None:
    """Print the table and add it to bench.json."""
    file = folder / "bench.json"
    if not file.is_file():
        Console(stderr=True).print(f"[red]error:[/] {file} does not exist; `make bench` as root writes one")
        raise typer.Exit(2)
    record = json.loads(file.read_text())
    table = summarise(pd.read_parquet(folder / "rounds.parquet"), record["setting"])
    file.write_text(json.dumps(record | {"table": table.to_dict("records")}, indent=1) + "\n")
    shown = Table("direction", "p", "rounds", "median (s)", "p99 (s)", "floor (s)", "median / floor", box=None)
    for row in table.itertuples():
        shown.add_row(
            row.direction, f"{row.tolerance:.1%}", str(row.rounds), f"{row.median_s:.3f}", f"{row.p99_s:.3f}",
            f"{row.floor_s:.3f}", f"{row.ratio:.3f}",
        )
    Console().print(shown)


if __name__ == "__main__":
    typer.run(main)
