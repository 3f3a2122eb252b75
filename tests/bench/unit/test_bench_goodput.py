# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that downloads that are not of the measured kind are void."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mptcp_bench.experiments.goodput_judging import CELLS, void
from mptcp_lab.testbed.protocol import Protocol

PROTOCOL = Protocol(requested=1, fallbacks=0, joins=1, proxy_requested=0)


@pytest.mark.parametrize(
    ("protocol", "said"),
    [
        (replace(PROTOCOL, fallbacks=1), "fell back to plain TCP"),
        (replace(PROTOCOL, proxy_requested=1), "towards the origin"),
        (replace(PROTOCOL, requested=0), "asked for 0 MPTCP connections"),
        (replace(PROTOCOL, joins=0), "1 subflows instead of 2"),
    ],
)
def test_a_download_of_another_kind_is_void(protocol: Protocol, said: str) -> None:
    assert void(CELLS[0], PROTOCOL) is None
    assert said in (void(CELLS[0], protocol) or "")
