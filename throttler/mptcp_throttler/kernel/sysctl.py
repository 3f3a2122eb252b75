# SPDX-License-Identifier: GPL-2.0-or-later
"""Sysctls that the throttler changes in the network namespace. It saves their values before the change, and restores
them afterwards. proc_sys_net(5)."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from mptcp_common.kernel_error import KernelError
from mptcp_common.state_file import read_state, write_state

log = logging.getLogger(__name__)

PM_TYPE = "net.mptcp.pm_type"
STALE_LOSS_COUNT = "net.mptcp.stale_loss_cnt"
ENABLED = "net.mptcp.enabled"
OURS = frozenset({PM_TYPE, STALE_LOSS_COUNT})
NOTE = "sysctls.json"
_ROOT = "/proc/sys"
_MPTCP_MISSING = "the kernel has no Multipath TCP (option MPTCP), or is older than 5.19"
"""Text for a missing sysctl. ``net.mptcp.pm_type`` is the newest sysctl that the throttler needs."""


class OwnedSysctls:
    """Sets sysctls while they are needed. A file keeps their former values, for the next start after a crash."""

    def __init__(self, state_directory: Path) -> None:
        self._note = state_directory / NOTE
        self._note_content: dict[str, str] = {}  # content of the note, in case another program removes the file

    def original_values(self, names: Iterable[str]) -> dict[str, str]:
        """Return the values of *names* before our change. Raises KernelError if they cannot be read."""
        originals = self._read_note()
        return {name: originals[name] if name in originals else _read(name) for name in names}

    def hold(self, values: Mapping[str, str]) -> None:
        """Set sysctls to *values*, and restore our other sysctls.

        Raises KernelError if a sysctl cannot be set or saved; the sysctls not held before are then restored.
        """
        restorable = self._read_note()
        for name in restorable.keys() - values.keys():
            _write(name, restorable[name])
        originals = self.original_values(values)
        self._write_note(originals)
        try:
            for name, value in values.items():
                if _read(name) != value:
                    _write(name, value)
                    log.info("%s = %s, was %s", name, value, originals[name])
        except KernelError:
            for name in values.keys() - restorable.keys():
                with suppress(KernelError):
                    _write(name, originals[name])
            self._write_note({name: originals[name] for name in values.keys() & restorable.keys()})
            raise

    def check(self, values: Mapping[str, str]) -> list[str]:
        """Return deviations from :meth:`hold` as texts. Raises KernelError."""
        problems = [
            f"{name} is {actual}, not {value}" for name, value in values.items() if (actual := _read(name)) != value
        ]
        if self._note_content and read_state(self._note) is None:
            problems.append(f"{self._note} is missing; it records what to restore")
        return problems

    def restore(self) -> None:
        self.hold({})

    def _read_note(self) -> dict[str, str]:
        text = read_state(self._note)
        if text is None:
            return dict(self._note_content)
        try:
            note = json.loads(text)
        except ValueError as error:
            raise KernelError(f"{self._note} cannot be read ({error}); it records what to restore") from error
        if not isinstance(note, dict):
            raise KernelError(f"{self._note}: is {text[:40]!r}; allowed: an object of sysctls and their values")
        for name, value in note.items():
            if name not in OURS:
                raise KernelError(f"{self._note}: {name}: not our sysctl; allowed: {', '.join(sorted(OURS))}")
            if not (isinstance(value, str) and value.isascii() and value.isdigit()):
                raise KernelError(f"{self._note}: {name}: {value!r}; allowed: digits")
        return note

    def _write_note(self, note: Mapping[str, str]) -> None:
        self._note_content = dict(note)
        if note or read_state(self._note) is not None:
            write_state(self._note, json.dumps(note) if note else None)


def mptcp_missing() -> str | None:
    """Return why connections to this host cannot be Multipath TCP, and the consequences; None if they can.

    With MPTCP disabled, the kernel creates no MPTCP sockets, but existing sockets, also listeners, stay as they are
    (mptcp_init_sock, net/mptcp/protocol.c).
    """
    try:
        is_off = _read(ENABLED) == "0"
    except KernelError:
        return "this kernel has no Multipath TCP (Linux 5.6 or newer, option MPTCP): only plain_tcp: cap applies"
    if not is_off:
        return None
    return (
        f"Multipath TCP is switched off ({ENABLED} = 0): a new listener accepts plain TCP, to which only "
        "plain_tcp: cap applies; older listeners and their connections continue"
    )


def _read(name: str) -> str:
    try:
        return Path(_ROOT, *name.split(".")).read_text().strip()
    except FileNotFoundError as error:
        raise KernelError(f"read sysctl {name}: {error.strerror}; {_MPTCP_MISSING}") from error
    except OSError as error:
        raise KernelError(f"read sysctl {name}: {error.strerror}") from error


def _write(name: str, value: str) -> None:
    try:
        Path(_ROOT, *name.split(".")).write_text(value)
    except OSError as error:
        raise KernelError(f"set sysctl {name} to {value}: {error.strerror}") from error
