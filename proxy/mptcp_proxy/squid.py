# SPDX-License-Identifier: GPL-2.0-or-later
"""The installed Squid: its path, its version and features, and its check of a configuration."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

PARSE_SECONDS = 60.0
"""Maximum time that Squid may take to read its configuration."""
_CHECK_INTERVAL = 0.2
"""Seconds between two checks whether the caller has cancelled."""
_MORE_DIRECTORIES = "/usr/local/sbin:/usr/sbin:/usr/local/squid/sbin"
"""Directories to search after those of PATH."""


class CheckCancelledError(Exception):
    """The caller has cancelled the check."""


@dataclass(frozen=True, slots=True)
class Squid:
    """An installed Squid, as ``squid -v`` describes it."""

    path: str
    version: str
    default_user: str
    """The user as which Squid runs if the configuration has no cache_effective_user."""
    has_mptcp_option: bool = False
    """Whether its http_port has the option ``mptcp``, as in the project's own build (proxy/squid)."""

    @property
    def continues_uploads(self) -> bool:
        """Whether Squid continues an upload after a read of zero bytes. It does so from version 6 on (Squid bug
        5405)."""
        major = self.version.partition(".")[0]
        return major.isdecimal() and int(major) >= 6

    def parse(self, configuration: Path, service_name: str, is_cancelled: Callable[[], bool] = lambda: False) -> str:
        """Return the output of ``squid -k parse``, which only reads the file. *is_cancelled* is called repeatedly until
        Squid has ended. Raises OSError, and CheckCancelledError if it returns True."""
        deadline = time.monotonic() + PARSE_SECONDS
        with subprocess.Popen(
            self.parse_command(configuration, service_name),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            # The same encoding as in configuration/source.py, independent of the locale, so that both can be compared.
            encoding="utf-8",
            errors="surrogateescape",
        ) as process:
            try:
                while not is_cancelled():
                    try:
                        return process.communicate(timeout=_CHECK_INTERVAL)[1]
                    except subprocess.TimeoutExpired:
                        if time.monotonic() >= deadline:
                            raise TimeoutError(timeout_message(PARSE_SECONDS)) from None
                raise CheckCancelledError
            finally:
                process.kill()

    def parse_command(self, configuration: Path, service_name: str) -> list[str]:
        return [self.path, "-n", service_name, "-f", str(configuration), "-k", "parse"]


def timeout_message(seconds: float) -> str:
    """Return the message that Squid needs more than *seconds* to read a configuration."""
    return (
        f"Squid does not read its configuration within {seconds:g} s; if that contains host names, Squid waits for name"
        " servers"
    )


def describe(path: str, text: str) -> Squid:
    """Parse the output *text* of ``squid -v``."""
    version = re.search(r"Version (\S+)", text)
    user = re.search(r"--with-default-user=([^\s']+)", text)
    return Squid(path, version[1] if version else "unknown", user[1] if user else "nobody")


def find_squid() -> Squid | None:
    """Return the first executable Squid in PATH and the distributions' directories, or None."""
    path = shutil.which("squid", path=f"{os.environ.get('PATH', '')}:{_MORE_DIRECTORIES}")
    if path is None:
        return None
    try:
        answer = subprocess.run([path, "-v"], capture_output=True, text=True, errors="replace", timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return replace(describe(path, answer.stdout), has_mptcp_option=_has_mptcp_option(path))


def _has_mptcp_option(path: str) -> bool:
    """Return whether Squid accepts the option ``mptcp`` in a test run. The version does not show this, because a
    distribution may add the option. A program that does not contain the word is not run, because Squid would report
    the unknown option to syslog as an alert."""
    command = [path, "-f", "/dev/stdin", "-k", "parse"]
    try:
        if b"mptcp" not in Path(path).read_bytes():
            return False
        answer = subprocess.run(command, input=b"http_port 3128 mptcp\n", capture_output=True, timeout=30, check=False)
    except (OSError, subprocess.SubprocessError):
        return False
    return answer.returncode == 0
