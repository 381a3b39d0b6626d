"""The console program `dblp`."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import scenarios
from scenarios import ScenarioError
from testbed.errors import Stopped, UserError

SCHEMA_FILE = "dblp-scenario.schema.json"
REFERENCE = Path("results/reference")
PICTURES = (".png", ".svg", ".pdf")
EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130

app = typer.Typer(
    help="Network emulation testbed for gradient transports that tolerate bounded loss.",
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
)
out_console = Console()
err_console = Console(stderr=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on standard output instead of text.")]


@app.command()
def run(
    scenario: Annotated[list[str], typer.Argument(help="Scenario files, or names from `dblp scenarios`.")],
    profile: Annotated[str | None, typer.Option(help="Variant of the scenario: paper, laptop, smoke.")] = None,
    engine: Annotated[
        str, typer.Option(help="auto, mininet (root), or local (loopback, no root); without a network it is single.")
    ] = "auto",
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override, as workload.iterations=20.")] = None,
    out: Annotated[Path, typer.Option(help="Folder that the runs go into.")] = Path("results"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace complete runs that stand there.")] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Keep complete runs that stand there, and make the others.")
    ] = False,
    capture: Annotated[
        bool, typer.Option("--capture", help="Write what crosses the switch to captures/*.pcap; see `dblp pcap`.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run scenarios: every transport with every seed, one after the other. A run that fails does not end the others."""
    from testbed import forecast, runner
    from testbed.engines import ENGINES
    from testbed.progress import Progress
    from testbed.results import RunFolder
    from testbed.training import data

    console = err_console if as_json else out_console
    if engine not in ("auto", *ENGINES):
        raise UserError(f"engine {engine!r}: choose auto, {' or '.join(ENGINES)}")
    if overwrite and resume:
        raise UserError("--overwrite replaces complete runs and --resume keeps them; give one of the two")
    loaded = [scenarios.load(source, profile, set_ or ()) for source in scenario]
    chosen = [runner.choose_engine(engine, each, capture) for each in loaded]
    todo = [
        (job, kind, reason)
        for each, (kind, reason) in zip(loaded, chosen, strict=True)
        for job in runner.jobs(each, out)
    ]
    datasets = {choices: data.resolve(choices) for choices in {each.workload.datasets for each in loaded}}
    if resume:
        kept = [
            job for job, kind, _ in todo
            if RunFolder(job.path).is_finished(
                job.scenario, job.transport, seed=job.seed, engine=kind, capture=capture,
                dataset=datasets[job.scenario.workload.datasets].name,
            )
        ]
        todo = [entry for entry in todo if entry[0] not in kept]
        for job in kept:
            console.print(f"[green]kept[/] {escape(str(job.path))}", soft_wrap=True, highlight=False)
    runner.refuse_taken_folders([job for job, _, _ in todo], overwrite)
    command = shlex.join(["dblp", *sys.argv[1:]])
    outcomes: list[runner.Outcome] = []
    plan = forecast.Forecast([job for job, _, _ in todo], forecast.paces([out, forecast.REFERENCE]))
    with runner.Interruption() as interruption, Progress(console, len(todo), plan) as progress:
        for job, kind, reason in todo:
            dataset = datasets[job.scenario.workload.datasets]
            progress.begin(job, kind, reason, dataset)
            outcome = runner.run_job(job, kind, dataset, overwrite, progress.news, command, interruption, capture)
            progress.end(outcome)
            outcomes.append(outcome)
    if as_json:
        print(json.dumps([
            {"scenario": o.job.scenario.name, "transport": o.job.transport, "seed": o.job.seed, "status": o.status,
             "error": o.error, "duration_s": round(o.duration_s, 3), "peak_memory_bytes": o.peak_memory,
             "peak_disk_bytes": o.peak_disk, "path": str(o.job.path)}
            for o in outcomes
        ], indent=1))
    else:
        folders = shlex.join(sorted({str(out / each.name) for each in loaded}))
        out_console.print(f"Next: [bold]dblp report {escape(folders)}[/] draws tables and figures.")
    if any(outcome.status != "complete" for outcome in outcomes):
        raise typer.Exit(EXIT_FAILED)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, or folders that hold some.")],
    out: Annotated[Path | None, typer.Option(help="For the report and its pictures; default: the first.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write report.md and report.html with every table and figure that the runs allow, the paper's beside measured."""
    from analysis import report as reporting
    from analysis.load import ResultsError

    try:
        if as_json:
            print(json.dumps(reporting.summary(runs), indent=1))
            return
        paths = reporting.write(runs, out or runs[0])
    except ResultsError as error:
        raise UserError(str(error)) from error
    out_console.print(f"[bold]{escape(str(paths.markdown))}[/]")
    out_console.print(f"[bold]{escape(str(paths.html))}[/], the same in one file")
    for figure in paths.figures:
        out_console.print(f"  {escape(str(figure))}")


@app.command("claims")
def list_claims(
    runs: Annotated[list[Path] | None, typer.Argument(help="Folders of runs; default: results/reference.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print each number of the paper, the measured one beside it, a verdict, and what shows it."""
    from analysis import claims, load, scoreboard

    if not runs and not REFERENCE.is_dir():
        raise UserError(f"{REFERENCE} is not here; give the folder of some runs, as dblp claims results/paper")
    try:
        found = claims.evaluate(load.load(runs or [REFERENCE]))
    except load.ResultsError as error:
        raise UserError(str(error)) from error
    if as_json:
        print(json.dumps([verdict.as_dict() for verdict in found], indent=1))
    else:
        scoreboard.render(found, out_console)


@app.command()
def pcap(
    captures: Annotated[list[Path], typer.Argument(help="pcap files of one run, or the run's folder.")],
    as_json: AsJson = False,
) -> None:
    """Say from captured packets alone what each round was, and where the run's records differ."""
    from analysis import proof
    from analysis.pcap import CaptureError

    try:
        evidence = proof.examine(captures)
    except CaptureError as error:
        raise UserError(str(error)) from error
    if as_json:
        print(json.dumps(evidence.as_json(), indent=1))
    else:
        proof.render(evidence, out_console)
    if any(difference.explanation is None for difference in evidence.differences):
        raise typer.Exit(EXIT_FAILED)


@app.command("scenarios")
def list_scenarios(as_json: AsJson = False) -> None:
    """List the scenarios that come with the testbed."""
    entries = scenarios.catalogue()
    if as_json:
        print(json.dumps([{**entry._asdict(), "path": str(entry.path)} for entry in entries], indent=1))
        return
    table = Table("scenario", "what it is", box=None, header_style="bold")
    for entry in entries:
        table.add_row(entry.name, entry.description)
    out_console.print(table)


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Say what works on this machine, what does not, and the remedy."""
    from testbed import doctor as doctor_

    checks = doctor_.checks()
    if as_json:
        print(json.dumps([vars(check) for check in checks], indent=1))
    else:
        doctor_.render(checks, out_console)


@app.command()
def schema(
    out: Annotated[Path | None, typer.Option(help="Write it to this file instead of printing it.")] = None,
) -> None:
    """Print the JSON Schema of scenario files, for an editor's completion."""
    text = json.dumps(scenarios.json_schema(), indent=1)
    if out is None:
        print(text)
    else:
        _write(out, text + "\n")


@app.command()
def new_scenario(
    name: Annotated[str, typer.Argument(help="Name of the scenario, and of its folder of results.")],
    from_: Annotated[
        str, typer.Option("--from", help="Scenario to start from: a name from `dblp scenarios`, or a file.")
    ] = "examples/demo",
    out: Annotated[Path | None, typer.Option(help="File to write; default: NAME.yaml.")] = None,
) -> None:
    """Write a scenario file to change: every key with what it means, its unit and its alternatives.

    Beside it goes the JSON Schema, which the first line of the file names, so that editors complete and check it.
    """
    out = out or Path(f"{name}.yaml")
    if out.exists():
        raise UserError(f"{out} exists and stays as it is; give --out for another file")
    rules = out.with_name(SCHEMA_FILE)
    text = scenarios.template(name, from_, shlex.quote(str(out)), rules.name)
    _write(rules, json.dumps(scenarios.json_schema(), indent=1) + "\n")
    _write(out, text)
    out_console.print(f"[bold]{escape(str(out))}[/], with {escape(str(rules))} for editors", soft_wrap=True)
    out_console.print(f"Next: [bold]dblp check {escape(shlex.quote(str(out)))}[/] draws its timeline.", soft_wrap=True)


@app.command()
def check(
    paths: Annotated[
        list[str], typer.Argument(help="Scenario files, folders of them, or names from `dblp scenarios`.")
    ],
    profile: Annotated[str | None, typer.Option(help="Check with this profile only; default: each there is.")] = None,
    timeline: Annotated[
        Path | None,
        typer.Option(help="Draw the timeline into this file (.png, .svg, .pdf), or those of several into a folder."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check scenarios without running them, and draw when which link is hit; exit status 2 if one is wrong."""
    checked = [scenarios.check(source, profile) for source in scenarios.find(paths)]
    good = [each.scenario for each in checked if each.scenario is not None and not each.problems]
    pictures = _draw_timelines(good, timeline, len(checked)) if timeline else []
    if as_json:
        print(json.dumps([_as_dict(each) for each in checked], indent=1))
    else:
        _print_checked(checked)
        for picture in pictures:
            out_console.print(f"  {escape(str(picture))}", soft_wrap=True)
        if len(checked) == 1 and good and not timeline:
            from analysis import timeline as drawing

            out_console.print(drawing.text(good[0], out_console.width), soft_wrap=True)
    if len(good) < len(checked):
        raise typer.Exit(EXIT_USAGE)


def _print_checked(checked: list[scenarios.Checked]) -> None:
    """A line for each scenario, or one for each of its problems, beginning with `file:line` as editors read it."""
    for each in checked:
        for problem in each.problems:
            out_console.print(escape(str(problem)), style="red", soft_wrap=True, highlight=False)
        if not each.problems:
            scenario = each.scenario
            counts = [f"{scenario.workload.iterations} iterations", f"transports {', '.join(scenario.transports)}"]
            counts += [f"events {len(scenario.events)}"]
            counts += [f"profiles {', '.join(each.profiles)}"] if each.profiles else []
            out_console.print(
                f"[green]ok[/] {escape(each.source)}: {escape('; '.join(counts))}", soft_wrap=True, highlight=False
            )
    if len(checked) > 1:
        wrong = sum(bool(each.problems) for each in checked)
        out_console.print(f"{len(checked)} scenarios, {wrong or 'none'} wrong", style="red" if wrong else "green")


def _as_dict(checked: scenarios.Checked) -> dict[str, Any]:
    """What `dblp check --json` says of a scenario."""
    said = {
        "source": checked.source, "ok": not checked.problems, "profiles": checked.profiles,
        "problems": [problem._asdict() for problem in checked.problems],
    }
    if (scenario := checked.scenario) is None or checked.problems:
        return said
    from analysis import timeline as drawing

    return said | {
        "name": scenario.name, "iterations": scenario.workload.iterations,
        "events": [drawing.describe(event) for event in scenario.events],
        "lanes": [
            {"link": lane.name, "bars": [bar._asdict() for bar in lane.bars]} for lane in drawing.lanes(scenario)
        ],
    }


def _draw_timelines(loaded: list[scenarios.Scenario], out: Path, count: int) -> list[Path]:
    """Draw into the file `out` or, for several or where `out` is a folder, into `out/NAME.png`."""
    from analysis import timeline as drawing

    if out.suffix and not out.is_dir():
        if count > 1:
            raise UserError(f"--timeline {out}: {count} scenarios need a folder for their pictures, not one file")
        if out.suffix.lower() not in PICTURES:
            raise UserError(f"--timeline {out}: pictures are written as {', '.join(PICTURES)}")
        targets = [(scenario, out) for scenario in loaded]
    else:
        profile = {scenario.profile for scenario in loaded} - {None}
        ending = f"-{profile.pop()}.png" if profile else ".png"
        targets = [(scenario, out / f"{scenario.name}{ending}") for scenario in loaded]
    names = [target for _, target in targets]
    if twice := sorted({str(target) for target in names if names.count(target) > 1}):
        raise UserError(f"--timeline {out}: several scenarios have the same name, for {', '.join(twice)}")
    for scenario, target in targets:
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            drawing.draw(scenario).savefig(target)
        except OSError as error:
            raise UserError(f"--timeline {target}: {error.strerror}") from error
    return names


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error


def main() -> None:
    """Run the program; errors that a user can mend are one line each, without a traceback."""
    try:
        app()
    except (ScenarioError, UserError) as error:
        for line in str(error).splitlines():
            err_console.print(f"[red]error:[/] {escape(line)}", soft_wrap=True)
        sys.exit(EXIT_USAGE)
    except (Stopped, KeyboardInterrupt):
        err_console.print("[yellow]interrupted[/]: what was measured so far is kept and says so")
        sys.exit(EXIT_INTERRUPTED)


if __name__ == "__main__":
    main()
