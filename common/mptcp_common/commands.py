"""What the daemons' commands share: the option that names the settings file, and what errors come to."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

from mptcp_common import journal
from mptcp_common.exit_status import CONFIGURATION, FAILED
from mptcp_common.problems import DocumentError
from mptcp_common.reasons import reason

Errors = tuple[type[Exception], ...]


def add_config(command: argparse.ArgumentParser, usual: Path, *, is_needed: bool = True) -> None:
    """Give *command* ``--config FILE``: *usual* where it is not given; None where that file *is_needed* by nobody."""
    without = "" if is_needed else "; without it everything has its default"
    command.add_argument(
        "--config",
        type=Path,
        default=usual if is_needed else None,
        metavar="FILE",
        help=f"the settings file (default: {usual}{without})",
    )


def outcome(
    program: str, command: Callable[[], int], *, is_daemon: bool, refusals: Callable[[], Errors] = tuple
) -> int:
    """Return the exit status of *command* of *program*; why it failed is a line on stderr.

    *refusals* gives the errors, beside those of the system, that say in one line what was refused. It is called when
    one has come: what defines them may take long to import.
    """
    try:
        status = command()
        _write_out()
        return status
    except DocumentError as error:
        journal.say(error, journal.ERROR)
        # Of a daemon: what is in its files will not be better the next time.
        return CONFIGURATION if is_daemon else FAILED
    except BrokenPipeError:
        pass  # whoever read has enough
    except KeyboardInterrupt:
        journal.say(f"{program}: interrupted", journal.ERROR)
    except Exception as error:
        if not isinstance(error, (OSError, *refusals())):
            raise
        journal.say(f"{program}: {reason(error)}", journal.ERROR)
    try:
        _write_out()
    except OSError:
        # What is in the buffer has nowhere to go, at the interpreter's end either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return FAILED


def _write_out() -> None:
    """Write what waits in a buffer. The interpreter would find out at its end that it cannot, in words of its own."""
    if sys.stdout is not None:  # None where it was closed from the start
        sys.stdout.flush()
