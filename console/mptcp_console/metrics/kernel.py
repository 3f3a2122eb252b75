# SPDX-License-Identifier: GPL-2.0-or-later
"""The kernel's counters of Multipath TCP: the line ``MPTcpExt`` of /proc/net/netstat, one metric for each field.

They are not one metric with a label ``counter``, because the sum of a metric's samples should have a meaning
(prometheus.io, *Metric and label naming*), and because one field is a gauge. The metrics' names are the kernel's names
in snake case; the help text has the kernel's name, as in nstat(8) and net/mptcp/mib.c.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from prometheus_client.core import Metric

from .building import counter, gauge

PREFIX = "mptcp_ext_"
_GAUGES = frozenset({"MPCurrEstab"})
_SPELLINGS = (("HMac", "Hmac"), ("SYN", "Syn"), ("ACK", "Ack"), ("RX", "Rx"), ("TX", "Tx"))
"""Words of the kernel's names that the pattern would split wrongly."""
_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
"""Starts of words: after a lower-case letter or a digit, and before the last capital of several."""


def parse_mptcp_ext(netstat: str) -> dict[str, int] | None:
    """Return the fields of ``MPTcpExt`` by the kernel's names; None if the kernel has no Multipath TCP."""
    lines = [line.split() for line in netstat.splitlines() if line.startswith("MPTcpExt:")]
    if len(lines) != 2:
        return None
    names, values = lines
    return {name: int(value) for name, value in zip(names[1:], values[1:], strict=True)}


def mptcp_ext_families(fields: Mapping[str, int]) -> Iterator[Metric]:
    """Yield a metric for each of *fields*."""
    for field, value in fields.items():
        text = f"{field} of MPTcpExt in /proc/net/netstat: all MPTCP sockets of the network namespace."
        yield (gauge if field in _GAUGES else counter)(metric_name(field), text, value)


def metric_name(field: str) -> str:
    """Return the metric of a kernel field: ``MPJoinSynRx`` is ``mptcp_ext_mp_join_syn_rx_total``."""
    words = field
    for spelling, word in _SPELLINGS:
        words = words.replace(spelling, word)
    snake = PREFIX + _WORDS.sub("_", words).lower()
    return snake if field in _GAUGES else snake + "_total"
