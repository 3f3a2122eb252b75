"""A time beyond its limit is measured once more where the machine was busy, and there alone."""

from __future__ import annotations

import pytest
from time_limit import least_time

from mptcp_lab.agent import processors
from mptcp_lab.agent.processors import Usage

BUSY, IDLE = Usage(0.0, 0.0, 1.0, 0.7), Usage(0.0, 0.9, 0.0, 0.0)


@pytest.mark.parametrize(
    ("times", "used", "least", "attempts"),
    [
        ([9.0], BUSY, 9.0, 1),
        ([10.0, 4.0], BUSY, 4.0, 2),
        ([10.0, 12.0], BUSY, 10.0, 2),
        ([10.0, 4.0], IDLE, 10.0, 1),
    ],
    ids=["within it", "within it the second time", "twice beyond it", "beyond it on an idle machine"],
)
def test_a_time_beyond_its_limit(
    monkeypatch: pytest.MonkeyPatch, times: list[float], used: Usage, least: float, attempts: int
) -> None:
    monkeypatch.setattr(processors, "usage", lambda before, after: used)
    pending = list(times)
    assert least_time(lambda: pending.pop(0), 10.0) == least
    assert len(times) - len(pending) == attempts
