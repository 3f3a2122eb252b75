# SPDX-License-Identifier: GPL-2.0-or-later
"""Test that a measurement's program is ended after a failure, so that it does not disturb the next measurement."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from mptcp_bench.wire.capture import capture_segments
from mptcp_lab.testbed import TestbedError


def failing(*_: object, **__: object) -> NoReturn:
    raise TestbedError("no end")


def test_capture_of_a_failed_measurement_is_ended(tmp_path: Path) -> None:
    """Defect: tcpdump kept running after a failure."""
    ends: list[str] = []
    process = SimpleNamespace(running=True, output=failing, wait=failing, stop=lambda: ends.append("stop"))
    host: Any = SimpleNamespace(
        name="proxy", directory=tmp_path, run=lambda *_, **__: [], popen=lambda *_, **__: process
    )
    with pytest.raises(TestbedError, match=r"^no end$"), capture_segments(host, ["wan0"], "tcp"):
        pass
    assert ends == ["stop"]
