"""The daemon's log on stderr, with priorities where that is the journal, and what a hang leaves in it."""

from __future__ import annotations

import faulthandler
import logging
import sys

from mptcp_common import journal

_PRIORITIES = (
    (logging.ERROR, journal.ERROR),
    (logging.WARNING, journal.WARNING),
    (logging.INFO, journal.INFO),
    (logging.NOTSET, journal.DEBUG),
)
_TALKATIVE = {"asyncio": logging.WARNING, "pyroute2": logging.WARNING, "scapy": logging.ERROR}
"""Libraries, and what of theirs is worth a line."""


class Lines(logging.Formatter):
    """Lines for stderr."""

    def __init__(self, for_journal: bool) -> None:
        super().__init__("%(levelname)s: %(message)s")
        self._for_journal = for_journal

    def format(self, record: logging.LogRecord) -> str:
        priority = next(priority for level, priority in _PRIORITIES if record.levelno >= level)
        return journal.lines(super().format(record), priority, for_journal=self._for_journal)


def log_to_stderr(level: int) -> None:
    """Log to stderr what is of *level* or more. Where the watchdog ends us (SIGABRT), say where we hung."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Lines(journal.is_journal()))
    logging.basicConfig(level=level, handlers=[handler])
    for name, least in _TALKATIVE.items():
        logging.getLogger(name).setLevel(least)
    faulthandler.enable()
