# SPDX-License-Identifier: GPL-2.0-or-later
"""Notifications to the service manager, if one started this process: sd_notify(3), without its library."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping

from mptcp_common import journal
from mptcp_common.reasons import reason

READY, WATCHDOG = "READY=1", "WATCHDOG=1"
MAX_STATUS_CHARACTERS = 500
"""Maximum length of a status text, characters."""


def is_managed() -> bool:
    """Return whether a service manager expects notifications."""
    return bool(os.environ.get("NOTIFY_SOCKET"))


def notify(*lines: str) -> None:
    """Send *lines*, such as ``READY=1``, to the service manager, if there is one. Raises OSError."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as manager:
        manager.connect(address)
        manager.send("\n".join(lines).encode())


def notify_or_warn(program: str, *lines: str) -> None:
    """Like :func:`notify`, but log a failure as a warning of *program* instead of raising it, so that the server keeps
    running."""
    try:
        notify(*lines)
    except OSError as error:
        journal.say(f"{program}: cannot notify the service manager ({lines[0]}): {reason(error)}", journal.WARNING)


def status(text: str) -> str:
    """Return the line that makes ``systemctl status`` show *text*."""
    return f"STATUS={' '.join(text.split())[:MAX_STATUS_CHARACTERS]}"


def reloading() -> tuple[str, str]:
    """Return the lines that announce a reload; ``READY=1`` ends it."""
    return "RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}"


def watchdog_seconds(environment: Mapping[str, str]) -> float | None:
    """Return the maximum seconds between two ``WATCHDOG`` notifications (sd_watchdog_enabled(3)); None if the service
    manager expects no notifications."""
    microseconds, pid = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
    if not microseconds.isdigit() or int(microseconds) == 0 or (pid and pid != str(os.getpid())):
        return None
    return int(microseconds) / 1e6
