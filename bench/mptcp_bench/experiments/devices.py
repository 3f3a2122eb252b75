"""Ethernet and Wi-Fi as most experiments have them: interfaces of the client, and what a policy calls them. Pure."""

from __future__ import annotations

DEVICES = ("eth0", "wlan0")
"""Ethernet, Wi-Fi: by these samples are named."""
DEVICE = dict(zip(("ethernet", "wifi"), DEVICES, strict=True))
POLICY_PATHS = """\
version: 1
paths:
  ethernet: {clients: [10.77.1.0/24, "fd77:1::/64"]}
  wifi: {clients: [10.77.2.0/24, "fd77:2::/64"]}
"""
"""The beginning of a policy."""
