# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the payload share of a full packet."""

from __future__ import annotations

from mptcp_bench.experiments.payload import payload_share


def test_payload_of_a_full_packet() -> None:
    # 1500 bytes minus IP 20, TCP 20, timestamps 12, and, with MPTCP, 28 bytes of a DSS option.
    assert payload_share(4, multipath=False) == 1448 / 1514
    assert payload_share(4, multipath=True) == 1420 / 1514
    assert payload_share(6, multipath=True) == 1400 / 1514
