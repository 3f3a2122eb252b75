# SPDX-License-Identifier: GPL-2.0-or-later
"""Finds files that the units of console and portal cannot read. Each unit has a user of its own (``DynamicUser``), who
owns no file, and the throttler's group. Root, who checks the settings, reads everything."""

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
"""The last of systemd's range (systemd.exec(5), ``DynamicUser``)."""


def unreadable_by_unit(paths: Iterable[Path], unit: str, group: str = GROUP) -> Iterator[Problem]:
    """Yield a problem for each of *paths* that systemd's *unit* cannot read. Only root can find out; others get none.

    If the host has no such *group*, there is no unit of ours. Copies that systemd makes for one unit are skipped
    (``LoadCredential``, systemd.exec(5)): only that unit can read them.
    """
    if os.geteuid() != 0:
        return
    try:
        number = grp.getgrnam(group).gr_gid
    except KeyError:
        return
    own = [path for path in paths if not path.is_relative_to(_CREDENTIALS)]
    for path in unreadable(own, _ANY_DYNAMIC_USER, _ANY_DYNAMIC_USER, groups_of_unit(unit) or [number]):
        message = f"the unit, whose group is {group}, cannot read it; chgrp {group} and chmod 0640"
        yield Problem(str(path), 0, 0, "", None, message)
