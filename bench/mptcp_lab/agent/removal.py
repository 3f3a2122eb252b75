# SPDX-License-Identifier: GPL-2.0-or-later
"""Remove files and directories, and name what stays."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any


def removed(path: Path) -> str | None:
    """Remove the file or the directory tree *path*; return what stays and why, None if nothing does."""
    failures: list[str] = []

    def note(function: Callable[..., Any], failed: str, raised: tuple[type, BaseException, Any]) -> None:
        failures.append(_why(failed, raised[1]))

    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, onerror=note)
    else:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            failures.append(_why(str(path), error))
    # The first failure has the reason: failures of the directories above follow from it. What vanished by itself
    # meanwhile does not stay.
    return failures[0] if failures and os.path.lexists(path) else None


def _why(path: str, error: BaseException) -> str:
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return f"remove {path}: {reason}"
