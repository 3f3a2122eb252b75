"""A BPF program of the kind *sock_ops* for the sockets that the proxy accepts, and its map: pacing and metering alike.

The program asks for calls of one kind when a connection is accepted on the proxy's ports in this network namespace, and
at each of them runs a body. Only sockets that were accepted while it ran ask. It goes with the process.
"""

from __future__ import annotations

import functools
import operator
import socket
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from mptcp_throttler.kernel.bpf import Bpf
from mptcp_throttler.kernel.bpf_code import (
    Instruction,
    Register,
    add,
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
    load_64,
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
_ITERATOR_SOCKET = 8
"""Offset in struct bpf_iter__tcp."""
_TO_TCP_SOCKET = 137
_OP, _LOCAL_PORT, _CALLBACK_FLAGS = 0, 68, 84
_PASSIVE_ESTABLISHED = 5
_SET_CALLBACK_FLAGS, _NETNS_COOKIE = 59, 122
_SETSOCKOPT, _GETSOCKOPT = 49, 57
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
        self,
        name: str,
        value: struct.Struct,
        calls: Calls,
        body: Callable[[int], Lines],
        listen_ports: Iterable[int],
        on_accept: Callable[[Bpf], Lines] = lambda _: [],
        *,
        others: Mapping[Calls, Lines] = MappingProxyType({}),
    ) -> None:
        """*body* is given the map's descriptor; what *on_accept* returns is run for each accepted socket, and *others*
        at calls of other kinds.

        Raises KernelError where the kernel, or our rights, forbid it.
        """
        self.bpf = Bpf()
        try:
            self.map = self.bpf.hash_map(name, self.key.size, value.size, MAX_ENTRIES)
            accepted = on_accept(self.bpf)
            lines = program(calls, body(self.map.descriptor), _namespace_cookie(), listen_ports, accepted, others)
            self.program = self.bpf.attach_sock_ops(name, assemble(lines))
        except BaseException:
            self.bpf.close()
            raise

    def check(self) -> list[str]:
        """Attach the program again where somebody detached it; return that in words. Raises KernelError."""
        if self.bpf.is_attached(self.program):
            return []
        self.bpf.attach_again(self.program)
        return [f"the BPF program {self.program.name} was detached"]

    def close(self) -> None:
        self.bpf.close()


def on_every_socket(body: Lines) -> Lines:
    """Return the program that runs *body* for a socket of the kernel's iterator, which is then what CONTEXT holds."""
    r = Register
    return [
        load_64(r.R1, r.R1, _ITERATOR_SOCKET),
        jump_if(r.R1, 0, END),
        call(_TO_TCP_SOCKET),
        jump_if(r.R0, 0, END),
        copy(CONTEXT, r.R0),
        *body,
        END,
        number(r.R0, 0),
        leave(),
    ]


def program(
    calls: Calls,
    body: Lines,
    namespace: int,
    listen_ports: Iterable[int],
    on_accept: Iterable[Instruction | str] = (),
    others: Mapping[Calls, Lines] = MappingProxyType({}),
) -> Lines:
    """Return the program that runs *body* at *calls* of sockets accepted on *listen_ports* in a network namespace, and
    *others* at theirs.

    Without ports it does that for the sockets that ask for the call already, and nothing to those that are accepted.
    """
    r = Register
    ports = list(listen_ports)
    flags = functools.reduce(operator.or_, (each.flag for each in others), calls.flag)
    accepted: Lines = [
        jump_unless(r.R7, _PASSIVE_ESTABLISHED, END),
        load_32(r.R8, CONTEXT, _LOCAL_PORT),
        *(jump_if(r.R8, port, "accepted") for port in ports),
        jump(END),
        "accepted",
        copy(r.R1, CONTEXT),
        load_32(r.R2, CONTEXT, _CALLBACK_FLAGS),
        bits_or(r.R2, flags),
        call(_SET_CALLBACK_FLAGS),
        *on_accept,
    ]
    return [
        copy(CONTEXT, r.R1),
        call(_NETNS_COOKIE),
        number_64(r.R1, namespace),
        jump_unless_same(r.R0, r.R1, END),
        load_32(r.R7, CONTEXT, _OP),
        jump_if(r.R7, calls.operation, "called"),
        *(jump_if(r.R7, each.operation, f"called {each.operation}") for each in others),
        *(accepted if ports else ()),
        jump(END),
        *(line for each, lines in others.items() for line in (f"called {each.operation}", *lines, jump(END))),
        "called",
        *body,
        END,
        number(r.R0, 1),
        leave(),
    ]


def set_option(level: int, name: int, base: Register, offset: int, size: int = 4) -> list[Instruction]:
    """Set an option of *size* bytes, which is kept at *offset* of what *base* points to."""
    return _option(_SETSOCKOPT, level, name, base, offset, size)


def get_option(level: int, name: int, base: Register, offset: int, size: int = 4) -> list[Instruction]:
    """Get an option of *size* bytes into *offset* of what *base* points to."""
    return _option(_GETSOCKOPT, level, name, base, offset, size)


def _option(function: int, level: int, name: int, base: Register, offset: int, size: int) -> list[Instruction]:
    r = Register
    return [
        copy(r.R1, CONTEXT),
        number(r.R2, level),
        number(r.R3, name),
        copy(r.R4, base),
        add(r.R4, offset),
        number(r.R5, size),
        call(function),
    ]


def _namespace_cookie() -> int:
    """Return the kernel's number of this network namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            return int(_COOKIE.unpack(probe.getsockopt(_SOL_SOCKET, _SO_NETNS_COOKIE, _COOKIE.size))[0])
        except OSError as error:
            raise KernelError(f"ask for the network namespace's cookie: {error.strerror}") from error
