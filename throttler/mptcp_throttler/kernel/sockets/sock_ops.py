"""A BPF program of the kind *sock_ops* for the sockets that the proxy accepts, and its map: pacing and metering alike.

The program asks for calls of one kind when a connection is accepted on the proxy's ports in this network namespace, and
at each of them runs a body. Only sockets that were accepted while it ran ask. It goes with the process.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from mptcp_throttler.kernel.bpf import (
    Bpf,
    Instruction,
    Register,
    assemble,
    bits_or,
    call,
    copy,
    jump,
    jump_if,
    jump_unless,
    jump_unless_same,
    leave,
    load_32,
    number,
    number_64,
)
from mptcp_throttler.kernel.ports import KernelError
from mptcp_throttler.shaping.model import MAX_ENTRIES

Lines = list[Instruction | str]
END = "end"
"""Where a body jumps that has nothing to do."""
CONTEXT = Register.R6
"""Holds the struct bpf_sock_ops (linux/bpf.h) in a body."""
SOCKET_COOKIE = 46
"""Number of the helper, for bodies."""
_OP, _LOCAL_PORT, _CALLBACK_FLAGS = 0, 68, 84
_PASSIVE_ESTABLISHED = 5
_SET_CALLBACK_FLAGS, _NETNS_COOKIE = 59, 122
_SOL_SOCKET, _SO_NETNS_COOKIE = 1, 71
_COOKIE = struct.Struct("=Q")


@dataclass(frozen=True, slots=True)
class Calls:
    """One kind of call: the flag that asks for it, and the operation by which it is known."""

    flag: int
    operation: int


class SockOps:
    """One program at work, with a hash map in which the cookies of sockets are keys."""

    key = _COOKIE

    def __init__(
        self, name: str, value: struct.Struct, calls: Calls, body: Callable[[int], Lines], listen_ports: Iterable[int]
    ) -> None:
        """*body* is given the map's descriptor. Raises KernelError where the kernel, or our rights, forbid it."""
        self.bpf = Bpf()
        try:
            self.map = self.bpf.hash_map(name, self.key.size, value.size, MAX_ENTRIES)
            lines = program(calls, body(self.map.descriptor), _namespace_cookie(), listen_ports)
            self.bpf.attach_sock_ops(name, assemble(lines))
        except BaseException:
            self.bpf.close()
            raise

    def close(self) -> None:
        self.bpf.close()


def program(calls: Calls, body: Lines, namespace: int, listen_ports: Iterable[int]) -> Lines:
    """Return the program that runs *body* at *calls* of sockets accepted on *listen_ports* in a network namespace."""
    r = Register
    return [
        copy(CONTEXT, r.R1),
        call(_NETNS_COOKIE),
        number_64(r.R1, namespace),
        jump_unless_same(r.R0, r.R1, END),
        load_32(r.R7, CONTEXT, _OP),
        jump_if(r.R7, calls.operation, "called"),
        jump_unless(r.R7, _PASSIVE_ESTABLISHED, END),
        load_32(r.R8, CONTEXT, _LOCAL_PORT),
        *(jump_if(r.R8, port, "accepted") for port in listen_ports),
        jump(END),
        "accepted",
        copy(r.R1, CONTEXT),
        load_32(r.R2, CONTEXT, _CALLBACK_FLAGS),
        bits_or(r.R2, calls.flag),
        call(_SET_CALLBACK_FLAGS),
        jump(END),
        "called",
        *body,
        END,
        number(r.R0, 1),
        leave(),
    ]


def _namespace_cookie() -> int:
    """Return the kernel's number of this network namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            return int(_COOKIE.unpack(probe.getsockopt(_SOL_SOCKET, _SO_NETNS_COOKIE, _COOKIE.size))[0])
        except OSError as error:
            raise KernelError(f"ask for the network namespace's cookie: {error.strerror}") from error
