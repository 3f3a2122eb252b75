"""What a check finds."""

from __future__ import annotations

import enum
import shlex
from dataclasses import dataclass


class Status(enum.Enum):
    OK = "ok"
    WARN = "warn"
    """The proxy works, but less well, or not in every case."""
    FAIL = "fail"
    """The proxy does not do its job."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. What is not OK says why it matters and which command corrects it."""

    check: str
    status: Status
    text: str
    why: str = ""
    remedy: str = ""


def ok(check: str, text: str) -> Finding:
    return Finding(check, Status.OK, text)


def warn(check: str, text: str, why: str, remedy: str) -> Finding:
    return Finding(check, Status.WARN, text, why, remedy)


def fail(check: str, text: str, why: str, remedy: str) -> Finding:
    return Finding(check, Status.FAIL, text, why, remedy)


def lasting_sysctl(key: str, value: str) -> str:
    """Return the command that sets a sysctl now and at every boot (sysctl.d(5))."""
    return f"echo '{key} = {value}' >> /etc/sysctl.d/90-mptcp-proxy.conf && sysctl -w {shlex.quote(f'{key}={value}')}"
