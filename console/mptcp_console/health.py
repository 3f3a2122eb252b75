# SPDX-License-Identifier: GPL-2.0-or-later
"""Finds the problems of a throttler that answers, as sentences for the page. Pure.

Lasting problems are in the summary. Other problems are counts that grow; each growth is reported for a minute.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Final

from mptcp_common.units import counted

RECENT_SECONDS: Final = 60.0
"""Time for which a loss is reported."""
_SEGMENTS, _EVENTS, _REFUSALS = "segments", "events", "refusals"


class Health:
    """Finds the problems of each summary, by comparing it with earlier summaries."""

    def __init__(self) -> None:
        self._pid: object = None
        self._counts: deque[tuple[float, dict[str, int]]] = deque()
        """Times and counts of the last minute, and of the last summary before it."""

    def update(self, summary: Mapping[str, Any]) -> list[str]:
        """Return the problems as of *summary*, as sentences without a full stop; empty if all is well."""
        now, counts = float(summary["time"]), _losses(summary)
        if summary.get("pid") != self._pid or (self._counts and now < self._counts[-1][0]):
            self._pid = summary.get("pid")
            self._counts.clear()
        self._counts.append((now, counts))
        while len(self._counts) > 1 and self._counts[1][0] <= now - RECENT_SECONDS:
            self._counts.popleft()
        before = self._counts[0][1]
        increases = {name: count - before[name] for name, count in counts.items() if count > before[name]}
        return [*_lasting_problems(summary), *_recent_losses(increases)]


def _lasting_problems(summary: Mapping[str, Any]) -> Iterator[str]:
    # .get, because an older throttler lacks it
    for interface, is_captured in (summary.get("captures") or {}).items():
        if not is_captured:
            yield f"Nothing is captured on {interface}, which is down or missing; capturing resumes when it returns"
    if error := summary.get("ledger_error"):
        yield (
            f"Budget usage cannot be saved to disk ({error}); caps hold, it is saved later, "
            "and until then no policy with budgets is reloaded"
        )


def _recent_losses(increases: Mapping[str, int]) -> Iterator[str]:
    if count := increases.get(_SEGMENTS):
        yield f"{counted(count, 'segment')} lost by the capture within a minute; listing all sockets restores the state"
    if count := increases.get(_EVENTS):
        times = counted(count, "time")
        yield f"Path manager events lost, {times} within a minute; listing all sockets restores the state"
    if count := increases.get(_REFUSALS):
        yield f"{counted(count, 'change')} refused by the kernel within a minute; the throttler tries again"


def _losses(summary: Mapping[str, Any]) -> dict[str, int]:
    counters = summary.get("counters") or {}
    observers = counters.get("observers") or {}
    reconcilers = [counters.get(name) or {} for name in ("reconciler", "upload_reconciler")]
    return {
        _SEGMENTS: int(observers.get("segments_dropped", 0)),
        _EVENTS: int(observers.get("kernel_events_lost", 0)),
        _REFUSALS: sum(int(each.get("failures", 0)) for each in reconcilers),
    }
