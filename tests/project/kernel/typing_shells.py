# SPDX-License-Identifier: GPL-2.0-or-later
"""Interactive shells in a booted container, and somebody who types: what the TAB key makes of a command."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from types import TracebackType
from typing import Final, Self

from containers import PATIENCE, Container

SHELLS: Final = {
    "bash": (["bash", "--norc", "-i"], ". /usr/share/bash-completion/bash_completion"),
    "zsh": (["zsh", "-f", "-i"], "autoload -Uz compinit && compinit -u -D"),
}
"""Each with what a user's own settings say for completion to be there."""
_TO_THE_BEGINNING: Final = "\x01"
"""Ctrl-A, by which both shells go to the beginning of the line."""
_TAB: Final = "\t"
_ROWS, _COLUMNS = 100, 200


class TypingShell:
    """One shell at a terminal of its own."""

    def __init__(self, container: Container, name: str) -> None:
        argv, settings = SHELLS[name]
        self._terminal, end = pty.openpty()
        fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, _COLUMNS, 0, 0))
        command = ["setsid", "--ctty", *container.inside(argv)]
        self._process = subprocess.Popen(command, stdin=end, stdout=end, stderr=end)
        os.close(end)
        # The quotes: what is typed is shown, too, and is not yet the answer.
        self._type(f"{settings}; echo set''tled\n")
        self._until("settled")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._terminal)

    def _type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def _until(self, pattern: str) -> re.Match[str]:
        said, deadline = "", time.monotonic() + PATIENCE
        while (found := re.search(pattern, said)) is None:
            assert time.monotonic() < deadline, f"no {pattern!r} in {said!r}"
            if select.select([self._terminal], [], [], 0.2)[0]:
                said += os.read(self._terminal, 65536).decode(errors="replace")
        return found

    def completed(self, typed: str, tabs: int = 1) -> tuple[str, str]:
        """Type *typed* and the TAB key; return the line that comes of it, and all that was shown meanwhile."""
        self._type(f"{typed}{_TAB * tabs}{_TO_THE_BEGINNING}echo COMPLETED \n")
        # The line is executed: what echo says of it has no more control characters in it.
        found = self._until(r"(?s)(.*)[\n\r](?:\x1b\[J)?COMPLETED (mptcp-[^\r\n]*)\r?\n")
        return found[2].strip(), found[1]
