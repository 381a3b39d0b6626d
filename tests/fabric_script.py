"""Events on links between switches and behind them, for tests/test_fabric_events.py; run as star_script.py is.

    fabric_script.py bpf|netem JSON TRUNK       a topology whose link TRUNK is all that joins w3 and w4 to the server

Prints what it measured as JSON.
"""

from __future__ import annotations

import json
import sys
import time

from mininet.log import setLogLevel
from star_script import TRAIN, emulated, transmit
from vocabulary_script import scenario, staged

from protocol.config import DATA_PORT_BASE as PORT
from testbed import shaping

FRAMES = 50 * TRAIN


def main(name: str, text: str, trunk: str) -> dict[str, object]:
    topology = json.loads(text)
    report: dict[str, object] = {}
    traffic = [{"action": "traffic", "selector": ["w3"], "senders": 1} | kind
               for kind in ({"kind": "udp", "rate": "20mbit"}, {"kind": "tcp"})]
    plan = scenario(traffic[0], topology=topology)
    ends = shaping.link_ends(plan.topology)
    with emulated(plan) as net:

        def arrive(source: str, target: str, count: int = 5 * TRAIN, port: int = PORT) -> float:
            return float(transmit(net, source, target, port, count).mean())

        def rates() -> dict[str, float]:
            return {state["interface"]: state["rate_bps"] for state in shaping.read_back(net, ends)}

        def stage(*events: dict):
            return staged(net, name, *events, topology=topology)

        losses = [{"action": "loss", "loss": "50%", "selector": [trunk], "direction": "both"},
                  {"action": "loss", "loss": "30%", "selector": ["w4"]}]
        with stage(*losses) as (injector, director):
            director.start(0)
            report["trunk"] = [arrive("w3", "srv", FRAMES), arrive("srv", "w4", FRAMES)]
            assert arrive("w1", "srv") == 1
            counts = injector.counters()
            assert counts[trunk, "to_server"].seen == counts[trunk, "to_worker"].seen == FRAMES
            director.start(1)
            report["both"] = arrive("w4", "srv", FRAMES)
            director.stop(0)
            report["own"] = arrive("w4", "srv", FRAMES)

        cuts = [{"action": "partition", "duration": "1s", "selector": "trunks"},
                {"action": "link_down", "duration": "1s", "selector": [trunk]}]
        with stage(*cuts) as (_, director):
            for index in range(len(cuts)):
                director.start(index)
                assert arrive("w3", "srv") == arrive("srv", "w4", port=9) == 0
                director.stop(index)
                deadline = time.monotonic() + 5
                while arrive("srv", "w3", TRAIN) < 1 and time.monotonic() < deadline:
                    pass
            assert arrive("w4", "srv") == 1

        with stage({"action": "rate", "rate": "3mbit", "selector": [trunk], "direction": "both"}) as (_, director):
            before = rates()
            director.start(0)
            changed = {interface: rate for interface, rate in rates().items() if rate != before[interface]}
            assert set(changed.values()) == {3e6}
            report["slow"] = sorted(changed)
            director.stop(0)
            assert rates() == before

        with stage(*traffic) as (_, director):
            for index, event in enumerate(traffic):
                before = queue(net, ends)
                director.start(index)
                time.sleep(0.5)
                director.stop(index)
                sent = director.facts(index)["sent"]["x1 to w3"]
                after = queue(net, ends)
                report[event["kind"]] = {"sent": sent["bytes"]} | {end: after[end] - before[end] for end in after}
    return report


def queue(net, ends) -> dict[str, int]:
    """Bytes that the ends have sent."""
    return {each["interface"]: each["sent_bytes"] for each in shaping.queue_drops(net, ends)}


if __name__ == "__main__":
    setLogLevel("critical")
    print(json.dumps(main(*sys.argv[1:])))
