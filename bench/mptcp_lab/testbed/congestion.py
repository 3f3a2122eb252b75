# SPDX-License-Identifier: GPL-2.0-or-later
"""Whether a kernel has a congestion control, and how to select it in namespaces.

A namespace other than the host's may only select a congestion control that the host's
``tcp_allowed_congestion_control`` lists (net/ipv4/tcp_cong.c). The list is therefore extended for the few milliseconds
of the selection, under the lock that all runs share, and then restored. The selection belongs to the namespace and
stays. Meanwhile a file, the note, has the original list: if the run is killed in that moment, the next run or
``cleanup`` restores the list from the note.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .commands import TestbedError, run
from .ownership import Cleaned, registry

ALLOWED = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
AVAILABLE = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
AVAILABLE_KEY = "net.ipv4.tcp_available_congestion_control"
"""This sysctl is about the whole kernel. Every namespace may read it (ipv4_net_table in net/ipv4/sysctl_net_ipv4.c)."""
NOTE = "allowed-congestion-control"
"""File in the directory of the runs that has the original list while the list is extended."""
KEEP = "keep"
"""This word in place of a name means the host's own congestion control."""


def lacking(name: str, available: str) -> str | None:
    """Return why a kernel with the congestion controls *available* lacks *name*; None if it has it."""
    there = available.split()
    return None if name in (KEEP, *there) else f"the kernel has no congestion control {name}; it has {', '.join(there)}"


def lacking_here(name: str) -> str | None:
    """Return the same for this kernel. First ask it to load *name* as a module, as the proxy does (as root)."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
    return lacking(name, AVAILABLE.read_text())


@contextmanager
def allowed(name: str) -> Iterator[None]:
    """Add *name* to the host's list of allowed congestion controls, and restore the list afterwards."""
    with registry() as directory:
        note = directory / NOTE
        _put_back(note)
        before = ALLOWED.read_text().split()
        if name in before:
            yield
            return
        # Write the note atomically, because an incomplete note would shorten the list.
        unfinished = note.with_suffix(".unfinished")
        unfinished.write_text(" ".join(before) + "\n" + name)
        unfinished.rename(note)
        try:
            ALLOWED.write_text(" ".join([*before, name]))
        except OSError:
            note.unlink()
            raise
        try:
            yield
        finally:
            _put_back(note)


def put_back() -> Cleaned:
    """Restore the list if a killed run left it extended."""
    with registry() as directory:
        try:
            before = _put_back(directory / NOTE)
        except TestbedError as error:
            return Cleaned((), (str(error),))
    return Cleaned((f"set net.ipv4.tcp_allowed_congestion_control to what it was: {before}",) if before else (), ())


def _put_back(note: Path) -> str | None:
    """Restore the list from *note* and remove the note. Return the list; None if nothing was restored.

    If the list differs from the extended one, an administrator has changed it meanwhile, and it stays. Raises
    PermissionError, or TestbedError if the list cannot be restored.
    """
    try:
        before, name = note.read_text().split("\n")
    except FileNotFoundError:
        return None
    chosen_since = ALLOWED.read_text().split() != [*before.split(), name]
    if not chosen_since:
        try:
            ALLOWED.write_text(before)
        except PermissionError:
            raise
        except OSError as error:
            raise TestbedError(
                f"{ALLOWED}: {error.strerror}; it was: {before}; put it back, then remove {note}"
            ) from None
    note.unlink()
    return None if chosen_since else before


def select(name: str, namespaces: Iterable[str]) -> bool:
    """Make *name* the default of *namespaces*. If that is impossible, change nothing and return False.

    It is impossible if the kernel lacks *name*. In a container it is also impossible if *name* is not on the list,
    which a container may not change. There, another run outside the container, with another lock, may add *name* for a
    moment; then some of *namespaces* may have it.
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
