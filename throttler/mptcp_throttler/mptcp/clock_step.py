"""The wall clock was set: what the tracker has stamped lies in the future, or seems older than it is.

Set back, until the clock came there again no handshake would expire, no connection without subflows would be let go,
and a dump would close nothing, because all that it does not list would be newer. So everything is as if it had happened
now. A segment that was captured before the step may be read after it, so that stamps are looked at, too.

Set forward, all would be idle: a host without a clock of its own begins in a year long gone, and by how much its clock
was set then is known from the monotonic one. So everything is that much later.
"""

from __future__ import annotations

from typing import Any, Final

from mptcp_throttler.mptcp.connection_table import ConnectionTable
from mptcp_throttler.mptcp.timed_table import TimedTable

LEAST: Final = 1.0
"""Seconds; less makes no difference."""


def is_ahead(table: ConnectionTable, now: float) -> bool:
    """Tell whether anything in *table* was stamped with a time after *now*."""
    return any(each.latest > now + LEAST for each in _timed(table))


def set_back(table: ConnectionTable, now: float) -> None:
    """Leave no time in *table* that is after *now*. A look at every subflow: some 10 ms with 20,000."""
    for each in _timed(table):
        each.not_after(now)
    # It guards against dumps that were under way then; the next one sees what is there.
    table.ended.clear()
    table.turned_away.clear()
    if table.dump_began is not None:
        table.dump_began = min(table.dump_began, now)
    for connection in table.tokens.values():
        if connection.since > now:
            connection.since = now
            connection.changed()
    for subflow in table.subflows.values():
        subflow.last_seen = min(subflow.last_seen, now)
        if subflow.prioritised is not None:
            subflow.prioritised = min(subflow.prioritised, now)
        if subflow.since > now:
            subflow.since = now
            subflow.changed()


def set_forward(table: ConnectionTable, seconds: float) -> None:
    """Have every time in *table* be *seconds* later. A look at every subflow, as above."""
    for each in (*_timed(table), table.ended, table.turned_away):
        each.delay(seconds)
    if table.dump_began is not None:
        table.dump_began += seconds
    for connection in table.tokens.values():
        connection.since += seconds
        connection.changed()
    for subflow in table.subflows.values():
        subflow.since += seconds
        subflow.last_seen += seconds
        if subflow.prioritised is not None:
            subflow.prioritised += seconds
        subflow.changed()


def _timed(table: ConnectionTable) -> tuple[TimedTable[Any, Any], ...]:
    return (
        table.half_open,
        table.closing,
        table.lingering,
        table.unconfirmed,
        table.unconfirmed_connections,
        table.refused,
    )
