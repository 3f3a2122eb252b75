"""Fixtures of the tracker's unit tests."""

from __future__ import annotations

import pytest
from mptcp_dialogue import PORT, Host

from mptcp_throttler.mptcp.tracker import Tracker


@pytest.fixture
def tracker() -> Tracker:
    return Tracker([PORT])


@pytest.fixture
def host() -> Host:
    return Host()
