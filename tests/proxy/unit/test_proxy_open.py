# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the check that finds access rules of an open proxy."""

from __future__ import annotations

from pathlib import Path

import pytest
from in_squid_conf import parse

from mptcp_proxy.configuration.access import claimed_name_problems, open_proxy_problems

ONLY_OWN = ["acl own src 10.0.0.0/8", "http_access allow own", "http_access deny all"]
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
    # This deny rule refuses only IPv4 clients.
    ["acl halves src 0.0.0.0/1 128.0.0.0/1", "http_access deny halves", "http_access allow all"],
    ["acl bad dstdomain .example", "http_access deny !bad", "http_access allow all"],
    # Names of ACLs are not case-sensitive.
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
    # This netmask is invalid, and Squid's interpretation is unknown.
    ["acl odd src 10.0.0.0/255.0.255.0", "http_access allow odd", "http_access deny all"],
    # These rules allow all addresses except a few.
    ["acl few src 203.0.113.0/24", "http_access deny few", "http_access allow all"],
    # If a mask has zero bits before one bits, Squid uses only the one bits before the zero bits. Without such bits, it
    # uses a mask of only one bits.
    ["acl odd src 10.0.0.0/0.255.255.255", "http_access allow odd", "http_access deny all"],
    # Squid ignores any text after a valid address.
    ["acl odd src 0.0.0.0/1,128.0.0.0/1", "http_access allow odd", "http_access deny all"],
    ["acl odd src 0.0.0.0/1x", "http_access allow odd", "http_access deny all"],
    ["acl odd src 1.0.0.0-223.255.255.255x", "http_access allow odd", "http_access deny all"],
    # Squid cannot apply a mask to short, octal and hexadecimal addresses, and to host names.
    ["acl odd src 0/1 128.0/1", "http_access allow odd", "http_access deny all"],
    ["acl odd src 001.0.0.0/1", "http_access allow odd", "http_access deny all"],
    ["acl odd src 0x0/1", "http_access allow odd", "http_access deny all"],
    ["acl odd src localhost/1", "http_access allow odd", "http_access deny all"],
    # Squid masks the wrong bits, so this value matches all clients.
    ["acl odd src ::ffff:10.0.0.0/104", "http_access allow odd", "http_access deny all"],
    # The first mask overflows to 128.0.0.0; the second is not a number, so that the earlier mask applies (/3); the
    # third value is an IPv4 address within IPv6.
    ["acl odd src 0.0.0.0/2147483648", "http_access allow odd", "http_access deny all"],
    ["acl odd src 10.0.0.0/13 2000::/+", "http_access allow odd", "http_access deny all"],
    ["acl odd src 12-ff00::", "http_access allow odd", "http_access deny all"],
    # These are all addresses that one of the five regional registries assigns.
    ["acl own src 2a00::/12", "http_access allow own", "http_access deny all"],
    # Each host with an IPv4 address owns some of these addresses (6to4).
    ["acl own src 2002::/16", "http_access allow own", "http_access deny all"],
    # Squid trusts these senders if they claim another client address.
    ["follow_x_forwarded_for allow all", *ONLY_OWN],
    ["follow_x_forwarded_for deny own", "acl_uses_indirect_client on", *ONLY_OWN],
    ["acl_uses_indirect_client off", "acl_uses_indirect_client on", "follow_x_forwarded_for allow all", *ONLY_OWN],
    [
        "if ${process_number} = 1",
        "acl_uses_indirect_client off",
        "endif",
        "follow_x_forwarded_for allow all",
        *ONLY_OWN,
    ],
    ["http_port 3128 require-proxy-header", "proxy_protocol_access allow all", *ONLY_OWN],
    # Of nested "if" statements, Squid evaluates only the inner one.
    ["if false", "if true", "http_access allow all", "endif", "endif", "http_access deny all"],
    ["if false", "if false", "else", "http_access allow all", "endif", "endif", "http_access deny all"],
    # Squid parses numbers as C does.
    ["if 010 = 8", "http_access allow all", "endif", "http_access deny all"],
    ["if 0x10 = 16", "http_access allow all", "endif", "http_access deny all"],
    ["if 99999999999999999999 = 9223372036854775807", "http_access allow all", "endif", "http_access deny all"],
    # Squid cuts a line at the first carriage return.
    ["http_access allow all\r!all", "http_access deny all"],
    # For Squid, a Unicode blank is not white space: the first of these two ACLs matches all clients.
    ["acl a\u00a0b src all", "acl a src 10.0.0.0/8", "http_access allow a\u00a0b"],
    # Squid drops a value that overlaps an earlier value: here the value "all", or the ranges with all other addresses.
    ["acl few src 192.0.2.1 all", "http_access deny few", "http_access allow all"],
    ["acl few src 192.0.2.1 0.0.0.0/1 128.0.0.0/1 ::/1 8000::/1", "http_access deny few", "http_access allow all"],
    # Python converts these letters to the same case, but C does not. Values are case-sensitive.
    ["acl k src 10.0.0.0/8", "acl \u212a src all", "http_access allow \u212a"],
    ["acl every src ALL", "http_access deny every", "http_access allow all"],
    # The client itself runs the identd and the name server that these rules trust.
    ["acl users ident REQUIRED", "http_access allow users", "http_access deny all"],
    ["acl users ident_regex .", "http_access deny !users", "http_access allow all"],
    ["acl named srcdom_regex .", "http_access allow named", "http_access deny all"],
    # The C library matches [[:alnum:]], the beginning of a word and \N as the letter n; Python does not.
    ["acl named srcdom_regex [[:alnum:]]", "http_access allow named", "http_access deny all"],
    ["acl named srcdom_regex \\<[[:alpha:]]", "http_access allow named", "http_access deny all"],
    ["acl named srcdom_regex -i \\N", "http_access allow named", "http_access deny all"],
    # These patterns cannot be compiled, or would use all memory or the whole stack.
    ["acl named srcdom_regex example)|(", "http_access allow named", "http_access deny all"],
    ["acl named srcdom_regex ((x{255}){255}){255}", "http_access allow named", "http_access deny all"],
    [f"acl named srcdom_regex {'(' * 500}x{')' * 500}", "http_access allow named", "http_access deny all"],
    ["acl named srcdomain .com .net .org", "http_access allow named", "http_access deny all"],
    # These patterns match whole countries.
    ["acl named srcdom_regex \\.fr$", "http_access allow named", "http_access deny all"],
    ["acl named srcdom_regex -i \\.(be|nl)$", "http_access allow named", "http_access deny all"],
    # These prefixes of translators and tunnels contain all hosts with an IPv4 address.
    *(
        [f"acl all4 src {prefix}", "http_access allow all4", "http_access deny all"]
        for prefix in (
            "64:ff9b::/96",
            "64:ff9b::4000:0/98",
            "2001::/32",
            "2001:0:102:304::/64",
            "2001:0:102:304::8000:0/97",
            "2001:0:102:304::4000:0-2001:0:102:304::1:3000:0",
            "2002:1000::/19",
            "::/96",
            "::4000:0/98",
            "::ffff:0:0:0/96",
            "::ffff:0:4000:0-::ffff:0:7fff:ffff",
            # This is NAT64's prefix for local use. Each network divides the bits after it in its own way.
            "64:ff9b:1::/48",
            "64:ff9b:1:fffe::/96",
            "64:ff9b:1:fffe::4000:0/98",
            "64:ff9b:1:ab00::/64",
            "64:ff9b:1:ab00:40::/74",
            "64:ff9b:1:ab00::/56",
            "64:ff9b:1:ab40::/58",
            "64:ff9b:1:4000::/50",
            "64:ff9b:1:4000::-64:ff9b:1:5fff:ff::",
        )
    ),
    # For Squid 5 and 6, a prefix length of 0 in any notation and the words ipv4 and ipv6 mean one address.
    ["acl v6 src ::/0", "acl v4 src 10.0.0.0/0", "http_access deny v4", "http_access deny v6", "http_access allow all"],
    ["acl v6 src ipv6", "acl v4 src ipv4", "http_access deny v4", "http_access deny v6", "http_access allow all"],
    # Squid ends a statement at a file that does not exist, so it reads no ACL name, rule or value after the file.
    ['http_access deny "/nonexistent/names"', "http_access allow all"],
    ['acl every src "/nonexistent/clients" all', "http_access deny every", "http_access allow all"],
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
    # Squid itself reports that there is no ACL of this name.
    ["http_access allow !nothing", "http_access deny all"],
    ["acl own src 10.0.0.0/8", "http_access allow own", "http_access deny ALL"],
    ["if 1 = 1", "http_access deny all", "endif", "http_access allow all"],
    ["if ${process_number} = 1", "acl own src 10.0.0.0/8", "endif", "http_access allow own", "http_access deny all"],
    ["acl operator src 100.64.0.0/10 2.0.0.0/8 2a00::/13", "http_access allow operator", "http_access deny all"],
    [
        "acl private src 10.0.0.0-10.255.255.255/8 ::1 fc00::/7 fe80::/10",
        "http_access allow private",
        "http_access deny all",
    ],
    ["acl own src 2002:5000::/20", "http_access allow own", "http_access deny all"],
    ["acl own src 64:ff9b::a00:0/104 64:ff9b::5000:0/100", "http_access allow own", "http_access deny all"],
    [
        "acl own src ::1 ::a00:0/104 ::ffff:0:a00:0/104 64:ff9b:1::a00:0/104 64:ff9b:1:a64::/128",
        "http_access allow own",
        "http_access deny all",
    ],
    # Teredo inverts the bits: this is 10.0.0.0/8.
    ["acl own src 2001:0:102:304:0:0:f500:0/104", "http_access allow own", "http_access deny all"],
    ["acl host src client.example", "http_access allow host", "http_access deny all"],
    # Squid ends with an error at this value.
    ["acl own src 10.0.0.0/33", "http_access allow own", "http_access deny all"],
    ["acl own src 10.0.0.0/255.0.0.0 192.168.0.0/255.255.0.0", "http_access allow own", "http_access deny all"],
    ["acl own src 10.0.0.0/8, 192.168.0.0/16", "http_access allow own", "http_access deny all"],
    ["acl own src -- 10.0.0.0/8", "http_access allow own", "http_access deny all"],
    ["acl us srcdom_regex -i \\.example\\.com$", "http_access allow us", "http_access deny all"],
    ["acl us srcdom_regex ^[[:alnum:]-]+\\.example\\.com$", "http_access allow us", "http_access deny all"],
    ["acl us srcdom_regex ^([0-9]{1,3}-){3}[0-9]{1,3}\\.example$", "http_access allow us", "http_access deny all"],
    ["acl us srcdomain .office.example.com", "http_access allow us", "http_access deny all"],
    ["acl parts src 0.0.0.0/1 128.0.0.0/1 ::/1 8000::/1", "http_access deny !parts", "http_access allow !all"],
    ["follow_x_forwarded_for allow localhost", "follow_x_forwarded_for deny all", *ONLY_OWN],
    ["acl_uses_indirect_client off", "follow_x_forwarded_for allow all", *ONLY_OWN],
    ["http_port 3128", "proxy_protocol_access allow all", *ONLY_OWN],
    ["follow_x_forwarded_for allow all", "http_access deny all"],
    [
        "acl users proxy_auth REQUIRED",
        "follow_x_forwarded_for allow all",
        "http_access allow users",
        "http_access deny all",
    ],
    ["http_port 3128 require-proxy-header", "proxy_protocol_access allow own", *ONLY_OWN],
    ["if true", "if false", "http_access allow all", "endif", "endif", "http_access deny all"],
    ["if 010 = 10", "http_access allow all", "endif", "http_access deny all"],
    ["if 1_0 = 10", "endif", "http_access deny all"],
]


@pytest.mark.parametrize("texts", OPEN)
def test_rules_of_an_open_proxy_are_refused(texts: list[str]) -> None:
    (problem,) = open_proxy_problems(parse(*texts))
    assert "an open proxy" in problem.text
    assert problem.line is not None
    assert not problem.warning


@pytest.mark.parametrize("texts", CLOSED)
def test_rules_of_a_closed_proxy_are_accepted(texts: list[str]) -> None:
    assert [each for each in open_proxy_problems(parse(*texts)) if not each.warning] == []


@pytest.mark.parametrize(("last_rule", "warned"), [("deny !users", True), ("deny all", False), ("deny All", False)])
def test_last_rule_that_denies_less_than_all_is_a_warning(last_rule: str, warned: bool) -> None:
    found = open_proxy_problems(
        parse("acl users proxy_auth REQUIRED", "http_access deny bad", f"http_access {last_rule}")
    )
    expected = [
        "squid.conf:3: warning: http_access deny !users: as the last rule, it allows all requests that no rule matches"
    ]
    assert [str(each).partition(" (")[0] for each in found] == expected * warned


def test_addresses_in_a_file_are_judged(tmp_path: Path) -> None:
    list_file = tmp_path / "clients"
    rules = (f'acl own src "{list_file}"', "http_access allow own", "http_access deny all")
    for text, problems in (("10.0.0.0/8\n", 0), ("# everybody\n10.0.0.0/8\n0.0.0.0/0\n", 1), ("0/1\n::/0 # v6\n", 1)):
        list_file.write_text(text)
        assert len(list(open_proxy_problems(parse(*rules)))) == problems, text
    list_file.unlink()
    assert list(open_proxy_problems(parse(*rules))) == []


@pytest.mark.parametrize("word", ["'{}'", '"{}', "'{}", "\"{}'", '"{}"x'])
def test_file_is_read_with_each_kind_of_quotation_mark(tmp_path: Path, word: str) -> None:
    list_file = tmp_path / "clients"
    list_file.write_text("0.0.0.0/1\n")
    rules = (f"acl odd src {word.format(list_file)}", "http_access allow odd", "http_access deny all")
    assert list(open_proxy_problems(parse(*rules)))


@pytest.mark.parametrize(
    ("content", "words_after"),
    [
        # Squid ignores words after the file name.
        ("0.0.0.0/1\n128.0.0.0/1\n", " ::/1 8000::/1"),
        # Squid uses only the first value of each line.
        ("0.0.0.0/1 128.0.0.0/1\n::/1 8000::/1\n", ""),
        # Squid reads at most 2047 bytes of a line; the rest of the line is another value.
        (f"# {'x' * 2045}10.0.0.0/8\n", ""),
    ],
)
def test_values_that_squid_ignores_in_a_file_deny_no_client(tmp_path: Path, content: str, words_after: str) -> None:
    list_file = tmp_path / "denied"
    list_file.write_text(content)
    rules = (f'acl denied src "{list_file}"{words_after}', "http_access deny denied", "http_access allow all")
    assert list(open_proxy_problems(parse(*rules)))


def test_text_after_2047_bytes_of_a_comment_is_a_value(tmp_path: Path) -> None:
    list_file = tmp_path / "clients"
    rules = (f'acl clients src "{list_file}"', "http_access allow clients", "http_access deny all")
    for comment, problems in ((f"#{'x' * 2046}", 1), (f"#{'x' * 2000}", 0)):
        list_file.write_text(f"{comment}0.0.0.0/1\n")
        assert len(list(open_proxy_problems(parse(*rules)))) == problems


def test_names_of_lists_are_read_from_a_file(tmp_path: Path) -> None:
    list_file = tmp_path / "names"
    list_file.write_text("all\n")
    assert list(open_proxy_problems(parse(f'http_access allow "{list_file}"', "http_access deny all")))
    assert list(open_proxy_problems(parse(f'acl any any-of "{list_file}"', "http_access allow any")))
    assert not list(open_proxy_problems(parse(f'http_access deny "{list_file}"', "http_access allow all")))


def test_nested_lists_are_evaluated_once_each() -> None:
    """Each of 40 ACLs includes the previous ACL twice. Without a cache, the check would need 2^40 steps."""
    lists = ["acl l0 src 10.0.0.0/8", *(f"acl l{n} any-of l{n - 1} l{n - 1}" for n in range(1, 41))]
    assert not list(open_proxy_problems(parse(*lists, "http_access allow l40", "http_access deny all")))
    assert list(open_proxy_problems(parse(*lists, "acl l7 src all", "http_access allow l40", "http_access deny all")))


def test_long_lists_are_judged_in_less_than_quadratic_time(tmp_path: Path) -> None:
    """Each of two lists has 20,000 addresses, none of which are adjacent. Merging them address by address would take
    minutes."""
    for name, last_octet in (("one", 1), ("other", 3)):
        (tmp_path / name).write_text("".join(f"11.{n // 250}.{n % 250}.{last_octet}\n" for n in range(20_000)))
    lists = [f'acl {name} src "{tmp_path}/{name}"' for name in ("one", "other")]
    rules = [*lists, "http_access deny one", "http_access allow other", "http_access deny all"]
    assert not list(open_proxy_problems(parse(*rules)))


@pytest.mark.parametrize(
    ("texts", "line"),
    [
        (["acl us srcdomain .office.example.com", "http_access allow us", "http_access deny all"], 2),
        (["acl us srcdom_regex \\.office\\.example\\.com$", "http_access deny !us", "http_access allow all"], 3),
        (
            [
                "acl own src 10.0.0.0/8",
                "acl us srcdomain .example.com",
                "acl any any-of own us",
                "http_access allow any",
            ],
            4,
        ),
        (
            [
                "external_acl_type who %>A /bin/helper",
                "acl ok external who",
                "http_access allow ok",
                "http_access deny all",
            ],
            3,
        ),
        # These rules also require an address or a password, or they deny.
        (["external_acl_type who %>A %SRC /bin/helper", "acl ok external who", "http_access allow ok"], None),
        (["acl own src 10.0.0.0/8", "acl us srcdomain .example.com", "http_access allow own us"], None),
        (["acl us srcdomain .example.com", "acl users proxy_auth REQUIRED", "http_access allow us users"], None),
        (["acl bad srcdomain .example.com", "http_access deny bad", *ONLY_OWN], None),
        # Another problem reports this open proxy.
        (["acl us srcdomain .com", "http_access allow us", "http_access deny all"], None),
    ],
)
def test_rule_for_names_that_any_client_may_claim_is_a_warning(texts: list[str], line: int | None) -> None:
    """Defect: the check did not warn that a client controls the reverse zone of its address, which Squid trusts."""
    problems = list(claimed_name_problems(parse(*texts)))
    assert [problem.line for problem in problems] == ([] if line is None else [line])
    assert all(problem.warning and "reverse zone" in problem.text for problem in problems)
