"""The console program `dblp`."""

from __future__ import annotations

import itertools
import json
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import scenarios
from scenarios import ScenarioError
from testbed.errors import Stopped, UserError

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
    engine: Annotated[str, typer.Option(help="auto, mininet (root), or local (loopback, no root).")] = "auto",
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override, as workload.iterations=20.")] = None,
    out: Annotated[Path, typer.Option(help="Folder that the runs go into.")] = Path("results"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace complete runs that stand there.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run scenarios: every transport with every seed, one after the other."""
    from testbed import runner
    from testbed.engines import ENGINES
    from testbed.progress import Progress
    from testbed.results import RunFolder
    from testbed.training import data

    if engine not in ("auto", *ENGINES):
        raise UserError(f"engine {engine!r}: choose auto, {' or '.join(ENGINES)}")
    loaded = [scenarios.load(source, profile, set_ or ()) for source in scenario]
    for one, other in itertools.combinations(range(len(loaded)), 2):
        if loaded[one].name == loaded[other].name:
            raise UserError(
                f"{scenario[one]} and {scenario[other]} are both named {loaded[one].name!r}, so their results would "
                "have one folder; change the name of one"
            )
    chosen = [runner.choose_engine(engine, each) for each in loaded]
    todo = [
        (job, kind, reason)
        for each, (kind, reason) in zip(loaded, chosen, strict=True)
        for job in runner.jobs(each, out)
    ]
    for job, _, _ in todo:      # before the first of them runs
        RunFolder(job.path).check_free(overwrite)
    datasets = {each.workload.dataset: data.resolve(each.workload.dataset) for each in loaded}
    command = shlex.join(["dblp", *sys.argv[1:]])
    outcomes: list[runner.Outcome] = []
    console = err_console if as_json else out_console
    with runner.Interruption() as interruption, Progress(console, len(todo)) as progress:
        for job, kind, reason in todo:
            dataset = datasets[job.scenario.workload.dataset]
            progress.begin(job, kind, reason, dataset)
            outcome = runner.run_job(job, kind, dataset, overwrite, progress.news, command, interruption)
            progress.end(outcome)
            outcomes.append(outcome)
    if as_json:
        print(json.dumps([
            {"scenario": o.job.scenario.name, "transport": o.job.transport, "seed": o.job.seed, "status": o.status,
             "error": o.error, "duration_s": round(o.duration_s, 3), "path": str(o.job.path)}
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
    out: Annotated[Path | None, typer.Option(help="For report.md and the pictures; default: the first.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write report.md with every table and figure that the runs allow, expected beside measured."""
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
    for figure in paths.figures:
        out_console.print(f"  {escape(str(figure))}")


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
def schema() -> None:
    """Print the JSON Schema of scenario files, for an editor's completion."""
    print(json.dumps(scenarios.json_schema(), indent=1))


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
