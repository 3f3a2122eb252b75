# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that the agent, which runs as root, imports nothing from its directory or because of PYTHON* variables."""

from __future__ import annotations

import base64
import io
import json
import os
import subprocess
import zipfile
from pathlib import Path

import pytest

from mptcp_lab.remote.connection import HostRole, agent_command, packed_agent, ssh_command

SHADOWED = ("json", "base64", "sitecustomize", "zipfile", "runpy", "agent", "http", "socket")


@pytest.fixture
def trapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a directory of failing modules that PYTHONPATH also names."""
    trap, programs = tmp_path / "trap", tmp_path / "bin"
    trap.mkdir()
    programs.mkdir()
    for name in SHADOWED:
        (trap / f"{name}.py").write_text("import os\nos.write(2, b'caught')\nos._exit(99)\n")
    # This also covers a user other than root: a sudo(8) that keeps the environment.
    (programs / "sudo").write_text('#!/bin/sh\nshift\nexec "$@"\n')
    (programs / "sudo").chmod(0o755)
    monkeypatch.chdir(trap)
    monkeypatch.setenv("PYTHONPATH", str(trap))
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return trap


def test_agent_imports_nothing_from_its_working_directory(trapped: Path, tmp_path: Path) -> None:
    # The characters of the directory reach the agent unchanged.
    directory = tmp_path / "a b'c$HOME\\"
    directory.mkdir()
    remote = ssh_command(HostRole("client", "host", directory=str(directory)))[-1]
    done = subprocess.run(
        ["sh", "-c", remote],
        input=base64.b64encode(packed_agent()) + b"\n",
        check=False,
        capture_output=True,
        timeout=60,
    )
    assert done.stderr == b""
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert any(Path(answer["ready"]).parent == directory for answer in answers if "ready" in answer), answers


def test_program_of_the_agent_imports_nothing_from_its_working_directory(trapped: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(io.BytesIO(packed_agent())).extractall(tmp_path)
    argv = agent_command(tmp_path, "files", str(tmp_path / "htdocs"), "file=3")
    done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "htdocs/file").stat().st_size == 3
