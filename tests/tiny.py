"""The smallest scenario that trains: a CNN of 34 frames on the 8x8 digits, as a file and as a model."""

from __future__ import annotations

from typing import Any

import yaml

from scenarios import Scenario

DOCUMENT = """\
name: tiny
topology: {workers: 3, link: {rate: 20mbit}}
workload:
  model: digits_cnn
  batch_size: 32
  iterations: 12
  iterations_per_epoch: 6
  optimizer: {lr: 0.1}
transports:
  dblp: {tolerance: {policy: phase_aware, low: 5%, high: 40.8%, eta: 0.5, frequency: 2}}
  mlt: {tolerance: {policy: fixed, p: 5%}}
"""
BURST = {"action": "loss", "loss": "70%", "duration": "1 iteration"}


def scenario(*events: dict[str, Any], **changes: Any) -> Scenario:
    """The scenario with these events, each of 70 % for one iteration unless it says otherwise."""
    return Scenario.model_validate(yaml.safe_load(DOCUMENT) | {"events": [BURST | event for event in events]} | changes)
