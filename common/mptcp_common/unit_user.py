# SPDX-License-Identifier: GPL-2.0-or-later
"""Finds files that the systemd units of the console and the portal cannot read. Each unit runs as its own user
(``DynamicUser``), who owns no files, and with the throttler's group. Root, who checks the settings, can read every
file, so a successful read by root proves nothing."""

from __future__ import annotations

import grp
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from mptcp_common.problems import Problem
from mptcp_common.readable import groups_of_unit, unreadable
from mptcp_common.trust import THROTTLER_USER

GROUP: Final = THROTTLER_USER
"""``SupplementaryGroups`` of both units, before drop-ins: the group of the throttler's user."""
_CREDENTIALS: Final = Path("/run/credentials")
_ANY_DYNAMIC_USER: Final = 65519
"""The last user ID of systemd's range for ``DynamicUser`` (systemd.exec(5)); the unit may get any ID of this range."""


def unreadable_by_unit(paths: Iterable[Path], unit: str, group: str = GROUP) -> Iterator[Problem]:
    """Yield a problem for each of *paths* that systemd's *unit* cannot read. Only root can check this; for other users,
    nothing is yielded.

    If the host has no such *group*, our units are not installed, and nothing is yielded. Copies of files that systemd
    makes for one unit (``LoadCredential``, systemd.exec(5)) are skipped, because only that unit can read them.
    """
    if os.geteuid() != 0:
        return
    try:
        gid = grp.getgrnam(group).gr_gid
    except KeyError:
        return
    files = [path for path in paths if not path.is_relative_to(_CREDENTIALS)]
    for path in unreadable(files, _ANY_DYNAMIC_USER, _ANY_DYNAMIC_USER, groups_of_unit(unit) or [gid]):
        message = f"the unit (group {group}) cannot read it; run chgrp {group} and chmod 0640 on it"
        yield Problem(str(path), 0, 0, "", None, message)
