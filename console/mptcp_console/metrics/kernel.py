"""The kernel's counters of Multipath TCP: the line ``MPTcpExt`` of /proc/net/netstat, one family for each field.

One family each, not one with a label ``counter``: a metric's samples shall be such that their sum means something
(prometheus.io, *Metric and label naming*), and one of these is a gauge. Names are the kernel's own in snake case, which
the same rules ask for; the help text has the kernel's own, as nstat(8) and net/mptcp/mib.c have it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from prometheus_client.core import Metric

from .building import counter, gauge

PREFIX = "mptcp_ext_"
_GAUGES = frozenset({"MPCurrEstab"})
_SPELLED = (("HMac", "Hmac"), ("SYN", "Syn"), ("ACK", "Ack"), ("RX", "Rx"), ("TX", "Tx"))
"""Words of the kernel's that could not be told apart."""
_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
"""Where a word begins: after a small letter or digit, and before the last capital of several."""


def parse_mptcp_ext(netstat: str) -> dict[str, int] | None:
    """Return the fields of ``MPTcpExt`` by the kernel's names; None where the kernel has no Multipath TCP."""
    lines = [line.split() for line in netstat.splitlines() if line.startswith("MPTcpExt:")]
    if len(lines) != 2:
        return None
    names, values = lines
    return {name: int(value) for name, value in zip(names[1:], values[1:], strict=True)}


def mptcp_ext_families(fields: Mapping[str, int]) -> Iterator[Metric]:
    """Yield a family for each of *fields*."""
    for field, value in fields.items():
        text = f"{field} of MPTcpExt in /proc/net/netstat: all MPTCP sockets of the network namespace."
        yield (gauge if field in _GAUGES else counter)(metric_name(field), text, value)


def metric_name(field: str) -> str:
    """Return the metric of one of the kernel's fields: ``MPJoinSynRx`` is ``mptcp_ext_mp_join_syn_rx_total``."""
    words = field
    for spelling, word in _SPELLED:
        words = words.replace(spelling, word)
    snake = PREFIX + _WORDS.sub("_", words).lower()
    return snake if field in _GAUGES else snake + "_total"
