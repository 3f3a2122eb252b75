"""The grants of operators, in a small file beside the ledger: the command writes it, the daemon reads it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from mptcp_common.reasons import reason
from mptcp_common.trust import distrust
from mptcp_throttler.policy.budget import Grant

NAME = "grants.json"
MOST = 10_000
_LATEST = 1 << 33
"""Seconds since the epoch: beyond, some calendars have no dates."""


class GrantsError(Exception):
    """The file cannot be used: the text says which and why."""


def read(path: Path) -> tuple[Grant, ...]:
    """Return the grants in *path*, none if it is missing. Raises GrantsError."""
    try:
        with path.open("rb") as file:
            if why := distrust(os.fstat(file.fileno())):
                raise GrantsError(f"grants: {path} {why}")
            grants = msgspec.json.decode(file.read(), type=tuple[Grant, ...])
        for each in grants:
            if not 0 <= each.since <= each.until <= _LATEST:
                raise ValueError(f"{each.since} to {each.until} is no time")
            if not each.budget:
                _ = each.network
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise GrantsError(f"grants: {path}: {reason(error)}") from error
    except (msgspec.MsgspecError, ValueError) as error:
        raise GrantsError(f"grants: {path}: {error}; remove it, and grant anew") from error
    return grants


def change(path: Path, edit: Callable[[Sequence[Grant]], Sequence[Grant]]) -> None:
    """Replace the grants in *path* by what *edit* returns, atomically. Raises GrantsError."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(directory, fcntl.LOCK_EX)  # against a concurrent command
            grants = edit(read(path))[-MOST:]
            fresh = path.with_name(f".{path.name}.new")
            fresh.unlink(missing_ok=True)
            file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(file, "wb") as opened:
                opened.write(msgspec.json.encode(grants))
                owner = os.fstat(directory)
                if os.geteuid() == 0:
                    os.fchown(file, owner.st_uid, owner.st_gid)  # to the daemon's user, who must read it
                opened.flush()
                os.fsync(file)
            fresh.rename(path)
        finally:
            os.close(directory)
    except OSError as error:
        raise GrantsError(f"grants: {path}: {reason(error)}") from error
