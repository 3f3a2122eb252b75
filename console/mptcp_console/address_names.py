# SPDX-License-Identifier: GPL-2.0-or-later
"""Names for addresses, from a file that the operator writes: each line has an address and its name, like /etc/hosts."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Final

MAX_BYTES: Final = 1 << 20
"""Maximum size of the file, bytes."""
MAX_NAME_CHARACTERS: Final = 64


def parse_names(text: str) -> dict[str, str]:
    """Return the first name of each address. Raises ValueError, whose text contains the line's number."""
    names: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            address = str(ip_address(words[0]))
        except ValueError:
            raise ValueError(
                f"line {number}: {words[0][:60]!r} is not an IP address; write e.g. 10.77.1.2 phone"
            ) from None
        if len(words) < 2:
            raise ValueError(f"line {number}: {address} has no name; write e.g. {address} phone")
        if len(words[1]) > MAX_NAME_CHARACTERS:
            raise ValueError(f"line {number}: the name has more than {MAX_NAME_CHARACTERS} characters")
        names.setdefault(address, words[1])
    return names


def read_names(file: Path) -> dict[str, str]:
    """Return the names in *file*. Raises OSError, ValueError."""
    with file.open("rb") as stream:
        content = stream.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError(f"has more than {MAX_BYTES} bytes")
    try:
        return parse_names(content.decode())
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8 text: byte {error.start} cannot be decoded") from None


class AddressNames:
    """The names in *file*, which is read again when it changes. While the file has errors, the previous names are
    used."""

    def __init__(self, file: Path | None, warn: Callable[[str], object] = lambda text: None) -> None:
        self._file = file
        self._warn = warn
        self._read_stamp: tuple[int, int, int] | None = None
        self._names: Mapping[str, str] = {}
        self.version = int(time.time())
        """A number that changes when the names change, and at a restart."""

    def refresh(self) -> None:
        """Read the file if it changed."""
        if self._file is None:
            return
        try:
            found = self._file.stat()
            stamp = (found.st_ino, found.st_mtime_ns, found.st_size)
            if stamp == self._read_stamp:
                return
            self._read_stamp = stamp
            names = read_names(self._file)
        except (OSError, ValueError) as error:
            if not isinstance(error, OSError) or self._read_stamp is not None:
                why = (error.strerror or "cannot be read") if isinstance(error, OSError) else error
                self._warn(f"{self._file}: {why}; the previous names stay in use")
            if isinstance(error, OSError):
                self._read_stamp = None
            return
        if names != self._names:
            self._names = names
            self.version += 1

    @property
    def names(self) -> Mapping[str, str]:
        return self._names
