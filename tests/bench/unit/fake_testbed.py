# SPDX-License-Identifier: GPL-2.0-or-later
"""Emulated paths without a kernel; a test chooses when they are late."""

from __future__ import annotations

from mptcp_lab.testbed import EmulationError


class FakePaths:
    """Emulated paths. Like the emulation, a check reports the packets that were late since the previous check."""

    def __init__(self) -> None:
        self.late = self._judged = 0

    def check_emulation(self) -> None:
        since, self._judged = self.late - self._judged, self.late
        if since:
            raise EmulationError("late")
