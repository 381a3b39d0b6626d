"""What a scenario says of a transport reaches the protocol package."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import get_args

import pytest

from protocol import Polling, TransportConfig
from protocol.aggregate import AGGREGATES
from protocol.config import BROADCASTS
from protocol.order import ORDERS
from scenarios import Scenario, ScenarioError, load
from scenarios.transports import BoundedLoss
from testbed.transport import tolerance_schedule, transport_config


def settings(*overrides: str) -> TransportConfig:
    """The settings of `examples/demo` with overrides, by way of run.json."""
    scenario = load("demo", overrides=[f"transports.dblp.{override}" for override in overrides])
    stored = json.loads(json.dumps(scenario.model_dump(mode="json")))
    return transport_config(Scenario.from_resolved(stored), "dblp", 0, "")


def test_the_default_sender_does_not_poll() -> None:
    assert settings().polling is None


def test_a_polling_sender() -> None:
    assert settings("sender={poll_every: 100, poll_wait: 1ms}").polling == Polling(100, 0.001)


@pytest.mark.parametrize(
    ("field", "names"), [("order", ORDERS), ("aggregate", AGGREGATES), ("broadcast", BROADCASTS)]
)
def test_scenarios_know_what_the_protocol_knows(field: str, names: Iterable[str]) -> None:
    assert get_args(BoundedLoss.model_fields[field].annotation) == tuple(names)
    assert getattr(settings(), field) == getattr(TransportConfig(), field) == next(iter(names))
    for name in names:
        assert getattr(settings(f"{field}={name}"), field) == name


def test_one_pass_of_udp_has_no_repair_and_is_paced_as_asked() -> None:
    scenario = load("demo", overrides=["transports.udp={kind: udp, pacing: {fixed: 5mbit}}"])
    config = transport_config(scenario, "udp", 0, "")
    assert (config.repair, config.pacing, config.fixed_rate) == ("none", "fixed", 5e6)
    assert settings().repair == "per_pass"
    assert tolerance_schedule(scenario, "udp", 1).tolerance == 0


def test_error_feedback() -> None:
    assert not settings().error_feedback
    assert settings("error_feedback=true").error_feedback


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("sender={poll_every: 0, poll_wait: 1ms}", "greater than or equal to 1"),
        ("sender={poll_every: 100, poll_wait: 1}", "1 has no unit; write a time such as '20ms'"),
        ("sender={poll_every: 100}", "poll_wait"),
        ("order=by_size", "'by_size' is not 'sequential', 'rotating' or 'by_norm'"),
        ("error_feedback=1", "error_feedback"),
    ],
)
def test_bad_settings_are_named(override: str, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        settings(override)
