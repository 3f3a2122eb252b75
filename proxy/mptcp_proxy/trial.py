# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests in the background whether Squid can read its configuration. The test may take long, because Squid may wait for
name servers.

No function of this module blocks, so the supervisor can handle signals and the end of Squid during a test.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import BinaryIO

from mptcp_common.reasons import reason

from .configuration.squid_problems import fatal_remark
from .squid import PARSE_SECONDS, timeout_message

_KILL_SECONDS = 1.0
"""Maximum seconds to wait for a killed process. After that, ``child_processes.reap`` collects it."""


class Trial:
    """Runs *command*, which makes Squid parse its configuration, for at most *seconds*, one run at a time."""

    def __init__(self, command: Sequence[str], seconds: float = PARSE_SECONDS) -> None:
        self._command = command
        self._seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._output: BinaryIO | None = None
        self._failure = ""
        self._deadline = 0.0

    @property
    def is_running(self) -> bool:
        """Whether a trial runs, or has ended and the caller has not called ``outcome`` since."""
        return self._process is not None or bool(self._failure)

    def begin(self) -> None:
        self.end()
        self._deadline = time.monotonic() + self._seconds
        try:
            # Keep the output in memory: on a full disk it would be empty, which would count as success.
            self._output = os.fdopen(os.memfd_create("squid-parse"), "w+b")
            # Ctrl-C on a terminal must reach only the supervisor, which then ends the trial.
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._output,
                start_new_session=True,
            )
        except OSError as error:
            self._failure = f"cannot test whether Squid reads its configuration: {reason(error)}"

    def outcome(self) -> str | None:
        """Return why Squid must not reread its configuration; empty if it may; None while the trial runs."""
        problem = self._failure
        if self._process is not None and self._output is not None:
            # Do not use the exit status, because ``child_processes.reap`` may collect it first.
            if self._process.poll() is not None:
                self._output.seek(0)
                remark = fatal_remark(self._output.read().decode("utf-8", "surrogateescape"))
                problem = f"Squid would end at {remark}" if remark else ""
            elif time.monotonic() >= self._deadline:
                problem = timeout_message(self._seconds)
            else:
                return None
        self.end()
        return problem

    def end(self) -> None:
        """Abort a running trial, and clean up."""
        if self._process is not None:
            self._process.kill()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_KILL_SECONDS)
        if self._output is not None:
            self._output.close()
        self._process, self._output, self._failure = None, None, ""
