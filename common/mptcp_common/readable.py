# SPDX-License-Identifier: GPL-2.0-or-later
"""Finds the files that a daemon's user cannot read, for checks by root, who can read every file."""

from __future__ import annotations

import grp
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from mptcp_common.unit_properties import properties_of_unit

_TEST_SECONDS = 10


def groups_of_unit(unit: str) -> list[int]:
    """Return the supplementary groups that systemd gives *unit*, drop-ins included (systemd.exec(5)).

    Return no groups if systemd does not answer or does not know the unit. Groups that the host lacks are omitted.
    """
    names = properties_of_unit(unit, ["SupplementaryGroups"]).get("SupplementaryGroups", "")
    return [number for name in names.split() if (number := _group_id(name)) is not None]


def _group_id(group: str) -> int | None:
    try:
        return int(group) if group.isdecimal() else grp.getgrnam(group).gr_gid
    except KeyError:
        return None


def unreadable(paths: Iterable[Path], uid: int, gid: int, groups: Sequence[int]) -> Iterator[Path]:
    """Yield each of *paths* that a process with this user, group and supplementary *groups* cannot read. Requires root.

    A process of that user tests this, so that the kernel considers the modes of all directories, groups and access
    lists. Raises OSError if this process may not become that user, and TimeoutError if the file system does not answer.
    """
    for path in paths:
        try:
            exit_status = subprocess.run(
                ["/usr/bin/test", "-r", str(path.absolute())],
                user=uid,
                group=gid,
                extra_groups=groups,
                cwd="/",
                timeout=_TEST_SECONDS,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{path}: its file system does not answer within {_TEST_SECONDS} s") from None
        if exit_status != 0:
            yield path
