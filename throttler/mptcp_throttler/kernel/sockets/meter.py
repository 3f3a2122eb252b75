"""What sockets carried until they closed, by BPF: no dump shows a socket that closed since the last one.

A program of the kind *sock_ops* asks for a call when a connection accepted on the proxy's ports changes its state, and
puts the counters of one that closes into a map, from which they are taken out.
"""

from __future__ import annotations

import logging
import socket
import struct
from collections.abc import Iterable, Iterator

from mptcp_throttler.kernel.bpf_code import (
    Register,
    add,
    call,
    copy,
    jump_unless,
    load_32,
    load_64,
    map_address,
    number,
    store_32,
    store_64,
)
from mptcp_throttler.kernel.ports import KernelError
from mptcp_throttler.kernel.sockets.sock_ops import CONTEXT, END, SOCKET_COOKIE, Calls, Lines, SockOps
from mptcp_throttler.mptcp.model import ClosedSocket, unmap

log = logging.getLogger(__name__)

NAME = "mptcp_thr_meter"
STATES = Calls(flag=1 << 2, operation=10)
_VALUE = struct.Struct("=QQI4s16sIHH8x")
_NEW_STATE, _FAMILY, _REMOTE_IP4, _REMOTE_IP6, _REMOTE_PORT, _LOCAL_PORT = 8, 20, 24, 32, 64, 68
_BYTES_RECEIVED, _BYTES_ACKED = 168, 176
"""Offsets in struct bpf_sock_ops (linux/bpf.h)."""
_TCP_CLOSE = 7
_MAP_UPDATE = 2
_FRAME_KEY, _FRAME_VALUE = -8, -8 - _VALUE.size


class BpfSocketMeter:
    """The counters of sockets that were accepted on *listen_ports* and have closed since."""

    def __init__(self, listen_ports: Iterable[int]) -> None:
        """Raises KernelError where the kernel, or what may be done in it, does not allow it."""
        self._program = SockOps(NAME, _VALUE, STATES, _body, listen_ports)

    def closed(self) -> Iterator[ClosedSocket]:
        """Yield each socket once."""
        for key, value in self._program.bpf.drain(self._program.map):
            acked, received, family, remote4, remote6, remote_port, local_port, _ = _VALUE.unpack(value)
            remote = remote4 if family == socket.AF_INET else unmap(remote6)
            # In network byte order, in the lower or, on some kernels, the upper half of the word.
            port = socket.ntohs(remote_port & 0xFFFF or remote_port >> 16)
            yield ClosedSocket(SockOps.key.unpack(key)[0], (remote, port, local_port), acked, received)

    def check(self) -> list[str]:
        """Put right what somebody did to the program; return it in words. Raises KernelError."""
        return self._program.check()

    def close(self) -> None:
        self._program.close()


def open_socket_meter(listen_ports: Iterable[int]) -> BpfSocketMeter | None:
    """Return the meter, or None, saying why, where this host does not have what it needs."""
    try:
        return BpfSocketMeter(listen_ports)
    except KernelError as error:
        log.warning("%s; what a subflow carries after its last sample is not counted", error)
        return None


def _body(descriptor: int) -> Lines:
    """Put the counters of a socket that closes into the map."""
    r = Register
    value = _FRAME_VALUE
    copies = [(_FAMILY, value + 16), (_REMOTE_IP4, value + 20)]
    copies += [(_REMOTE_IP6 + step, value + 24 + step) for step in range(0, 16, 4)]
    copies += [(_REMOTE_PORT, value + 40), (_LOCAL_PORT, value + 44)]
    lines: Lines = [
        load_32(r.R7, CONTEXT, _NEW_STATE),
        jump_unless(r.R7, _TCP_CLOSE, END),
        copy(r.R1, CONTEXT),
        call(SOCKET_COOKIE),
        store_64(r.R10, _FRAME_KEY, r.R0),
        load_64(r.R7, CONTEXT, _BYTES_ACKED),
        store_64(r.R10, value, r.R7),
        load_64(r.R7, CONTEXT, _BYTES_RECEIVED),
        store_64(r.R10, value + 8, r.R7),
    ]
    for source, target in copies:
        lines += [load_32(r.R7, CONTEXT, source), store_32(r.R10, target, r.R7)]
    return [
        *lines,
        number(r.R7, 0),
        store_64(r.R10, value + 48, r.R7),
        map_address(r.R1, descriptor),
        copy(r.R2, r.R10),
        add(r.R2, _FRAME_KEY),
        copy(r.R3, r.R10),
        add(r.R3, value),
        number(r.R4, 0),
        call(_MAP_UPDATE),
    ]
