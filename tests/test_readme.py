"""What the README shows runs as it stands there, but for addresses."""

from __future__ import annotations

import re
import socket
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest

import scenarios

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


def block(language: str, containing: str) -> str:
    """The README's code block of a language that contains a text."""
    found = [text for text in re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL) if containing in text]
    assert len(found) == 1, f"README has {len(found)} {language} blocks with {containing!r}"
    return found[0]


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def test_the_transport_in_a_program_of_ones_own() -> None:
    address = f'("127.0.0.1", {free_port()})'
    server = block("python", "Server(").replace('("10.0.0.1", 7000)', address)
    worker = block("python", "Worker(").replace('("10.0.0.1", 7000)', address)
    assert len(worker.strip().splitlines()) < 10
    averages: dict[int, list[np.ndarray]] = {rank: [] for rank in range(3)}

    def work(rank: int) -> None:
        names = {
            "gradient": np.zeros(5000, np.float32),
            "batches": range(4),
            "compute": lambda batch, gradient: gradient.fill(batch + rank),
            "apply": lambda gradient: averages[rank].append(gradient.copy()),
        }
        exec(worker.replace("rank=0", f"rank={rank}"), names)

    threads = [threading.Thread(target=exec, args=(server, {}))]
    threads += [threading.Thread(target=work, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    for steps in averages.values():
        assert len(steps) == 4
        for batch, average in enumerate(steps):
            arrived = average != 0
            np.testing.assert_allclose(average[arrived], batch + 1)
            assert arrived.all() or arrived.mean() >= 1 - 0.408


def test_the_burst_to_write(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(block("yaml", "name: mine"))
    scenario = scenarios.load(path)
    assert [tuple(window) for window in scenario.timeline()] == [(0, 6, 8)]
    assert scenario.events[0].links(scenario.topology) == [("w1", "to_server"), ("w3", "to_server")]
    stronger = re.search(r"dblp run mine.yaml (--set.*) --out", README)[1]
    overrides = re.findall(r"--set (\S+)", stronger)
    assert scenarios.load(path, overrides=overrides).workload.iterations == 30


def test_its_commands_and_links_exist() -> None:
    targets = set(re.findall(r"`?make ([a-z-]+)", README))
    known = subprocess.run(["make", "-qp"], cwd=ROOT, capture_output=True, text=True).stdout
    assert {target for target in targets if not re.search(rf"^{target}:", known, re.MULTILINE)} == set()
    for link in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / link).exists(), link


def test_its_results_are_those_of_the_committed_report() -> None:
    report = (ROOT / "results/reference/report.md").read_text().splitlines()
    rows = [line for line in README.splitlines() if re.match(r"\| (Burst|Tail|Average)", line)]
    assert len(rows) == 6
    assert [row for row in rows if row not in report] == []


def test_the_docs_compare_bursts_as_the_committed_report_does() -> None:
    report = (ROOT / "results/reference/real-microburst/report.md").read_text().splitlines()
    page = (ROOT / "docs/bursts.md").read_text().splitlines()
    rows = [line for line in page if re.match(r"\| (no burst|70% loss|traffic) \| (dblp|mlt) ", line)]
    assert len(rows) == 6
    assert [row for row in rows if row not in report] == []


@pytest.mark.parametrize("page", sorted(path.name for path in (ROOT / "docs").glob("*.md")))
def test_the_links_of_the_docs(page: str) -> None:
    for link in re.findall(r"\]\(([^)#:]+)\)", (ROOT / "docs" / page).read_text()):
        assert (ROOT / "docs" / link).exists(), f"{page}: {link}"
