"""Injector for kernels without netem: a BPF program on the switch port, through the bpf(2) system call alone.

The program hangs on the port's TCX hook (Linux 6.6; the kernel's Documentation/bpf and include/uapi/linux/bpf.h
define the numbers below). It runs before the queue, needs no qdisc, no compiler and no tc, and its link goes with the
file descriptor, so the death of this process ends it. Probability and counters stand in a memory-mapped
array: a change is one store, in force for the next packet.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import socket
import struct
from collections.abc import Sequence

from protocol.config import DATA_PORT_BASE, DATA_PORT_COUNT
from testbed.bursts import IPPROTO_UDP, Counters, InjectorError, LinkEnd, LinkKey, check_loss

SYSCALL_NUMBER = {"x86_64": 321, "aarch64": 280}

BPF_MAP_CREATE, BPF_PROG_LOAD, BPF_LINK_CREATE = 0, 5, 28
BPF_MAP_TYPE_ARRAY, BPF_F_MMAPABLE = 2, 1 << 10
BPF_PROG_TYPE_SCHED_CLS = 3
BPF_TCX = {"to_server": 46, "to_worker": 47}  # what the port receives: ingress; what it sends: egress
GET_PRANDOM_U32 = 7
TCX_NEXT, TCX_DROP = -1, 2

# The map's one value: three u64.
THRESHOLD, SEEN, DROPPED = 0, 8, 16
VALUE_SIZE = 24

ETHERTYPE_OFFSET, IP_OFFSET = 12, 14
ETHERTYPE_IPV4 = 0x0800
FRAGMENT_OFFSET_MASK = 0x1FFF

# Instructions, as (opcode, dst, src, offset, immediate). Jumps to the program's common end have offset None.
Instruction = tuple[int, int, int, int | None, int]


def _load(size: int, offset: int) -> Instruction:
    """r0 = packet[offset], in host order; LD_ABS. A packet that is too short leaves the program and passes."""
    return (0x20 | {1: 0x10, 2: 0x08}[size], 0, 0, 0, offset)


def _out_if(operator: int, immediate: int) -> Instruction:
    return (operator, 0, 0, None, immediate)


JNE, JLT, JGT = 0x55, 0xA5, 0x25


def program(protocol: str, map_fd: int) -> bytes:
    """The instructions for 'udp' or 'all' over the map of `map_fd` (a pure function of both)."""
    code: list[Instruction] = [
        (0xBF, 6, 1, 0, 0),  # r6 = context, where LD_ABS expects it
        _load(2, ETHERTYPE_OFFSET),
        _out_if(JNE, ETHERTYPE_IPV4),
    ]
    if protocol == "udp":
        code += [
            _load(1, IP_OFFSET + 9),
            _out_if(JNE, IPPROTO_UDP),
            _load(2, IP_OFFSET + 6),
            (0x57, 0, 0, 0, FRAGMENT_OFFSET_MASK),
            _out_if(JNE, 0),  # later fragments hold no ports
            _load(1, IP_OFFSET),
            (0x57, 0, 0, 0, 0x0F),
            (0x67, 0, 0, 0, 2),
            (0xBF, 7, 0, 0, 0),  # r7 = length of the IP header
            (0x48, 0, 7, 0, IP_OFFSET + 2),  # r0 = destination port; LD_IND
            _out_if(JLT, DATA_PORT_BASE),
            _out_if(JGT, DATA_PORT_BASE + DATA_PORT_COUNT - 1),
        ]
    code += [
        (0x85, 0, 0, 0, GET_PRANDOM_U32),
        (0x18, 1, 2, 0, map_fd),  # r1 = address of the map's value; two slots
        (0x00, 0, 0, 0, 0),
        (0xB7, 2, 0, 0, 1),
        (0xDB, 1, 2, SEEN, 0),  # atomic add
        (0x79, 3, 1, THRESHOLD, 0),
        (0x3D, 0, 3, None, 0),  # r0 >= r3: stays
        (0xDB, 1, 2, DROPPED, 0),
        (0xB7, 0, 0, 0, TCX_DROP),
        (0x95, 0, 0, 0, 0),
    ]
    end = len(code)
    code += [(0xB7, 0, 0, 0, TCX_NEXT), (0x95, 0, 0, 0, 0)]
    return b"".join(
        struct.pack("<BBhi", op, dst | src << 4, end - at - 1 if offset is None else offset, immediate)
        for at, (op, dst, src, offset, immediate) in enumerate(code)
    )


class _LossHook:
    """One program with its map on one hook of one interface."""

    def __init__(self, interface: str, direction: str, protocol: str) -> None:
        self._fds: list[int] = []
        try:
            attributes = struct.pack("<5I", BPF_MAP_TYPE_ARRAY, 4, VALUE_SIZE, 1, BPF_F_MMAPABLE)
            map_fd = self._open(BPF_MAP_CREATE, attributes)
            self._value = mmap.mmap(map_fd, mmap.PAGESIZE)
            code = program(protocol, map_fd)
            instructions = ctypes.create_string_buffer(code, len(code))
            licence = ctypes.create_string_buffer(b"GPL")
            log = ctypes.create_string_buffer(1 << 16)
            # fmt: off
            attributes = struct.pack(
                "<IIQQIIQ", BPF_PROG_TYPE_SCHED_CLS, len(code) // 8, ctypes.addressof(instructions),
                ctypes.addressof(licence), 1, len(log), ctypes.addressof(log),
            )
            # fmt: on
            try:
                program_fd = self._open(BPF_PROG_LOAD, attributes)
            except OSError as error:
                raise OSError(error.errno, f"{error.strerror} {log.value.decode()}".strip()) from None
            index = socket.if_nametoindex(interface)
            self._open(BPF_LINK_CREATE, struct.pack("<IIII", program_fd, index, BPF_TCX[direction], 0))
        except OSError:
            self.close()
            raise

    def _open(self, command: int, attributes: bytes) -> int:
        fd = _bpf(command, attributes)
        self._fds.append(fd)
        return fd

    def _word(self, offset: int) -> ctypes.c_uint64:
        return ctypes.c_uint64.from_buffer(self._value, offset)  # aligned: loads and stores are atomic

    def set_loss(self, probability: float) -> None:
        self._word(THRESHOLD).value = round(probability * 2**32)

    def counters(self) -> Counters:
        # Dropped first: a packet counted between the two reads then never makes dropped exceed seen.
        dropped = self._word(DROPPED).value
        return Counters(self._word(SEEN).value, dropped)

    def close(self) -> None:
        while self._fds:
            os.close(self._fds.pop())  # the link was opened last and goes first


class BpfInjector:
    """See :class:`testbed.bursts.Injector`."""

    name = "bpf"

    def __init__(self) -> None:
        self._hooks: dict[LinkKey, _LossHook] = {}

    def prepare(self, links: Sequence[LinkEnd]) -> None:
        for end in links:
            try:
                self._hooks[end.key] = _LossHook(end.interface, end.direction, end.protocol)
            except OSError as error:
                self.close()
                raise InjectorError(f"bpf on {end.interface}: {_explain(error)}") from error

    def set_loss(self, host: str, direction: str, probability: float) -> None:
        check_loss(self._hooks, host, direction, probability)
        self._hooks[host, direction].set_loss(probability)

    def counters(self) -> dict[LinkKey, Counters]:
        return {key: hook.counters() for key, hook in self._hooks.items()}

    def close(self) -> None:
        while self._hooks:
            self._hooks.popitem()[1].close()


def bpf_problem() -> str | None:
    """Why this kernel, user or processor cannot run the injector, or None.

    Hooks a program without loss onto the loopback device and takes it off again.
    """
    try:
        _LossHook("lo", "to_server", "udp").close()
    except OSError as error:
        return _explain(error)
    return None


def _bpf(command: int, attributes: bytes) -> int:
    number = SYSCALL_NUMBER.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, f"no system call number known for {platform.machine()}")
    size = 144  # of union bpf_attr; what we leave out is zero
    buffer = ctypes.create_string_buffer(attributes.ljust(size, b"\0"), size)
    libc = ctypes.CDLL(None, use_errno=True)
    result = libc.syscall(number, command, buffer, size)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def _explain(error: OSError) -> str:
    remedy = {
        errno.EPERM: "needs root (and kernel lockdown off)",
        errno.ENOSYS: f"needs CONFIG_BPF_SYSCALL, on {' or '.join(SYSCALL_NUMBER)}",
        errno.EINVAL: "needs Linux 6.6 with CONFIG_NET_XGRESS (the TCX hooks)",
        errno.ENODEV: "no such interface in this network namespace",
    }.get(error.errno or 0, "see bpf(2)")
    return f"{error.strerror or error}: {remedy}"
