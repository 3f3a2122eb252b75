"""Whether a kernel has a congestion control, and selecting one inside namespaces.

A namespace other than the host's may only select what the host's ``tcp_allowed_congestion_control`` lists
(net/ipv4/tcp_cong.c). So the list is extended for the few milliseconds of the selection, under the lock
that all runs share, and put back; the selection itself belongs to the namespace and stays.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .commands import TestbedError, run
from .ownership import registry

ALLOWED = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
AVAILABLE = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
AVAILABLE_KEY = "net.ipv4.tcp_available_congestion_control"
"""Of the whole kernel; every namespace may read it (ipv4_net_table in net/ipv4/sysctl_net_ipv4.c)."""
KEEP = "keep"
"""In place of a name: the host's own, whatever that is."""


def lacking(name: str, available: str) -> str | None:
    """Return why *name* cannot be had of a kernel with those *available*, None where it can."""
    there = available.split()
    return None if name in (KEEP, *there) else f"the kernel has no congestion control {name}; it has {', '.join(there)}"


def lacking_here(name: str) -> str | None:
    """Return the same of this kernel, which as root is made to load *name* before, as the proxy makes it."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
    return lacking(name, AVAILABLE.read_text())


@contextmanager
def allowed(name: str) -> Iterator[None]:
    """Have *name* on the host's list of allowed congestion controls; put the list back afterwards."""
    with registry():
        before = ALLOWED.read_text().split()
        if name in before:
            yield
            return
        ALLOWED.write_text(" ".join([*before, name]))
        try:
            yield
        finally:
            ALLOWED.write_text(" ".join(before))


def select(name: str, namespaces: Iterable[str]) -> bool:
    """Make *name* the default of *namespaces*; return False, changing nothing, where it cannot be had.

    It cannot where the kernel lacks it, or where it is not on the list and we run in a container, which may not
    change the list. There it may be on the list for a moment, by a run outside, whose lock is another: then some of
    *namespaces* may have it.
    """
    if name not in AVAILABLE.read_text().split():
        return False
    try:
        with allowed(name):
            for namespace in namespaces:
                argv = ["ip", "netns", "exec", namespace, "sysctl", "-qw"]
                run([*argv, f"net.ipv4.tcp_congestion_control={name}"])
    except PermissionError:
        return False
    except TestbedError:
        if name in ALLOWED.read_text().split():
            raise
        return False
    return True
