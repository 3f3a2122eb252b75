"""The client's interfaces over which most experiments run, by which their samples are named."""

from __future__ import annotations

DEVICES = ("eth0", "wlan0")
"""Ethernet, Wi-Fi."""
