# SPDX-License-Identifier: GPL-2.0-or-later
"""The daemon's log: lines on stderr, or entries with fields in the journal, and log lines about caps that were set or
lifted (:class:`CapLog`).

Every warning and error automatically becomes an event as well, so the code reports a fault only once. The fields name
client, rule and path of a line, so that ``journalctl MPTCP_CLIENT=10.1.0.2`` finds it: see docs/operator.md.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, TextIO

from mptcp_common import journal
from mptcp_common.units import counted, format_rate
from mptcp_throttler.mptcp.model import Connection, FourTuple
from mptcp_throttler.policy.model import Direction
from mptcp_throttler.policy.verdict import Verdict
from mptcp_throttler.telemetry.decision import Decision
from mptcp_throttler.views.text import address_text

ALREADY_AN_EVENT: Final = {"is_event": True}  # pass this as ``extra`` if the line was already reported as an event
log = logging.getLogger(__name__)

_PRIORITIES = {logging.DEBUG: journal.DEBUG, logging.INFO: journal.INFO, logging.WARNING: journal.WARNING}
"""Journal priority by log level. Higher levels get the priority of an error."""
_LIBRARY_LEVELS = {"asyncio": logging.WARNING, "pyroute2": logging.WARNING, "scapy": logging.ERROR}
"""Lowest level that is logged, for each library that would log too much."""
CAP_LOG_DELAY, CAP_LOG_INTERVAL = 1.0, 60.0
"""Seconds from the first change of a rule's caps to the log line, and between lines while changes continue."""
_CAP_WORDS: Final = {False: ("capped", "lifted", "ended"), True: ("would be capped", "no longer", "ended")}
"""Words for a subflow that got a cap, that lost its cap, and that ended with a cap; by whether it is a dry run."""
_GAINED, _LOST, _ENDED = range(3)  # indexes of these words


def log_fields(
    connection: Connection | None = None,
    *,
    token: int | None = None,
    subflow: FourTuple | None = None,
    client: str | None = None,
    rule: str | tuple[str, ...] | None = None,
    path: str | None = None,
) -> dict[str, Any]:
    """Return the ``extra`` of a line about a *connection* or *client*; if it has ended, give *token* and *subflow*."""
    if connection is not None:
        token, client = connection.token, address_text(connection.client)
    elif client is None and subflow is not None:
        client = address_text(subflow.remote)
    shown_token = None if token is None else f"{token:08x}"
    fields = {"MPTCP_TOKEN": shown_token, "MPTCP_CLIENT": client, "MPTCP_RULE": rule, "MPTCP_PATH": path}
    return {"fields": {name: value for name, value in fields.items() if value is not None}}


class LineFormatter(logging.Formatter):
    def __init__(self, for_journal: bool) -> None:
        super().__init__("%(levelname)s: %(message)s")
        self._for_journal = for_journal

    def format(self, record: logging.LogRecord) -> str:
        priority = _PRIORITIES.get(record.levelno, journal.ERROR)
        return journal.lines(super().format(record), priority, for_journal=self._for_journal)


class JournalHandler(logging.StreamHandler[TextIO]):
    """Sends entries to the journal; if the journal does not accept an entry at once, prints a line on stderr."""

    def __init__(self, address: str) -> None:
        """Open a socket for the journal. Raises OSError if no journal listens at *address*."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as probe:
            probe.connect(address)
        super().__init__(sys.stderr)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        self._address = address
        self._pid = os.getpid()
        self._message = LineFormatter(for_journal=False)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if os.getpid() != self._pid:
                raise OSError  # in a forked child, the descriptor may have been closed and reused
            # The service manager gives the output of the service the same identifier.
            fields = {"SYSLOG_IDENTIFIER": "mptcp-throttler", **getattr(record, "fields", {})}
            priority = _PRIORITIES.get(record.levelno, journal.ERROR)
            # The socket is not connected, because the journal may restart.
            self._socket.sendto(journal.entry(self._message.format(record), priority, fields), self._address)
        except OSError:  # also if the journal is down or busy, or the entry is too large for a datagram
            super().emit(record)
        except Exception:
            self.handleError(record)

    def close(self) -> None:
        self._socket.close()
        super().close()


class _FaultHandler(logging.Handler):
    def __init__(self, callback: Callable[[float, str], None]) -> None:
        super().__init__(logging.WARNING)
        self._callback = callback
        self._loop = asyncio.get_running_loop()
        self._pid, self._thread = os.getpid(), threading.get_ident()

    def emit(self, record: logging.LogRecord) -> None:
        # A child that answers a status request logs as well; it must not use the descriptors of the parent's loop.
        if getattr(record, "is_event", False) or self._loop.is_closed() or os.getpid() != self._pid:
            return
        try:
            text = record.getMessage()
        except Exception:
            self.handleError(record)
            return
        text = text.replace("\n", " ")
        if threading.get_ident() == self._thread:
            self._callback(time.monotonic(), text)
        else:
            self._loop.call_soon_threadsafe(self._callback, time.monotonic(), text)


@contextmanager
def forward_faults(callback: Callable[[float, str], None]) -> Iterator[None]:
    """Call *callback* with the time (monotonic seconds) and text of each warning and error logged in this context."""
    handler = _FaultHandler(callback)
    logger = logging.getLogger("mptcp_throttler")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def _create_handler() -> logging.Handler:
    """Return a handler that sends entries if stderr is a journal that can be reached, and otherwise lines."""
    is_journal = journal.is_journal()
    handler: logging.Handler = logging.StreamHandler(sys.stderr)
    if is_journal:
        with suppress(OSError):  # if the journal cannot be reached, send lines without fields
            handler = JournalHandler(journal.SOCKET)
    handler.setFormatter(LineFormatter(is_journal))
    return handler


def log_to_stderr(level: int) -> None:
    """Log *level* and above to stderr. If the watchdog ends the daemon (SIGABRT), a traceback shows where it hung."""
    logging.basicConfig(level=level, handlers=[_create_handler()])
    for name, lowest in _LIBRARY_LEVELS.items():
        logging.getLogger(name).setLevel(lowest)
    faulthandler.enable()


class CapLog:
    """Logs which subflows got or lost a cap: each subflow at debug level, otherwise one line per rule.

    The line is logged one second after the first change, then once a minute while changes continue. So ten thousand
    short downloads cause one line a minute. If only one subflow changed, the line names the subflow.
    """

    def __init__(self, count_capped: Callable[[str], int]) -> None:
        """*count_capped* returns how many subflows a rule caps, or would cap in a dry run."""
        self._count_capped = count_capped
        # The number of changes since the last line, and the latest change, by rule and whether it is a dry run. Most
        # changes are only counted, so a line's text is formatted only when it is logged.
        self._counts: dict[tuple[str, bool], Counter[str]] = {}
        self._last: dict[tuple[str, bool], tuple[Decision, Verdict, str]] = {}
        self._is_dry = False  # whether the last decision was a dry run
        self._changed = asyncio.Event()

    def record_decision(self, decision: Decision) -> None:
        self._is_dry = decision.is_dry
        for verdict in decision.gained:
            self._record(decision, verdict, decision.is_dry, _GAINED, verdict.reason)
        was_dry = decision.was_dry
        if was_dry and decision.is_dry_run_change:
            return  # the subflows had no real cap
        text = "would no longer be capped (dry run)" if was_dry else "no longer capped"
        for capped, verdict in decision.lost:
            self._record(decision, capped, was_dry, _LOST, f"{text}: {verdict.reason}")
        for capped in decision.ended:
            self._record(decision, capped, was_dry, _ENDED, "ended (dry run)" if was_dry else "ended")

    def _record(self, decision: Decision, capped: Verdict, is_dry: bool, change: int, text: str) -> None:
        key, word = (_rule(capped), is_dry), _CAP_WORDS[is_dry][change]
        self._counts.setdefault(key, Counter())[word] += 1
        self._last[key] = decision, capped, text
        if log.isEnabledFor(logging.DEBUG):
            line, fields = _cap_line(decision, capped, text)
            log.debug("%s", line, extra=fields)
        self._changed.set()

    def lines(self) -> list[tuple[str, dict[str, Any]]]:
        """Return, for each rule with changes since the last call, a line and its ``extra``."""
        counts, last = self._counts, self._last
        self._counts, self._last = {}, {}
        self._changed.clear()
        keys = sorted(counts, key=lambda key: key[1])
        return [_cap_line(*last[key]) if counts[key].total() == 1 else self._line(*key, counts[key]) for key in keys]

    def _line(self, rule: str, is_dry: bool, counts: Counter[str]) -> tuple[str, dict[str, Any]]:
        words = _CAP_WORDS[is_dry]
        changes = ", ".join(f"{counts[word]} {word}" for word in words if counts[word])
        capped = counted(self._count_capped(rule) if is_dry is self._is_dry else 0, "subflow")
        return f"rule {rule}: {changes}; {capped} {words[0]} now{' (dry run)' if is_dry else ''}", log_fields(rule=rule)

    async def run(self) -> None:
        while True:
            await self._changed.wait()
            await asyncio.sleep(CAP_LOG_DELAY)
            while lines := self.lines():
                for line, fields in lines:
                    log.info("%s", line, extra=fields)
                await asyncio.sleep(CAP_LOG_INTERVAL)


def _cap_line(decision: Decision, capped: Verdict, text: str) -> tuple[str, dict[str, Any]]:
    ceil = "" if capped.throttle is None else f" ({format_rate(capped.throttle.ceil)})"
    upload = "upload of " if capped.direction is Direction.UP else ""
    subflow, rule = capped.four_tuple, _rule(capped)
    fields = log_fields(decision.connection, token=decision.token, subflow=subflow, rule=rule, path=capped.path)
    return f"{upload}{subflow}{ceil}: {text}", fields


def _rule(verdict: Verdict) -> str:
    return "" if verdict.rule is None else verdict.rule.name
