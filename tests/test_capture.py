"""A tap's ring at its limit: every packet is in the file or counted as dropped."""

from __future__ import annotations

import json

import pytest
from private_net import needs_root, run_private

from testbed.capture import DATA_SNAPLEN


@pytest.mark.root
@needs_root
def test_a_full_ring_counts_what_it_drops_and_goes_on() -> None:
    said = json.loads(run_private("capture_script.py"))
    assert said["packets"] == 2 * 3000 + 4096
    assert said["records"] == 2 * 4096
    assert said["dropped"] == said["packets"] - said["records"]
    assert said["length"] == [200]
    assert said["captured"] == [DATA_SNAPLEN - 14 - 20 - 8]
