"""Listeners and access rules, found in statements."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from mptcp_proxy.configuration.access import exposure_problems, open_proxy_problems
from mptcp_proxy.configuration.listeners import listener_problems, listeners, states_a_port
from mptcp_proxy.configuration.source import PhysicalLine, Statement, statements
from mptcp_proxy.problem import Problem


def parse(*texts: str) -> Sequence[Statement]:
    return list(statements([PhysicalLine("squid.conf", n, text) for n, text in enumerate(texts, 1)], "n"))


def port_problems(*texts: str) -> list[Problem]:
    said = parse(*texts)
    return list(listener_problems(listeners(said), "squid.conf", states_a_port(said)))


@pytest.mark.parametrize(
    ("text", "host", "port", "options"),
    [
        ("http_port 3128", "", 3128, ()),
        ("http_port 10.0.0.1:8080 name=inner", "10.0.0.1", 8080, ("name=inner",)),
        ("https_port [fd00::1]:443 tls-cert=/x", "[fd00::1]", 443, ("tls-cert=/x",)),
        ("http_port proxy.example:3128 tproxy", "proxy.example", 3128, ("tproxy",)),
        ("http_port 65535 # comment", "", 65535, ()),
    ],
)
def test_listeners(text: str, host: str, port: int, options: tuple[str, ...]) -> None:
    (listener,) = listeners(parse(text))
    assert (listener.host, listener.port, listener.options) == (host, port, options)


@pytest.mark.parametrize("text", ["http_port", "http_port 0", "http_port 65536", "http_port abc", "http_port fd00::1:80", "icp_port 3130", "http_portx 1"])  # fmt: skip  # noqa: E501
def test_what_is_no_listener(text: str) -> None:
    assert list(listeners(parse(text))) == []


@pytest.mark.parametrize(
    ("one", "other", "overlap"),
    [
        ("3128", "3128", True),
        ("3128", "3129", False),
        ("3128", "10.0.0.1:3128", True),
        ("[fd00::1]:3128", "3128", True),
        ("10.0.0.1:3128", "10.0.0.2:3128", False),
        ("10.0.0.1:3128", "10.0.0.1:3128", True),
        ("[fd00::1]:3128", "[fd00:0::1]:3128", True),
        ("0.0.0.0:3128", "10.0.0.1:3128", True),
        ("0.0.0.0:3128", "[fd00::1]:3128", False),
        ("a.example:3128", "A.example:3128", True),
        ("a.example:3128", "10.0.0.1:3128", False),
    ],
)
def test_ports_that_overlap(one: str, other: str, overlap: bool) -> None:
    problems = port_problems(f"http_port {one}", f"http_port {other}")
    assert len(problems) == overlap
    if overlap:
        assert problems[0].line == 2
        assert f"already taken by http_port {one} in line 1" in problems[0].text


def test_the_same_port_in_branches_of_an_if_is_no_problem() -> None:
    branches = ("if ${process_number} = 1", "http_port 3128", "else", "http_port 3128", "endif")
    assert port_problems(*branches) == []


@pytest.mark.parametrize("mode", ["intercept", "transparent"])
def test_intercept_is_refused(mode: str) -> None:
    (problem,) = port_problems(f"http_port 3128 {mode}")
    assert problem.line == 1
    assert "MPTCP" in problem.text
    assert "tproxy" in problem.allowed


def test_no_port() -> None:
    (problem,) = port_problems("via on")
    assert str(problem).startswith("squid.conf: no http_port: nothing would listen")
    # A port statement that is not well formed is another mistake, which Squid tells.
    assert port_problems("http_port abc") == []


OPEN = [
    ["http_access allow all"],
    ["http_access deny bad", "http_access allow all", "http_access deny all"],
    ["acl world src all", "http_access allow world"],
    ["acl world src 10.0.0.0/8 0.0.0.0/0", "http_access allow world"],
    ["acl world src ::/0", "http_access allow all world"],
    ["acl world src 0/0", "http_access allow world"],
    ["http_access deny bad"],
    ["http_access allow good", "http_access deny bad"],
    ["acl web port 80 443", "http_access allow web", "http_access deny all"],
    ["acl tunnel method CONNECT", "http_access allow tunnel", "http_access deny all"],
    ["http_access allow CONNECT", "http_access deny all"],
    ["acl halves src 0.0.0.0/1 128.0.0.0/1", "http_access allow halves", "http_access deny all"],
    ["acl halves src 0.0.0.0/1", "acl halves src 128.0.0.0/1", "http_access allow halves", "http_access deny all"],
    ["acl range src 0.0.0.0-127.255.255.255 128.0.0.0-255.255.255.255", "http_access allow range"],
    ["acl mapped src ::ffff:0:0/96", "http_access allow mapped", "http_access deny all"],
    ["acl global src 2000::/4 3000::/4", "http_access allow global", "http_access deny all"],
    ["acl own src 10.0.0.0/8", "http_access allow !own", "http_access deny all"],
    ["acl inner localport 3128", "http_access allow inner", "http_access deny all"],
    ["acl own src 10.0.0.0/8", "acl web port 80", "acl any any-of own web", "http_access allow any"],
    ["acl web port 80", "acl site dstdomain .example", "acl both all-of web site", "http_access allow both"],
    # Only clients by IPv4 are turned away before.
    ["acl halves src 0.0.0.0/1 128.0.0.0/1", "http_access deny halves", "http_access allow all"],
    ["acl bad dstdomain .example", "http_access deny !bad", "http_access allow all"],
    # Names of lists are the same in any letter case.
    ["http_access allow All"],
    ["acl World src all", "http_access allow wORLD", "http_access deny all"],
    ["if 1 = 1", "http_access allow all", "endif", "http_access deny all"],
    ["if 1 = 2", "else", "http_access allow all", "endif", "http_access deny all"],
    ["if ${process_number} = 1", "http_access allow all", "endif", "http_access deny all"],
    ["if ${process_number} = 1", "http_access deny all", "endif", "http_access allow all"],
    [
        "acl own src 10.0.0.0/8",
        "if 1 = 2",
        "acl own src all",
        "else",
        "acl own src ::/1",
        "endif",
        "http_access allow own",
    ],
    [
        "acl a src 0.0.0.0/1",
        "acl b src 128.0.0.0/1",
        "http_access allow a",
        "http_access allow b",
        "http_access deny all",
    ],
    ["acl near src 1.0.0.0-223.255.255.255", "http_access allow near", "http_access deny all"],
    ["acl near src 2000::-2fff:ffff::", "http_access allow near", "http_access deny all"],
    ["acl half src 0.0.0.0/1", "http_access allow half", "http_access deny all"],
    ["acl all_again src 0.0.0.0-0.0.0.0/0", "http_access allow all_again", "http_access deny all"],
    # A mask that is none: what Squid makes of it is not known.
    ["acl odd src 10.0.0.0/255.0.255.0", "http_access allow odd", "http_access deny all"],
    # All but a few.
    ["acl few src 203.0.113.0/24", "http_access deny few", "http_access allow all"],
]
CLOSED: list[list[str]] = [
    [],
    ["http_access allow localnet", "http_access deny all"],
    ["http_access deny all", "http_access allow all"],
    ["http_access allow localnet"],
    ["acl a src 10.0.0.0/8", "http_access allow a", "http_access deny all"],
    ["http_access allow localhost all", "http_access deny all"],
    ["acl world dst 0.0.0.0/0", "http_access allow world localnet", "http_access deny all"],
    ["http_access permit all", "http_access deny all"],
    ["if 1 = 0", "http_access allow all", "endif", "http_access deny all"],
    ["acl own src 10.0.0.0/8", "acl web port 80", "http_access allow web own", "http_access deny all"],
    ["acl own src 10.0.0.0/8", "acl web port 80", "http_access allow own !web", "http_access deny all"],
    ["acl users proxy_auth REQUIRED", "http_access allow users", "http_access deny all"],
    ["acl users external session", "http_access allow users", "http_access deny all"],
    ["acl card arp 00:11:22:33:44:55", "http_access allow card", "http_access deny all"],
    ["acl own src 10.0.0.0/8", "acl web port 80", "acl both all-of own web", "http_access allow both"],
    ["acl own src 10.0.0.0/8", "acl us srcdomain .example", "acl any any-of own us", "http_access allow any"],
    ["acl own src 10.0.0.0/8", "http_access deny !own", "http_access allow all"],
    ["acl own src 10.0.0.0/8", "http_access deny !own"],
    ["acl users proxy_auth REQUIRED", "acl web port 80", "http_access deny !users", "http_access allow web"],
    ["http_access allow !all", "http_access deny all"],
    # Squid itself says that there is no such name.
    ["http_access allow !nothing", "http_access deny all"],
    ["acl own src 10.0.0.0/8", "http_access allow own", "http_access deny ALL"],
    ["if 1 = 1", "http_access deny all", "endif", "http_access allow all"],
    ["if ${process_number} = 1", "acl own src 10.0.0.0/8", "endif", "http_access allow own", "http_access deny all"],
    ["acl operator src 100.64.0.0/10 2.0.0.0/8 2a00::/12", "http_access allow operator", "http_access deny all"],
    [
        "acl private src 10.0.0.0-10.255.255.255/8 ::1 fc00::/7 fe80::/10",
        "http_access allow private",
        "http_access deny all",
    ],
    ["acl host src client.example", "http_access allow host", "http_access deny all"],
    ["acl v6 src ipv6", "acl v4 src ipv4", "http_access deny v4", "http_access deny v6", "http_access allow all"],
]


@pytest.mark.parametrize("texts", OPEN)
def test_open_proxies(texts: list[str]) -> None:
    (problem,) = open_proxy_problems(parse(*texts))
    assert "an open proxy" in problem.text
    assert problem.line is not None
    assert not problem.warning


@pytest.mark.parametrize("texts", CLOSED)
def test_closed_proxies(texts: list[str]) -> None:
    assert list(open_proxy_problems(parse(*texts))) == []


def test_a_list_in_a_file_is_read(tmp_path: Path) -> None:
    names = tmp_path / "clients"
    rules = (f'acl own src "{names}"', "http_access allow own", "http_access deny all")
    for text, problems in (("10.0.0.0/8\n", 0), ("# everybody\n10.0.0.0/8\n0.0.0.0/0\n", 1), ("0/1\n::/0 # v6\n", 1)):
        names.write_text(text)
        assert len(list(open_proxy_problems(parse(*rules)))) == problems, text
    names.unlink()
    assert list(open_proxy_problems(parse(*rules))) == []


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


def test_lists_of_lists_are_looked_at_once_each() -> None:
    """Forty that have the one before twice would otherwise be looked at 2 to the 40th time."""
    lists = ["acl l0 src 10.0.0.0/8", *(f"acl l{n} any-of l{n - 1} l{n - 1}" for n in range(1, 41))]
    assert not list(open_proxy_problems(parse(*lists, "http_access allow l40", "http_access deny all")))
    assert list(open_proxy_problems(parse(*lists, "acl l7 src all", "http_access allow l40", "http_access deny all")))


def test_long_lists_in_files_take_no_quadratic_time(tmp_path: Path) -> None:
    """Two with 20,000 addresses each, none beside another: minutes, were each added to all before it."""
    for name, last in (("one", 1), ("other", 3)):
        (tmp_path / name).write_text("".join(f"11.{n // 250}.{n % 250}.{last}\n" for n in range(20_000)))
    lists = [f'acl {name} src "{tmp_path}/{name}"' for name in ("one", "other")]
    rules = [*lists, "http_access deny one", "http_access allow other", "http_access deny all"]
    assert not list(open_proxy_problems(parse(*rules)))
