# SPDX-License-Identifier: GPL-2.0-or-later
"""Where a run's directory is made, on this host or on a host that is reached by ssh."""

from __future__ import annotations

import tempfile
from pathlib import Path


def parent_directory() -> str:
    """Return the temporary directory, or /tmp if other users cannot enter that.

    Apache's and Squid's workers run as other users, but TMPDIR may be private to one user (libpam-tmpdir).
    """
    directory = Path(tempfile.gettempdir()).resolve()
    open_to_others = all(each.stat().st_mode & 0o001 for each in (directory, *directory.parents))
    return str(directory) if open_to_others else "/tmp"
