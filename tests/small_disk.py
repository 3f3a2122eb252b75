# SPDX-License-Identifier: GPL-2.0-or-later
"""A small file system that a test can fill, for kernel tests of several components."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def small_disk(directory: Path, mode: int = 0o755) -> Iterator[Path]:
    """Mount a file system of one megabyte at *directory*, for processes that start in the ``with`` block."""
    directory.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size=1m,mode={mode:o}", "tmpfs", directory], check=True)
    try:
        yield directory
    finally:
        # After a lazy unmount, processes can still use the file system.
        subprocess.run(["umount", "--lazy", directory], check=True)


def fill(disk: Path) -> Path:
    """Fill *disk* with one file. Return this file."""
    filling = disk / "filling"
    with suppress(OSError), filling.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    return filling
