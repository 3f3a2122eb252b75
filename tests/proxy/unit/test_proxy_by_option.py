# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for Multipath TCP listeners that Squid itself opens, if it knows the option."""

from __future__ import annotations

from pathlib import Path

import pytest

from mptcp_common.findings import Status
from mptcp_proxy.configuration.check import CheckedConfiguration
from mptcp_proxy.configuration.listeners import listeners
from mptcp_proxy.configuration.source import PhysicalLine, read, statements
from mptcp_proxy.configuration.workers import Workers
from mptcp_proxy.doctor import host
from mptcp_proxy.places import Role
from mptcp_proxy.squid import Squid, find_squid
from mptcp_proxy.supervisor import squid_opens_mptcp

SHIPPED = Path(__file__).parents[3] / "conf/squid.conf"
DEBIANS_SQUID, PATCHED_SQUID = Squid("/s", "5.7", "proxy"), Squid("/s", "5.7", "proxy", has_mptcp_option=True)


def checked_configuration(*texts: str) -> CheckedConfiguration:
    lines = tuple(PhysicalLine("squid.conf", n, text) for n, text in enumerate(texts, 1))
    return CheckedConfiguration(lines, tuple(listeners(statements(lines, "n"))), "proxy", Workers(), ())


@pytest.mark.parametrize(
    ("texts", "lines_for_squid"),
    [
        (["via on", "http_port 3128"], ["via on", "http_port 3128 mptcp"]),
        (["http_port 10.0.0.1:3128 tproxy  # why"], ["http_port 10.0.0.1:3128 mptcp tproxy  # why"]),
        (["https_port [::1]:443 tls-cert=/c"], ["https_port [::1]:443 mptcp tls-cert=/c"]),
        (["http_port \\", "", "  3128 \\", "name=a", "via on"], ["", "", "", "http_port 3128 mptcp name=a", "via on"]),
        (["http_port 3128 mptcp", "http_port 3129"], ["http_port 3128 mptcp", "http_port 3129 mptcp"]),
        (["if 1 = 1", "http_port 1", "endif"], ["if 1 = 1", "http_port 1 mptcp", "endif"]),
        (["#http_port 3128", "http_port # x"], ["#http_port 3128", "http_port # x"]),
    ],
)  # fmt: skip
def test_option_is_added_once_without_changed_line_numbers(texts: list[str], lines_for_squid: list[str]) -> None:
    checked = checked_configuration(*texts)
    assert checked.render(1, mptcp_option=True).decode().splitlines() == ["workers 1", *lines_for_squid]
    assert checked.render(1).decode().splitlines() == ["workers 1", *texts]


def test_option_changes_only_the_port_line_of_the_shipped_file() -> None:
    lines, _ = read(SHIPPED, "n")
    checked = CheckedConfiguration(lines, tuple(listeners(statements(lines, "n"))), "proxy", Workers(), ())
    pairs = zip(checked.render(2).splitlines(), checked.render(2, mptcp_option=True).splitlines(), strict=True)
    ((before, after),) = (pair for pair in pairs if pair[0] != pair[1])
    assert before.startswith(b"http_port 3128 ")
    assert after == before.replace(b"worker-queues", b"worker-queues mptcp", 1)


def test_only_a_patched_proxy_opens_listeners_by_option() -> None:
    assert squid_opens_mptcp(PATCHED_SQUID, Role.PROXY)
    assert not squid_opens_mptcp(DEBIANS_SQUID, Role.PROXY)
    assert not squid_opens_mptcp(PATCHED_SQUID, Role.RELAY), (
        "a relay, whose clients have only one path, uses the option"
    )


@pytest.mark.parametrize(
    ("squid", "words"),
    [
        (DEBIANS_SQUID, "the preload library opens them for Multipath TCP: this Squid has no option"),
        (PATCHED_SQUID, "with its own option mptcp, which /s has"),
    ],
)
def test_doctor_reports_how_listeners_are_opened(squid: Squid, words: str) -> None:
    finding = host.listeners(squid)
    assert words in finding.text
    assert finding.status is Status.OK


@pytest.mark.parametrize(
    ("word_in_program", "status", "has_option"), [("mptcp", 0, True), ("mptcp", 1, False), ("none", 0, False)]
)
def test_option_is_tested_if_squid_contains_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word_in_program: str, status: int, has_option: bool
) -> None:
    """A stub acts as a Squid that knows the option, and as a Squid that does not."""
    call = tmp_path / "call"
    program = tmp_path / "squid"
    program.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = -v ]; then echo "Squid Cache: Version 5.7"; exit; fi\n'
        f'{{ echo "$*"; cat; }} > {call}  # {word_in_program}\n'
        f"exit {status}\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert find_squid() == Squid(str(program), "5.7", "nobody", has_mptcp_option=has_option)
    if word_in_program == "none":
        assert not call.exists()
    else:
        assert call.read_text() == "-f /dev/stdin -k parse\nhttp_port 3128 mptcp\n"
