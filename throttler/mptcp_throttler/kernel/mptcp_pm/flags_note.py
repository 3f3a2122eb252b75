"""The note in the state directory that this throttler sets backup flags, for a successor after a crash.

A socket does not say who made it backup: other programs may, by its connection's token. So flags that are there at a
start are a predecessor's only where its note is. It is written before the first flag is set, and removed after the last
one was taken back.
"""

from __future__ import annotations

from pathlib import Path

from mptcp_throttler.kernel.state_file import read_state, write_state

NAME = "backup-flags"
_TEXT = "mptcp-throttler sets backup flags on subflows.\n"


class FlagsNote:
    """Of one daemon."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._left: bool | None = None
        """A predecessor's is there, whose flags were not taken over; None where that is not known."""
        self._written = False

    def find(self) -> None:
        """Look for a predecessor's, once: what is there later is ours. Raises KernelError."""
        if self._left is None:
            self._left = read_state(self._directory / NAME) is not None

    def write(self) -> None:
        """Have it there. Raises KernelError."""
        if not self._written:
            write_state(self._directory / NAME, _TEXT)
            self._written = True

    def take_over(self) -> bool:
        """Return whether the flags that are set are a predecessor's; from now on they count as ours."""
        left, self._left = bool(self._left), False
        return left

    def remove(self) -> None:
        """No flag is set any more; a note whose flags were not taken over stays. Raises KernelError."""
        if self._left is False:
            self._written = False
            write_state(self._directory / NAME, None)
