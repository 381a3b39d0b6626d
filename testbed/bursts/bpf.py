"""Injector for kernels without netem: a BPF program on the switch port, through the bpf(2) system call alone.

The program hangs on the port's TCX hook (Linux 6.6; the kernel's Documentation/bpf and include/uapi/linux/bpf.h
define the numbers below). It runs before the queue, needs no qdisc, no compiler and no tc, and its link goes with the
file descriptor, so the death of this process ends it. Settings and counters stand in a memory-mapped array: a
change is in force for the next packet.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import socket
import struct
from collections.abc import Mapping, Sequence
from itertools import accumulate

from protocol.config import DATA_PORT_BASE, DATA_PORT_COUNT
from scenarios.events import DuplicateEvent, LinkImpairment, LossEvent, PartitionEvent
from testbed.bursts import IPPROTO_UDP, Counters, Injector, InjectorError, LinkEnd, LinkKey, is_complete_cut
from testbed.bursts.actions.loss import ALL_LOST, NO_LOSS, STATES, chain

SYSCALL_NUMBER = {"x86_64": 321, "aarch64": 280}

BPF_MAP_CREATE, BPF_PROG_LOAD, BPF_LINK_CREATE = 0, 5, 28
BPF_MAP_TYPE_ARRAY, BPF_F_MMAPABLE = 2, 1 << 10
BPF_PROG_TYPE_SCHED_CLS = 3
BPF_TCX = {"ingress": 46, "egress": 47}  # what the port receives, and what it sends
GET_PRANDOM_U32, CLONE_REDIRECT = 7, 13
BPF_F_INGRESS = 1
TCX_NEXT, TCX_DROP = -1, 2

# The map's one value, in u64 words: a head, and two banks of settings. Python fills the bank that is not in use and
# then stores its number, so that no packet ever meets half a change.
BANK, SEEN, DROPPED, DUPLICATED, HEAD = 0, 8, 16, 24, 32
CUT, DUPLICATE, CORRELATION, FRESH, STATE, LAST, STATES_AT = 0, 8, 16, 24, 32, 40, 48
# Of each state: probabilities to move to states below 1, 2 and 3, and of a loss; all in units of 2^-32.
BELOW, LOSS, STATE_SIZE = (0, 8, 16), 24, 32
BANK_SIZE = STATES_AT + STATES * STATE_SIZE
VALUE_SIZE = HEAD + 2 * BANK_SIZE
ONE = 1 << 32

ETHERTYPE_OFFSET, IP_OFFSET = 12, 14
ETHERTYPE_IPV4 = 0x0800
FRAGMENT_OFFSET_MASK = 0x1FFF
SKB_MARK = 8  # offset in struct __sk_buff
COPY = 0x0DB1  # mark of a duplicate on its way back to the hook, where it is not drawn for again

# Instructions, as (opcode, dst, src, offset or label, immediate); a str is a label.
Instruction = tuple[int, int, int, int | str, int]
JNE, JEQ, JLT, JGE, JGT = 0x55, 0x15, 0xA5, 0x35, 0x25
JUMP_BELOW, JUMP_NOT_BELOW = 0xAD, 0x3D  # two registers
LOAD64, STORE64, ADD64, LOAD32, STORE32 = 0x79, 0x7B, 0xDB, 0x61, 0x63
SET, COPY_REGISTER, ADD, MULTIPLY, MULTIPLY_BY, AND, SHIFT_LEFT, SHIFT_RIGHT = (
    0xB7, 0xBF, 0x0F, 0x2F, 0x27, 0x57, 0x67, 0x77
)


def _load(size: int, offset: int) -> Instruction:
    """r0 = packet[offset], in host order; LD_ABS. A packet that is too short leaves the program and passes."""
    return (0x20 | {1: 0x10, 2: 0x08}[size], 0, 0, 0, offset)


def _match(protocol: str) -> list[Instruction | str]:
    """Go to `pass` unless the packet is one that the link's events hit."""
    code: list[Instruction | str] = [_load(2, ETHERTYPE_OFFSET), (JNE, 0, 0, "pass", ETHERTYPE_IPV4)]
    if protocol == "udp":
        code += [
            _load(1, IP_OFFSET + 9),
            (JNE, 0, 0, "pass", IPPROTO_UDP),
            _load(2, IP_OFFSET + 6),
            (AND, 0, 0, 0, FRAGMENT_OFFSET_MASK),
            (JNE, 0, 0, "pass", 0),  # later fragments hold no ports
            _load(1, IP_OFFSET),
            (AND, 0, 0, 0, 0x0F),
            (SHIFT_LEFT, 0, 0, 0, 2),
            (COPY_REGISTER, 7, 0, 0, 0),  # r7 = length of the IP header
            (0x48, 0, 7, 0, IP_OFFSET + 2),  # r0 = destination port; LD_IND
            (JLT, 0, 0, "pass", DATA_PORT_BASE),
            (JGT, 0, 0, "pass", DATA_PORT_BASE + DATA_PORT_COUNT - 1),
        ]
    return code


def _count(offset: int) -> list[Instruction | str]:
    return [(SET, 1, 0, 0, 1), (ADD64, 8, 1, offset, 0)]


def _state() -> list[Instruction | str]:
    """r7 = what precedes the current state by STATES_AT."""
    return [
        (LOAD64, 1, 9, HEAD + STATE, 0),
        (AND, 1, 0, 0, STATES - 1),
        (MULTIPLY_BY, 1, 0, 0, STATE_SIZE),
        (COPY_REGISTER, 7, 9, 0, 0),
        (ADD, 7, 1, 0, 0),
    ]


def program(protocol: str, map_fd: int, interface_index: int, hook: str) -> bytes:
    """The instructions for 'udp' or 'all' over the map of `map_fd` (a pure function of its arguments).

    r6 is the context, where LD_ABS expects it, r8 the map's value, r9 the bank less HEAD. Processors that run it at
    the same time may move one chain in a race, which can repeat a step, never leave the chain's states.
    """
    at = HEAD + STATES_AT
    drop = [*_count(DROPPED), (SET, 0, 0, 0, TCX_DROP), (0x95, 0, 0, 0, 0)]
    code: list[Instruction | str] = [
        (COPY_REGISTER, 6, 1, 0, 0),
        (0x18, 8, 2, 0, map_fd),  # r8 = address of the map's value; two slots
        (0x00, 0, 0, 0, 0),
        (LOAD64, 1, 8, BANK, 0),
        (AND, 1, 0, 0, 1),
        (MULTIPLY_BY, 1, 0, 0, BANK_SIZE),
        (COPY_REGISTER, 9, 8, 0, 0),
        (ADD, 9, 1, 0, 0),
        (LOAD32, 1, 6, SKB_MARK, 0),
        (JNE, 1, 0, "original", COPY),
        (SET, 1, 0, 0, 0),
        (STORE32, 6, 1, SKB_MARK, 0),
        (0x05, 0, 0, "pass", 0),
        "original",
        (LOAD64, 1, 9, HEAD + CUT, 0),
        (JEQ, 1, 0, "connected", 0),
        *_count(SEEN),
        *drop,
        "connected",
        *_match(protocol),
        *_count(SEEN),
        # The chain moves.
        *_state(),
        (0x85, 0, 0, 0, GET_PRANDOM_U32),
        *(
            step
            for state, below in enumerate(BELOW)
            for step in (
                (SET, 2, 0, 0, state),
                (LOAD64, 3, 7, at + below, 0),
                (JUMP_BELOW, 0, 3, "moved", 0),
            )
        ),
        (SET, 2, 0, 0, STATES - 1),
        "moved",
        (STORE64, 9, 2, HEAD + STATE, 0),
        # A draw, mixed with the last one: (fresh * u + correlation * last) / 2^32, as get_crandom() of sch_netem.
        (0x85, 0, 0, 0, GET_PRANDOM_U32),
        (LOAD64, 1, 9, HEAD + FRESH, 0),
        (MULTIPLY, 0, 1, 0, 0),
        (LOAD64, 2, 9, HEAD + LAST, 0),
        (LOAD64, 3, 9, HEAD + CORRELATION, 0),
        (MULTIPLY, 2, 3, 0, 0),
        (ADD, 0, 2, 0, 0),
        (SHIFT_RIGHT, 0, 0, 0, 32),
        (STORE64, 9, 0, HEAD + LAST, 0),
        *_state(),
        (LOAD64, 3, 7, at + LOSS, 0),
        (JUMP_NOT_BELOW, 0, 3, "stays", 0),
        *drop,
        "stays",
        (LOAD64, 7, 9, HEAD + DUPLICATE, 0),
        (JEQ, 7, 0, "pass", 0),
        (0x85, 0, 0, 0, GET_PRANDOM_U32),
        (JUMP_NOT_BELOW, 0, 7, "pass", 0),
        *_count(DUPLICATED),
        (SET, 1, 0, 0, COPY),
        (STORE32, 6, 1, SKB_MARK, 0),
        (COPY_REGISTER, 1, 6, 0, 0),
        (SET, 2, 0, 0, interface_index),
        (SET, 3, 0, 0, BPF_F_INGRESS if hook == "ingress" else 0),
        (0x85, 0, 0, 0, CLONE_REDIRECT),
        (SET, 1, 0, 0, 0),
        (STORE32, 6, 1, SKB_MARK, 0),
        "pass",
        (SET, 0, 0, 0, TCX_NEXT),
        (0x95, 0, 0, 0, 0),
    ]
    places: dict[str, int] = {}
    instructions: list[Instruction] = []
    for item in code:
        if isinstance(item, str):
            places[item] = len(instructions)
        else:
            instructions.append(item)
    return b"".join(
        struct.pack("<BBhi", op, dst | src << 4, places[to] - here - 1 if isinstance(to, str) else to, immediate)
        for here, (op, dst, src, to, immediate) in enumerate(instructions)
    )


def bank(events: Sequence[LinkImpairment]) -> dict[int, int]:
    """Offset in a bank -> value, for what is in force on a link (pure). The chain starts in its first state."""
    loss = NO_LOSS
    values = {CUT: 0, DUPLICATE: 0, STATE: 0, LAST: ONE // 2}
    for event in events:
        if isinstance(event, LossEvent):
            loss = chain(event)
        elif isinstance(event, DuplicateEvent):
            values[DUPLICATE] = round(event.duplicate * ONE)
    for event in events:
        if is_complete_cut(event):
            values[CUT] = 1
        elif isinstance(event, PartitionEvent):
            loss = ALL_LOST
    values[CORRELATION] = round(loss.correlation * ONE)
    values[FRESH] = ONE - values[CORRELATION]
    for state, (moves, lost) in enumerate(zip(loss.moves, loss.losses, strict=True)):
        place = STATES_AT + state * STATE_SIZE
        for offset, share in zip(BELOW, accumulate(moves), strict=False):
            values[place + offset] = round(share * ONE)
        values[place + LOSS] = round(lost * ONE)
    return values


class _Hook:
    """One program with its map on one hook of one interface."""

    def __init__(self, interface: str, hook: str, protocol: str) -> None:
        self._fds: list[int] = []
        try:
            attributes = struct.pack("<5I", BPF_MAP_TYPE_ARRAY, 4, VALUE_SIZE, 1, BPF_F_MMAPABLE)
            map_fd = self._open(BPF_MAP_CREATE, attributes)
            self._value = mmap.mmap(map_fd, mmap.PAGESIZE)
            self.set([])
            index = socket.if_nametoindex(interface)
            code = program(protocol, map_fd, index, hook)
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
            self._open(BPF_LINK_CREATE, struct.pack("<IIII", program_fd, index, BPF_TCX[hook], 0))
        except OSError:
            self.close()
            raise

    def _open(self, command: int, attributes: bytes) -> int:
        fd = _bpf(command, attributes)
        self._fds.append(fd)
        return fd

    def _word(self, offset: int) -> ctypes.c_uint64:
        return ctypes.c_uint64.from_buffer(self._value, offset)  # aligned: loads and stores are atomic

    def set(self, events: Sequence[LinkImpairment]) -> None:
        other = 1 - self._word(BANK).value
        for offset, value in bank(events).items():
            self._word(HEAD + other * BANK_SIZE + offset).value = value
        self._word(BANK).value = other

    def counters(self) -> Counters:
        # Dropped first: a packet counted between the two reads then never makes dropped exceed seen.
        dropped = self._word(DROPPED).value
        return Counters(self._word(SEEN).value, dropped)

    def close(self) -> None:
        while self._fds:
            os.close(self._fds.pop())  # the link was opened last and goes first


class BpfInjector(Injector):
    """See :class:`testbed.bursts.Injector`."""

    name = "bpf"

    def __init__(self) -> None:
        self._hooks: dict[LinkKey, _Hook] = {}

    def prepare(self, links: Sequence[LinkEnd]) -> None:
        for end in links:
            try:
                self._hooks[end.key] = _Hook(end.interface, end.hook, end.protocol)
            except OSError as error:
                self.close()
                raise InjectorError(f"bpf on {end.interface}: {_explain(error)}") from error

    def set(self, changes: Mapping[LinkKey, Sequence[LinkImpairment]]) -> None:
        for host, direction in changes:
            if (host, direction) not in self._hooks:
                raise InjectorError(f"events on {host} {direction}: this link was not prepared")
        for key, events in changes.items():
            self._hooks[key].set(events)

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
        _Hook("lo", "ingress", "udp").close()
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
