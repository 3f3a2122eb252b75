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
    """ID of a section on the page for new clients."""


_RELAY: Final = (
    "To use several networks at once, run a relay in your network, for instance on a Raspberry Pi, and set it as "
    "the proxy: it uses Multipath TCP for this device."
)
_IF_ALREADY_DONE: Final = (
    "If you did that already, check that “sysctl net.mptcp.enabled” prints 1. If so, something between this device and "
    "the proxy removes Multipath TCP: try another network."
)
_KINDS: Final[tuple[tuple[tuple[str, ...], Advice], ...]] = (
    (
        ("iPhone", "iPad", "CFNetwork"),
        Advice(
            (
                "An iPhone or iPad needs no setting: apps that ask for Multipath TCP use it, but this app does "
                "not use it now.",
                _RELAY,
            ),
            "apple",
        ),
    ),
    (
        ("Android",),
        Advice(("No setting of the phone helps: Android has no Multipath TCP.", _RELAY), "android"),
    ),
    (
        ("Windows", "Macintosh"),
        Advice(("No setting helps: browsers on Windows and macOS have no Multipath TCP.", _RELAY), "systems"),
    ),
    (
        ("Firefox",),
        Advice(
            (
                "Close Firefox on this computer, and start it with “mptcpize run firefox” (package mptcpize).",
                _IF_ALREADY_DONE,
            ),
            "firefox",
        ),
    ),
    (
        ("Chrome", "Chromium"),
        Advice(
            ("Close the browser, and start it with “mptcpize run chromium” (package mptcpize).", _IF_ALREADY_DONE),
            "chromium",
        ),
    ),
    (
        ("Linux", "curl", "Wget", "APT", "git", "python"),
        Advice(
            (
                "Start the program with “mptcpize run”, for instance “mptcpize run curl” (package mptcpize).",
                _IF_ALREADY_DONE,
            ),
            "linux",
        ),
    ),
)
"""The order matters: Android's browsers also name "Linux" and "Chrome"."""
_OTHER_DEVICES: Final = Advice(
    ("The table below shows which systems support Multipath TCP, and how.", _RELAY), "systems"
)
RELAYED: Final = Advice(
    (
        "The relay uses plain TCP: you cannot change that on your device. “mptcp-proxy doctor --role relay” shows the "
        "relay's operator the reason.",
    ),
    "",
)
"""For clients of another proxy, such as a relay."""


def advice(user_agent: str) -> Advice:
    """Return the advice for this User-Agent."""
    return next((found for words, found in _KINDS if any(each in user_agent for each in words)), _OTHER_DEVICES)
