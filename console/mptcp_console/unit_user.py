"""What the console's unit could not read. It has a user of its own (``DynamicUser``), who owns no file, and the
throttler's group: root, who checks the settings, reads everything."""

from __future__ import annotations

import grp
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from mptcp_common.problems import Problem
from mptcp_common.readable import unreadable

GROUP: Final = "mptcp-throttler"
"""``SupplementaryGroups`` of the unit."""
_ANY_DYNAMIC_USER: Final = 65519
"""The last of those that systemd takes (systemd.exec(5), ``DynamicUser``)."""


def unreadable_by_unit(paths: Iterable[Path], group: str = GROUP) -> Iterator[Problem]:
    """Yield which of *paths* the unit could not read. Only root can find out; others get no answer.

    Where the host has no such *group*, there is no unit of ours.
    """
    if os.geteuid() != 0:
        return
    try:
        number = grp.getgrnam(group).gr_gid
    except KeyError:
        return
    for path in unreadable(paths, _ANY_DYNAMIC_USER, _ANY_DYNAMIC_USER, [number]):
        message = f"the unit, whose group is {group}, cannot read it; chgrp {group} and chmod 0640"
        yield Problem(str(path), 0, 0, "", None, message)
