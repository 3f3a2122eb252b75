# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the check that finds which services of the host clients can reach, and which rule allows it."""

from __future__ import annotations

from pathlib import Path

import pytest
from in_squid_conf import parse

from mptcp_proxy.configuration.exposure import exposure_problems

SHIPPED = ["acl clients src 10.0.0.0/8", "http_access allow localhost manager", "http_access deny manager"]
TO_LOOPBACK = ["acl lo dst 127.0.0.0/8 ::1/128", "http_access deny lo"]
TO_LINK_LOCAL = ["acl ll dst 169.254.0.0/16 fe80::/10", "http_access deny ll"]
TO_OWN = ['acl own dst "/run/x/own-addresses"', "http_access deny own"]
TUNNELS = ["acl tls port 443", "http_access deny CONNECT !tls"]
TO_METADATA = [
    "acl md dst 168.63.129.16 192.0.0.192 100.100.100.200 100.96.0.96 100.80.80.80 fd00:ec2::/32 fd20:ce::254",
    "acl md dst fd00:c1::a9fe:a9fe fd00:a9fe:a9fe::1 fd00:42::42 fd00:100::100:200",
    "http_access deny md",
]
TO_NAT64 = [
    "acl nat64 dst 64:ff9b::7f00:0/104 64:ff9b::a9fe:0/112 64:ff9b::a83f:8110 64:ff9b::c000:c0",
    "acl nat64 dst 64:ff9b::6464:64c8 64:ff9b::6460:60 64:ff9b::6450:5050",
    "http_access deny nat64",
]
PROTECTIONS = {
    "loopback": TO_LOOPBACK,
    "link-local": TO_LINK_LOCAL,
    "168.63.129.16": TO_METADATA,
    "NAT64": TO_NAT64,
    "own addresses": TO_OWN,
    "CONNECT": TUNNELS,
}
PROTECTED = [line for part in PROTECTIONS.values() for line in part]
ALLOW_CLIENTS = ["http_access allow clients", "http_access deny all"]


def exposure_texts(*texts: str) -> list[str]:
    problems = list(exposure_problems(parse(*texts), "/run/x/own-addresses"))
    assert all(problem.warning for problem in problems)
    return [problem.text for problem in problems]


def test_configuration_with_all_protections_has_no_warning() -> None:
    assert exposure_texts(*SHIPPED, *PROTECTED, *ALLOW_CLIENTS) == []
    assert exposure_texts("http_access allow localhost", "http_access deny all") == []
    squids_lists = ["http_access deny to_localhost", "http_access deny to_linklocal"]
    assert exposure_texts(*SHIPPED, *squids_lists, *TO_METADATA, *TO_NAT64, *TO_OWN, *TUNNELS, *ALLOW_CLIENTS) == []


@pytest.mark.parametrize("missing", PROTECTIONS)
def test_each_missing_protection_is_a_warning(missing: str) -> None:
    others = [line for name, part in PROTECTIONS.items() if name != missing for line in part]
    (text,) = exposure_texts(*SHIPPED, *others, *ALLOW_CLIENTS)
    assert missing in text
    # A deny rule after the rule that allows clients has no effect.
    (text,) = exposure_texts(*SHIPPED, *others, *ALLOW_CLIENTS, *PROTECTIONS[missing])
    assert missing in text
    # A rule that applies only in some processes has no effect either.
    conditional = ["if ${process_number} = 1", *PROTECTIONS[missing], "endif"]
    (text,) = exposure_texts(*SHIPPED, *others, *conditional, *ALLOW_CLIENTS)
    assert missing in text
    assert not any(other in text for other in PROTECTIONS if other != missing)


TO_A_PEER = ["acl page dstdomain page.internal", "http_access allow page clients"]


def test_requests_that_only_a_peer_serves_expose_no_service() -> None:
    configuration = [*SHIPPED, *TO_A_PEER, *PROTECTED, *ALLOW_CLIENTS]
    assert exposure_texts(*configuration, "never_direct allow page") == []
    assert exposure_texts(*configuration, "never_direct allow PAGE") == []
    for more_rules in (
        [],
        ["never_direct allow other"],
        ["never_direct allow page other"],  # some of these requests go directly
        ["never_direct deny clients", "never_direct allow page"],
        ["never_direct allow page", "always_direct allow clients"],
        ["if ${process_number} = 1", "never_direct allow page", "endif"],
    ):
        (text,) = exposure_texts(*configuration, *more_rules)
        assert "loopback" in text, more_rules


CONF = Path(__file__).parents[3] / "conf"


def shipped(name: str) -> list[str]:
    return (CONF / name).read_text().splitlines()


@pytest.mark.parametrize("name", ["squid.conf", "relay-squid.conf"])
@pytest.mark.parametrize("acl", ["to_metadata", "to_embedded"])
def test_shipped_rules_need_each_metadata_address(name: str, acl: str) -> None:
    """Defect: the lists lacked Azure's and Oracle's addresses, so any client could reach them through the proxy."""
    lines = shipped(name)

    def texts_for(lines: list[str]) -> list[str]:
        own = "/run/n/own-addresses"
        found = exposure_problems(parse(*lines), own, connects=name == "squid.conf")
        return [problem.text for problem in found]

    assert texts_for(lines) == []
    tested = 0
    for number, line in enumerate(lines):
        for address in line.split() if line.startswith(f"acl {acl} dst ") else ():
            # Test only single addresses, which begin with 1, 6 or f. The lists deny NAT64's prefixes as a whole, or in
            # another list.
            if address[0] in "16f" and address not in ("64:ff9b::/104", "64:ff9b:1::/48"):
                changed_line = line.replace(f" {address}", " 192.0.2.1")
                (text,) = texts_for([*lines[:number], changed_line, *lines[number + 1 :]])
                assert ("behind NAT64" if acl == "to_embedded" else "168.63.129.16") in text, address
                tested += 1
    assert tested == {"to_metadata": 11, "to_embedded": 7}[acl]


def test_denying_half_of_the_loopback_addresses_is_a_warning() -> None:
    half = ["acl lo dst 127.0.0.0/9 ::1/128", "http_access deny lo"]
    (text,) = exposure_texts(
        *SHIPPED, *half, *TO_LINK_LOCAL, *TO_METADATA, *TO_NAT64, *TO_OWN, *TUNNELS, *ALLOW_CLIENTS
    )
    assert "loopback" in text


@pytest.mark.parametrize(
    "rules",
    [
        ["http_access deny CONNECT bad", *ALLOW_CLIENTS],
        ["http_access deny CONNECT clients", *ALLOW_CLIENTS],
        ["acl most port 1-65535", "http_access deny CONNECT !most", *ALLOW_CLIENTS],
        ["acl most port 443 1025-65535", "http_access deny CONNECT !most", *ALLOW_CLIENTS],
        ["acl get method GET", "http_access deny get", *ALLOW_CLIENTS],
        ["http_access allow CONNECT clients", *TUNNELS, *ALLOW_CLIENTS],
        ["acl all_ports any-of bad CONNECT", "http_access deny all_ports bad", *ALLOW_CLIENTS],
    ],
)
def test_denying_only_some_tunnels_is_a_warning(rules: list[str]) -> None:
    bad = "acl bad dstdomain .example"
    texts = exposure_texts(bad, *SHIPPED, *TO_LOOPBACK, *TO_LINK_LOCAL, *TO_METADATA, *TO_NAT64, *TO_OWN, *rules)
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
def test_each_kind_of_rule_that_denies_tunnels_is_accepted(rules: list[str]) -> None:
    assert (
        exposure_texts(*SHIPPED, *TO_LOOPBACK, *TO_LINK_LOCAL, *TO_METADATA, *TO_NAT64, *TO_OWN, *rules, *ALLOW_CLIENTS)
        == []
    )


@pytest.mark.parametrize(
    ("rules", "allowing_rule"),
    [
        (["http_access allow manager clients", "http_access deny manager"], "http_access allow manager clients"),
        (["http_access allow localhost manager"], "http_access allow clients"),
        (["http_access allow !manager localhost", "http_access deny manager !clients"], "http_access allow clients"),
        (["acl pages any-of manager", "http_access allow pages clients"], "http_access allow pages clients"),
    ],
)
def test_rule_that_opens_the_status_pages_to_clients_is_a_warning(rules: list[str], allowing_rule: str) -> None:
    (text,) = exposure_texts("acl clients src 10.0.0.0/8", *rules, *PROTECTED, *ALLOW_CLIENTS)
    assert text.startswith(f"{allowing_rule}: no rule before this one denies Squid's own status pages (manager)")


def test_rule_for_the_status_pages_opens_no_other_service() -> None:
    (text,) = exposure_texts(
        "acl clients src 10.0.0.0/8", "http_access allow manager clients", *PROTECTED, *ALLOW_CLIENTS
    )
    assert "loopback" not in text
    assert "CONNECT" not in text


def test_rule_with_negated_manager_allows_clients() -> None:
    (text,) = exposure_texts(*SHIPPED, "http_access allow !manager clients", *PROTECTED, *ALLOW_CLIENTS)
    assert text.startswith("http_access allow !manager clients")
    assert "loopback" in text


def test_rule_for_users_with_a_password_allows_clients() -> None:
    (text,) = exposure_texts(
        *SHIPPED, "acl users proxy_auth REQUIRED", "http_access allow users", "http_access deny all"
    )
    assert "loopback" in text


def test_addresses_that_several_rules_deny_are_protected() -> None:
    parts = ["acl a dst 127.0.0.0/9", "acl b dst 127.128.0.0/9", "acl c dst ::1", "acl any_c any-of c"]
    rules = ["http_access deny a", "http_access deny all b", "http_access deny any_c"]
    assert (
        exposure_texts(
            *SHIPPED, *parts, *rules, *TO_LINK_LOCAL, *TO_METADATA, *TO_NAT64, *TO_OWN, *TUNNELS, *ALLOW_CLIENTS
        )
        == []
    )


def test_nested_lists_are_evaluated_once_each() -> None:
    lists = ["acl l0 port 80", *(f"acl l{n} any-of l{n - 1} l{n - 1}" for n in range(1, 41))]
    assert exposure_texts(*SHIPPED, *lists, *PROTECTED, "http_access deny l40", *ALLOW_CLIENTS) == []


ALLOW_LOCAL = ["http_access allow localhost", *ALLOW_CLIENTS]
COMPLETE = [*SHIPPED, *PROTECTED, *ALLOW_LOCAL]
PROXY_PROTOCOL_PORT = "http_port 3129 require-proxy-header"


@pytest.mark.parametrize(
    ("earlier_lines", "rule"),
    [
        ([], "follow_x_forwarded_for allow clients"),
        (["acl cache src 10.0.0.7"], "follow_x_forwarded_for allow cache"),
        ([], "follow_x_forwarded_for deny localhost"),
        (["acl users proxy_auth REQUIRED"], "follow_x_forwarded_for allow users"),
        (["acl users proxy_auth REQUIRED", "acl us any-of localhost users"], "follow_x_forwarded_for allow us"),
        (["acl_uses_indirect_client off", "acl_uses_indirect_client on"], "follow_x_forwarded_for allow clients"),
        (["if ${process_number} = 1"], "follow_x_forwarded_for allow clients"),
        ([PROXY_PROTOCOL_PORT], "proxy_protocol_access allow clients"),
        ([PROXY_PROTOCOL_PORT, "acl_uses_indirect_client off"], "proxy_protocol_access allow clients"),
    ],
)
def test_client_that_may_claim_a_local_address_is_a_warning(earlier_lines: list[str], rule: str) -> None:
    """Defect: a client that sent 127.0.0.1 in a header could read the status pages, and the check gave no warning."""
    trusting = [*earlier_lines, rule, *(["endif"] if earlier_lines and earlier_lines[0].startswith("if ") else [])]
    (text,) = exposure_texts(*COMPLETE, *trusting)
    assert text == (
        "http_access allow localhost manager: no rule before this one denies Squid's own status pages (manager):"
        f" clients reach services that are not meant for them; other hosts can claim this host's address"
        f" ({rule})"
    )
    assert (
        exposure_texts("acl clients src 10.0.0.0/8", "http_access deny manager", *PROTECTED, *ALLOW_LOCAL, *trusting)
        == []
    )


@pytest.mark.parametrize(
    "trusting",
    [
        ["follow_x_forwarded_for allow localhost", "follow_x_forwarded_for deny all"],
        ["follow_x_forwarded_for allow localhost clients"],
        ["acl here src 127.0.0.1 ::1", "follow_x_forwarded_for deny !here", "follow_x_forwarded_for allow all"],
        ["follow_x_forwarded_for deny all", "follow_x_forwarded_for allow clients"],
        ["follow_x_forwarded_for deny clients", "follow_x_forwarded_for allow localhost"],
        ["acl_uses_indirect_client off", "follow_x_forwarded_for allow clients"],
        ["http_port 3129", "proxy_protocol_access allow clients"],
        [PROXY_PROTOCOL_PORT, "proxy_protocol_access allow localhost"],
    ],
)
def test_client_whose_claim_is_not_trusted_gives_no_warning(trusting: list[str]) -> None:
    assert exposure_texts(*COMPLETE, *trusting) == []


def test_client_that_may_claim_a_local_address_reaches_local_services() -> None:
    first_rules = ["acl clients src 10.0.0.0/8", "http_access deny manager", "http_access allow localhost"]
    (text,) = exposure_texts(*first_rules, *PROTECTED, *ALLOW_CLIENTS, "follow_x_forwarded_for allow clients")
    assert text.startswith("http_access allow localhost: no rule before this one denies loopback addresses, link-local")
    assert exposure_texts(*first_rules, *PROTECTED, *ALLOW_CLIENTS) == []


@pytest.mark.parametrize(
    "client_list",
    [
        ["acl known proxy_auth REQUIRED"],
        ["acl known arp 00:11:22:33:44:55"],
        ["external_acl_type who %SRC /bin/helper", "acl known external who"],
        ["acl known srcdomain .office.example.com"],
    ],
)
def test_list_with_other_clients_is_not_only_for_this_host(client_list: list[str]) -> None:
    """Defect: the check treated such a list as a list of only this host, and did not report the exposed services."""
    (text,) = exposure_texts(
        *client_list, "acl us any-of localhost known", "http_access allow us", "http_access deny all"
    )
    assert text.startswith("http_access allow us: no rule before this one denies loopback addresses")
