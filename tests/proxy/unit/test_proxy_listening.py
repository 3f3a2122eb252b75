"""Who listens on which port."""

from __future__ import annotations

import pytest

from mptcp_proxy.listening import Listening, plain_ports, read_listening, taken_by

SS = """\
LISTEN 0      4096               *:3128            *:*    users:(("squid",pid=5745,fd=23),("squid",pid=5743,fd=13))
\t bbr cwnd:10 tcp-ulp-mptcp
LISTEN 0      128        127.0.0.1:631       0.0.0.0:*
LISTEN 0      511    10.0.0.1%eth0:80        0.0.0.0:*    users:(("apache2",pid=9,fd=3))
\t cubic cwnd:10
LISTEN 0      128            [::1]:631          [::]:*
ESTAB  0      0          10.0.0.1:22        10.0.0.2:999
"""


def test_ports_that_take_plain_tcp_or_nothing() -> None:
    sockets = [
        Listening("*", 3128, "squid", (5,), mptcp=True),
        Listening("*", 3129, "squid", (5, 6)),
        Listening("*", 3130, "other", (7,), mptcp=True),
    ]
    assert plain_ports([3128, 3129, 3130, 3131], {5}, sockets) == ([3129], [3130, 3131])
    assert plain_ports([3128], {5}, sockets) == ([], [])
    # A process without CAP_SYS_PTRACE sees no owner of what another user's process listens on.
    unknown = [Listening("*", 3128, "", (), mptcp=True), Listening("*", 3129, "", ())]
    assert plain_ports([3128, 3129, 3130], {5}, unknown) == ([3129], [3130])


def test_what_ss_prints() -> None:
    assert list(read_listening(SS)) == [
        Listening("*", 3128, "squid", (5745, 5743), mptcp=True),
        Listening("127.0.0.1", 631, "", ()),
        Listening("10.0.0.1%eth0", 80, "apache2", (9,)),
        Listening("[::1]", 631, "", ()),
    ]


@pytest.mark.parametrize(
    ("host", "port", "taken"),
    [("", 3128, True), ("10.0.0.1", 3128, True), ("", 631, True), ("127.0.0.1", 631, True), ("127.0.0.2", 631, False),
     ("[::1]", 631, True), ("[::2]", 631, False), ("", 3129, False), ("10.0.0.1", 80, True), ("10.0.0.2", 80, False)],
)  # fmt: skip
def test_ports_that_are_taken(host: str, port: int, taken: bool) -> None:
    assert (taken_by(host, port, read_listening(SS)) is not None) == taken


@pytest.mark.parametrize(
    ("bound", "host", "taken"),
    [
        # What ss calls 0.0.0.0 is IPv4 alone, [::] IPv6 alone, and * both.
        ("0.0.0.0", "10.0.0.1", True),
        ("0.0.0.0", "[fd00::1]", False),
        ("0.0.0.0", "", True),
        ("[::]", "[fd00::1]", True),
        ("[::]", "10.0.0.1", False),
        ("[::]", "0.0.0.0", False),
        ("[::]", "", True),
        ("*", "10.0.0.1", True),
        ("*", "[fd00::1]", True),
        ("10.0.0.1", "0.0.0.0", True),
        ("[fd00::1]", "0.0.0.0", False),
        ("10.0.0.1", "[::]", True),
        ("[fd00:0::1]", "[fd00::1]", True),
        ("[::ffff:10.0.0.1]", "10.0.0.1", True),
        ("0.0.0.0", "proxy.example", True),
        ("10.0.0.1", "proxy.example", False),
    ],
)
def test_a_socket_keeps_only_its_own_families_from_being_bound(bound: str, host: str, taken: bool) -> None:
    assert (taken_by(host, 3128, [Listening(bound, 3128, "other", (1,))]) is not None) == taken
