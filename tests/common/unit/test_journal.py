# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the priorities of lines that are printed to the journal, and for the texts of errors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mptcp_common.journal import ERROR, WARNING, lines
from mptcp_common.reasons import reason

PROGRAM = "from mptcp_common.journal import say; say('first\\nsecond', 4)"


def stderr_text(tmp_path: Path, stream: str | None) -> str:
    """Return the text printed with the value *stream* of JOURNAL_STREAM.

    None: the variable names stderr, as if stderr were the journal.
    """
    with (tmp_path / "stderr").open("w") as stderr:
        status = os.fstat(stderr.fileno())
        environment = {**os.environ, "JOURNAL_STREAM": stream or f"{status.st_dev}:{status.st_ino}"}
        subprocess.run([sys.executable, "-c", PROGRAM], env=environment, stderr=stderr, check=True)
    return (tmp_path / "stderr").read_text()


def test_each_line_to_the_journal_has_its_priority(tmp_path: Path) -> None:
    assert stderr_text(tmp_path, None) == "<4>first\n<4>second\n"


@pytest.mark.parametrize("stream", ["1:2", "nonsense", " "])
def test_output_other_than_the_journal_gets_plain_lines(tmp_path: Path, stream: str) -> None:
    assert stderr_text(tmp_path, stream) == "first\nsecond\n"


def test_unwritable_line_does_not_end_the_program() -> None:
    """Defect: if stderr was a file on a full disk, the supervisor and Squid ended when a line was printed."""
    code = "from mptcp_common.journal import say\nfor _ in range(2000): say('not to be written')\nprint('alive')"
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=full, text=True, check=False
        )
    assert result.stdout == "alive\n"


def test_priorities_are_those_of_syslog() -> None:
    assert lines("a", ERROR, for_journal=True) == "<3>a"
    assert lines("a\nb", WARNING, for_journal=False) == "a\nb"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (PermissionError(13, "Permission denied", "/etc/x"), "/etc/x: Permission denied"),
        (OSError(105, "No buffer space available"), "No buffer space available"),
        (TimeoutError("timed out"), "timed out"),
        (ValueError(""), "ValueError"),
    ],
)
def test_reason_of_an_error_has_no_number(error: Exception, text: str) -> None:
    assert reason(error) == text
