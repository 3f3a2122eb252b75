# SPDX-License-Identifier: GPL-2.0-or-later
"""Six faults that no experiment of the paper may overlook: the mutant with the fault, or why it has none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

DEAD, WRONG, NEVER = "throttler dead", "wrong path capped", "cap never comes"
UNUSED, UNSHAPED, FALLBACK = "second path unused", "emulator off", "fallback to TCP"
FAULTS = (DEAD, WRONG, NEVER, UNUSED, UNSHAPED, FALLBACK)


@dataclass(frozen=True)
class Reason:
    """Reason why an experiment need not notice a fault, or cannot have it."""

    reason: str


Answer = str | Reason
NO_THROTTLER = dict.fromkeys((DEAD, WRONG, NEVER), Reason("no throttler runs"))
_PATHS = {UNUSED: "second path not joined", UNSHAPED: "emulator off", FALLBACK: "fallback"}
_THROTTLED = {
    DEAD: "throttler dead",
    WRONG: "throttler caps the wrong path",
    NEVER: "cap never comes",
    **_PATHS,
    UNUSED: "second path unused",
}

PAPERS: Mapping[str, Mapping[str, Answer]] = {
    "fig2": {
        **NO_THROTTLER,
        UNUSED: Reason("each path is used alone"),
        UNSHAPED: "emulator off",
        # The paper itself reports the fallback, so the fault is that none happens.
        FALLBACK: "server is multipath",
    },
    # The paper itself reports a second path that is joined and carries nothing.
    "fig3": {**NO_THROTTLER, **_PATHS},
    "fig4": {**NO_THROTTLER, **_PATHS, UNUSED: "second path unused"},
    "fig5": {**NO_THROTTLER, **_PATHS},
    "fig6": _THROTTLED,
    "fig7": _THROTTLED,
    "table1": {
        **NO_THROTTLER,
        UNUSED: "second path not joined",
        UNSHAPED: Reason(
            "times are those of the proxy; paths delay the bulk downloads alone, and no verdict is by these"
        ),
        FALLBACK: "fallback to TCP",
    },
}
