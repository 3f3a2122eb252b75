"""Socket diagnostics: dumps and look-ups of this host's current MPTCP subflows. sock_diag(7).

They find connections older than the daemon, and measure bytes, rates and losses of subflows. Each dump has its own
netlink socket, because a socket carries one dump at a time, look-ups happen during it, and the caller may abandon it.
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
"""Look-ups sent before their answers are read: the receive buffer must hold all answers."""
_SEQUENCE = slice(8, 12)
_DUMP, _LOOK_UP, _CLOSE = "list TCP sockets", "look up TCP sockets", "close TCP sockets (CONFIG_INET_DIAG_DESTROY)"


class SocketDiagnostics:
    """Dumps and look-ups in the network namespace in which it is created."""

    def __init__(self, listen_ports: Iterable[int]) -> None:
        self._ports = tuple(listen_ports)
        self._look_ups = NetlinkSocket(NETLINK_SOCK_DIAG)
        self._decoder = Decoder()

    def close(self) -> None:
        self._look_ups.close()

    def look_up(self, four_tuples: Sequence[FourTuple]) -> dict[FourTuple, KernelSubflow]:
        """Return the subflows that exist. Raises KernelError if the request fails."""
        found, refused = self._look_up(four_tuples)
        raise_first(refused)
        return found

    def _look_up(
        self, four_tuples: Sequence[FourTuple]
    ) -> tuple[dict[FourTuple, KernelSubflow], dict[FourTuple, KernelError]]:
        """Return the subflows that exist, and the errors for those whose state is unknown."""
        found: list[KernelSubflow] = []
        refused: dict[FourTuple, KernelError] = {}
        read = time.monotonic()
        for four_tuple, data, sequence in self._answers(four_tuples):
            other = self._decoder.decode(data, sequence, SOCK_DIAG_BY_FAMILY, found, read)
            if other is not None and error_of(other[1]) != errno.ENOENT:
                refused[four_tuple] = refusal(other[1], _LOOK_UP)
        # For a closed socket the kernel returns the listening one.
        asked = set(four_tuples)
        return {each.four_tuple: each for each in found if each.four_tuple in asked}, refused

    def details(self, four_tuples: Sequence[FourTuple]) -> dict[FourTuple, SocketDetails]:
        """Return the values that samples omit, for the sockets that exist. Raises KernelError if the request fails."""
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
        """Close the subflows that exist, by a reset at both ends; return those perhaps still open, with the reason."""
        stayed: dict[FourTuple, str] = {}
        for start in range(0, len(four_tuples), _BATCH):
            batch = four_tuples[start : start + _BATCH]
            try:
                stayed |= self._close(batch)
            except KernelError as error:
                stayed |= dict.fromkeys(batch, str(error))
                if isinstance(error.__cause__, TimeoutError):
                    # Each batch would block the event loop as long.
                    return stayed | dict.fromkeys(four_tuples[start:], str(error))
        return stayed

    def _close(self, four_tuples: Sequence[FourTuple]) -> dict[FourTuple, str]:
        """Close one batch; return the subflows not closed. Raises KernelError if no outcome is known."""
        found, unknown = self._look_up(four_tuples)
        there = list(found.values())
        requests = [(SOCK_DESTROY, 0, destroy_request(each.four_tuple, each.cookie)) for each in there]
        refused = self._look_ups.refused(requests, _CLOSE, ignore=(errno.ENOENT,))
        stayed = unknown | {there[place].four_tuple: error for place, error in refused.items()}
        return {four_tuple: str(error) for four_tuple, error in stayed.items()}

    def _answers(self, four_tuples: Sequence[FourTuple]) -> Iterator[tuple[FourTuple, bytes, int]]:
        """Request sockets; yield four-tuple, answer datagram and its sequence number for each. Raises KernelError."""
        for start in range(0, len(four_tuples), _BATCH):
            asked = four_tuples[start : start + _BATCH]
            first = self._look_ups.send([(SOCK_DIAG_BY_FAMILY, 0, exact_request(each)) for each in asked], _LOOK_UP)
            waiting = len(asked)
            while waiting:
                data = self._look_ups.receive(_LOOK_UP)  # one message: each answer has its own datagram
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
        """Yield one list per datagram, about 60 subflows; the caller may stop early. Raises KernelError on failure."""
        self._decoder.begin_sweep()
        with NetlinkSocket(NETLINK_SOCK_DIAG) as netlink:
            filled, end = time.monotonic(), None
            sequence = netlink.send([(DUMP, NLM_F_DUMP, dump_request(self._ports))], _DUMP)
            while end is None:
                data = netlink.receive(_DUMP)
                # The kernel fills a datagram when the previous one is received.
                read, filled = filled, time.monotonic()
                piece: list[KernelSubflow] = []
                end = self._decoder.decode(data, sequence, DUMP, piece, read)
                if end is not None:
                    check_end(end[1], _DUMP)
                yield piece
        self._decoder.end_sweep()
