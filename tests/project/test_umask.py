# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that with any umask, other users can enter the directories and read the files of the project's programs.

Defect: with umask 027 or 077 the demo failed, because Apache and Squid could not enter their directories.
"""

from __future__ import annotations

import os
import runpy
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from debian_host import TIMEOUT, Host

REPOSITORY = Path(__file__).resolve().parents[2]
WRITE_UMASK = 'umask >"$ROOT/umask"'


@pytest.fixture(params=[0o027, 0o077], ids=["027", "077"], autouse=True)
def _umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def current_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_run_sets_its_umask(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.touch("installed")
    Host.write_program(host.root / "checkout/.venv/bin/mptcp-bench", WRITE_UMASK)
    assert host.wait_for_end(host.start("demo"))[::2] == (0, "")
    assert (host.root / "umask").read_text() == "0022\n"


def test_build_of_squid_sets_its_umask(tmp_path: Path) -> None:
    for name, text in (("id", "echo 0"), ("mmdebstrap", f"{WRITE_UMASK}; exit 1")):
        Host.write_program(tmp_path / name, text)
    subprocess.run(
        [REPOSITORY / "proxy/squid/build", "bookworm", tmp_path / "dist"],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "ROOT": str(tmp_path), "TMPDIR": str(tmp_path)},
        stderr=subprocess.DEVNULL,
        timeout=TIMEOUT,
        check=False,
    )
    assert (tmp_path / "umask").read_text() == "0022\n"


def test_conftest_sets_the_umask() -> None:
    runpy.run_path(str(REPOSITORY / "tests/conftest.py"))
    assert current_umask() == 0o022
