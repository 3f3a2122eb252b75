# SPDX-License-Identifier: GPL-2.0-or-later
"""The judge of each of our experiments, with a sound result and its mutants."""

from __future__ import annotations

from mutants import Judge, with_attempts
from mutants_of_caps import GUARD, ONSET_JUDGE
from mutants_of_crowds import CROWDS
from mutants_of_home import HOME
from mutants_of_load import LOAD
from mutants_of_middleboxes import MIDDLEBOXES
from mutants_of_mimbox import MIMBOX_DELAY, MIMBOX_GOODPUT, MIMBOX_HTTP, MIMBOX_MEMORY
from mutants_of_overshoot import OVERSHOOT
from mutants_of_pages import PAGES
from mutants_of_relay import RELAY
from mutants_of_runs import GOODPUT, RECOVERY, SOAK
from mutants_of_starvation import STARVATION
from mutants_of_steering import STEERING
from mutants_of_tunnel import TUNNEL
from mutants_of_vpn import VPN

JUDGES: dict[str, Judge] = {
    "crowds": with_attempts(CROWDS),
    "goodput": with_attempts(GOODPUT),
    "guard": with_attempts(GUARD),
    "home": with_attempts(HOME),
    "load": with_attempts(LOAD),
    "middleboxes": with_attempts(MIDDLEBOXES),
    "mimbox-delay": with_attempts(MIMBOX_DELAY),
    "mimbox-goodput": with_attempts(MIMBOX_GOODPUT),
    "mimbox-http": with_attempts(MIMBOX_HTTP),
    "mimbox-memory": with_attempts(MIMBOX_MEMORY),
    "onset": with_attempts(ONSET_JUDGE),
    "overshoot": with_attempts(OVERSHOOT),
    "pages": with_attempts(PAGES),
    "recovery": with_attempts(RECOVERY),
    "relay": with_attempts(RELAY),
    "soak": with_attempts(SOAK),
    "starvation": with_attempts(STARVATION),
    "steering": with_attempts(STEERING),
    "tunnel": with_attempts(TUNNEL),
    **{name: with_attempts(judge) for name, judge in VPN.items()},
}
