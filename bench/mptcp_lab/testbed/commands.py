# SPDX-License-Identifier: GPL-2.0-or-later
"""Run commands, and find those of this project. Errors name what was attempted."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..agent.processes import end_of

REPOSITORY = Path(__file__).resolve().parents[3]


class TestbedError(Exception):
    """The testbed failed to do something. The text has the attempt and the reason."""

    __test__ = False  # pytest would take the name for a test class


def run(
    argv: Sequence[str], *, attempt: str | None = None, check: bool = True, timeout: float = 30, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run *argv* and return its output. *attempt* names the purpose in errors. *options* are passed to Popen."""
    attempt = attempt or shlex.join(argv)
    if "input" not in options:
        options.setdefault("stdin", subprocess.DEVNULL)
    if "stdout" not in options and "stderr" not in options:
        options["capture_output"] = True
    try:
        done = subprocess.run(list(argv), check=False, text=True, timeout=timeout, **options)
    except FileNotFoundError:
        raise TestbedError(f"{attempt}: the program {argv[0]!r} is not installed") from None
    except subprocess.TimeoutExpired as error:
        raise TestbedError(f"{attempt}: not ended within {timeout:g} s{end_of(error.stdout, error.stderr)}") from None
    if check and done.returncode != 0:
        raise TestbedError(f"{attempt}: exit code {done.returncode}{end_of(done.stdout, done.stderr)}")
    return done


def undo_after(error: BaseException | None, undo: Callable[[], object]) -> None:
    """Call *undo*. If *error* is being raised, a TestbedError of *undo* becomes its note, and does not replace it."""
    try:
        undo()
    except TestbedError as failed:
        if error is None:
            raise
        error.add_note(f"undoing failed as well: {failed}")


@contextmanager
def undone_on_error(undo: Callable[[], object]) -> Iterator[None]:
    """Call *undo* if the scope raises an error, as :func:`undo_after` does."""
    try:
        yield
    except BaseException as error:
        undo_after(error, undo)
        raise


@contextmanager
def undone(undo: Callable[[], object]) -> Iterator[None]:
    """Call *undo* at the end of the scope, as :func:`undo_after` does."""
    with undone_on_error(undo):
        yield
    undo()


def program(name: str) -> str:
    """Return the path of one of our commands, in the directory of this interpreter or in PATH. Raises TestbedError."""
    installed = Path(sysconfig.get_path("scripts")) / name
    path = str(installed) if installed.exists() else shutil.which(name)
    if path is None:
        raise TestbedError(f"start {name}: not installed in {installed.parent}; sudo ./run test installs it")
    return path
