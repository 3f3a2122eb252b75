# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the errors of commands: one line each, and an exit status that tells systemd whether a restart can help."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mptcp_common.commands import add_config, exit_status_of
from mptcp_common.exit_status import CONFIGURATION, DONE, FAILED
from mptcp_common.problems import DocumentError, Problem


class RefusedError(Exception):
    """An error that a program defines in addition to the system's errors."""


def failing_command(error: BaseException) -> Callable[[], int]:
    def command() -> int:
        raise error

    return command


INVALID_FILE = DocumentError(
    [Problem("a.yaml", 3, 1, "key", "1", "is wrong"), Problem("a.yaml", 4, 1, "more", "1", "too")]
)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (FileNotFoundError(2, "No such file or directory", "/a"), "prog: /a: No such file or directory\n"),
        (RefusedError("the kernel has no HTB"), "prog: the kernel has no HTB\n"),
        (KeyboardInterrupt(), "prog: interrupted\n"),
        (INVALID_FILE, "a.yaml:3: key: is wrong\na.yaml:4: more: too\n"),
    ],
)
def test_error_is_printed_as_one_line_per_problem(
    error: BaseException, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        exit_status_of("prog", failing_command(error), is_daemon=False, operator_errors=lambda: (RefusedError,))
        == FAILED
    )
    assert capsys.readouterr().err == expected


def test_daemon_with_invalid_files_ends_with_the_status_that_prevents_restarts() -> None:
    assert exit_status_of("prog", failing_command(INVALID_FILE), is_daemon=True) == CONFIGURATION
    assert exit_status_of("prog", failing_command(OSError(98, "Address already in use")), is_daemon=True) == FAILED


def test_return_value_is_kept_and_unknown_exceptions_are_raised() -> None:
    assert exit_status_of("prog", lambda: DONE, is_daemon=False) == DONE
    assert exit_status_of("prog", lambda: 7, is_daemon=True) == 7
    with pytest.raises(RefusedError):
        exit_status_of("prog", failing_command(RefusedError()), is_daemon=False)


def printing_command(count: int) -> list[str]:
    """Return the command line of a program that prints *count* characters in a command run by `exit_status_of`."""
    code = (
        "import sys\nfrom mptcp_common.commands import exit_status_of\n"
        f"sys.exit(exit_status_of('prog', lambda: print('x' * {count}) or 0, is_daemon=False))"
    )
    # The option -E ignores PYTHONUNBUFFERED, with which nothing would wait in a buffer.
    return [sys.executable, "-E", "-c", code]


@pytest.mark.parametrize("count", [1, 1_000_000], ids=["short output", "long output"])
def test_closed_output_pipe_prints_no_error(count: int) -> None:
    """Defect: the interpreter, which writes short output only at its end, then printed an error."""
    with subprocess.Popen(printing_command(count), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == FAILED


@pytest.mark.parametrize("count", [1, 1_000_000], ids=["short output", "long output"])
def test_full_disk_is_reported_in_one_line(count: int) -> None:
    with open("/dev/full", "wb") as full:
        result = subprocess.run(printing_command(count), stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert result.returncode == FAILED
    assert result.stderr == "prog: No space left on device\n"


def test_closed_standard_output_prints_no_error() -> None:
    result = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *printing_command(1)], stderr=subprocess.PIPE, check=False
    )
    assert (result.returncode, result.stderr) == (DONE, b"")


@pytest.mark.parametrize(("is_required", "default"), [(True, Path("/etc/x.yaml")), (False, None)])
def test_option_config_names_the_settings_file(is_required: bool, default: Path | None) -> None:
    parser = argparse.ArgumentParser()
    add_config(parser, Path("/etc/x.yaml"), is_required=is_required)
    assert parser.parse_args([]).config == default
    assert parser.parse_args(["--config", "a"]).config == Path("a")
    help_text = parser.format_help().replace("\n", " ")
    assert (
        "if this file does not exist, all settings have their defaults" in " ".join(help_text.split())
    ) is not is_required
