"""What ss(8) prints of this network namespace's sockets."""

from __future__ import annotations

import subprocess


def printed(*arguments: str) -> str | None:
    """Return what ``ss`` with *arguments* prints; None where it is not there, fails, or takes longer than 30 s."""
    try:
        # A user may name a process as it likes, and the kernel cuts that after 15 bytes, be it in mid-character.
        answer = subprocess.run(
            ["ss", *arguments], capture_output=True, encoding="utf-8", errors="replace", timeout=30, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout if answer.returncode == 0 else None
