"""The settings of an endpoint."""

from __future__ import annotations

import pytest

from protocol import LocalProtocolError, TransportConfig


def test_both_sides_of_a_channel_have_ports_of_their_own_in_the_data_block() -> None:
    config = TransportConfig(data_port_base=52224)
    ports = [config.data_port(rank, of_worker) for rank in range(128) for of_worker in (False, True)]
    assert len(set(ports)) == 256
    assert (min(ports), max(ports)) == (52224, 52479)
    with pytest.raises(LocalProtocolError, match=r"rank 128 .*set data_port_base to 0"):
        config.data_port(128, of_worker=True)
    assert TransportConfig().data_port(128, of_worker=True) == 0


@pytest.mark.parametrize("mtu", [576, 1500, 9000])
def test_a_frame_fills_the_mtu_and_cuts_no_float(mtu: int) -> None:
    config = TransportConfig(mtu=mtu)
    assert config.chunk_bytes % 4 == 0
    assert mtu - 4 < config.frame_bytes + 28 <= mtu
