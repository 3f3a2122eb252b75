# SPDX-License-Identifier: GPL-2.0-or-later
"""A file whose download lasts longer than all tests of a module."""

from __future__ import annotations

import os

from mptcp_lab.testbed.services import Origin

SIZE = 100_000_000_000
"""Bytes, which take hours over the testbed's links. The file is sparse."""


def make_endless(origin: Origin, name: str) -> None:
    """Make the file *name* of *origin* so large that no download of it ends during the tests."""
    os.truncate(origin.directory / "htdocs" / name, SIZE)
