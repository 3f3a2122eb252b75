# SPDX-License-Identifier: GPL-2.0-or-later
"""Fixtures for the tests of the tracker, of replayed captures, and of memory that must be freed."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
from mptcp_dialogue import PORT, Host
from replaying import POLICY, Run

from mptcp_throttler.cli import main
from mptcp_throttler.mptcp.tracker import Tracker


@pytest.fixture
def tracker() -> Tracker:
    return Tracker([PORT])


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.fixture
def manual_collection() -> Iterator[None]:
    """Switch the automatic garbage collector off, as in the daemon.

    Exclude objects from before the test from collection.
    """
    gc.disable()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        gc.enable()


@pytest.fixture
def replay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that replays a capture, and returns exit status, standard output and standard error."""

    def run(capture: bytes, *arguments: str, policy: str = POLICY) -> tuple[int, str, str]:
        (tmp_path / "policy.yaml").write_text(policy)
        (tmp_path / "capture").write_bytes(capture)
        code = main(["replay", str(tmp_path / "capture"), "--policy", str(tmp_path / "policy.yaml"), *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err.replace(str(tmp_path), "")

    return run
