# SPDX-License-Identifier: GPL-2.0-or-later
"""The verdict cases of each of our experiments: its correct result and its mutants."""

from __future__ import annotations

from mutants import VerdictCases
from mutants_of_downloads import GOODPUT, GUARD, ONSET_CASES, OVERSHOOT, PAGES, RECOVERY, STARVATION, STEERING
from mutants_of_load import CROWDS, LOAD, SOAK
from mutants_of_relay import HOME, MIDDLEBOXES, MIMBOX_DELAY, MIMBOX_GOODPUT, MIMBOX_HTTP, MIMBOX_MEMORY, RELAY
from mutants_of_vpn import TUNNEL, VPN

VERDICT_CASES: dict[str, VerdictCases] = {
    "crowds": CROWDS,
    "goodput": GOODPUT,
    "guard": GUARD,
    "home": HOME,
    "load": LOAD,
    "middleboxes": MIDDLEBOXES,
    "mimbox-delay": MIMBOX_DELAY,
    "mimbox-goodput": MIMBOX_GOODPUT,
    "mimbox-http": MIMBOX_HTTP,
    "mimbox-memory": MIMBOX_MEMORY,
    "onset": ONSET_CASES,
    "overshoot": OVERSHOOT,
    "pages": PAGES,
    "recovery": RECOVERY,
    "relay": RELAY,
    "soak": SOAK,
    "starvation": STARVATION,
    "steering": STEERING,
    "tunnel": TUNNEL,
    **VPN,
}
