# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for Squid's check of a configuration: the decoding of the output, the time limit, and the cancellation."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mptcp_proxy import reloads
from mptcp_proxy.configuration.check import MAX_SEARCH_SECONDS, check
from mptcp_proxy.configuration.squid_problems import NO_TIME
from mptcp_proxy.process import children
from mptcp_proxy.squid import PARSE_SECONDS, CheckCancelledError, Squid

STATEMENT = b"auth_param basic realm M\xc3\xbcller \xff"
PARSING_PROGRAM = """
import locale, sys
from pathlib import Path
from mptcp_proxy.squid import Squid
print(locale.getpreferredencoding())
print(ascii(Squid(sys.argv[1], "5.7", "proxy").parse(Path("squid.conf"), "one")))
"""


def test_output_of_squid_is_decoded_in_the_same_way_in_any_locale(tmp_path: Path) -> None:
    """Defect: in a locale with another encoding, "Müller" did not match the file, and the start was refused."""
    program = tmp_path / "squid"
    program.write_text(f"#!{sys.executable}\nimport sys\nsys.stderr.buffer.write({STATEMENT!r})\n")
    program.chmod(0o755)
    # Not every host has a Latin-1 locale, so use the ASCII locale. The other variables prevent that Python uses UTF-8.
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    argv = [sys.executable, "-c", PARSING_PROGRAM, str(program)]
    answer = subprocess.run(argv, env=environment, capture_output=True, encoding="ascii", check=True)
    encoding, parsed = answer.stdout.splitlines()
    assert encoding not in ("UTF-8", "utf-8")
    assert parsed == ascii(STATEMENT.decode("utf-8", "surrogateescape"))


def test_check_ends_after_its_time_if_squid_is_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, calls, file = tmp_path / "squid", tmp_path / "calls", tmp_path / "squid.conf"
    program.write_text(
        f'#!/bin/sh\necho >> {calls}\nline=$(grep -m1 ^acl "$4")\n'
        'printf "Processing: %s\\nFATAL: Bungled x\\n" "$line" >&2\n'
    )
    program.chmod(0o755)
    file.write_text("http_port 3128\nacl one src one.example\nacl two src two.example\nhttp_access deny all\n")
    monkeypatch.setattr("mptcp_proxy.configuration.check.MAX_SEARCH_SECONDS", 0.0)
    problems = check(file, "one", Squid(str(program), "5.7", "nobody")).problems
    assert [each.text for each in problems if each.line == 2] == ["acl one src one.example: not well formed", NO_TIME]
    assert len(calls.read_text().splitlines()) == 1


def test_reload_command_waits_longer_than_the_check_takes() -> None:
    assert reloads.MAX_WAIT_SECONDS > MAX_SEARCH_SECONDS + PARSE_SECONDS


def test_squid_that_does_not_end_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "squid"
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o755)
    monkeypatch.setattr("mptcp_proxy.squid.PARSE_SECONDS", 0.05)
    with pytest.raises(
        TimeoutError,
        match=r"^Squid does not read its configuration within 0\.05 s; if that contains host names, Squid waits",
    ):
        Squid(str(program), "5.7", "nobody").parse(tmp_path / "squid.conf", "one")


def test_squid_is_ended_if_the_check_is_cancelled(tmp_path: Path) -> None:
    program = tmp_path / "squid"
    program.write_text("#!/bin/sh\nexec sleep 3600\n")
    program.chmod(0o755)
    before = children(os.getpid())
    answers = iter([False, False, True])
    with pytest.raises(CheckCancelledError):
        Squid(str(program), "5.7", "nobody").parse(tmp_path / "squid.conf", "one", lambda: next(answers))
    assert children(os.getpid()) == before
