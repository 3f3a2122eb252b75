# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the data that BPF programs get from the throttler: constants, and limits of sockets."""

from __future__ import annotations

from pathlib import Path

import pytest

from mptcp_common.bpf import Map
from mptcp_common.kernel_error import KernelError
from mptcp_throttler.kernel import bpf
from mptcp_throttler.kernel.bpf import UNLIMITED, Bpf, _limit_value, program_constants
from mptcp_throttler.shaping.initial_options import LARGE_BOUND
from mptcp_throttler.shaping.model import SocketLimit

MAX_SIZE = 8 << 20


def test_constants_contain_every_listening_port() -> None:
    *_, bitmap = bpf._SETTINGS.unpack(program_constants([3128, 8080, 65535]))
    assert [port for port in range(1 << 16) if bitmap[port // 8] >> port % 8 & 1] == [3128, 8080, 65535]


def test_program_and_planner_have_the_same_large_bound() -> None:
    assert f"#define LARGE_BOUND {LARGE_BOUND} " in (bpf.PROGRAMS / "mptcp_throttler.c").read_text()


def test_map_value_of_a_socket_limit() -> None:
    """The value has the rate in bytes/s, the limit on unsent bytes, and half of the send buffer in bytes."""
    assert _limit_value(SocketLimit(), MAX_SIZE) == (UNLIMITED, 0, 0)
    assert _limit_value(SocketLimit(8_000_000, 1000, 2 << 20), MAX_SIZE) == (1_000_000, 1000, 1 << 20)
    assert _limit_value(SocketLimit(send_buffer=16 << 20), MAX_SIZE)[2] == MAX_SIZE // 2
    assert _limit_value(SocketLimit(send_buffer=1 << 20), 2 * 212_992)[2] == 0, (
        "the buffer was limited although the kernel's maximum allows only a small one"
    )


def test_missing_program_is_a_kernel_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bpf, "PROGRAMS", tmp_path)
    with pytest.raises(KernelError, match=f"open {tmp_path}/mptcp_thr_all.o, which {tmp_path}/build builds: No such"):
        Bpf().tcp_iterator("mptcp_thr_all", program_constants(), {})


def test_program_of_another_version_is_a_kernel_error() -> None:
    table = Map(-1, "none", 8, 4, 1)
    with pytest.raises(KernelError, match=r"mptcp_thr_all\.o was built for another version; rebuild it with .*/build"):
        Bpf().tcp_iterator("mptcp_thr_all", program_constants(), {"unknown": table})
