# SPDX-License-Identifier: GPL-2.0-or-later
"""Six faults that no experiment may overlook: for each experiment the mutant with the fault, or why it has none.

``OURS`` are the experiments of ``mptcp_bench.experiments``, ``PAPERS`` those of the paper.
"""

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
NOT_EMULATED = Reason("nothing is emulated: the links are as fast as the machine")
TRICKLE = Reason("tunnels trickle, far below the rate of any link, and delays are those of programs")

OURS: Mapping[str, Mapping[str, Answer]] = {
    "crowds": {
        **NO_THROTTLER,
        UNUSED: Reason("requests are over when a second subflow has joined, or soon after"),
        UNSHAPED: NOT_EMULATED,
        FALLBACK: "fallback to TCP",
    },
    "goodput": {
        DEAD: "dead throttler, in one round of three",
        WRONG: "the wrong path is capped",
        NEVER: "dead throttler, in one round of three",
        UNUSED: "second path unused",
        UNSHAPED: "links are not shaped",
        FALLBACK: "fallback to TCP",
    },
    "guard": {
        DEAD: "dead throttler: no cap at all",
        WRONG: "the wrong path is capped",
        NEVER: "dead throttler: no cap at all",
        UNUSED: "second path unused",
        UNSHAPED: "emulator off",
        FALLBACK: "fallback to TCP",
    },
    "home": {
        **NO_THROTTLER,
        UNUSED: "second path unused",
        UNSHAPED: "links are not shaped",
        # The fallback shows in the bytes that the second path carries.
        FALLBACK: "second path unused",
    },
    "load": {
        DEAD: "held: the throttler died",
        # The probe watches the first subflow, which is the one to be capped.
        WRONG: "joins: a dead throttler never caps",
        NEVER: "joins: one is not capped",
        UNUSED: "held: no second subflow",
        UNSHAPED: TRICKLE,
        FALLBACK: "held: no second subflow",
    },
    "middleboxes": {
        DEAD: "dead throttler",
        **dict.fromkeys((WRONG, NEVER), Reason("what status says is judged; caps are judged by goodput and onset")),
        UNUSED: "the second path is not used",
        UNSHAPED: "the emulation has no box",
        FALLBACK: "all falls back",
    },
    "mimbox-delay": {
        **NO_THROTTLER,
        UNUSED: "second path unused",
        UNSHAPED: NOT_EMULATED,
        # The fallback shows in the number of subflows.
        FALLBACK: "second path unused",
    },
    "mimbox-goodput": {
        **NO_THROTTLER,
        UNUSED: "second path unused: it carries nothing",
        UNSHAPED: NOT_EMULATED,
        FALLBACK: "fallback to TCP",
    },
    "mimbox-http": {
        **NO_THROTTLER,
        UNUSED: Reason("no client has a second subflow: a connection is for one request"),
        UNSHAPED: NOT_EMULATED,
        FALLBACK: "fallback to TCP",
    },
    "mimbox-memory": {
        **NO_THROTTLER,
        UNUSED: "second path unused: no join",
        # Without delays a small buffer limits nothing.
        UNSHAPED: "buffers are not limited",
        FALLBACK: "fallback to TCP",
    },
    "onset": {
        DEAD: "dead throttler",
        WRONG: "the wrong path is capped",
        NEVER: "the cap never comes in one of three runs",
        UNUSED: "second path unused",
        UNSHAPED: "emulator off",
        FALLBACK: "fallback to TCP",
    },
    "overshoot": {
        DEAD: "dead throttler: the cap never comes",
        WRONG: "the wrong path is capped",
        NEVER: "dead throttler: the cap never comes",
        UNUSED: "second path unused",
        UNSHAPED: "emulator off",
        FALLBACK: "fallback to TCP",
    },
    "pages": {
        DEAD: "dead throttler",
        WRONG: "the wrong path is capped",
        NEVER: "the cap never comes for a new client",
        UNUSED: "second path unused",
        UNSHAPED: Reason("times are ratios to those of a static class over the same links, rates to the cap"),
        FALLBACK: "fallback to TCP",
    },
    "recovery": {
        DEAD: "dead throttler",
        WRONG: "the wrong path is capped",
        NEVER: "the cap never comes back",
        UNUSED: "second path unused",
        UNSHAPED: "links are not shaped",
        FALLBACK: "fallback to TCP",
    },
    "relay": {
        **NO_THROTTLER,
        UNUSED: "second path unused",
        UNSHAPED: NOT_EMULATED,
        FALLBACK: "fallback to TCP",
    },
    "soak": {
        DEAD: "dead throttler",
        WRONG: "the cap is on the other path, or never came",
        NEVER: "the cap is on the other path, or never came",
        UNUSED: "plain TCP, second path unused: no connection has two",
        UNSHAPED: TRICKLE,
        FALLBACK: "plain TCP, second path unused: no connection has two",
    },
    "starvation": {
        DEAD: "dead throttler",
        WRONG: "the wrong path is capped",
        NEVER: "dead throttler",
        UNUSED: "second path unused",
        UNSHAPED: "emulator off",
        FALLBACK: "fallback to TCP",
    },
    "steering": {
        DEAD: "modes: dead throttler",
        WRONG: "modes: the other path is preferred",
        NEVER: Reason("modes choose paths; that they never do is what a dead throttler does"),
        UNUSED: "modes: Wi-Fi is unused",
        UNSHAPED: "modes: emulator off",
        FALLBACK: "modes: plain TCP over Ethernet",
    },
    "tunnel": {
        **NO_THROTTLER,
        UNUSED: "second path unused",
        UNSHAPED: "emulator off",
        FALLBACK: Reason("it is UDP; the peer that is not is measured with a second subflow alone, and has no aim"),
    },
    **{
        f"vpn-fig{number}": {
            **NO_THROTTLER,
            UNUSED: "second path unused",
            UNSHAPED: "emulator off",
            FALLBACK: Reason("it has no Multipath TCP") if number == 6 else "fallback to TCP",
        }
        for number in range(3, 12)
    },
    "vpn-table1": {
        **NO_THROTTLER,
        UNUSED: Reason("each path is measured alone"),
        UNSHAPED: "emulator off",
        FALLBACK: Reason("probes are of UDP"),
    },
}

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
