"""The check of a GPU, as far as a CPU can tell."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from tiny import scenario

from testbed import gpucheck
from testbed.training import data


def test_steps_are_measured_on_real_data_with_the_gradient_on_the_host():
    workload = scenario().workload
    steps = gpucheck.measure_steps(workload, data.resolve(workload.datasets), steps=2)
    assert (steps.model, steps.batch_size, steps.parameters, steps.dataset) == ("digits_cnn", 32, 12_298, "digits")
    assert steps.compute_s > 0
    assert steps.apply_s > 0
    assert steps.memory is None


def test_a_data_set_that_is_not_there_is_not_downloaded(monkeypatch):
    monkeypatch.setattr(data, "locate", lambda name: None)
    monkeypatch.setattr(data, "resolve", lambda choices: pytest.fail("looked for it on the network"))
    assert gpucheck.dataset_at_hand(scenario().workload) is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_without_a_gpu_it_says_so_and_fails():
    done = subprocess.run([sys.executable, "-m", "testbed.gpucheck"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "no CUDA device; `--device cpu` runs a reduced form" in done.stderr.replace("\n", " ")
