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
_INTERVAL = 0.2
"""Seconds between two checks whether the answer is still wanted."""
_SEARCH = "/usr/local/sbin:/usr/sbin:/usr/local/squid/sbin"


class UnwantedError(Exception):
    """The answer is no longer wanted."""


@dataclass(frozen=True, slots=True)
class Squid:
    """An installed Squid, as ``squid -v`` describes it."""

    path: str
    version: str
    default_user: str
    """The user as which Squid runs if the configuration has no cache_effective_user."""
    multipath: bool = False
    """Whether its http_port knows the option ``mptcp``, as the project's own build does (proxy/squid)."""

    @property
    def has_whole_uploads(self) -> bool:
        """Whether Squid continues an upload after a read of zero bytes, as it does from version 6 on (Squid bug
        5405)."""
        major = self.version.partition(".")[0]
        return major.isdecimal() and int(major) >= 6

    def parse(self, configuration: Path, service_name: str, is_unwanted: Callable[[], bool] = lambda: False) -> str:
        """Return the output of ``squid -k parse``, which only reads the file. Raises OSError, and UnwantedError when
        *is_unwanted*, which is polled, returns True."""
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
                while not is_unwanted():
                    try:
                        return process.communicate(timeout=_INTERVAL)[1]
                    except subprocess.TimeoutExpired:
                        if time.monotonic() >= deadline:
                            raise TimeoutError(too_long(PARSE_SECONDS)) from None
                raise UnwantedError
            finally:
                process.kill()

    def parse_command(self, configuration: Path, service_name: str) -> list[str]:
        return [self.path, "-n", service_name, "-f", str(configuration), "-k", "parse"]


def too_long(seconds: float) -> str:
    """Return the message that Squid takes more than *seconds* for a configuration."""
    return f"Squid does not read it within {seconds:g} s; it waits for name servers where names of hosts are in it"


def describe(path: str, text: str) -> Squid:
    """Parse the output *text* of ``squid -v``."""
    version = re.search(r"Version (\S+)", text)
    user = re.search(r"--with-default-user=([^\s']+)", text)
    return Squid(path, version[1] if version else "unknown", user[1] if user else "nobody")


def installed() -> Squid | None:
    """Return the first executable Squid in PATH and the distributions' directories, or None."""
    path = shutil.which("squid", path=f"{os.environ.get('PATH', '')}:{_SEARCH}")
    if path is None:
        return None
    try:
        answer = subprocess.run([path, "-v"], capture_output=True, text=True, errors="replace", timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return replace(describe(path, answer.stdout), multipath=_knows_multipath(path))


def _knows_multipath(path: str) -> bool:
    """Return whether Squid knows the option ``mptcp``, by a test run. The version does not show it, because a
    distribution may add the option. A program that does not contain the word is not run, because Squid reports an
    unknown option to syslog as an alert."""
    command = [path, "-f", "/dev/stdin", "-k", "parse"]
    try:
        if b"mptcp" not in Path(path).read_bytes():
            return False
        answer = subprocess.run(command, input=b"http_port 3128 mptcp\n", capture_output=True, timeout=30, check=False)
    except (OSError, subprocess.SubprocessError):
        return False
    return answer.returncode == 0
