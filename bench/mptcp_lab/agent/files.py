# SPDX-License-Identifier: GPL-2.0-or-later
"""The files that an origin serves. Their bytes depend only on name and size, so that all hosts create the same files.

``agent.files DIRECTORY NAME=SIZE …`` creates DIRECTORY if necessary, writes the files, and prints a JSON object with
the SHA-256 of each name. SIZE is in bytes.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

BLOCK = 1 << 20
"""Maximum bytes per write."""


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
    made = {}
    for argument in arguments[1:]:
        name, _, size = argument.rpartition("=")
        try:
            made[name] = write_file(directory / name, int(size))
        except OSError as error:
            print(f"make {directory / name} of {size} bytes: {error.strerror}", file=sys.stderr)
            return 1
    print(json.dumps(made))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
