"""Keeps the logs small: a log that has grown past a limit is renamed, the oldest one goes, Squid opens a new one.

Squid can rename by itself (logfile_rotate), but each of several workers would rename the same file. So Squid only
closes and reopens (``logfile_rotate 0`` and SIGUSR1), as with logrotate(8), and the renaming is done here, once.
"""

from __future__ import annotations

from pathlib import Path

LIMIT = 16 * 1024 * 1024
"""Bytes."""
KEEP = 4
"""Old files of each log."""


def rotate(directory: Path, limit: int = LIMIT, keep: int = KEEP) -> bool:
    """Rename each ``*.log`` of *directory* that is larger than *limit*. True if there was one: Squid must reopen."""
    grown = [log for log in sorted(directory.glob("*.log")) if log.stat().st_size > limit]
    for log in grown:
        older = [log.with_name(f"{log.name}.{number}") for number in range(1, keep + 1)]
        for target, source in zip(reversed(older), [*reversed(older[:-1]), log], strict=True):
            if source.exists():
                source.replace(target)
    return bool(grown)
