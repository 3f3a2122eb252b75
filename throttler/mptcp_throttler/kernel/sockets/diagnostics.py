"""Socket diagnostics: the MPTCP subflows that this host has now, all of them or those that are asked for. sock_diag(7).

This is how connections older than the daemon become known, and how bytes, rates and losses of a subflow are measured.
A dump reads thousands of sockets in pieces. Each has a netlink socket of its own, because a netlink socket carries one
dump at a time, look-ups come in between, and a dump may be left before its end.
"""

from __future__ import annotations

import errno
import sys
import time
from collections.abc import Iterable, Iterator, Sequence

from mptcp_common.kernel_error import KernelError
from mptcp_throttler.kernel.netlink import (
    NLM_F_DUMP,
    NLMSG_ERROR,
    NetlinkSocket,
    check_end,
    error_of,
    messages,
    raise_first,
    refusal,
)
from mptcp_throttler.kernel.sockets.inet_diag import (
    DUMP,
    NETLINK_SOCK_DIAG,
    SOCK_DESTROY,
    SOCK_DIAG_BY_FAMILY,
    Decoder,
    destroy_request,
    details,
    dump_request,
    exact_request,
)
from mptcp_throttler.mptcp.model import FourTuple, KernelSubflow, SocketDetails

_BATCH = 64
"""Look-ups sent before their answers are read: the receive buffer must hold that many."""
_SEQUENCE = slice(8, 12)
"""Of the header."""
_DUMP, _LOOK_UP, _CLOSE = "list TCP sockets", "look up TCP sockets", "close TCP sockets (CONFIG_INET_DIAG_DESTROY)"


class SocketDiagnostics:
    """Dumps and look-ups of the namespace it is made in."""

    def __init__(self, listen_ports: Iterable[int]) -> None:
        self._ports = tuple(listen_ports)
        self._look_ups = NetlinkSocket(NETLINK_SOCK_DIAG)
        self._decoder = Decoder()

    def close(self) -> None:
        self._look_ups.close()

    def look_up(self, four_tuples: Sequence[FourTuple]) -> dict[FourTuple, KernelSubflow]:
        """Return those of the subflows that there are. Raises KernelError if the question fails."""
        found, refused = self._look_up(four_tuples)
        raise_first(refused)
        return found

    def _look_up(
        self, four_tuples: Sequence[FourTuple]
    ) -> tuple[dict[FourTuple, KernelSubflow], dict[FourTuple, KernelError]]:
        """Return those of the subflows that there are, and those of which the kernel does not say it."""
        found: list[KernelSubflow] = []
        refused: dict[FourTuple, KernelError] = {}
        read = time.monotonic()
        for four_tuple, data, sequence in self._answers(four_tuples):
            other = self._decoder.decode(data, sequence, SOCK_DIAG_BY_FAMILY, found, read)
            if other is not None and error_of(other[1]) != errno.ENOENT:
                refused[four_tuple] = refusal(other[1], _LOOK_UP)
        # The kernel answers for a socket that is gone with the one that listens.
        asked = set(four_tuples)
        return {each.four_tuple: each for each in found if each.four_tuple in asked}, refused

    def details(self, four_tuples: Sequence[FourTuple]) -> dict[FourTuple, SocketDetails]:
        """Return what samples leave out of those sockets that there are. Raises KernelError if the question fails."""
        found: dict[FourTuple, SocketDetails] = {}
        refused: list[KernelError] = []
        for four_tuple, data, _ in self._answers(four_tuples):
            for kind, _, _, _, body in messages(data):
                if kind == NLMSG_ERROR and error_of(body) != errno.ENOENT:
                    refused.append(refusal(body, _LOOK_UP))
                elif kind == SOCK_DIAG_BY_FAMILY and (each := details(body)) is not None and each[0] == four_tuple:
                    found[four_tuple] = each[1]
        if refused:
            raise refused.pop(0)
        return found

    def close_sockets(self, four_tuples: Sequence[FourTuple]) -> dict[FourTuple, str]:
        """Have the kernel close those of the subflows that there are, which resets them at both ends.

        Whatever fails, the others are tried. Return those that were not closed, or perhaps were not, with the reason.
        """
        stayed: dict[FourTuple, str] = {}
        for start in range(0, len(four_tuples), _BATCH):
            batch = four_tuples[start : start + _BATCH]
            try:
                stayed |= self._close(batch)
            except KernelError as error:
                stayed |= dict.fromkeys(batch, str(error))
                if isinstance(error.__cause__, TimeoutError):
                    # Each batch would wait as long, and the event loop with it.
                    return stayed | dict.fromkeys(four_tuples[start:], str(error))
        return stayed

    def _close(self, four_tuples: Sequence[FourTuple]) -> dict[FourTuple, str]:
        """Close one batch; return those that were not closed. Raises KernelError where that is not known of any."""
        found, unknown = self._look_up(four_tuples)
        there = list(found.values())
        requests = [(SOCK_DESTROY, 0, destroy_request(each.four_tuple, each.cookie)) for each in there]
        refused = self._look_ups.refused(requests, _CLOSE, ignore=(errno.ENOENT,))
        stayed = unknown | {there[place].four_tuple: error for place, error in refused.items()}
        return {four_tuple: str(error) for four_tuple, error in stayed.items()}

    def _answers(self, four_tuples: Sequence[FourTuple]) -> Iterator[tuple[FourTuple, bytes, int]]:
        """Ask for sockets; yield of each whom it is about, the datagram of its answer, and that one's sequence number.

        Raises KernelError where the answers cannot be read.
        """
        for start in range(0, len(four_tuples), _BATCH):
            asked = four_tuples[start : start + _BATCH]
            first = self._look_ups.send([(SOCK_DIAG_BY_FAMILY, 0, exact_request(each)) for each in asked], _LOOK_UP)
            waiting = len(asked)
            while waiting:
                data = self._look_ups.receive(_LOOK_UP)  # one message: each answer comes by itself
                sequence = int.from_bytes(data[_SEQUENCE], sys.byteorder)
                place = (sequence - first) % (1 << 32)
                if place < len(asked):
                    waiting -= 1
                    yield asked[place], data, sequence

    def subflows(self) -> Iterator[KernelSubflow]:
        """Yield every established MPTCP subflow of our listening ports. Raises KernelError if the dump fails."""
        for piece in self.pieces():
            yield from piece

    def pieces(self) -> Iterator[list[KernelSubflow]]:
        """Do as :meth:`subflows`, one list for each datagram of the kernel's, some 60 subflows.

        It may be left at any point. Raises KernelError if the dump fails.
        """
        self._decoder.begin_sweep()
        with NetlinkSocket(NETLINK_SOCK_DIAG) as netlink:
            filled, end = time.monotonic(), None
            sequence = netlink.send([(DUMP, NLM_F_DUMP, dump_request(self._ports))], _DUMP)
            while end is None:
                data = netlink.receive(_DUMP)
                # The kernel writes a datagram as the one before it is received.
                read, filled = filled, time.monotonic()
                piece: list[KernelSubflow] = []
                end = self._decoder.decode(data, sequence, DUMP, piece, read)
                if end is not None:
                    check_end(end[1], _DUMP)
                yield piece
        self._decoder.end_sweep()
