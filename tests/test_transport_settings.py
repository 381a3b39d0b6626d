"""What a scenario says of a transport reaches the protocol package."""

from __future__ import annotations

import json

import pytest

from protocol import Polling, TransportConfig
from scenarios import Scenario, ScenarioError, load
from testbed.transport import transport_config


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
    ("override", "message"),
    [
        ("sender={poll_every: 0, poll_wait: 1ms}", "greater than or equal to 1"),
        ("sender={poll_every: 100, poll_wait: 1}", "1 has no unit; write a time such as '20ms'"),
        ("sender={poll_every: 100}", "poll_wait"),
    ],
)
def test_bad_settings_are_named(override: str, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        settings(override)
