# SPDX-License-Identifier: GPL-2.0-or-later
"""Helpers that the daemons' commands share: the option for the settings file, and the handling of errors."""

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


def add_config(command: argparse.ArgumentParser, default: Path, *, is_required: bool = True) -> None:
    """Add the option ``--config FILE`` to *command*. If the option is missing, its value is *default* if *is_required*,
    otherwise None. The help text names *default* in both cases."""
    without = "" if is_required else "; if this file does not exist, all settings have their defaults"
    command.add_argument(
        "--config",
        type=Path,
        default=default if is_required else None,
        metavar="FILE",
        help=f"the settings file (default: {default}{without})",
    )


def exit_status_of(
    program: str, command: Callable[[], int], *, is_daemon: bool, operator_errors: Callable[[], Errors] = tuple
) -> int:
    """Run *command* and return its exit status. If it fails, print the reason to stderr, after the name *program*.

    *operator_errors* returns the errors, in addition to OSError, whose text is a one-line message for the operator. It
    is called only after an error, because the modules that define them may be slow to import.
    """
    try:
        status = command()
        _flush_stdout()
        return status
    except DocumentError as error:
        journal.say(error, journal.ERROR)
        # The service manager must not restart a daemon, because it would find the same files.
        return CONFIGURATION if is_daemon else FAILED
    except BrokenPipeError:
        pass  # the reader of the output has closed the pipe
    except KeyboardInterrupt:
        journal.say(f"{program}: interrupted", journal.ERROR)
    except Exception as error:
        if not isinstance(error, (OSError, *operator_errors())):
            raise
        journal.say(f"{program}: {reason(error)}", journal.ERROR)
    try:
        _flush_stdout()
    except OSError:
        # Discard the buffer, so that the interpreter does not fail when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return FAILED


def _flush_stdout() -> None:
    """Flush stdout. Otherwise the interpreter would report a failed write at exit, with its own message."""
    if sys.stdout is not None:  # None if it was closed from the start
        sys.stdout.flush()
