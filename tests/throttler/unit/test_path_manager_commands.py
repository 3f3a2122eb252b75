# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for closing a subflow, with a fake kernel: when the IPv4-mapped form of an IPv4 address is used."""

from __future__ import annotations

import errno
import struct

import pytest
from test_netlink import connect_fake, message

from mptcp_common.kernel_error import KernelError
from mptcp_throttler.kernel.mptcp_pm import family
from mptcp_throttler.kernel.mptcp_pm.family import SubflowCommands
from mptcp_throttler.kernel.netlink import NLMSG_ERROR
from mptcp_throttler.mptcp.model import FourTuple

V4 = FourTuple(b"\x0a\0\0\1", 3128, b"\x0a\1\0\2", 50_000)
V6 = FourTuple(bytes(15) + b"\1", 3128, bytes(15) + b"\2", 50_000)


def requests_to_close(monkeypatch: pytest.MonkeyPatch, four_tuple: FourTuple, *answers: int) -> int:
    """Close a subflow with a kernel that gives *answers* in turn. Return how many requests it got."""
    monkeypatch.setattr(family, "find_family", lambda: (30, 0))
    monkeypatch.setattr(family, "_NETLINK_GENERIC", 0)
    remaining = list(answers)
    subflows = SubflowCommands()
    connect_fake(subflows._netlink, lambda n: [message(NLMSG_ERROR, n, struct.pack("=i", -remaining.pop(0)))])
    subflows.close_subflow(7, four_tuple)
    return len(answers) - len(remaining)


@pytest.mark.parametrize(
    ("four_tuple", "answers", "times"),
    [
        (V4, (0, errno.EINVAL), 1),
        (V4, (errno.ESRCH, 0), 2),
        (V4, (errno.ESRCH, errno.ESRCH), 2),
        (V4, (errno.ESRCH, errno.EINVAL), 2),
        (V6, (errno.ESRCH,), 1),
    ],
)
def test_mapped_address_is_tried_only_if_the_subflow_is_not_found(
    monkeypatch: pytest.MonkeyPatch, four_tuple: FourTuple, answers: tuple[int, ...], times: int
) -> None:
    """Defect: both forms were sent, and a kernel without IPv6 refused the second after it had accepted the first."""
    assert requests_to_close(monkeypatch, four_tuple, *answers) == times


def test_refusal_is_raised_with_its_errno(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KernelError, match="close a subflow of connection 00000007: EINVAL") as raised:
        requests_to_close(monkeypatch, V4, errno.EINVAL)
    assert raised.value.errno == errno.EINVAL
