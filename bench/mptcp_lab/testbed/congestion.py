# SPDX-License-Identifier: GPL-2.0-or-later
"""Whether a kernel has a congestion control, and selecting one inside namespaces.

A namespace other than the host's may only select what the host's ``tcp_allowed_congestion_control`` lists
(net/ipv4/tcp_cong.c). So the list is extended for the few milliseconds of the selection, under the lock that all runs
share, and restored; the selection belongs to the namespace and stays. A note keeps the original list meanwhile: if the
run is killed in that moment, the next run, or ``cleanup``, restores the list from the note.
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
"""Of the whole kernel; every namespace may read it (ipv4_net_table in net/ipv4/sysctl_net_ipv4.c)."""
NOTE = "allowed-congestion-control"
"""File in the directory of the runs, with the original list while it is extended."""
KEEP = "keep"
"""In place of a name: keep the host's own."""


def lacking(name: str, available: str) -> str | None:
    """Return why a kernel with the *available* ones lacks *name*, None if it has it."""
    there = available.split()
    return None if name in (KEEP, *there) else f"the kernel has no congestion control {name}; it has {', '.join(there)}"


def lacking_here(name: str) -> str | None:
    """Return the same for this kernel, after asking it, like the proxy, to load *name* (as root)."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
    return lacking(name, AVAILABLE.read_text())


@contextmanager
def allowed(name: str) -> Iterator[None]:
    """Put *name* on the host's list of allowed congestion controls; restore the list afterwards."""
    with registry() as directory:
        note = directory / NOTE
        _put_back(note)
        before = ALLOWED.read_text().split()
        if name in before:
            yield
            return
        # Atomically: half a note would shorten the list.
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
    """Restore the list that a killed run had extended."""
    with registry() as directory:
        try:
            before = _put_back(directory / NOTE)
        except TestbedError as error:
            return Cleaned((), (str(error),))
    return Cleaned((f"set net.ipv4.tcp_allowed_congestion_control to what it was: {before}",) if before else (), ())


def _put_back(note: Path) -> str | None:
    """Restore the list from *note*, and remove the note; return the list, None if nothing was restored.

    A list that differs from the extended one was chosen by somebody since, and stays. Raises PermissionError, and
    TestbedError if it cannot be restored.
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
    """Make *name* the default of *namespaces*; return False, changing nothing, if that is impossible.

    It is if the kernel lacks *name*, or if *name* is not on the list and we run in a container, which may not change
    the list. There a run outside, with another lock, may put it on the list for a moment: then some of *namespaces* may
    have it.
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
