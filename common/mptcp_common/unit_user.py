"""What the units of console and portal could not read. Each has a user of its own (``DynamicUser``), who owns no file,
and the throttler's group: root, who checks the settings, reads everything."""

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
"""``SupplementaryGroups`` of both units, unless a drop-in has others, too: the group that the throttler's user has."""
_CREDENTIALS: Final = Path("/run/credentials")
_ANY_DYNAMIC_USER: Final = 65519
"""The last of those that systemd takes (systemd.exec(5), ``DynamicUser``)."""


def unreadable_by_unit(paths: Iterable[Path], unit: str, group: str = GROUP) -> Iterator[Problem]:
    """Yield which of *paths* systemd's *unit* could not read. Only root can find out; others get no answer.

    Where the host has no such *group*, there is no unit of ours. Left out are the copies that systemd makes for a unit
    alone (``LoadCredential``, systemd.exec(5)): it lets their unit in, and nobody else.
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
