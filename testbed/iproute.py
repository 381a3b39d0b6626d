"""Commands of ip(8), tc(8) and others, in as few processes as possible: starting one costs more than what it does."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mininet.node import Node

BATCHES = ("ip", "tc", "bridge")  # tools that take a command a line from their standard input


class CommandError(RuntimeError):
    """A command failed; the text has the command and what it said."""


def run(commands: Iterable[Sequence[str]], node: Node | None = None) -> str:
    """Run commands in their order, each row of one tool in one process.

    Args:
        commands: each with the tool as its first word; the first that fails is the last one run.
        node: in whose network namespace; None: in this process's.

    Returns:
        What they wrote to their standard output.

    Raises:
        CommandError: one failed, or is not installed.
    """
    output = ""
    for tool, row in groupby(commands, key=itemgetter(0)):
        group = list(row)
        if tool in BATCHES and len(group) > 1:
            output += _batch(tool, group, node)
        else:
            output += "".join(_single(command, node) for command in group)
    return output


def _batch(tool: str, commands: Sequence[Sequence[str]], node: Node | None) -> str:
    lines = "".join(shlex.join(command[1:]) + "\n" for command in commands)
    output, error, status = _execute([tool, "-batch", "-"], node, lines)
    if status == 0:
        return output
    said, _, number = error.partition("Command failed -:")  # of the line's number
    raise _failure(commands[int(number) - 1] if number else [tool, "-batch", "-"], said, status)


def _single(command: Sequence[str], node: Node | None) -> str:
    output, error, status = _execute(command, node)
    if status == 0:
        return output
    raise _failure(command, error or output, status)


def _execute(command: Sequence[str], node: Node | None, text: str = "") -> tuple[str, str, int]:
    """Standard output, standard error and exit status."""
    start = node.popen if node else subprocess.Popen
    pipe = subprocess.PIPE
    try:
        process = start(list(command), stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    except FileNotFoundError:
        raise CommandError(f"`{command[0]}` is not installed (apt install iproute2)") from None
    output, error = process.communicate(text)
    return output, error, process.returncode


def _failure(command: Sequence[str], said: str, status: int) -> CommandError:
    return CommandError(f"`{' '.join(command)}` failed: {' '.join(said.split()) or f'exit status {status}'}")
