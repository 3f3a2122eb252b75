# SPDX-License-Identifier: GPL-2.0-or-later
"""Emulated paths without a kernel; a test chooses when they are late."""

from __future__ import annotations

from mptcp_lab.testbed import EmulationError


class FakePaths:
    """Emulated paths that report at a check what was late since the last check, as the emulation does."""

    def __init__(self) -> None:
        self.late = self._judged = 0

    def check_emulation(self) -> None:
        since, self._judged = self.late - self._judged, self.late
        if since:
            raise EmulationError("late")
