# SPDX-License-Identifier: GPL-2.0-or-later
"""Create the directory of a run, and the files that an origin serves.

``agent.files DIRECTORY NAME=SIZE …`` creates DIRECTORY if necessary, writes the files, and prints a JSON object with
the SHA-256 of each name. SIZE is in bytes. The content depends only on name and size.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

BLOCK = 1 << 20
"""Maximum bytes per write."""


def parent_directory() -> str:
    """Return the temporary directory, or /tmp if other users such as Apache's and Squid's workers cannot enter it."""
    directory = Path(tempfile.gettempdir()).resolve()
    open_to_others = all(each.stat().st_mode & 0o001 for each in (directory, *directory.parents))
    return str(directory) if open_to_others else "/tmp"


def remove_tree(path: Path) -> str | None:
    """Remove the directory tree *path*. Return None, or why a file remains."""
    failures: list[str] = []

    def record_failure(function: Callable[..., Any], failed: str, raised: tuple[type, BaseException, Any]) -> None:
        failures.append(f"remove {failed}: {getattr(raised[1], 'strerror', raised[1])}")

    shutil.rmtree(path, onerror=record_failure)
    # The first failure has the real reason, because a directory cannot be removed before its content.
    return failures[0] if failures and os.path.lexists(path) else None


def write_file(path: Path, size: int) -> str:
    """Write *size* bytes, which depend only on the file's name, to *path*. Return their SHA-256 in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for block in range(0, size, BLOCK):
            seed = f"{path.name}:{block}".encode()
            data = hashlib.shake_128(seed).digest(min(BLOCK, size - block))
            digest.update(data)
            file.write(data)
    # The web server's workers, which run as another user, must be able to read the file.
    path.chmod(0o644)
    return digest.hexdigest()


def main(arguments: list[str]) -> int:
    directory = Path(arguments[0])
    directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    digests = {}
    for argument in arguments[1:]:
        name, _, size = argument.rpartition("=")
        try:
            digests[name] = write_file(directory / name, int(size))
        except OSError as error:
            print(f"create {directory / name} of {size} bytes: {error.strerror}", file=sys.stderr)
            return 1
    print(json.dumps(digests))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
