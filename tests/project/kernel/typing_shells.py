# SPDX-License-Identifier: GPL-2.0-or-later
"""Interactive shells in a booted container, to test how the TAB key completes a typed command."""

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

from containers import TIMEOUT, Container

SHELLS: Final = {
    "bash": (["bash", "--norc", "-i"], ". /usr/share/bash-completion/bash_completion"),
    "zsh": (["zsh", "-f", "-i"], "autoload -Uz compinit && compinit -u -D"),
}
"""For each shell: its command, and the setting that enables completion."""
_CTRL_A: Final = "\x01"
"""Key that moves the cursor to the beginning of the line in both shells."""
_TAB: Final = "\t"
_ROWS, _COLUMNS = 100, 200


class TypingShell:
    """A shell with its own terminal."""

    def __init__(self, container: Container, name: str) -> None:
        argv, settings = SHELLS[name]
        self._terminal, shell_side = pty.openpty()
        fcntl.ioctl(shell_side, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, _COLUMNS, 0, 0))
        command = ["setsid", "--ctty", *container.command_inside(argv)]
        self._process = subprocess.Popen(command, stdin=shell_side, stdout=shell_side, stderr=shell_side)
        os.close(shell_side)
        # The quotes distinguish the terminal's echo of the typed line from the command's output.
        self._type(f"{settings}; echo set''tled\n")
        self._read_until("settled")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._terminal)

    def _type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def _read_until(self, pattern: str) -> re.Match[str]:
        output, deadline = "", time.monotonic() + TIMEOUT
        while (found := re.search(pattern, output)) is None:
            assert time.monotonic() < deadline, f"no {pattern!r} in {output!r}"
            if select.select([self._terminal], [], [], 0.2)[0]:
                output += os.read(self._terminal, 65536).decode(errors="replace")
        return found

    def complete(self, typed: str, tabs: int = 1) -> tuple[str, str]:
        """Type *typed* and the TAB key. Return the completed line, and everything that the shell showed."""
        self._type(f"{typed}{_TAB * tabs}{_CTRL_A}echo COMPLETED \n")
        # The line is executed by echo, whose output contains no control characters.
        found = self._read_until(r"(?s)(.*)[\n\r](?:\x1b\[J)?COMPLETED (mptcp-[^\r\n]*)\r?\n")
        return found[2].strip(), found[1]
