"""The first synchronisation (paper, section IV-A), with authentication: CHALLENGE, HELLO, WELCOME over TCP.

Both sides prove that they know the job's secret: the MAC of HELLO covers both nonces, and so does that of WELCOME.
"""

from __future__ import annotations

import hmac
import math
import os
import secrets
import socket
import time
from collections.abc import Sequence
from dataclasses import replace

from protocol.config import TransportConfig
from protocol.errors import PeerLostError, RemoteProtocolError
from protocol.order import ORDERS
from protocol.sockets import tune_tcp
from protocol.wire import (
    NONCE_BYTES,
    VERSION,
    Challenge,
    ControlDecoder,
    Error,
    Hello,
    Message,
    Tensor,
    Welcome,
    authenticate,
    encode,
)

Address = tuple[str, int]
_RETRY = 0.1      # s between attempts to reach a server that is not up yet


def connect(address: Address, timeout: float) -> socket.socket:
    """A TCP connection to the server, tried for `timeout` s, since workers may start before it.

    Raises:
        PeerLostError: nobody listens there.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            return socket.create_connection(address, timeout=max(0.1, deadline - time.monotonic()))
        except OSError as error:
            if time.monotonic() >= deadline:
                raise PeerLostError(
                    "server", f"no server at {address[0]}:{address[1]} within {timeout:g} s ({error}); is it running?"
                ) from None
            time.sleep(_RETRY)


def introduce(
    tcp: socket.socket, config: TransportConfig, rank: int, name: str, udp_port: int, size_bytes: int,
    tensors: Sequence[Tensor],
) -> tuple[Welcome, ControlDecoder]:
    """The worker's side.

    Raises:
        RemoteProtocolError: the server speaks another version, does not know the secret, wants an order of chunks
            that is not known here, or refused and said why.
        PeerLostError: it did not answer within `timeouts.connect` (it answers once it has seen this worker's HELLO).
    """
    decoder = ControlDecoder()
    tune_tcp(tcp, config)
    challenge = _receive(tcp, decoder, Challenge, config.timeouts.connect, "the server")
    hello = Hello(
        version=VERSION, rank=rank, name=name, udp_port=udp_port, frame_bytes=config.frame_bytes, size_bytes=size_bytes,
        chunks=-(-size_bytes // config.chunk_bytes), nonce=secrets.token_hex(NONCE_BYTES),
        tensors=[(tensor.name, list(tensor.shape), tensor.dtype) for tensor in tensors],
    )
    nonces = challenge.nonce + bytes.fromhex(hello.nonce)
    tcp.sendall(encode(replace(hello, mac=authenticate(config.secret, "worker", nonces, hello))))
    welcome = _receive(tcp, decoder, Welcome, config.timeouts.connect, "the server")
    if not hmac.compare_digest(welcome.mac, authenticate(config.secret, "server", nonces, welcome)):
        raise RemoteProtocolError("the server does not know this job's secret")
    if welcome.order not in ORDERS:
        raise RemoteProtocolError(
            f"the server wants chunks in the order {welcome.order!r}; this worker knows {', '.join(ORDERS)}"
        )
    return welcome, decoder


def examine(tcp: socket.socket, config: TransportConfig) -> tuple[Hello, bytes, ControlDecoder]:
    """The server's side, first half: challenge a new connection and check what it answers.

    Returns:
        HELLO, both nonces (for `welcome`), and the decoder to go on with.

    Raises:
        RemoteProtocolError: other version, wrong secret, another MTU, or inconsistent sizes.
        PeerLostError: no answer within `timeouts.handshake`.
    """
    tune_tcp(tcp, config)
    decoder = ControlDecoder()
    nonce = os.urandom(NONCE_BYTES)
    tcp.settimeout(config.timeouts.handshake)
    tcp.sendall(encode(Challenge(VERSION, nonce)))
    hello = _receive(tcp, decoder, Hello, config.timeouts.handshake, "a worker")
    try:
        nonces = nonce + bytes.fromhex(hello.nonce)
        expected = authenticate(config.secret, "worker", nonces, hello)
        known = hmac.compare_digest(hello.mac, expected)
        if known:
            _check_sizes(hello, config)
    except (TypeError, ValueError, AttributeError) as error:
        raise RemoteProtocolError(f"malformed HELLO: {error}") from None
    if not known:
        raise RemoteProtocolError(f"{hello.name!r} does not know this job's secret")
    return hello, nonces, decoder


def _check_sizes(hello: Hello, config: TransportConfig) -> None:
    if hello.frame_bytes != config.frame_bytes:
        raise RemoteProtocolError(
            f"{hello.name} uses frames of {hello.frame_bytes} bytes, the server {config.frame_bytes}; "
            "set the same mtu on both"
        )
    if hello.size_bytes < 4 or hello.size_bytes % 4 or hello.chunks != -(-hello.size_bytes // config.chunk_bytes):
        raise RemoteProtocolError(f"{hello.name} announces {hello.size_bytes} bytes in {hello.chunks} chunks")
    if not 0 < hello.udp_port < 1 << 16:
        raise RemoteProtocolError(f"{hello.name} announces UDP port {hello.udp_port}")
    described = sum(math.prod(shape) for _, shape, _ in hello.tensors)
    if hello.tensors and 4 * described != hello.size_bytes:
        raise RemoteProtocolError(f"{hello.name} announces {hello.size_bytes} bytes, but tensors of {4 * described}")


def welcome(tcp: socket.socket, config: TransportConfig, nonces: bytes, message: Welcome) -> None:
    """The server's side, second half: admit the worker."""
    tcp.sendall(encode(replace(message, mac=authenticate(config.secret, "server", nonces, message))))


def refuse(tcp: socket.socket, reason: BaseException) -> None:
    """Tell a peer why it is turned away, as far as it listens, and close."""
    try:
        tcp.settimeout(1.0)
        tcp.sendall(encode(Error(str(reason))))
        tcp.shutdown(socket.SHUT_WR)
    except OSError:
        pass
    tcp.close()


def _receive(tcp: socket.socket, decoder: ControlDecoder, kind: type[Message], timeout: float, peer: str):
    deadline = time.monotonic() + timeout
    while True:
        try:
            tcp.settimeout(max(deadline - time.monotonic(), 0.001))
            data = tcp.recv(1 << 16)
            if time.monotonic() > deadline:      # it dribbles
                raise TimeoutError
        except TimeoutError:
            raise PeerLostError(peer, f"{peer} did not send {kind.__name__.upper()} within {timeout:g} s") from None
        except OSError as error:
            raise PeerLostError(peer, f"{peer} broke the handshake off: {error.strerror}") from None
        if not data:
            raise PeerLostError(peer, f"{peer} closed the connection during the handshake")
        decoder.feed(data)
        message = next(iter(decoder), None)
        if message is None:
            continue
        if isinstance(message, Error):
            raise RemoteProtocolError(f"{peer} refused: {message.text}")
        if not isinstance(message, kind):
            sent = type(message).__name__.upper()
            raise RemoteProtocolError(f"{peer} sent {sent} instead of {kind.__name__.upper()}")
        return message


