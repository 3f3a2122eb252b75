"""Byte counters of closed sockets, by BPF: a dump does not show sockets that closed since the last one.

A *sock_ops* program runs when a connection accepted on the proxy's ports changes its state. It puts the counters of a
closing connection into a map, which this module drains.
"""

from __future__ import annotations

import logging
import socket
import struct
from collections.abc import Iterable, Iterator

from mptcp_common.kernel_error import KernelError
from mptcp_throttler.kernel.bpf import Bpf, ProgramConstants
from mptcp_throttler.mptcp.model import ClosedSocket, unmap
from mptcp_throttler.shaping.model import MAX_ENTRIES

log = logging.getLogger(__name__)

NAME = "mptcp_thr_meter"
_COOKIE, _CLOSED = struct.Struct("=Q"), struct.Struct("=QQI4s16sII")
"""Key and value of the map: struct closed in ``programs/mptcp_thr_meter.c``."""


class BpfSocketMeter:
    """Counters of sockets accepted on *listen_ports* and closed since this object was created."""

    def __init__(self, listen_ports: Iterable[int]) -> None:
        """Raises KernelError if kernel or privileges do not suffice."""
        self._bpf = Bpf()
        try:
            self._map = self._bpf.hash_map(NAME, _COOKIE.size, _CLOSED.size, MAX_ENTRIES)
            self._program = self._bpf.attach_sock_ops(NAME, ProgramConstants(listen_ports), {"closed": self._map})
        except BaseException:
            self._bpf.close()
            raise

    def closed(self) -> Iterator[ClosedSocket]:
        """Yield each socket once."""
        for key, value in self._bpf.drain(self._map):
            acked, received, family, remote4, remote6, remote_port, local_port = _CLOSED.unpack(value)
            remote = remote4 if family == socket.AF_INET else unmap(remote6)
            # Network byte order, in the lower or, on some kernels, the upper half of the word.
            port = socket.ntohs(remote_port & 0xFFFF or remote_port >> 16)
            yield ClosedSocket(_COOKIE.unpack(key)[0], (remote, port, local_port), acked, received)

    def check(self) -> list[str]:
        """Attach the program again if somebody detached it; return that as a text. Raises KernelError."""
        return self._bpf.put_right(self._program)

    def close(self) -> None:
        self._bpf.close()


def open_socket_meter(listen_ports: Iterable[int]) -> BpfSocketMeter | None:
    """Return the meter; log the reason and return None if this host does not support it."""
    try:
        return BpfSocketMeter(listen_ports)
    except KernelError as error:
        log.warning("%s; what a subflow carries after its last sample is not counted", error)
        return None
