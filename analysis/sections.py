"""The chapters of the report, in the order of the paper; each is left out where there are no runs for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from analysis import causes, claims, figures, figures_training, regime_map, regimes, scoreboard, setup, studies, tables
from analysis.document import Block, Heading, Picture, Table, Text
from analysis.load import Results

PHASES = "-phases"      # how names of the scenarios of Figure 1 end


@dataclass
class Context:
    """What chapters are made from: all runs, the usable ones, their measures, and the folder that pictures go into."""

    everything: Results
    results: Results
    measures: pd.DataFrame
    out: Path
    pictures: list[Path] = field(default_factory=list)

    def draw(self, name: str, figure: Figure, caption: str) -> Picture:
        """Save a figure as a picture of the report."""
        path = self.out / f"{name}.png"
        figure.savefig(path)
        self.pictures.append(path)
        return Picture(path, caption)

    def scenarios(self, wanted: Callable[[str], bool]) -> list[str]:
        """Scenarios for which ``wanted`` is true, in the report's order."""
        return [name for name in tables.scenarios(self.results) if wanted(name)]

    def measured(self, scenario: str, *measures: str) -> bool:
        """Whether a scenario has a value of one of some measures."""
        rows = self.measures[self.measures["scenario"] == scenario]
        return bool(rows["measure"].isin(measures).any())

    def compares_kinds(self, scenario: str) -> bool:
        """Whether a scenario's transports are of several kinds."""
        runs = self.results.runs
        return runs.loc[runs["scenario"] == scenario, "kind"].nunique() > 1

    def notes(self, names: list[str]) -> Iterator[Block]:
        """What stands under a table: where these runs are smaller than the paper's."""
        if lines := setup.differences(self.results, names):
            yield Text("Unlike the paper's sizes (profile `paper`):")
            yield Text(tuple(lines))


def opening(context: Context) -> Iterator[Block]:
    """Problems, then the one table: every number of the paper with its verdict, if these runs judge any."""
    yield Heading("Report", level=1)
    if context.everything.problems:
        yield Text("**Read this first**")
        yield Text(tuple(context.everything.problems))
    found = claims.evaluate(context.everything)
    if not any(verdict.runs for verdict in found):
        yield Text("None of these runs is an experiment of the paper, so none of its numbers is judged by them; "
                   "`dblp claims` lists them.")
        return
    yield Text(f"{scoreboard.summary(found)} What happens under bursts is judged in two regimes: polling, the paper's, "
               "where each pass over the frames costs time, and plain.")
    yield Table(scoreboard.frame(found, context.out))
    if notes := scoreboard.notes(found):
        yield Text(tuple(f"Note {i}: {claims.document()['depends'][key].strip()}" for i, key in enumerate(notes, 1)))


def experiment(context: Context) -> Iterator[Block]:
    """Table I and the rest of the set-up."""
    yield Heading("Set-up, Table I")
    yield Table(setup.setup(context.results))


def phases(context: Context) -> Iterator[Block]:
    """Figure 1."""
    names = context.scenarios(lambda name: name.endswith(PHASES) and context.measured(name, "accuracy"))
    if not names:
        return
    yield Heading("Figure 1: loss in early and in late epochs")
    yield context.draw("phases", figures_training.accuracy_by_epoch(context.results, names),
                       "Accuracy by epoch where shares of the gradients are lost early or late (paper: Figure 1).")
    yield Table(tables.accuracy(context.results, context.measures, names))
    yield Text("The paper's Figure 1 has no numbers: without loss and with 40% or 80% lost in epochs 4 to 9 it shows "
               "about the same accuracy, and less with 40% or 80% lost in epochs 1 to 3.")
    yield from context.notes(names)


def latency(context: Context) -> Iterator[Block]:
    """Tables II and III, Figures 2 to 4, and send latency of all other scenarios but studies."""
    names = context.scenarios(lambda name: context.measured(name, "latency_average") and not studies.is_study(name))
    if not names:
        return
    yield Heading("Tables II and III, Figures 2 to 4: send latency")
    for name in names:
        stem, _, regime = name.rpartition("-")
        second, third = ("", "") if stem not in regimes.MODELS or regime not in regimes.REGIMES else (
            " (Figure 2 of the paper)", f" (Figure {'4' if stem == 'resnet50' else '3'} of the paper)")
        yield Heading(name, level=3)
        yield context.draw(f"latency-{name}", figures.latency_by_iteration(context.results, name),
                           f"Send latency by iteration{second}. Triangles: bursts.")
        yield context.draw(f"cdf-{name}", figures.latency_cdf(context.results, name),
                           f"Distribution of send latency{third}.")
        yield Table(tables.latency(context.results, context.measures, name))
        if causes.has_both(context.results, name):
            yield context.draw(f"causes-{name}", causes.figure(context.results, context.measures, name),
                               "Injected loss beside cross traffic that overflows a queue, outside the CLR: a dot a "
                               "burst, lines at the medians.")
            yield Table(causes.comparison(context.results, context.measures, name))
        yield Text(_seeds(context.results, name))
        yield from context.notes([name])


def _seeds(results: Results, scenario: str) -> str:
    runs = results.runs[results.runs["scenario"] == scenario]
    each = [f"{name}: {', '.join(map(str, sorted(rows['seed'])))}" for name, rows in runs.groupby("transport")]
    interval = " Values are means with 95 % confidence intervals." if runs["transport"].value_counts().max() > 1 else ""
    return f"Seeds of {'; '.join(each)}.{interval}"


def two_regimes(context: Context) -> Iterator[Block]:
    """Plain beside polling beside the paper, and the map."""
    found = regimes.points(context.results, context.measures)
    if all(point.kind == "paper" for point in found):
        return
    yield Heading("Two regimes: what a pass costs")
    yield Text(
        "Under a loss q a sender with tolerance p needs about ln p / ln q passes and (1 - p) / (1 - q) models of "
        "bytes. Where a pass costs nothing but its frames (**plain**), DBLP gains at a burst what it saves in bytes. "
        "The paper's sender spent time on each pass, whether it sent much or little (**polling**), and so DBLP gains "
        "what it saves in passes. Both are the same policy; c / T, the cost of a pass over the time to send the "
        "model once, says which it is. For polling runs c follows from the settings, for plain ones from the "
        "baseline's latency beyond its bytes, and for the paper, which states no link rate, T and c are what its two "
        "mean latencies at bursts follow from (docs/theory.md).")
    yield Table(_regimes(found))
    yield context.draw("regime-curves", regime_map.curves(found),
                       "Speedups over the cost of a pass: theory, runs and paper.")
    yield context.draw("regime-map", regime_map.maps(found), "Burst and average speedup over the cost of a pass, "
                       "P_high and the loss. A point is filled with the measured value in the colours of the map.")


def _regimes(found: list[regimes.Point]) -> pd.DataFrame:
    rows = []
    for p in sorted(found, key=lambda p: (p.model, ["plain", "polling", "paper"].index(p.kind))):
        each = ", ".join(claims.show(e.mean, "times", e.half) for e in p.bursts.values())
        rows.append({
            "Model": p.model, "Regime": p.kind, "T": claims.show(p.send_time, "s"), "c": claims.show(p.pass_cost, "s"),
            "c / T": f"{p.cost:.2g}", "Burst speedup": each or tables.MISSING,
            "Theory, burst": claims.show(p.predicted_burst(), "times"),
            "Average speedup": claims.show(p.average.mean, "times", p.average.half),
            "Theory, average": claims.show(p.predicted_average(), "times"),
        })
    return pd.DataFrame(rows)


def training_time(context: Context) -> Iterator[Block]:
    """Figure 5 and Table V."""
    names = context.scenarios(lambda name: context.measured(name, "training_time")
                              and not studies.is_study(name) and not name.endswith(PHASES)
                              and not context.compares_kinds(name))
    if not names:
        return
    yield Heading("Figure 5, Table V: training time")
    yield context.draw("training-time", figures_training.training_time(context.results, context.measures, names),
                       "Training time (Figure 5 of the paper).")
    yield Table(tables.training_time(context.results, context.measures, names))
    yield from context.notes(names)


def accuracy(context: Context) -> Iterator[Block]:
    """Tables IV and VI, Figure 6."""
    names = context.scenarios(lambda name: context.measured(name, "accuracy", "perplexity")
                              and not studies.is_study(name) and not name.endswith(PHASES)
                              and not context.compares_kinds(name))
    if not names:
        return
    yield Heading("Tables IV and VI, Figure 6: accuracy")
    yield context.draw("accuracy", figures_training.accuracy_by_epoch(context.results, names),
                       "Accuracy on the test set by epoch (Figure 6 of the paper).")
    yield Table(tables.accuracy(context.results, context.measures, names))
    yield from _datasets(context.results)
    yield from context.notes(names)


def _datasets(results: Results) -> Iterator[Block]:
    lines = []
    for run in results.metadata.values():
        data = run.get("dataset") or {}
        if data:
            stands = f" It stands in for {data['stands_in_for']}." if data.get("stands_in_for") else ""
            note = f" {data['note']}" if data.get("note") else ""
            lines.append(f"Data set: {data['name']} ({data.get('source')}), {data.get('train'):,} training and "
                         f"{data.get('test'):,} test samples, {data.get('classes')} classes.{stands}{note}")
    yield from map(Text, dict.fromkeys(lines))


def baselines(context: Context) -> Iterator[Block]:
    """The same training over other transports."""
    names = context.scenarios(
        lambda name: context.compares_kinds(name) and context.measured(name, "communication_median")
    )
    if not names:
        return
    yield Heading("Other transports under the same bursts")
    yield Text("The time in the whole all-reduce, which all transports have; Gloo has no server, so no send latency. "
               "A burst that lasts a time touches as many iterations as a transport needs for them; their sum counts. "
               "It costs what that is beyond as many times the median. Numbers with an x are speedups over the "
               "baseline.")
    for name in names:
        yield Heading(name, level=3)
        yield context.draw(f"all-reduce-{name}", figures_training.all_reduce(context.results, context.measures, name),
                           "Time in the all-reduce: median and 99th percentile over workers and iterations, and over "
                           "the iterations that a burst touches.")
        yield context.draw(f"communication-{name}", figures_training.communication(context.results, name),
                           "Time in the all-reduce by iteration.")
        yield Table(tables.communication(context.results, context.measures, name))
        yield from context.notes([name])


def compared(context: Context) -> Iterator[Block]:
    """Ablation and sensitivity: what the paper leaves to future work."""
    names = context.scenarios(studies.is_study)
    if not names:
        return
    yield Heading("Ablation and sensitivity")
    for name in names:
        yield Heading(name, level=3)
        text = next(run for key, run in context.results.metadata.items() if key[0] == name)["scenario"]
        yield Text(text.get("description") or name)
        yield context.draw(f"study-{name}", studies.trade_off(context.results, context.measures, name),
                           "Accuracy against bytes and latency; crosses are 95 % intervals over seeds.")
        yield Table(studies.variants(context.results, context.measures, name))


CHAPTERS = (opening, experiment, phases, latency, two_regimes, training_time, accuracy, baselines, compared)
