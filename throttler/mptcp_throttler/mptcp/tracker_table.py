"""The states of a subflow as a table: which signal leads from which state to which, and what is then announced.

The tracker turns segments, kernel events, dumps and the passing of time into signals; here is all it does with them.
A signal that the table does not list for a state changes nothing.

Sources: RFC 8684, 3.1-3.3 (handshakes, closing), 3.4.2 (REMOVE_ADDR), 3.5 (fast close); RFC 9293, 3.10.7.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

from mptcp_throttler.mptcp.model import EventKind, SubflowState


class Signal(enum.Enum):
    """What can happen to a subflow. The value is the text that people read."""

    __hash__ = object.__hash__

    SYN = "the client's SYN, with MP_CAPABLE or with MP_JOIN and a known token"
    SYN_ACK = "the proxy's SYN/ACK with the matching option"
    PLAIN_ANSWER = "the proxy's SYN/ACK without it: fallback to TCP"
    PROVEN = "third ACK with both keys, or with the right HMAC"
    UNCHECKED = "third ACK that cannot be checked: SYN/ACK or keys not seen"
    JOINED = "a join to its connection was proven"
    FIN = "FIN from one side"
    FINS = "FIN from the other side too"
    RST = "RST"
    REPLACED = "the proxy answers a new SYN on the same four-tuple"
    ABANDONED = "its connection closed: MP_FASTCLOSE with the right key, or the kernel's CLOSED"
    KERNEL_ESTABLISHED = "kernel event CREATED, ESTABLISHED or SUB_ESTABLISHED"
    KERNEL_CLOSED = "kernel event SUB_CLOSED"
    DUMPED = "present in a socket-diagnostics dump"
    NOT_DUMPED = "absent from a dump that is newer than its last state"
    EXPIRED = "too long in this state"


_S = SubflowState

_LIVE_ENDS: Final = {
    Signal.FINS: _S.CLOSED,
    Signal.RST: _S.CLOSED,
    Signal.REPLACED: _S.CLOSED,
    Signal.ABANDONED: _S.CLOSED,
    Signal.KERNEL_CLOSED: _S.CLOSED,
    Signal.NOT_DUMPED: _S.CLOSED,
    Signal.EXPIRED: _S.CLOSED,
}
_HALF_OPEN_ENDS: Final = {
    Signal.PLAIN_ANSWER: _S.CLOSED,
    Signal.RST: _S.CLOSED,
    Signal.REPLACED: _S.CLOSED,
    Signal.ABANDONED: _S.CLOSED,
    Signal.EXPIRED: _S.CLOSED,
    Signal.KERNEL_ESTABLISHED: _S.ACTIVE,
    Signal.DUMPED: _S.ACTIVE,
}

TRANSITIONS: Final[Mapping[SubflowState | None, Mapping[Signal, SubflowState]]] = {
    None: {
        Signal.SYN: _S.SYN,
        # Packets of one connection may pass by two interfaces and be read in either order.
        Signal.SYN_ACK: _S.SYN_ACK,
        Signal.KERNEL_ESTABLISHED: _S.ACTIVE,
        Signal.DUMPED: _S.ACTIVE,
    },
    _S.SYN: {
        **_HALF_OPEN_ENDS,
        Signal.SYN_ACK: _S.SYN_ACK,
        Signal.UNCHECKED: _S.UNPROVEN,
    },
    _S.SYN_ACK: {
        **_HALF_OPEN_ENDS,
        Signal.PROVEN: _S.ACTIVE,
        Signal.JOINED: _S.ACTIVE,
        Signal.UNCHECKED: _S.UNPROVEN,
        Signal.FIN: _S.CLOSED,
    },
    _S.UNPROVEN: {
        **_HALF_OPEN_ENDS,
        Signal.PROVEN: _S.ACTIVE,
        Signal.JOINED: _S.ACTIVE,
        Signal.FIN: _S.CLOSED,
        Signal.KERNEL_CLOSED: _S.CLOSED,
    },
    # REMOVE_ADDR is no signal: it carries no proof, and the RFC has its receiver try the path first.
    _S.ACTIVE: {
        **_LIVE_ENDS,
        Signal.FIN: _S.CLOSING,
    },
    # Packets alone bring a subflow here. What the kernel says afterwards holds, whatever FIN was seen on the wire: a
    # dump lists established sockets only, and an event that is read late is followed by that of the end.
    _S.CLOSING: {
        **_LIVE_ENDS,
        Signal.KERNEL_ESTABLISHED: _S.ACTIVE,
        Signal.DUMPED: _S.ACTIVE,
    },
    _S.CLOSED: {},
}

HALF_OPEN: Final = frozenset({_S.SYN, _S.SYN_ACK, _S.UNPROVEN})
LIVE: Final = frozenset({_S.ACTIVE, _S.CLOSING})

CONTRADICTIONS: Final = frozenset(
    {
        (_S.ACTIVE, Signal.NOT_DUMPED),
        (_S.CLOSING, Signal.DUMPED),
    }
)
"""Where state and signal come from two observers that cannot both be right: a ``DISAGREEMENT``."""


def announcement(old: SubflowState | None, new: SubflowState) -> EventKind | None:
    """Return what is announced of a subflow that went from *old* to *new*: nothing while it is half-open."""
    if new is _S.ACTIVE:
        return EventKind.SUBFLOW_CHANGED if old is _S.CLOSING else EventKind.SUBFLOW_ACTIVE
    if old in LIVE:
        return EventKind.SUBFLOW_CLOSED if new is _S.CLOSED else EventKind.SUBFLOW_CHANGED
    return None
