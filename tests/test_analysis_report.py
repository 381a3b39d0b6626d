"""Report, pictures, JSON and notebook."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from itertools import combinations
from pathlib import Path

import analysis_tree as tree
import matplotlib.image
import nbformat
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.text import Text
from nbclient import NotebookClient

from analysis import document, figures, figures_training, metrics, report, tables
from analysis.load import load

BURST = "efficientnet-microburst"
NOTEBOOK = Path(report.__file__).parent / "notebooks" / "plot-a-run.ipynb"


@pytest.fixture(scope="module")
def paper_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tree.write_tree(tmp_path_factory.mktemp("results"), seeds=(1, 2))


class Page(HTMLParser):
    """What a browser would ask of a page: what it loads from elsewhere, its headings, and its cells."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.open: list[str] = []
        self.headings: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [value or "" for name, value in attrs if name == "src" or (tag == "link" and name == "href")]
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("h1", "h2", "h3"):
            self.headings.append(data)


def test_report_opens_with_the_verdicts_and_links_its_pictures(paper_tree: Path, tmp_path: Path) -> None:
    paths = report.write([paper_tree], tmp_path / "report")
    text = paths.markdown.read_text()
    assert text.index("| Claim | Paper | Measured | Verdict | Why | Run | Command |") < text.index("![")
    assert {p.name for p in paths.figures} == {
        f"latency-{BURST}.png", f"cdf-{BURST}.png", "latency-efficientnet.png", "cdf-efficientnet.png",
        "training-time.png", "accuracy.png", "regime-curves.png", "regime-map.png",
    }
    for picture in paths.figures:
        assert f"]({picture.name})" in text
        assert matplotlib.image.imread(picture).std() > 0.05  # something is drawn
    for wanted in ("Burst 1 (iteration 24)", "4.68 x", "It stands in for cifar10", "dblp run efficientnet", "bpf"):
        assert wanted in text
    assert "Read this first" not in text
    assert "nan" not in text.lower().split()
    page = Page(paths.html.read_text())
    assert page.open == []
    assert page.loads
    assert all(source.startswith("data:image/png;base64,") for source in page.loads)
    assert len(page.loads) == len(paths.figures)
    assert [h for h in page.headings if h.startswith(("Tables", "Figure", "Two"))] == [
        "Tables II and III, Figures 2 to 4: send latency", "Two regimes: what a pass costs",
        "Figure 5, Table V: training time", "Tables IV and VI, Figure 6: accuracy",
    ]


def test_a_failed_run_is_named_at_the_top(tmp_path: Path) -> None:
    tree.write_run(tmp_path / "r", BURST, "dblp", bursts=tree.BURSTS)
    tree.write_run(tmp_path / "r", BURST, "mlt", bursts=tree.BURSTS, status="failed", done=40, error="w2 disconnected")
    text = report.write([tmp_path / "r"], tmp_path / "out").markdown.read_text()
    named = text.index("mlt, seed 1: failed (w2 disconnected) after 40 of 80 iterations")
    assert named < text.index("| Claim |")
    assert "mlt (incomplete)" in text
    assert f"| {BURST} | mlt (incomplete) | - | - | - |" in text  # half a run has no training time


def test_one_transport_of_another_name_without_bursts(tmp_path: Path) -> None:
    transports = {"plain": {"tolerance": {"policy": "reliable"}}}
    only = tree.PAPER | {"plain": {"tolerance": {"policy": "fixed", "p": 0.0}}}
    folder = tree.write_run(tmp_path / "r", "mine", "plain", transports=only)
    run = json.loads((folder / "run.json").read_text())
    run["scenario"]["transports"] = transports
    (folder / "run.json").write_text(json.dumps(run))
    text = report.write([folder], tmp_path / "out").markdown.read_text()
    assert "none of its numbers is judged" in text
    assert "| Claim |" not in text
    assert "| Average | 1." in text


def test_a_run_with_nothing_but_run_json(tmp_path: Path) -> None:
    folder = tree.write_run(tmp_path / "r", BURST, "dblp", status="failed", done=1, error="no root")
    for file in [*folder.glob("*.parquet"), folder / "events.jsonl"]:
        file.unlink()
    paths = report.write([folder], tmp_path / "out")
    assert paths.figures == []
    assert "failed (no root) after 0 of 80" in paths.markdown.read_text()


def test_summary_is_plain_json(paper_tree: Path) -> None:
    said = json.loads(json.dumps(report.summary([paper_tree]), allow_nan=False))
    speedup = next(v for v in said["verdicts"] if v["id"] == f"{BURST}/burst1-speedup")
    assert speedup["paper"] == 4.68
    assert speedup["measured"] == pytest.approx(1.68, rel=0.1)
    assert len(said["runs"]) == 8
    assert all(row["Holds"] != "no" for row in said["conditions"])


def test_a_transport_has_one_colour_and_unknown_ones_their_own(tmp_path: Path) -> None:
    names = tree.PAPER | {"a": tree.PAPER["mlt"], "b": tree.PAPER["mlt"]}
    for name in names:
        tree.write_run(tmp_path, "x", name, bursts=tree.BURSTS, transports=names)
    results = load(tmp_path)
    look = figures.looks(results)
    assert len({look[name]["colour"] for name in names}) == 4
    lines = figures.latency_by_iteration(results, "x")
    assert {to_hex(axes.lines[0].get_color()).upper() for axes in lines.axes} == {look[n]["colour"] for n in names}
    cdf = figures.latency_cdf(results, "x")
    drawn = {line.get_label(): to_hex(line.get_color()).upper() for line in cdf.axes[0].lines}
    assert drawn == {look[n]["label"]: look[n]["colour"] for n in names}


@pytest.mark.parametrize("count", [1, 5])
def test_legends_titles_and_labels_stay_clear_of_each_other(tmp_path: Path, count: int) -> None:
    names = ["dblp", "mlt", *(f"a-transport-of-a-rather-long-name-{n}" for n in range(3))][:count]
    transports = {name: tree.PAPER["mlt"] for name in names}
    for scenario in ("efficientnet", "two-datacentres-with-a-slow-oversubscribed-link-between"):
        for name in names:
            tree.write_run(tmp_path, scenario, name, transports=transports, bursts=tree.BURSTS)
    results = load(tmp_path)
    for figure in (
        figures.latency_cdf(results, "efficientnet"),
        figures_training.training_time(results, metrics.measures(results), tables.scenarios(results)),
        figures_training.accuracy_by_epoch(results, tables.scenarios(results)),
    ):
        FigureCanvasAgg(figure).draw()
        apart = [figure.legends[0], *figure.axes]
        for axes in figure.axes:
            title = axes.get_title("left")      # panels with a title have numbers at their ticks
            apart += axes.findobj(lambda artist, title=title: isinstance(artist, Text) and artist.get_text() == title) \
                if title else axes.get_xticklabels()
        boxes = [artist.get_window_extent() for artist in apart]
        for one, other in combinations(boxes, 2):
            assert not one.overlaps(other)
        for box in boxes:
            assert box.x0 >= 0
            assert box.x1 <= figure.bbox.x1


def test_latency_figure_marks_bursts_and_regime(paper_tree: Path) -> None:
    results = load(paper_tree)
    baseline, dblp = figures.latency_by_iteration(results, BURST).axes
    assert baseline.get_yscale() == "log"
    assert [text.get_text().split(":")[0] for text in baseline.texts] == ["burst 1", "burst 2"]
    spans = [(patch.get_x(), patch.get_x() + patch.get_width()) for patch in dblp.patches]
    assert spans == [(-0.5, 11.5), (39.5, 47.5)]
    assert not baseline.patches
    calm = figures.latency_by_iteration(results, "efficientnet").axes[0]
    assert calm.get_yscale() == "linear"


def test_latency_table_has_the_paper_beside_each_value(paper_tree: Path) -> None:
    results = load(paper_tree)
    frame = tables.latency(results, metrics.measures(results), BURST).set_index("Send latency")
    tail = frame.loc["Tail (largest)"]
    assert tail["dblp, paper"] == "1.131 s"
    assert tail["mlt, paper"] == "2.163 s"
    assert tail["speedup of dblp, paper"] == "1.91 x"
    assert "±" in tail["speedup of dblp"]


def test_markdown_escapes_and_aligns() -> None:
    text = document.table(pd.DataFrame({"a|b": ["x|y", "z"], "n": ["1", "-2"]}))
    assert text.splitlines()[1:3] == ["| --- | --: |", "| x\\|y | 1 |"]
    assert document.table(pd.DataFrame()) == "Nothing recorded."


def test_notebook_runs(paper_tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DBLP_RESULTS", str(paper_tree))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells)  # committed without outputs
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(NOTEBOOK.parent)}}).execute()
    kinds = [key for cell in notebook.cells for out in cell.get("outputs", []) for key in out.get("data", {})]
    assert kinds.count("image/png") == 3
