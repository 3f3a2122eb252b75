"""What clients reach of the host, and which rule lets them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from mptcp_proxy.configuration.exposure import exposure_problems
from mptcp_proxy.configuration.source import PhysicalLine, Statement, statements


def parse(*texts: str) -> Sequence[Statement]:
    return list(statements([PhysicalLine("squid.conf", n, text) for n, text in enumerate(texts, 1)], "n"))


SHIPPED = ["acl clients src 10.0.0.0/8", "http_access allow localhost manager", "http_access deny manager"]
TO_LOOPBACK = ["acl lo dst 127.0.0.0/8 ::1/128", "http_access deny lo"]
TO_LINK_LOCAL = ["acl ll dst 169.254.0.0/16 fe80::/10", "http_access deny ll"]
TO_OWN = ['acl own dst "/run/x/own-addresses"', "http_access deny own"]
TUNNELS = ["acl tls port 443", "http_access deny CONNECT !tls"]
TO_NAT64 = ["acl nat64 dst 64:ff9b::7f00:0/104 64:ff9b::a9fe:0/112", "http_access deny nat64"]
PARTS = {
    "loopback": TO_LOOPBACK,
    "link-local": TO_LINK_LOCAL,
    "NAT64": TO_NAT64,
    "own addresses": TO_OWN,
    "CONNECT": TUNNELS,
}
LET_IN = ["http_access allow clients", "http_access deny all"]


def exposed(*texts: str) -> list[str]:
    problems = list(exposure_problems(parse(*texts), "/run/x/own-addresses"))
    assert all(problem.warning for problem in problems)
    return [problem.text for problem in problems]


def test_a_configuration_with_all_protections_has_no_warning() -> None:
    assert exposed(*SHIPPED, *(line for part in PARTS.values() for line in part), *LET_IN) == []
    assert exposed("http_access allow localhost", "http_access deny all") == []
    by_squid = ["http_access deny to_localhost", "http_access deny to_linklocal"]
    assert exposed(*SHIPPED, *by_squid, *TO_NAT64, *TO_OWN, *TUNNELS, *LET_IN) == []


@pytest.mark.parametrize("missing", PARTS)
def test_each_missing_protection_is_a_warning(missing: str) -> None:
    others = [line for name, part in PARTS.items() if name != missing for line in part]
    (text,) = exposed(*SHIPPED, *others, *LET_IN)
    assert missing in text
    # A rule behind the one that lets clients in protects nothing.
    (text,) = exposed(*SHIPPED, *others, *LET_IN, *PARTS[missing])
    assert missing in text
    # Neither does one that holds in some processes, or for some requests.
    conditional = ["if ${process_number} = 1", *PARTS[missing], "endif"]
    (text,) = exposed(*SHIPPED, *others, *conditional, *LET_IN)
    assert missing in text
    assert not any(other in text for other in PARTS if other != missing)


TO_A_PEER = ["acl page dstdomain page.internal", "http_access allow page clients"]


def test_what_goes_to_a_peer_alone_exposes_nothing_of_this_host() -> None:
    protected = [line for part in PARTS.values() for line in part]
    elsewhere = [*SHIPPED, *TO_A_PEER, *protected, *LET_IN]
    assert exposed(*elsewhere, "never_direct allow page") == []
    assert exposed(*elsewhere, "never_direct allow PAGE") == []
    for more in (
        [],
        ["never_direct allow other"],
        ["never_direct allow page other"],  # of which some go directly
        ["never_direct deny clients", "never_direct allow page"],
        ["never_direct allow page", "always_direct allow clients"],
        ["if ${process_number} = 1", "never_direct allow page", "endif"],
    ):
        (text,) = exposed(*elsewhere, *more)
        assert "loopback" in text, more


def test_half_of_the_loopback_addresses_is_not_enough() -> None:
    half = ["acl lo dst 127.0.0.0/9 ::1/128", "http_access deny lo"]
    (text,) = exposed(*SHIPPED, *half, *TO_LINK_LOCAL, *TO_NAT64, *TO_OWN, *TUNNELS, *LET_IN)
    assert "loopback" in text


PROTECTED = [line for part in PARTS.values() for line in part]


@pytest.mark.parametrize(
    "rules",
    [
        ["http_access deny CONNECT bad", *LET_IN],
        ["http_access deny CONNECT clients", *LET_IN],
        ["acl most port 1-65535", "http_access deny CONNECT !most", *LET_IN],
        ["acl most port 443 1025-65535", "http_access deny CONNECT !most", *LET_IN],
        ["acl get method GET", "http_access deny get", *LET_IN],
        ["http_access allow CONNECT clients", *TUNNELS, *LET_IN],
        ["acl all_ports any-of bad CONNECT", "http_access deny all_ports bad", *LET_IN],
    ],
)
def test_a_rule_for_some_tunnels_is_no_protection(rules: list[str]) -> None:
    bad = "acl bad dstdomain .example"
    texts = exposed(bad, *SHIPPED, *TO_LOOPBACK, *TO_LINK_LOCAL, *TO_NAT64, *TO_OWN, *rules)
    assert [text for text in texts if "CONNECT to ports such as" in text]


@pytest.mark.parametrize(
    "rules",
    [
        ["http_access deny CONNECT"],
        ["acl tunnel method CONNECT", "acl tls port 443", "http_access deny tunnel !tls"],
        ["acl web port 80 443", "http_access deny !web"],
        ["acl tls port 443", "acl odd all-of CONNECT !tls", "http_access deny odd"],
        ["acl tls port 443", "http_access deny CONNECT all !tls"],
    ],
)
def test_tunnels_are_denied_by_whatever_means_it(rules: list[str]) -> None:
    assert exposed(*SHIPPED, *TO_LOOPBACK, *TO_LINK_LOCAL, *TO_NAT64, *TO_OWN, *rules, *LET_IN) == []


@pytest.mark.parametrize(
    ("rules", "first"),
    [
        (["http_access allow manager clients", "http_access deny manager"], "http_access allow manager clients"),
        (["http_access allow localhost manager"], "http_access allow clients"),
        (["http_access allow !manager localhost", "http_access deny manager !clients"], "http_access allow clients"),
        (["acl pages any-of manager", "http_access allow pages clients"], "http_access allow pages clients"),
    ],
)
def test_clients_who_see_the_status_pages_are_warned_of(rules: list[str], first: str) -> None:
    (text,) = exposed("acl clients src 10.0.0.0/8", *rules, *PROTECTED, *LET_IN)
    assert text.startswith(f"{first}: no rule before this one denies Squid's own status pages (manager)")


def test_a_rule_for_the_status_pages_lets_nobody_elsewhere() -> None:
    (text,) = exposed("acl clients src 10.0.0.0/8", "http_access allow manager clients", *PROTECTED, *LET_IN)
    assert "loopback" not in text
    assert "CONNECT" not in text


def test_a_rule_with_the_word_manager_may_let_clients_in() -> None:
    (text,) = exposed(*SHIPPED, "http_access allow !manager clients", *PROTECTED, *LET_IN)
    assert text.startswith("http_access allow !manager clients")
    assert "loopback" in text


def test_clients_with_a_password_are_clients() -> None:
    (text,) = exposed(*SHIPPED, "acl users proxy_auth REQUIRED", "http_access allow users", "http_access deny all")
    assert "loopback" in text


def test_addresses_may_be_denied_by_several_rules() -> None:
    parts = ["acl a dst 127.0.0.0/9", "acl b dst 127.128.0.0/9", "acl c dst ::1", "acl any_c any-of c"]
    rules = ["http_access deny a", "http_access deny all b", "http_access deny any_c"]
    assert exposed(*SHIPPED, *parts, *rules, *TO_LINK_LOCAL, *TO_NAT64, *TO_OWN, *TUNNELS, *LET_IN) == []


def test_lists_of_lists_are_asked_for_once_each() -> None:
    lists = ["acl l0 port 80", *(f"acl l{n} any-of l{n - 1} l{n - 1}" for n in range(1, 41))]
    assert exposed(*SHIPPED, *lists, *PROTECTED, "http_access deny l40", *LET_IN) == []
