"""Both injectors pass one conformance body (tests/star_script.py), each where the kernel can do it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
import tiny
from private_net import needs_root, private, run_private
from pydantic import TypeAdapter

import testbed.bursts.bpf as bpf
import testbed.bursts.netem as netem
from scenarios import Scenario
from scenarios.events import DIRECTIONS
from scenarios.topology import AnyTopology
from testbed.bursts import InjectorError, LinkEnd, choose_injector, link_end, link_ends


def scenario(*events: dict) -> Scenario:
    """Two workers; a key that is None is left out of an event."""
    whole = [{key: value for key, value in (tiny.BURST | event).items() if value is not None} for event in events]
    return tiny.scenario(topology={"workers": 2, "link": {"rate": "1gbit"}}, events=whole)


def test_each_link_that_events_hit_is_prepared_once():
    ends = link_ends(
        scenario({"at": {"iteration": 3}}, {"at": {"iteration": 9}, "selector": ["w2"], "direction": "both"})
    )
    assert ends == [
        LinkEnd("w1", "to_server", "s1-w1", "udp", "ingress"),
        LinkEnd("w2", "to_server", "s1-w2", "udp", "ingress"),
        LinkEnd("w2", "to_worker", "s1-w2", "udp", "egress"),
    ]


def test_one_link_under_two_protocols_is_refused():
    with pytest.raises(InjectorError, match=r"events.1.protocol: 'all' on w1 to_server, but events.0 has 'udp'"):
        link_ends(scenario({"at": {"iteration": 3}}, {"at": {"iteration": 9}, "protocol": "all"}))


def test_choice_prefers_netem_and_names_what_is_missing(monkeypatch):
    problems = {"netem": None, "bpf": None}
    monkeypatch.setattr(netem, "netem_problem", lambda: problems["netem"])
    monkeypatch.setattr(bpf, "bpf_problem", lambda: problems["bpf"])
    assert choose_injector().name == "netem"
    problems["netem"] = "no CONFIG_NET_SCH_NETEM"
    assert choose_injector().name == "bpf"
    with pytest.raises(InjectorError, match=r"netem: no CONFIG_NET_SCH_NETEM$"):
        choose_injector("netem")
    problems["bpf"] = "needs Linux 6.6"
    with pytest.raises(InjectorError, match=r"netem: no CONFIG_NET_SCH_NETEM; bpf: needs Linux 6\.6"):
        choose_injector()
    with pytest.raises(InjectorError, match="choose auto, netem or bpf"):
        choose_injector("iptables")


def test_netem_devices_of_the_last_of_all_links_have_valid_names():
    topology = TypeAdapter(AnyTopology).validate_python({
        "kind": "leaf_spine", "workers": 253, "leaves": 64, "spines": 16, "oversubscription": 2,
        "link": {"rate": "1gbit"},
    })
    links = ("w253", "srv", "leaf64-spine16")
    names = {netem.device(link_end(link, way, "udp", topology)) for link in links for way in DIRECTIONS}
    assert len(names) == 6
    assert all(len(name) <= 15 for name in names)


def test_netem_filter_holds_the_data_ports_and_no_more():
    filters = [" ".join(words) for words in netem.commands(LinkEnd("w1", "to_worker", "s1-w1", "udp", "egress"))]
    hit = next(line for line in filters if "flowid 1:1" in line)
    assert "match ip protocol 17 0xff match ip dport 52224 0xff00" in hit
    assert filters[-1].startswith("tc filter add dev s1-w1 egress ")


@pytest.mark.parametrize("protocol", ["udp", "all"])
@pytest.mark.parametrize("hook", ["ingress", "egress"])
def test_bpf_jumps_forward_within_the_program(protocol, hook):
    code = bpf.program(protocol, 7, 3, hook)
    slots = [code[at : at + 8] for at in range(0, len(code), 8)]
    jumps = [(at, slot) for at, slot in enumerate(slots) if slot[0] & 0x07 == 5 and slot[0] not in (0x85, 0x95)]
    assert len(jumps) > 5
    for at, slot in jumps:
        assert at < at + 1 + int.from_bytes(slot[2:4], "little", signed=True) < len(slots)


def events_of(*events: dict) -> list:
    return scenario(*({"at": {"iteration": 3}} | event for event in events)).events


def test_bpf_settings_of_a_chain_sum_to_one():
    (state,) = events_of({"loss": None, "state": {"p13": "2%", "p31": "20%", "p32": "30%", "p23": "60%", "p14": "5%"}})
    values = bpf.bank([state])
    below = [[values[bpf.STATES_AT + s * bpf.STATE_SIZE + b] / bpf.ONE for b in bpf.BELOW] for s in range(4)]
    assert below[0] == pytest.approx([0.93, 0.93, 0.95])  # to 1, to 2, to 3; the rest to 4
    assert below[2] == pytest.approx([0.2, 0.5, 1.0])
    losses = [values[bpf.STATES_AT + s * bpf.STATE_SIZE + bpf.LOSS] / bpf.ONE for s in range(4)]
    assert losses == [0, 0, 1, 1]


def test_netem_combines_actions_and_a_partition_wins_over_a_loss():
    loss, delay, cut = events_of(
        {"loss": "25%", "correlation": "50%"},
        {"action": "delay", "loss": None, "latency": "20ms", "jitter": "5ms", "distribution": "normal"},
        {"action": "partition", "loss": None, "duration": "1s", "protocol": "udp", "direction": "to_server"},
    )
    assert " ".join(netem.options([loss, delay])) == (
        "limit 1000000 loss 25.000000% 50.000000% duplicate 0.000000% 0.000000% corrupt 0.000000% 0.000000% "
        "delay 20000.000us 5000.000us 0.000000% distribution normal"
    )
    assert "loss 100.000000% 0.000000%" in " ".join(netem.options([cut, loss]))
    (chain,) = events_of({"loss": None, "gemodel": {"p": "1%", "r": "10%"}})
    assert "loss gemodel 1.000000% 10.000000% 100.000000% 0.000000%" in " ".join(netem.options([chain]))


def test_netem_can_forget_no_distribution():
    delay = {"action": "delay", "loss": None, "latency": "20ms", "jitter": "5ms"}
    normal = delay | {"distribution": "normal", "at": {"iteration": 9}}
    with pytest.raises(InjectorError, match=r"events.1.distribution: 'normal' on w1 to_server, but events.0 has 'unif"):
        link_ends(scenario(delay | {"at": {"iteration": 3}}, normal))
    link_ends(scenario(normal, normal | {"distribution": "pareto", "at": {"iteration": 11}}))


def test_a_complete_partition_stands_beside_any_protocol():
    cut = {"action": "partition", "loss": None, "at": {"iteration": 9}, "duration": "1s"}
    ends = {end.key: end.protocol for end in link_ends(scenario({"at": {"iteration": 3}}, cut))}
    assert ends["w1", "to_server"] == "udp"
    assert ends["w1", "to_worker"] == "all"


def test_the_servers_link_is_met_the_other_way_round():
    ends = link_ends(scenario({"at": {"iteration": 3}, "selector": "all", "direction": "both"}))
    assert {(end.host, end.direction): end.hook for end in ends if end.host != "w2"} == {
        ("srv", "to_server"): "egress", ("srv", "to_worker"): "ingress",
        ("w1", "to_server"): "ingress", ("w1", "to_worker"): "egress",
    }


@pytest.mark.parametrize(
    "event",
    [
        {"action": "delay", "latency": "20ms"},
        {"action": "reorder", "reorder": "25%", "latency": "1ms"},
        {"action": "corrupt", "corrupt": "1%"},
        {"action": "duplicate", "duplicate": "1%", "correlation": "5%"},
    ],
)
def test_without_netem_what_needs_it_is_refused_by_name(monkeypatch, event):
    monkeypatch.setattr(netem, "netem_problem", lambda: "qdisc kind is unknown")
    monkeypatch.setattr(bpf, "bpf_problem", lambda: None)
    events = events_of({}, event | {"loss": None})
    with pytest.raises(InjectorError, match=rf"events.1.action: '{event['action']}' needs netem \(kernel option"):
        choose_injector("auto", events)
    assert choose_injector("auto", events[:1]).name == "bpf"


def skip_unless_possible(name: str) -> None:
    problem = {"bpf": bpf.bpf_problem, "netem": netem.netem_problem}[name]()
    if problem:
        pytest.skip(f"injector {name}: {problem}")


@pytest.mark.root
@needs_root
@pytest.mark.parametrize("name", ["bpf", "netem"])
def test_injector_conforms_under_real_traffic(name):
    skip_unless_possible(name)
    run_private("star_script.py", "bursts", name)


@pytest.mark.root
@needs_root
@pytest.mark.parametrize("name", ["bpf", "netem"])
def test_nothing_is_left_of_a_killed_run(name):
    skip_unless_possible(name)
    with subprocess.Popen(private("star_script.py", "hang", name), stdout=subprocess.PIPE, text=True) as run:
        namespace = f"net:[{run.stdout.readline().strip()}]"
        assert namespace in namespaces()
        run.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 20
    while namespace in namespaces() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert namespace not in namespaces(), "processes of the killed run still hold its network"


def namespaces() -> set[str]:
    """Network namespaces that any process is in."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            found.add(os.readlink(process / "ns/net"))
        except OSError:
            continue  # it ended meanwhile
    return found


@pytest.mark.root
@needs_root
def test_an_interface_that_is_not_there_is_named():
    skip_unless_possible("bpf")
    with pytest.raises(InjectorError, match="bpf on s1-w9"):
        bpf.BpfInjector().prepare([LinkEnd("w9", "to_server", "s1-w9", "udp", "ingress")])
