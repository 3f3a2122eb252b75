"""``debian/package`` leaves nothing where it worked, however it ends. What builds is a small program here."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "debian/package"
DEADLINE = 60


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGHUP, 143), (signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["HUP", "INT", "TERM"]
)
def test_a_build_that_is_broken_off_leaves_nothing(tmp_path: Path, number: int, code: int) -> None:
    """Defect: each left some hundred megabytes in /tmp."""
    work, programs = tmp_path / "tmp", tmp_path / "bin"
    work.mkdir()
    programs.mkdir()
    builder = programs / "dpkg-buildpackage"
    builder.write_text(f"#!/bin/sh\ntouch {tmp_path / 'builds'}\nexec sleep {DEADLINE}\n")
    builder.chmod(0o755)
    environment = {"PATH": f"{programs}:/usr/bin:/bin", "TMPDIR": str(work)}
    # As on a terminal, whose signal all processes get.
    process = subprocess.Popen(
        ["env", "--default-signal", "sh", str(SCRIPT), str(tmp_path / "made")],
        env=environment,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + DEADLINE
    while not (tmp_path / "builds").exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert len(list(work.iterdir())) == 1
    os.killpg(process.pid, number)
    assert process.wait(DEADLINE) == code
    assert list(work.iterdir()) == []
    assert not (tmp_path / "made").exists()
