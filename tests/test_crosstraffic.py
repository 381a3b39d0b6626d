"""Cross traffic on the loopback: it begins and pauses when told, and says what it has sent."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time

import pytest


def start(*arguments: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "testbed.bursts.crosstraffic", *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


@pytest.mark.parametrize(
    ("kind", "own"), [("udp", ["--rate", "8e6", "--payload", "1000"]), ("tcp", ["--flows", "2"])]
)
def test_traffic_flows_between_start_and_stop(kind, own):
    port = str(free_port())
    sink = start(f"{kind}-sink", "--port", port)
    sender = None
    try:
        assert sink.stdout.readline() == "{}\n"
        sender = start(kind, "--host", "127.0.0.1", "--port", port, *own)
        assert sender.stdout.readline() == "{}\n"
        sent = [0]
        for pause in (0, 0.2, 1, 3, 10):  # a busy machine may start it late
            if sent[-1]:
                break
            sender.stdin.write("start\n")
            time.sleep(pause)
            sender.stdin.write("stop\n")
            sent.append(json.loads(sender.stdout.readline())["bytes"])
        assert sent[-1] > 0
        sender.stdin.write("stop\n")
        assert json.loads(sender.stdout.readline())["bytes"] == sent[-1], "cumulative, and every stop is answered"
        sender.stdin.close()
        assert sender.wait(10) == 0, "the end of its input ends it"
    finally:
        for process in (sink, sender):
            if process:
                process.kill()
                process.wait()
