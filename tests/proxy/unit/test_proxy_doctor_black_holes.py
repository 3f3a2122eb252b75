# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the doctor's finding about paths that drop full-sized packets, with recorded output of ss(8)."""

from __future__ import annotations

import pytest
from doctor_findings import is_complete

from mptcp_common.findings import Status
from mptcp_proxy.doctor.black_holes import black_holes

OK, WARN, FAIL, UNSEEN = Status
WORKING = (
    "0 877767 [::ffff:10.77.8.2]:3128 [::ffff:10.77.1.2]:35840\n\t bbr wscale:10,10 rto:236 rtt:32.616/8.418 ato:40"
    " mss:1448 pmtu:1500 rcvmss:536 advmss:1448 cwnd:304 bytes_sent:21734113 bytes_retrans:1301 bytes_acked:21590812"
    " unacked:100 retrans:0/1 tcp-ulp-mptcp flags:Mec token:0000(id:0)/73df2208(id:0) sfseq:1\n"
)
STUCK = (
    "0 56713 [::ffff:10.77.8.2]:3128 [::ffff:10.77.2.2]:42465\n\t bbr wscale:10,10 rto:3264 backoff:4 rtt:1/0.5"
    " mss:1448 pmtu:1500 rcvmss:536 advmss:1448 cwnd:1 bytes_sent:20972 bytes_retrans:6936 unacked:10 retrans:1/5"
    " lost:10 tcp-ulp-mptcp flags:Jec token:0000(id:4)/73df2208(id:0) sfseq:0\n"
)
FAILED_LATER = STUCK.replace("bytes_retrans", "bytes_acked:6711456 bytes_retrans")
"""A path that failed during a download."""
OTHER_CONNECTION = STUCK.replace("backoff:4 ", "").replace("42465", "1").replace("73df2208", "1234abcd").replace(
    "bytes_retrans", "bytes_acked:99999 bytes_retrans"
)  # fmt: skip
"""Another connection over the same path."""


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (WORKING + STUCK, WARN),
        (STUCK + WORKING.replace("::ffff:10.77.1.2", "fd77:1::2"), WARN),
        ("", OK),
        (STUCK, OK),  # no data arrived over the other subflow either
        (WORKING, OK),
        (WORKING + FAILED_LATER, OK),
        (WORKING + STUCK + OTHER_CONNECTION, OK),
        (WORKING + STUCK.replace("backoff:4", "backoff:1"), OK),
        (WORKING + STUCK.replace("mss:1448", "mss:536"), OK),
        (WORKING + STUCK.replace("73df2208", "1234abcd"), OK),
        ((WORKING + STUCK).replace(":3128", ":443"), OK),
    ],
)
def test_subflow_stuck_at_its_first_full_packet_is_reported(text: str, status: Status) -> None:
    (finding,) = black_holes("0", text, {3128}, True)
    assert finding.status is status
    assert is_complete(finding)
    if status is WARN:
        assert finding.text.startswith("1 subflow to 10.77.2.2 ")
        assert "net.ipv4.tcp_mtu_probing=1" in finding.remedy


def test_no_warning_if_the_kernel_probes_the_mtu() -> None:
    (finding,) = black_holes("1", WORKING + STUCK, {3128}, True)
    assert finding.status is OK


def test_indistinguishable_connections_are_unseen() -> None:
    plain_tcp = (WORKING + STUCK).replace("tcp-ulp-mptcp", "")
    assert [each.status for each in black_holes("0", plain_tcp, {3128}, False)] == [UNSEEN]
    assert [each.status for each in black_holes("0", WORKING + STUCK, {3128}, False)] == [WARN]
    assert list(black_holes("0", None, {3128}, True)) == []
