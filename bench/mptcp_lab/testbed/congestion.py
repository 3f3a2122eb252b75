"""Whether a kernel has a congestion control, and selecting one inside namespaces.

A namespace other than the host's may only select what the host's ``tcp_allowed_congestion_control`` lists
(net/ipv4/tcp_cong.c). So the list is extended for the few milliseconds of the selection, under the lock
that all runs share, and put back; the selection itself belongs to the namespace and stays. What the list was is noted
meanwhile: a run that is killed in that moment leaves the note, and the next run, or ``cleanup``, puts the list back.
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
"""In the directory of the runs: the list as it was, as long as it is extended."""
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
    with registry() as directory:
        note = directory / NOTE
        _put_back(note)
        before = ALLOWED.read_text().split()
        if name in before:
            yield
            return
        # Whole or not at all: half a note would shorten the list.
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
    """Put the list back as it was before a run that was killed while it had extended it."""
    with registry() as directory:
        try:
            before = _put_back(directory / NOTE)
        except TestbedError as error:
            return Cleaned((), (str(error),))
    return Cleaned((f"set net.ipv4.tcp_allowed_congestion_control to what it was: {before}",) if before else (), ())


def _put_back(note: Path) -> str | None:
    """Put the list back as *note* has it, and remove that; return the list, None where there is nothing to put back.

    A list that is not as it was extended is what somebody has chosen since. Raises PermissionError, and TestbedError
    where it cannot be put back.
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
