"""Shared libraries that the throttler loads."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .model import Finding, fail, ok, warn

PCAP = ("libpcap.so.0.8", "libpcap.so.1", "libpcap.so")
"""Debian's name, everyone else's, and the one of the development package."""
NFTABLES = ("libnftables.so.1", "libnftables.so")


def pcap(loads: Callable[[str], bool]) -> Finding:
    if name := first(PCAP, loads):
        return ok("libpcap", f"{name} loads")
    return fail(
        "libpcap",
        "libpcap cannot be loaded",
        "the throttler's capture filter is compiled by it, so it would see no subflow",
        "apt install libpcap0.8",
    )


def nftables(loads: Callable[[str], bool]) -> Finding:
    if name := first(NFTABLES, loads):
        return ok("libnftables", f"{name} loads")
    return warn(
        "libnftables",
        "libnftables cannot be loaded",
        "the throttler then needs the kernel's legacy iptables tables, which newer kernels lack",
        "apt install libnftables1",
    )


def first(names: Sequence[str], loads: Callable[[str], bool]) -> str | None:
    """Return the first of *names* that loads; None where none does."""
    return next((name for name in names if loads(name)), None)
