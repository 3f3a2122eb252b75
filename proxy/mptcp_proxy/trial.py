"""Squid's reading of its configuration as a trial beside everything else, since it may wait for name servers.

Nothing here waits for it: a supervisor hears meanwhile that it is to stop, and sees that Squid has ended.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import BinaryIO

from mptcp_common.reasons import reason

from .configuration.complaints import fatal_remark
from .squid import PARSE_SECONDS, too_long

_GONE = 1.0
"""Seconds that a process which was killed is waited for; ``offspring.reap`` collects it later."""


class Trial:
    """Of one *command*, one at a time, of *seconds* at the most."""

    def __init__(self, command: Sequence[str], seconds: float = PARSE_SECONDS) -> None:
        self._command = command
        self._seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._output: BinaryIO | None = None
        self._failure = ""
        """Why there is no process."""
        self._deadline = 0.0

    @property
    def under_way(self) -> bool:
        """Whether one was begun, of which the outcome is not known."""
        return self._process is not None or bool(self._failure)

    def begin(self) -> None:
        self.end()
        self._deadline = time.monotonic() + self._seconds
        try:
            # In memory: of a disk that is full, nothing would be the answer, and a Squid that would end told to read.
            self._output = os.fdopen(os.memfd_create("squid-parse"), "w+b")
            # A terminal's Ctrl-C is for the supervisor, which ends it.
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._output,
                start_new_session=True,
            )
        except OSError as error:
            self._failure = f"cannot try whether Squid reads its configuration: {reason(error)}"

    def outcome(self) -> str | None:
        """Return why Squid is not to read its configuration, empty where it may; None while that is not known."""
        obstacle = self._failure
        if self._process is not None and self._output is not None:
            # Not by its status: with ``offspring.reap``, who collects it is a matter of chance.
            if self._process.poll() is not None:
                self._output.seek(0)
                remark = fatal_remark(self._output.read().decode("utf-8", "surrogateescape"))
                obstacle = f"Squid would end at {remark}" if remark else ""
            elif time.monotonic() >= self._deadline:
                obstacle = too_long(self._seconds)
            else:
                return None
        self.end()
        return obstacle

    def end(self) -> None:
        """Break off what is under way, and leave nothing behind."""
        if self._process is not None:
            self._process.kill()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_GONE)
        if self._output is not None:
            self._output.close()
        self._process, self._output, self._failure = None, None, ""
