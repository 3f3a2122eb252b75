# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for notices of foreign changes: names of interfaces and processes may contain any bytes."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from mptcp_common.netlink import attribute
from mptcp_throttler.kernel.notices import LinkNotices, process_text

_NEWLINK, _IFNAME = 16, 3


def test_process_name_cut_within_a_character_is_decoded() -> None:
    """Defect: a change by such a process was noticed only at the next periodic comparison."""
    comm = Path("/proc/self/comm")
    before = comm.read_bytes()
    comm.write_bytes("ρυθμιστής".encode())
    try:
        assert process_text(os.getpid()) == f"process {os.getpid()} (ρυθμιστ\N{REPLACEMENT CHARACTER})"
    finally:
        comm.write_bytes(before)


def test_interface_name_that_is_not_text_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect: the other notices in the same datagram were lost."""
    # The constructor needs privileges, so it is not called.
    monkeypatch.setattr("mptcp_throttler.kernel.notices.NoticeSource.__init__", lambda *_: None)
    notices = LinkNotices(["w0"], 0x4D50)
    body = struct.pack("=BxHiII", 0, 1, 1 << 20, 0, 0)
    assert list(notices._changes(_NEWLINK, 0, body + attribute(_IFNAME, b"caf\xe9\0"))) == []
    (change,) = notices._changes(_NEWLINK, 0, body + attribute(_IFNAME, b"w0\0"))
    assert change.description == "interface w0"
