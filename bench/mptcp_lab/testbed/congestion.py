# SPDX-License-Identifier: GPL-2.0-or-later
"""Test whether a kernel has a congestion control, and select one in namespaces."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from .commands import run
from .ownership import registry

ALLOWED = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
AVAILABLE = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
AVAILABLE_KEY = "net.ipv4.tcp_available_congestion_control"
"""This sysctl describes the whole kernel. Every namespace may read it."""


def missing_control(name: str, available: str) -> str | None:
    """Return a text if a kernel with the congestion controls *available* lacks *name*; None if it has *name*."""
    names = available.split()
    return None if name in names else f"the kernel has no congestion control {name}; it has {', '.join(names)}"


def missing_control_here(name: str) -> str | None:
    """Return a text if this kernel lacks *name*, or None. First try to load it as a module, as the proxy does."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
    return missing_control(name, AVAILABLE.read_text())


def select(name: str, namespaces: Iterable[str]) -> bool:
    """Make *name* the default of *namespaces*. If that is impossible, change nothing and return False.

    Namespaces may only select names in the host's list, to which *name* is added for this call. This is impossible if
    the kernel lacks *name*, or in a container, which may not change the list.
    """
    if missing_control(name, AVAILABLE.read_text()):
        return False
    with registry():
        before = ALLOWED.read_text()
        is_allowed = name in before.split()
        try:
            if not is_allowed:
                ALLOWED.write_text(f"{before.strip()} {name}")
            for namespace in namespaces:
                run(["ip", "netns", "exec", namespace, "sysctl", "-qw", f"net.ipv4.tcp_congestion_control={name}"])
        except PermissionError:
            return False
        finally:
            if not is_allowed:
                with suppress(PermissionError):
                    ALLOWED.write_text(before)
    return True
