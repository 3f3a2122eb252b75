# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the problems that the check derives from the output of squid -k parse, mostly with texts of Squid 5.7."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from mptcp_proxy.configuration.source import PhysicalLine, all_statements
from mptcp_proxy.configuration.squid_problems import MAX_ROUNDS, NO_TIME, fatal_remark, squid_problems
from mptcp_proxy.problem import Problem

STAMP = "2026/11/21 00:14:50| "
Parse = Callable[[Sequence[PhysicalLine]], str]


def fake_squid(remarks: dict[str, list[str]], *, end: Sequence[str] = ()) -> Parse:
    """Return a fake Squid that prints its *remarks* about each statement that begins with a key of *remarks*. It stops
    after "FATAL: Bungled"; otherwise, it prints *end* last."""

    def parse(lines: Sequence[PhysicalLine]) -> str:
        printed = ["Startup: Initialized Authentication.", "Processing Configuration File: /tmp/x (depth 0)"]
        for statement in all_statements(lines, "n"):
            printed.append(f"Processing: {statement.text}")
            for beginning, remarks_of_statement in remarks.items():
                if statement.text.startswith(beginning):
                    printed += remarks_of_statement
                    if any(remark.startswith("FATAL: Bungled") for remark in remarks_of_statement):
                        return "\n".join(STAMP + line for line in printed)
        return "\n".join(STAMP + line for line in [*printed, *end])

    return parse


def problems_of(parse: Parse, *texts: str) -> list[Problem]:
    lines = [PhysicalLine("squid.conf", number, text) for number, text in enumerate(texts, 1)]
    return list(squid_problems(lines, "n", parse))


BUNGLED = "FATAL: Bungled /tmp/x line 1: whatever"


@pytest.mark.parametrize(
    ("text", "remarks", "expected"),
    [
        (
            "http_prot 1",
            ["/tmp/x(1): unrecognized: 'http_prot'"],
            "squid.conf:1: http_prot: there is no such directive; did you mean http_port?",
        ),
        # Squid 6 and later write file and line in this form, and quote the whole statement.
        (
            "zzqx on",
            ["/tmp/x:1: unrecognized: 'zzqx on'"],
            "squid.conf:1: zzqx: there is no such directive",
        ),
        (
            "http_access deny to_linklocal",
            ["FATAL: ACL not found: to_linklocal", BUNGLED],
            "squid.conf:1: http_access deny to_linklocal: ACL not found: to_linklocal (allowed: Squid 6 and"
            " later define this list; for this Squid: acl to_linklocal dst 169.254.0.0/16 fe80::/10)",
        ),
        (
            "http_port 3128 ssl-bump",
            ["FATAL: Unknown http_port option 'ssl-bump'.", BUNGLED],
            "squid.conf:1: http_port 3128 ssl-bump: Unknown http_port option 'ssl-bump'. (allowed: this Squid was built"
            " without OpenSSL; install Debian's Squid with OpenSSL: apt install squid-openssl)",
        ),
        (
            "cache_dir null /tmp",
            ["WARNING: This proxy does not support the 'null' cache type. Ignoring."],
            "squid.conf:1: warning: cache_dir null /tmp: This proxy does not support the 'null' cache type. Ignoring.",
        ),
        (
            "cache_peer x",
            [BUNGLED],
            "squid.conf:1: cache_peer x: not well formed",
        ),
        (
            "acl a dst 10.0.0.0/33",
            ["aclParseIpData: unknown netmask '33' in '10.0.0.0/33'", BUNGLED],
            "squid.conf:1: acl a dst 10.0.0.0/33: unknown netmask '33' in '10.0.0.0/33' (allowed: acl NAME",
        ),
        (
            "via maybe",
            ["ERROR: Invalid option: Boolean options can only be 'on' or 'off'.", BUNGLED],
            "squid.conf:1: via maybe: Invalid option: Boolean options can only be 'on' or 'off'. (allowed: on or off)",
        ),
        (
            "dns_timeout x",
            ["configuration error: missing time unit", "    exception location: cache_cf.cc(1096) unit", BUNGLED],
            "squid.conf:1: dns_timeout x: configuration error: missing time unit (allowed: a number and a unit: s",
        ),
        (
            "http_access permit all",
            [
                "aclParseAccessLine: /tmp/x line 1: http_access permit all",
                "aclParseAccessLine: expecting 'allow' or 'deny', got 'permit'.",
            ],
            "squid.conf:1: http_access permit all: expecting 'allow' or 'deny', got 'permit'. (allowed: http_access",
        ),
        (
            'acl x dst "/nonexistent"',
            ["ERROR: Can not open file /nonexistent for reading", 'Warning: empty ACL: acl x dst "/nonexistent"'],
            'squid.conf:1: acl x dst "/nonexistent": Can not open file /nonexistent for reading (allowed',
        ),
        (
            "acl x src 10.0.0.0/8 10.1.0.0/16",
            ["WARNING: (A) '10.1.0.0/16' is a subnetwork of (B) '10.0.0.0/8'"],
            "squid.conf:1: warning: acl x src 10.0.0.0/8 10.1.0.0/16: (A) '10.1.0.0/16' is a subnetwork of",
        ),
        (
            "pinger_enable off",
            ["ERROR: 'pinger_enable' requires --enable-icmp"],
            "squid.conf:1: warning: pinger_enable off: 'pinger_enable' requires --enable-icmp",
        ),
    ],
)  # fmt: skip
def test_remark_of_squid_becomes_a_problem(text: str, remarks: list[str], expected: str) -> None:
    (problem,) = problems_of(fake_squid({text.split(maxsplit=1)[0]: remarks}), text, "workers 2")
    assert str(problem).startswith(expected)


def test_all_fatal_mistakes_are_found_with_their_lines() -> None:
    parse = fake_squid({"via maybe": ["ERROR: bad", BUNGLED], "workers two": ["ERROR: worse", BUNGLED]})
    problems = problems_of(parse, "via maybe", "icp_port 0", "workers \\", "  two", "cache deny all")
    assert [(problem.line, problem.text) for problem in problems] == [(1, "via maybe: bad"), (4, "workers two: worse")]


def test_remark_is_reported_once_although_squid_runs_again() -> None:
    parse = fake_squid({"a": ["WARNING: odd"], "b": ["ERROR: bad", BUNGLED], "c": ["ERROR: bad", BUNGLED]})
    assert [problem.line for problem in problems_of(parse, "a", "b", "c")] == [1, 2, 3]


def test_equal_statements_are_distinguished() -> None:
    parse = fake_squid({"via maybe": ["ERROR: bad", BUNGLED]})
    assert [problem.line for problem in problems_of(parse, "via maybe", "via maybe")] == [1, 2]


def test_use_of_a_wrongly_defined_name_is_not_a_second_mistake() -> None:
    parse = fake_squid(
        {
            "acl a": ["unknown netmask", BUNGLED],
            "http_access allow a": ["ACL not found: a", BUNGLED],
            "http_access allow b": ["ACL not found: b", BUNGLED],
        }
    )
    problems = problems_of(parse, "acl a src 1/99", "http_access allow a", "http_access allow b")
    assert [problem.line for problem in problems] == [1, 3]


def test_fatal_remark_after_the_last_line_concerns_the_file() -> None:
    (problem,) = problems_of(
        fake_squid({}, end=["FATAL: No valid signing certificate configured for HTTPS_port"]), "via on"
    )
    assert str(problem) == "squid.conf: No valid signing certificate configured for HTTPS_port"


def test_usual_output_of_squid_gives_no_problem() -> None:
    end = ["Initializing https:// proxy context", "  Finished.  Wrote 0 entries.", "CPU Usage: 0.017 seconds", ""]
    assert problems_of(fake_squid({}, end=end), "via on") == []


def test_skipped_branches_do_not_shift_the_line_numbers() -> None:
    parse = fake_squid({"via maybe": ["ERROR: bad", BUNGLED]})
    problems = problems_of(parse, "if false", "workers 2", "endif", "workers 2", "via maybe")
    assert [(problem.line, problem.text) for problem in problems] == [(5, "via maybe: bad")]


def fake_squid_with_line(text: str, position: int = -1) -> Parse:
    """Return a fake Squid that prints each statement, and inserts *text* before the output line *position*."""

    def parse(lines: Sequence[PhysicalLine]) -> str:
        printed = fake_squid({})(lines).split("\n")
        return "\n".join([*printed[:position], STAMP + text, *printed[position:]])

    return parse


@pytest.mark.parametrize(
    ("parse", "texts", "expected"),
    [
        (
            fake_squid_with_line("Processing: http_access allow all"),
            ["via on", "http_access deny all"],
            'squid.conf:2: Squid reads "http_access allow all" here, this check "http_access deny all": Squid would',
        ),
        (
            lambda lines: fake_squid({})(lines) + f"\n{STAMP}Processing: http_access allow all",
            ["via on"],
            'squid.conf:1: Squid reads "http_access allow all" here, this check nothing: Squid would not act',
        ),
        (
            lambda lines: fake_squid({})(lines[:1]),
            ["via on", "http_access deny all"],
            'squid.conf:2: Squid reads nothing here, this check "http_access deny all": Squid would not act',
        ),
        (
            fake_squid_with_line("Processing Configuration File: /etc/other.conf (depth 1)"),
            ["via on"],
            "squid.conf: Squid reads the file /etc/other.conf, which this check has not read",
        ),
        (lambda _: "", ["via on"], 'squid.conf:1: Squid reads nothing here, this check "via on"'),
    ],
)
def test_difference_between_squid_and_the_check_is_refused(parse: Parse, texts: list[str], expected: str) -> None:
    (problem,) = problems_of(parse, *texts)
    assert str(problem).startswith(expected)
    assert "--allow-open-proxy" in problem.allowed
    assert not problem.warning
    lines = [PhysicalLine("squid.conf", number, text) for number, text in enumerate(texts, 1)]
    assert [each.warning for each in squid_problems(lines, "n", parse, allow_open=True)] == [True]


def test_macro_that_squid_replaces_is_not_a_difference() -> None:
    def parse(lines: Sequence[PhysicalLine]) -> str:
        return fake_squid({})(lines).replace("${process_number}", "0").replace("${process_name}", "squid")

    assert problems_of(parse, "cache_dir rock /x/${process_number} 100", "if ${process_number} = 1", "endif") == []


def test_fatal_remark_without_a_line_is_reported_once() -> None:
    def parse(lines: Sequence[PhysicalLine]) -> str:
        return fake_squid({}, end=["FATAL: String is not a integer number: 'x'"])(lines[:2])

    (problem,) = problems_of(parse, "via on", "if x = 1", "endif")
    assert problem.text == "String is not a integer number: 'x'"


def test_number_of_runs_of_squid_is_bounded() -> None:
    calls = 0

    def parse(lines: Sequence[PhysicalLine]) -> str:
        nonlocal calls
        calls += 1
        return f"{STAMP}{BUNGLED}"

    problems_of(parse, "via on")
    assert calls <= MAX_ROUNDS


def test_slow_squid_is_not_run_again() -> None:
    """Defect: without a name server, each host name took ten seconds.

    During a reload, the supervisor sent no watchdog message in this time; systemd waits only three minutes for one.
    """
    calls = 0
    parse = fake_squid({"acl": ["Bad host/IP", BUNGLED]})

    def slow_parse(lines: Sequence[PhysicalLine]) -> str:
        nonlocal calls
        calls += 1
        return parse(lines)

    lines = [PhysicalLine("squid.conf", number, f"acl pc{number} src pc{number}.example") for number in range(1, 10)]
    problems = list(squid_problems(lines, "n", slow_parse, in_time=lambda: calls < 2))
    assert calls == 2
    assert [(each.line, each.warning, each.text == NO_TIME) for each in problems] == [
        (1, False, False),
        (2, False, False),
        (2, True, True),
    ]


def test_fatal_remark_is_shown_without_secrets() -> None:
    output = [
        "Processing: acl fatal src all # FATAL: no",
        "Bad host/IP",
        "FATAL: Bungled x line 3: cache_peer p login=a:b \a",
    ]
    assert fatal_remark("\n".join(STAMP + line for line in output)) == "Bungled x line 3: cache_peer p login=… \\x07"
    assert fatal_remark(STAMP + output[0]) == ""
