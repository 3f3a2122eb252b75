# SPDX-License-Identifier: GPL-2.0-or-later
"""The measured parts of Table 1: its cases, its metrics, and the paper's values. Pure."""

from __future__ import annotations

from .results import BULK, DATA, STREAM, SYN, WHOLE, Reference

MPTCP, TCP = "mptcp", "tcp"
PROTOCOLS = {MPTCP: "Multipath TCP", TCP: "plain TCP"}

WHOLE_SYN, OWN_SYN, OWN_REQUEST = "syn_whole", "syn_own", "request_own"
HANDSHAKE, ANSWER, REQUEST_WAIT, RESPONSE = "handshake", "answer", "request_wait", "response"
PARTS = (HANDSHAKE, ANSWER, REQUEST_WAIT, WHOLE_SYN, OWN_SYN, OWN_REQUEST, RESPONSE)
"""Fields of ``wire.exchanges.Exchange`` that are parts of Table 1's intervals. Their medians are metrics."""

_DATA = 0.0153311 + 0.0080645
REFERENCES = (
    *(Reference(kind, 0.0078341 + 0.0006805, "paper, SYN: 8.5 ms") for kind in (SYN, WHOLE)),
    *(Reference(kind, _DATA, "paper, data: 23.4 ms") for kind in (DATA, STREAM, BULK)),
)


def metric_of_median(distribution: str) -> str:
    """Return the name of the metric that is the median of *distribution*."""
    return f"median_{distribution.replace(' ', '_')}"
