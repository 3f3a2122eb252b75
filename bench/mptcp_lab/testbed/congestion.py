# SPDX-License-Identifier: GPL-2.0-or-later
"""Whether a kernel has a congestion control, and how to select it in namespaces."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .commands import run
from .ownership import registry

ALLOWED = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
AVAILABLE = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
AVAILABLE_KEY = "net.ipv4.tcp_available_congestion_control"
"""This sysctl describes the whole kernel. Every namespace may read it (ipv4_net_table in
net/ipv4/sysctl_net_ipv4.c)."""
KEEP = "keep"
"""This word in place of a name means the congestion control of the host."""


def lacking(name: str, available: str) -> str | None:
    """Return a text if a kernel with the congestion controls *available* lacks *name*; None if it has *name*."""
    there = available.split()
    return None if name in (KEEP, *there) else f"the kernel has no congestion control {name}; it has {', '.join(there)}"


def lacking_here(name: str) -> str | None:
    """Return a text if this kernel lacks *name*, or None. First try to load it as a module, as the proxy does."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
    return lacking(name, AVAILABLE.read_text())


@contextmanager
def _allowed(name: str) -> Iterator[None]:
    """Let namespaces select *name* during the scope: they may only select names in the host's list (tcp_cong.c)."""
    with registry():
        before = ALLOWED.read_text()
        if name in before.split():
            yield
            return
        ALLOWED.write_text(f"{before.strip()} {name}")
        try:
            yield
        finally:
            ALLOWED.write_text(before)


def select(name: str, namespaces: Iterable[str]) -> bool:
    """Make *name* the default of *namespaces*. If that is impossible, change nothing and return False.

    It is impossible if the kernel lacks *name*. In a container, which may not change the host's list, it is also
    impossible if the list lacks *name*.
    """
    if name not in AVAILABLE.read_text().split():
        return False
    try:
        with _allowed(name):
            for namespace in namespaces:
                run(["ip", "netns", "exec", namespace, "sysctl", "-qw", f"net.ipv4.tcp_congestion_control={name}"])
    except PermissionError:
        return False
    return True
