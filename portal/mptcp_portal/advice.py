# SPDX-License-Identifier: GPL-2.0-or-later
"""Advice for clients with plain TCP, by the kind of device in the User-Agent. Pure.

It matches docs/phones.md and the page for new clients. A forged User-Agent changes only the client's own page.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Advice:
    """Advice for one kind of device."""

    lines: tuple[str, ...]
    section: str
    """On the page for new clients."""


_RELAY: Final = (
    "To use several networks at once all the same, have a relay in your network, on a Raspberry Pi for instance, and "
    "set that as the proxy: it speaks Multipath TCP on this device's behalf."
)
_STARTED_SO: Final = (
    "If it was started so, look whether “sysctl net.mptcp.enabled” says 1. If it does, something between this device "
    "and the proxy takes Multipath TCP out: try another network."
)
_KINDS: Final[tuple[tuple[tuple[str, ...], Advice], ...]] = (
    (
        ("iPhone", "iPad", "CFNetwork"),
        Advice(
            (
                "Nothing is to be switched on in an iPhone or iPad: apps that ask for Multipath TCP use it, and this "
                "one did not get it.",
                _RELAY,
            ),
            "apple",
        ),
    ),
    (
        ("Android",),
        Advice(("Nothing is to be switched on in the phone: Android has no Multipath TCP.", _RELAY), "android"),
    ),
    (
        ("Windows", "Macintosh"),
        Advice(
            ("Nothing is to be switched on: browsers on Windows and macOS have no Multipath TCP.", _RELAY), "systems"
        ),
    ),
    (
        ("Firefox",),
        Advice(
            ("Close Firefox on this computer, and start it by “mptcpize run firefox” (package mptcpize).", _STARTED_SO),
            "firefox",
        ),
    ),
    (
        ("Chrome", "Chromium"),
        Advice(
            ("Close the browser, and start it by “mptcpize run chromium” (package mptcpize).", _STARTED_SO), "chromium"
        ),
    ),
    (
        ("Linux", "curl", "Wget", "APT", "git", "python"),
        Advice(
            ("Start the program by “mptcpize run”, for instance “mptcpize run curl” (package mptcpize).", _STARTED_SO),
            "linux",
        ),
    ),
)
"""The order matters: Android's browsers also name "Linux" and "Chrome"."""
_OTHER: Final = Advice(("The table below says what speaks Multipath TCP, and how.", _RELAY), "systems")
RELAYED: Final = Advice(
    (
        "It is the relay that comes by plain TCP: nothing is to be done on your device. Whoever runs the relay finds "
        "the reason by “mptcp-proxy doctor --role relay”.",
    ),
    "",
)
"""For clients behind another proxy."""


def advice(user_agent: str) -> Advice:
    """Return the advice for this User-Agent."""
    return next((found for words, found in _KINDS if any(each in user_agent for each in words)), _OTHER)
