"""Sysctls of ours in the network namespace: noted before they are changed, put back afterwards. proc_sys_net(5)."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path

from .ports import KernelError

log = logging.getLogger(__name__)

_ROOT = Path("/proc/sys")


class OwnedSysctls:
    """Sysctls that hold while they are needed. What they were is in a file, for a successor after a crash."""

    def __init__(self, state_directory: Path) -> None:
        self._note = state_directory / "sysctls.json"

    def hold(self, wanted: Mapping[str, str]) -> None:
        """Set the sysctls *wanted* by name, ``net.mptcp.pm_type`` say, and put back all others of ours.

        Raises KernelError where one cannot be set or noted.
        """
        before = self._read_note()
        for name in before.keys() - wanted.keys():
            _write(name, before[name])
        noted = {name: before.get(name, _read(name)) for name in wanted}
        self._write_note(noted)
        for name, value in wanted.items():
            if _read(name) != value:
                _write(name, value)
                log.info("%s = %s, was %s", name, value, noted[name])

    def restore(self) -> None:
        """Put all back."""
        self.hold({})

    def _read_note(self) -> dict[str, str]:
        try:
            note: dict[str, str] = json.loads(self._note.read_text())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise KernelError(f"{self._note} cannot be read ({error}); it says what to put back") from error
        return note

    def _write_note(self, note: Mapping[str, str]) -> None:
        try:
            if not note:
                self._note.unlink(missing_ok=True)
                return
            self._note.parent.mkdir(parents=True, exist_ok=True)
            temporary = self._note.with_suffix(".new")
            temporary.write_text(json.dumps(note))
            temporary.replace(self._note)
        except OSError as error:
            raise KernelError(f"note in {self._note} what is replaced: {error.strerror}") from error


def _file(name: str) -> Path:
    return _ROOT / name.replace(".", "/")


def _read(name: str) -> str:
    try:
        return _file(name).read_text().strip()
    except OSError as error:
        raise KernelError(f"read sysctl {name}: {error.strerror}") from error


def _write(name: str, value: str) -> None:
    try:
        _file(name).write_text(value)
    except OSError as error:
        raise KernelError(f"set sysctl {name} to {value}: {error.strerror}") from error
