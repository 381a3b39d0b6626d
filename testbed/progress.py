"""What a person sees while a scenario runs: a bar for each run, a line for each event and each epoch."""

from __future__ import annotations

import time
from typing import Any

from rich import progress as bars
from rich.console import Console
from rich.markup import escape

from testbed.footprint import readable, size
from testbed.forecast import Forecast, duration
from testbed.runner import Job, Outcome
from testbed.topology import SERVER
from testbed.training.data import DatasetInfo

_STATUS = {"complete": "green", "failed": "red", "interrupted": "yellow"}
_METRICS = {"accuracy": ".1%", "perplexity": ".1f"}


class Progress:
    """Shows the runs on a console; without a terminal, the lines alone.

    Args:
        console: where to.
        total: number of runs.
        forecast: of their time.
    """

    def __init__(self, console: Console, total: int, forecast: Forecast) -> None:
        self._console, self._total, self._count, self._forecast = console, total, 0, forecast
        self._outcomes: list[Outcome] = []
        self._start = time.monotonic()
        self._bars = bars.Progress(
            bars.TextColumn("{task.description}"), bars.BarColumn(), bars.MofNCompleteColumn(),
            bars.TimeElapsedColumn(), bars.TextColumn("left"), bars.TimeRemainingColumn(),
            bars.TextColumn("{task.fields[note]}"), bars.TextColumn("all runs: {task.fields[whole]}"),
            console=console, disable=not console.is_terminal,
        )
        self._values: dict[int, list[float]] = {}

    def __enter__(self) -> Progress:
        if self._total > 1:
            self._line(f"{self._total} runs, {self._forecast}")
        self._bars.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bars.stop()
        if len(self._outcomes) > 1:
            self._summary()

    def begin(self, job: Job, engine: str, reason: str, dataset: DatasetInfo) -> None:
        """A run starts."""
        self._count += 1
        workload = job.scenario.workload
        self._values = {}
        self._forecast.begin(job)
        why = f" ({reason})" if reason else ""
        stand_in = f", standing in for {dataset.stands_in_for}" if dataset.stands_in_for else ""
        title = f"{self._count}/{self._total} {job.scenario.name} · {job.transport} · seed {job.seed}"
        self._line(
            f"[bold]{escape(title)}[/]: {workload.model} on {dataset.name}{stand_in}, "
            f"{workload.iterations} iterations, engine {engine}{escape(why)}, all left: {self._forecast}"
        )
        self._task = self._bars.add_task(job.transport, total=workload.iterations, note="starting", whole="")

    def news(self, job: Job, news: dict[str, Any]) -> None:
        """One line from the engine."""
        if "event" in news:
            self._event(job, news["event"])
        elif "evaluated" in news and news["metric"] in _METRICS:
            self._evaluated(job, news)
        elif "error" in news:
            self._line(f"  [red]error:[/] {escape(news['error'])}")
        elif "stage" in news:
            self._bars.update(self._task, note=news["stage"])
        elif "iteration" in news and news["node"] != SERVER:
            send = f"  send {news['latency_s']:.3f} s" if "latency_s" in news else ""
            note = f"loss {news['loss']:.2f}{send}"
            self._forecast.iteration(news["iteration"] + 1)
            self._bars.update(self._task, completed=news["iteration"] + 1, note=note, whole=str(self._forecast))

    def end(self, outcome: Outcome) -> None:
        """A run has ended."""
        self._bars.remove_task(self._task)
        self._forecast.end(outcome.status == "complete")
        self._outcomes.append(outcome)
        colour = _STATUS[outcome.status]
        error = f": {escape(outcome.error)}" if outcome.error else ""
        took = f"{outcome.duration_s:.0f} s, memory up to {readable(outcome.peak_memory)}"
        self._line(f"  [{colour}]{outcome.status}[/] after {took}, {outcome.job.path}{error}")

    def _summary(self) -> None:
        """How the batch went, the runs that failed by name."""
        failed = [outcome for outcome in self._outcomes if outcome.status != "complete"]
        memory = max(outcome.peak_memory for outcome in self._outcomes)
        disk = sum(size(outcome.job.path) for outcome in self._outcomes)
        # What a run takes while it goes on is gone at its end, so the largest comes on top of what the others leave.
        peak = disk + max(outcome.peak_disk - size(outcome.job.path) for outcome in self._outcomes)
        self._line(
            f"{len(self._outcomes) - len(failed)} of {self._total} runs complete in "
            f"{duration(time.monotonic() - self._start)}; peak memory {readable(memory)}, peak disk {readable(peak)}, "
            f"{readable(disk)} of it stays"
        )
        for outcome in failed:
            self._line(f"  [red]{outcome.status}[/] {outcome.job.path}: {escape(outcome.error or 'no cause known')}")

    def _event(self, job: Job, entry: dict[str, Any]) -> None:
        event = job.scenario.events[entry["event"]]
        where = ", ".join(f"{host} {direction}" for host, direction in entry.get("links", ()))
        where = where or ", ".join(entry.get("hosts", ()))
        if entry["kind"] == "burst_start":
            what = f"{entry['loss']:.0%} loss" if event.action == "loss" else event.action.replace("_", " ")
            self._line(f"  iteration {entry['iteration']}: burst begins, {what} on {where}")
        elif entry["kind"] == "burst_stop" and event.action != "kill":
            self._line(f"  iteration {entry['iteration']}: burst is over")
        elif entry["kind"] == "missed":
            self._line(f"  [yellow]events.{entry['event']}[/] was due after {entry['planned_s']:g} s; the run was over")

    def _evaluated(self, job: Job, news: dict[str, Any]) -> None:
        values = self._values.setdefault(news["evaluated"], [])
        values.append(news["value"])
        if len(values) == job.scenario.topology.workers:
            mean = format(sum(values) / len(values), _METRICS[news["metric"]])
            self._line(f"  {news['evaluated']} iterations: {news['metric']} {mean}")

    def _line(self, text: str) -> None:
        self._console.print(text, soft_wrap=True, highlight=False)
