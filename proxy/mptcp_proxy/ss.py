# SPDX-License-Identifier: GPL-2.0-or-later
"""Runs ss(8)."""

from __future__ import annotations

import subprocess


def output(*arguments: str) -> str | None:
    """Return the output of ``ss`` with *arguments*; None if ss is missing, fails, or takes longer than 30 s."""
    try:
        # A process name may contain any bytes, and the kernel truncates it to 15 bytes, even within a character.
        answer = subprocess.run(
            ["ss", *arguments], capture_output=True, encoding="utf-8", errors="replace", timeout=30, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout if answer.returncode == 0 else None
