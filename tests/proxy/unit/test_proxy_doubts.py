# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the parts of a configuration that the check cannot judge."""

from __future__ import annotations

from pathlib import Path

import pytest
from in_squid_conf import parse

from mptcp_proxy.configuration.doubts import doubts

LONGEST_NAME = "n" * 62
DOUBTFUL = [
    ["acl c src 10.0.0.0/0.255.255.255"],
    ["acl c src 10.0.0.0/255.0.255.0"],
    ["acl c src 10.0.0.0/8,192.168.0.0/16"],
    ["acl c src localhost/8"],
    ["acl c src ::ffff:10.0.0.0/104"],
    ["acl c src 10.0.0.0/8x"],
    ["acl c dst 127.0.0.0/0.255.255.255"],
    ["acl c src 10.1.0.0-10.0.0.0"],
    ["acl c src fd00::/8/8"],
    ['acl c src "/nonexistent/clients" 10.0.0.0/8'],
    # These words differ between processes, or exceed the 62 bytes that Squid uses of a name.
    ["acl a${process_number} src all"],
    ["http_access allow a${process_number}"],
    ['acl a src "/etc/clients-${process_name}"'],
    ["${process_name}_access allow all"],
    [f"acl {LONGEST_NAME}x src all"],
    # Squid does not separate words at these blanks and invisible characters.
    ["acl a\u00a0b src all"],
    ["http_access\u00a0allow all"],
    ["http_access\vallow all"],
    ["acl a\u200b src all"],
    ["acl a\x1bb src all"],
]
CERTAIN = [
    ["acl c src 10.0.0.0/8 192.168.0.0/255.255.0.0 10.0.0.0-10.0.0.255 fd00::/8 host.example ::1 all"],
    ["acl c src 10.0.0.0/8, 192.168.0.0/16;"],
    ["acl c dst -n 10.0.0.0/8"],
    ["acl n" + "n" * 60 + " src 10.0.0.0/8"],
    ["cache_dir rock /cache/${process_number} 100", "access_log stdio:/var/log/${process_name}.log"],
    ["acl a src 10.0.0.0/8 # caf\u00e9 \u00a0 \u200b ${process_number}"],
    ["visible_hostname caf\u00e9", "visible_hostname caf\udce9"],
    ["acl a\tsrc  \t10.0.0.0/8"],
]


@pytest.mark.parametrize("texts", DOUBTFUL)
def test_doubtful_value_is_reported_with_its_line(texts: list[str]) -> None:
    (problem,) = doubts(parse(*texts))
    assert (problem.file, problem.line, problem.warning) == ("squid.conf", 1, False)
    assert "to accept this: --allow-open-proxy" in problem.allowed
    assert str(problem).isprintable()


@pytest.mark.parametrize("texts", CERTAIN)
def test_clear_value_is_not_reported(texts: list[str]) -> None:
    assert list(doubts(parse(*texts))) == []


def test_doubtful_value_in_a_file_is_reported_with_its_line_there(tmp_path: Path) -> None:
    list_file = tmp_path / "clients"
    list_file.write_text("# ours\n10.0.0.0/8 Berlin, ground floor\n172.16.0.0/0.15.255.255\n10.1.0.0/16 10.2.0.0/16\n")
    problems = list(doubts(parse(f'acl c src "{list_file}"')))
    assert [(problem.file, problem.line) for problem in problems] == [(str(list_file), 3), (str(list_file), 4)]
    list_file.write_text("10.0.0.0/8x\n" * 1000)
    assert len(list(doubts(parse(f'acl c src "{list_file}"')))) == 5
