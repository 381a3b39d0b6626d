"""Bytes on the wire, as docs/protocol.md states them: what every decoder and encoder is held against."""

from __future__ import annotations

import struct

# Example of section 3: a gradient of 135 floats 0.0, 1.0, ..., MTU 576, session 0xDEADBEEF, round 0x01020304.
GRADIENT = struct.pack("<135f", *range(135))
FRAMES = [
    bytes.fromhex("01 00 0214 deadbeef 01020304 00000000") + GRADIENT[:532],
    # Its length field says 8; it is padded to a whole frame.
    bytes.fromhex("01 00 0008 deadbeef 01020304 00000001") + GRADIENT[532:] + bytes(524),
]

# Control messages of section 4, whole: length of what follows, type, body.
CONTROL = {
    "Challenge": bytes.fromhex("00000012 01 01 000102030405060708090a0b0c0d0e0f"),
    "Hello": bytes.fromhex("000000c1 02") + (
        b'{"version": 1, "rank": 2, "name": "w3", "udp_port": 52354, "frame_bytes": 1472, "size_bytes": 4000, '
        b'"chunks": 3, "tensors": [["fc.weight", [10, 100], "float32"]], "nonce": "00ff", "mac": "ab"}'
    ),
    "Welcome": bytes.fromhex("00000096 03") + (
        b'{"version": 1, "session": 3735928559, "udp_port": 52226, "workers": 3, "share": 250000000.0, '
        b'"order": "by_norm", "error_feedback": true, "mac": "cd"}'
    ),
    "Round": bytes.fromhex("0000000e 04 00000007 3fe0000000000000 01"),
    "Probe": bytes.fromhex("00000009 05 fffffffe 00000003"),
    "Bitmap": bytes.fromhex("0000000b 06 00000007 00000002 a080"),
    "Progress": bytes.fromhex("00000011 07 00000007 00000002 000003e8 000004d2"),
    "Stop": bytes.fromhex("0000000f 08 00000007 00000005 00000006 ffc0"),
    "Error": bytes.fromhex("00000008 09") + "straße".encode(),
    "Bye": bytes.fromhex("00000001 0a"),
}
