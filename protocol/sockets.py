"""Sockets as the transport wants them."""

from __future__ import annotations

import contextlib
import errno
import socket

from protocol.config import TransportConfig
from protocol.errors import LocalProtocolError, PortInUseError

IP_MTU_DISCOVER, IP_PMTUDISC_DO = 10, 2      # linux/in.h: set DF, never fragment
SO_RCVBUFFORCE = 33      # asm-generic/socket.h: beyond rmem_max, for root


def open_udp(config: TransportConfig, host: str, port: int) -> socket.socket:
    """A bound, non-blocking UDP socket with the buffers of `config` and DF set.

    Raises:
        PortInUseError: the port is taken.
    """
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, config.send_buffer)
    try:
        sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, config.receive_buffer)
    except OSError:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, config.receive_buffer)
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO)
    try:
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise _bind_error(error, "UDP", host, port, "data_port_base") from None
    return sock


def listen_tcp(host: str, port: int) -> socket.socket:
    """A listening TCP socket.

    Raises:
        PortInUseError: the port is taken.
    """
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
        sock.listen()
    except OSError as error:
        sock.close()
        raise _bind_error(error, "TCP", host, port, "port for the server") from None
    return sock


def _bind_error(error: OSError, kind: str, host: str, port: int, setting: str) -> LocalProtocolError:
    if error.errno == errno.EADDRINUSE:
        return PortInUseError(
            f"{kind} port {port} on {host} is in use; end the program that holds it "
            f"(ss -lunpt 'sport = :{port}' names it) or choose another {setting}"
        )
    return LocalProtocolError(f"cannot bind {kind} port {port} on {host}: {error.strerror}")


def tune_tcp(sock: socket.socket, config: TransportConfig) -> None:
    """No Nagle delay (control messages are small and urgent), and keepalive that finds a dead host (tcp(7))."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, round(config.timeouts.keepalive)))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        milliseconds = round(1000 * (config.timeouts.keepalive + 3))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
