"""A scenario's bursts on its links over the run, as a picture or as text for a terminal; nothing is run or read.

Both draw what ``lanes`` finds, which asks the events only for when and where they are and names all else that they
say, so an action needs nothing here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from pydantic import BaseModel
from rich.text import Text

from analysis.figures import style
from scenarios import Scenario
from scenarios.events import Clock
from scenarios.units import TIME, quantity_of

_WHERE_AND_WHEN = {"action", "at", "duration", "selector", "direction"}
"""Keys of an event that its place in a timeline shows, or that ``describe`` begins with."""
_MANY_LANES = 16
"""With more lanes than this, links with the same bars share one."""
_WIDTH_IN, _CHARACTER_IN = 8.0, 0.068
"""Width of the picture, and of a character of a label, in inches."""


class Bar(NamedTuple):
    """One burst: the iterations ``start`` up to, not including, ``stop``, and what happens in them.

    With ``timed``, it begins with iteration ``start`` but lasts as long as the label says; with ``start`` None it
    begins by the clock, at any iteration.
    """

    event: int
    label: str
    start: int | None
    stop: int
    timed: bool = False


class Lane(NamedTuple):
    """The bars of one link, sorted, or of several links with the same bars."""

    name: str
    bars: tuple[Bar, ...]


def describe(event: BaseModel) -> str:
    """What an event does and how strongly, as its scenario file says it: `loss 70%`.

    Every key counts that was not left at its default, but those for where and when.
    """
    parts = dict(_strength(event, _WHERE_AND_WHEN))
    strength = parts.pop(event.action, "")
    return " ".join([event.action, *filter(None, [strength]), *(f"{key} {value}" for key, value in parts.items())])


def lanes(scenario: Scenario) -> list[Lane]:
    """The links that events hit, in the order of the hosts, each with its bars.

    An event that hits no link has lanes of the hosts that it selects.
    """
    found: dict[tuple[str, str], list[Bar]] = defaultdict(list)
    for bar in _bars(scenario):
        for link in _links(scenario, bar.event):
            found[link].append(bar)
    order = {name: place for place, name in enumerate(scenario.topology.worker_names)}
    links = sorted(found, key=lambda link: (order.get(link[0], len(order)), link))
    by_link = {link: tuple(sorted(found[link], key=lambda bar: (bar.start or 0, bar.event))) for link in links}
    if len(links) <= _MANY_LANES:
        return [Lane(" ".join(link).strip(), bars) for link, bars in by_link.items()]
    alike: dict[tuple[str, tuple[Bar, ...]], list[str]] = defaultdict(list)
    for (host, direction), bars in by_link.items():
        alike[direction, bars].append(host)
    return [Lane(f"{_hosts(hosts)} {direction}".strip(), bars) for (direction, bars), hosts in alike.items()]


def _links(scenario: Scenario, index: int) -> list[tuple[str, str]]:
    event = scenario.events[index]
    hosts = [event.selector] if isinstance(event.selector, str) else event.selector
    return event.links(scenario.topology) or [(host, "") for host in hosts]


def _bars(scenario: Scenario) -> Iterator[Bar]:
    """Bars of whole iterations, then those of events that are not in ``Scenario.timeline``: they last a time."""
    labels = [describe(event) for event in scenario.events]
    windows = scenario.timeline()
    for window in windows:
        yield Bar(window.event, labels[window.event], window.start, window.stop)
    end = scenario.workload.iterations
    for index in sorted(set(range(len(labels))) - {window.event for window in windows}):
        event = scenario.events[index]
        seconds = getattr(event, "duration", None)      # what happens once for ever has none
        label = labels[index] + (f" for {TIME.write(float(seconds))}" if seconds else "")
        if starts := event.at.starts(end, 1):
            for start in starts:
                yield Bar(index, label, start, start + 1, timed=True)
        else:
            yield Bar(index, f"{label} {_by_clock(event.at.clock())}", None, end, True)


def _by_clock(clock: Clock) -> str:
    """`at 30s`, or `every 5s from 2s`."""
    at = TIME.write(clock.time)
    return f"at {at}" if clock.period is None else f"every {TIME.write(clock.period)} from {at}"


def _strength(model: BaseModel, without: set[str] = frozenset()) -> Iterator[tuple[str, str]]:
    """Key and value of the fields that are not at their default, in the words of a scenario file."""
    properties = model.model_json_schema()["properties"]
    for key, field in type(model).model_fields.items():
        value = getattr(model, key)
        if key in without or value is None or (not field.is_required() and value == field.get_default()):
            continue
        quantity = quantity_of(properties[key])
        if isinstance(value, BaseModel):
            yield key, f"({', '.join(f'{k} {v}' for k, v in _strength(value))})"
        else:
            yield key, quantity.write(value) if quantity else str(value)


def _hosts(names: list[str]) -> str:
    if len(names) <= 3:
        return ", ".join(names)
    return f"{names[0]}, {names[1]}, ... {names[-1]} ({len(names)} hosts)"


def _title(scenario: Scenario) -> str:
    workload = scenario.workload
    profile = f", profile {scenario.profile}" if scenario.profile else ""
    return f"{scenario.name}{profile}: {workload.iterations} iterations, {workload.iterations_per_epoch} an epoch"


def draw(scenario: Scenario) -> Figure:
    """The picture: iterations from left to right with the epochs as ticks above, a lane a link, bursts as bars.

    Bars name what happens where there is room for it, else a legend does. A pale bar lasts a time, and where it spans
    the lane it begins by the clock.
    """
    rows, end = lanes(scenario), scenario.workload.iterations
    colours = _colours(rows)
    with matplotlib.rc_context(style()["rc"]):
        names_in = _CHARACTER_IN * max((len(row.name) for row in rows), default=0)
        character = _CHARACTER_IN * end / (_WIDTH_IN - 0.4 - names_in)      # in iterations
        unnamed = _unnamed(rows, 1 / character, end / character)
        legend_lines = -(-len(unnamed) // 2)
        figure = Figure(figsize=(_WIDTH_IN, 1.35 + 0.3 * max(len(rows), 1) + 0.22 * legend_lines), layout="constrained")
        axes = figure.subplots()
        for height, row in enumerate(rows):
            _draw_lane(axes, height, row, colours, character, end)
        axes.set_xlim(0, end)
        axes.set_ylim(max(len(rows), 1) - 0.5, -0.5)
        axes.set_yticks(range(len(rows)), [row.name for row in rows])
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="x", visible=False)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("Iteration")
        _epoch_ticks(axes, scenario)
        figure.suptitle(_title(scenario), x=0.01, ha="left", fontsize=10.5)
        if not rows:
            axes.text(0.5, 0.5, "no events", transform=axes.transAxes, ha="center", va="center", color="#777777")
        if unnamed:
            pale = {bar.label for row in rows for bar in row.bars if bar.timed}
            handles = [Patch(label=label, **_look(colours[label], label in pale)) for label in unnamed]
            figure.legend(handles=handles, loc="outside lower left", ncols=2, fontsize=8.5)
        return figure


def _colours(rows: list[Lane]) -> dict[str, str]:
    """A colour for each label, in the order of the events."""
    bars = sorted({(bar.event, bar.label) for row in rows for bar in row.bars})
    palette = style()["events"]
    return {label: palette[place % len(palette)] for place, label in enumerate(dict.fromkeys(text for _, text in bars))}


def _unnamed(rows: list[Lane], scale: float, columns: float) -> list[str]:
    """The labels for which no bar has room, in order."""
    named = {
        bar.label for row in rows
        for bar, column in zip(row.bars, _labels(row.bars, scale, columns), strict=True) if column is not None
    }
    return [label for label in _colours(rows) if label not in named]


def _labels(bars: tuple[Bar, ...], scale: float, columns: float) -> list[float | None]:
    """Where each bar's label begins, in columns as wide as a character: in the bar, beside it, or nowhere.

    ``scale`` is columns an iteration, ``columns`` the width of the lane.
    """
    placed: list[float | None] = []
    taken = 0.0     # all columns before this one
    for place, bar in enumerate(bars):
        length = len(bar.label)
        start, stop = (bar.start or 0) * scale, max(bar.stop * scale, (bar.start or 0) * scale + 1)
        after = (bars[place + 1].start or 0) * scale if place + 1 < len(bars) else columns
        column = None
        if max(start, taken) + length + 2 <= min(stop, after):
            column = (max(start, taken) + min(stop, after) - length) / 2
        elif stop + 1 + length <= after:
            column = stop + 1
        elif taken + length + 1 <= start:
            column = start - length - 1
        placed.append(column)
        taken = max(taken, stop if bar.start is not None else 0, 0 if column is None else column + length + 1)
    return placed


def _draw_lane(axes: Axes, height: int, lane: Lane, colours: dict[str, str], character: float, end: int) -> None:
    for bar, column in zip(lane.bars, _labels(lane.bars, 1 / character, end / character), strict=True):
        colour, start, pale = colours[bar.label], bar.start or 0, bar.timed
        axes.barh(height, bar.stop - start, 0.62, left=start, **_look(colour, pale))
        if column is not None:
            inside = start < (column + 0.5) * character < bar.stop
            axes.text(column * character, height, bar.label, va="center", fontsize=8.5,
                      color="white" if inside and not pale else colour,
                      bbox=None if inside else {"facecolor": "white", "lw": 0, "pad": 0.5})


def _look(colour: str, pale: bool) -> dict[str, Any]:
    """Of a bar; the line around it keeps one iteration of a thousand visible."""
    return {"facecolor": to_rgba(colour, 0.2 if pale else 1), "edgecolor": colour, "lw": 1.2}


def _epoch_ticks(axes: Axes, scenario: Scenario) -> None:
    """Lines where epochs begin, and an axis above that numbers them."""
    every, end = scenario.workload.iterations_per_epoch, scenario.workload.iterations
    epochs = range(-(-end // every))
    step = -(-len(epochs) // 20)
    for epoch in epochs[step::step]:
        axes.axvline(epoch * every, color="#dddddd", lw=0.8, zorder=0)
    above = axes.secondary_xaxis("top")
    above.set_xticks([epoch * every for epoch in epochs[::step]], [str(epoch) for epoch in epochs[::step]])
    above.set_xlabel("Epoch")


def text(scenario: Scenario, width: int) -> Text:
    """The same for a terminal of so many columns, with a line for each event below."""
    rows, end = lanes(scenario), scenario.workload.iterations
    colours = _colours(rows)
    margin = max(len(name) for name in ("iteration", *(row.name for row in rows))) + 2
    room = max(width - margin - 1, 20)
    scale = room // end or room / end       # whole columns an iteration where they fit
    columns = int(scale * end)
    ticks = _text_ticks(scenario, scale, columns)
    out = Text(_title(scenario) + "\n", style="bold")
    for name, factor in (("epoch", 1), ("iteration", scenario.workload.iterations_per_epoch)):
        line = "".join(
            str(epoch * factor).ljust(after - column)
            for (column, epoch), after in zip(ticks.items(), [*list(ticks)[1:], columns], strict=True)
        )
        out.append(f"{name.ljust(margin)}{line.rstrip()}\n", style="dim")
    for row in rows:
        out.append(row.name.ljust(margin)).append_text(_text_lane(row, scale, columns, ticks, colours)).append("\n")
    for index in range(len(scenario.events)):
        bars = sorted({bar for row in rows for bar in row.bars if bar.event == index}, key=lambda bar: bar.start or 0)
        out.append(f"events.{index}".ljust(margin)).append(bars[0].label, style=colours[bars[0].label])
        out.append(f"{_when(bars)} on {_where(_links(scenario, index))}\n")
    if not rows:
        out.append("no events\n", style="dim")
    out.rstrip()
    return out


def _text_ticks(scenario: Scenario, scale: float, columns: int) -> dict[int, int]:
    """Column and number of the epochs that a ruler names, at least 8 columns apart."""
    every = scenario.workload.iterations_per_epoch
    step = max(1, -(-8 // max(int(every * scale), 1)))
    return {int(epoch * every * scale): epoch for epoch in range(0, -(-scenario.workload.iterations // every), step)}


def _text_lane(lane: Lane, scale: float, columns: int, ticks: dict[int, int], colours: dict[str, str]) -> Text:
    cells = ["┊" if column in ticks else "·" for column in range(columns)]
    styles = ["dim"] * columns
    for bar, column in zip(lane.bars, _labels(lane.bars, scale, columns), strict=True):
        start = min(int((bar.start or 0) * scale), columns - 1)
        stop = max(int(bar.stop * scale), start + 1)
        cells[start:stop] = ("▒" if bar.timed else "█") * (stop - start)
        styles[start:stop] = [colours[bar.label]] * (stop - start)
        if column is not None:
            first = int(column)
            inside = start <= first < stop
            cells[first : first + len(bar.label)] = bar.label
            look = colours[bar.label] + (" reverse" if inside and not bar.timed else "")
            styles[first : first + len(bar.label)] = [look] * len(bar.label)
    out = Text()
    for cell, look in zip(cells, styles, strict=True):
        out.append(cell, style=look)
    return out


def _when(bars: list[Bar]) -> str:
    """` in iterations 48-49, 112-113`, with the first few of many; nothing for what begins by the clock."""
    known = [bar for bar in bars if bar.start is not None]
    if not known:
        return ""
    spans = [f"{b.start}" if b.timed or b.stop == b.start + 1 else f"{b.start}-{b.stop - 1}" for b in known]
    more = f", ... {spans[-1]} ({len(spans)} times)" if len(spans) > 6 else ""
    word = "from iteration" if known[0].timed else "in iteration"
    return f" {word}{'s' if len(spans) > 1 or '-' in spans[0] else ''} {', '.join(spans[:5] if more else spans)}{more}"


def _where(links: list[tuple[str, str]]) -> str:
    """`w1, w3 to_server and to_worker`."""
    hosts: dict[str, list[str]] = defaultdict(list)
    for host, direction in links:
        hosts[direction].append(host)
    by_hosts: dict[str, list[str]] = defaultdict(list)
    for direction, names in hosts.items():
        by_hosts[_hosts(names)].append(direction)
    return ", ".join(f"{names} {' and '.join(directions)}".strip() for names, directions in by_hosts.items())
