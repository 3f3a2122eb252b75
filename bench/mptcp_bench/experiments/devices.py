# SPDX-License-Identifier: GPL-2.0-or-later
"""Ethernet and Wi-Fi in most experiments: the client's interfaces, and the paths' names in policies. Pure."""

from __future__ import annotations

DEVICES = ("eth0", "wlan0")
"""The interfaces of Ethernet and Wi-Fi, as recorded samples name them."""
DEVICE = dict(zip(("ethernet", "wifi"), DEVICES, strict=True))
POLICY_PATHS = """\
version: 1
paths:
  ethernet: {clients: [10.77.1.0/24, "fd77:1::/64"]}
  wifi: {clients: [10.77.2.0/24, "fd77:2::/64"]}
"""


def policy(rules: str) -> str:
    """Return a policy for both paths with the list *rules*, such as ``[]``."""
    return f"{POLICY_PATHS}rules: {rules}\n"
