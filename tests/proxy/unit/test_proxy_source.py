# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that the parser reads squid.conf as Squid does: continued lines, comments, macros and includes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptcp_proxy.configuration.check import MAX_SHUTDOWN_SECONDS, SERVICE_STOP_SECONDS, check
from mptcp_proxy.configuration.doubts import nested_if_problems
from mptcp_proxy.configuration.source import (
    MAX_DEPTH,
    PhysicalLine,
    all_statements,
    read,
    render,
    replace_statement,
    statements,
)
from mptcp_proxy.pending_signals import MAX_STOP_DELAY


def statements_in(text: str, name: str = "one") -> list[tuple[str, int]]:
    lines = [PhysicalLine("f", number, line) for number, line in enumerate(text.split("\n"), 1)]
    return [(statement.text, statement.number) for statement in statements(lines, name)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("via on", [("via on", 1)]),
        ("  via on  \n\n# a comment\n\t# another\nworkers 2", [("via on", 1), ("workers 2", 5)]),
        ("acl a src \\\n   10.0.0.0/8 \\\n\t10.1.0.0/16", [("acl a src 10.0.0.0/8 10.1.0.0/16", 3)]),
        ("acl a src \\\n# between\n\n10.0.0.0/8", [("acl a src 10.0.0.0/8", 4)]),
        ("pid_filename /run/${service_name}/p", [("pid_filename /run/one/p", 1)]),
        ("if ${process_number} = 1", [("if ${process_number} = 1", 1)]),
        ("", []),
        ("\\\n", []),
    ],
)
def test_lines_are_joined_into_statements(text: str, expected: list[tuple[str, int]]) -> None:
    assert statements_in(text) == expected


def test_comment_at_the_end_is_not_part_of_the_words() -> None:
    (statement,) = statements([PhysicalLine("f", 1, "http_port 3128 # the usual #one")], "n")
    assert statement.words == ("http_port", "3128")
    assert statement.directive == "http_port"


@pytest.mark.parametrize(
    ("condition", "then_applies", "else_applies"),
    [
        ("1 = 1", True, False),
        ("1 = 2", False, True),
        ("true", True, False),
        ("false", False, True),
        ("${process_number} = 1", None, None),
        ("x = 1", None, None),
        ("", None, None),
        ("010 = 8", True, False),
        ("0x1F = 31", True, False),
        ("-1 = - 1", None, None),
        ("1=1", True, False),
        ("08 = 8", None, None),
        ("1_0 = 10", None, None),
        ("\u0661 = 1", None, None),
        ("99999999999999999999 = 9223372036854775807", True, False),
        ("1 = 1 # one", None, None),
    ],
)
def test_condition_decides_which_branch_applies(
    condition: str, then_applies: bool | None, else_applies: bool | None
) -> None:
    texts = ["via on", f"if {condition}", "via off", "else", "via on", "endif", "workers 2"]
    lines = [PhysicalLine("f", number, text) for number, text in enumerate(texts, 1)]
    found = [s for s in all_statements(lines, "n") if s.directive in ("via", "workers")]
    assert list(statements(lines, "n")) == [s for s in all_statements(lines, "n") if s.applies is not False]
    assert [statement.applies for statement in found] == [True, then_applies, else_applies, True]
    assert [statement.conditional for statement in found] == [
        False,
        then_applies is not True,
        else_applies is not True,
        False,
    ]


def test_nested_condition_overrides_the_outer_condition() -> None:
    texts = [
        "if 1 = 1",
        "if ${process_number} = 1",
        "via on",
        "endif",
        "if 1 = 2",
        "via off",
        "endif",
        "endif",
        "via on",
    ]
    lines = [PhysicalLine("f", number, text) for number, text in enumerate(texts, 1)]
    assert [s.applies for s in all_statements(lines, "n") if s.directive == "via"] == [None, False, True]
    texts = ["if false", "if true", "via on", "endif", "via off", "else", "if false", "via on", "endif", "endif"]
    lines = [PhysicalLine("f", number, text) for number, text in enumerate(texts, 1)]
    assert [s.applies for s in all_statements(lines, "n") if s.directive == "via"] == [True, False, False]
    assert [problem.line for problem in nested_if_problems(list(all_statements(lines, "n")))] == [2]


CONDITIONAL = """http_port 3128
cache_effective_user proxy
http_access deny all
if false
http_port 3129
cache_effective_user nobody-at-all
access_log stdio:/nonexistent/access.log
endif
"""


@pytest.mark.parametrize(
    ("condition", "ports", "user"), [("false", (3128,), "proxy"), ("true", (3128, 3129), "nobody-at-all")]
)
def test_statements_in_a_false_condition_are_ignored(
    tmp_path: Path, condition: str, ports: tuple[int, ...], user: str
) -> None:
    checked = check(write_files(tmp_path, main=CONDITIONAL.replace("if false", f"if {condition}")), "n", None)
    assert (checked.ports, checked.effective_user) == (ports, user)
    lines_with_problems = [line for line in (6, 7) if any(problem.line == line for problem in checked.problems)]
    assert lines_with_problems == ([6, 7] if condition == "true" else [])


def write_files(directory: Path, **files: str) -> Path:
    for name, text in files.items():
        (directory / f"{name}.conf").write_text(text.replace("DIR", str(directory)))
    return directory / "main.conf"


def test_include_is_replaced_by_the_lines_of_its_files(tmp_path: Path) -> None:
    main = write_files(
        tmp_path,
        main="via on\ninclude DIR/part*.conf\nworkers 2",
        part1="http_port 1",
        part2="include DIR/deep.conf\nhttp_port 2\n",
        deep="http_port 3\n",
    )
    lines, problems = read(main, "n")
    assert problems == ()
    assert [(Path(s.file).name, s.number, s.text) for s in statements(lines, "n")] == [
        ("main.conf", 1, "via on"),
        ("part1.conf", 1, "http_port 1"),
        ("deep.conf", 1, "http_port 3"),
        ("part2.conf", 2, "http_port 2"),
        ("main.conf", 3, "workers 2"),
    ]


def test_rendered_file_has_the_lines_in_their_order(tmp_path: Path) -> None:
    main = write_files(tmp_path, main="a\ninclude DIR/part.conf\nb \\\n c", part="x\n\ny")
    lines, _ = read(main, "n")
    assert render(lines).decode().split("\n")[:-1] == [line.text for line in lines]
    reread = [PhysicalLine("", 0, line) for line in render(lines).decode().splitlines()]
    assert [s.text for s in statements(reread, "n")] == ["a", "x", "y", "b c"]


def test_bytes_that_are_not_utf_8_are_kept(tmp_path: Path) -> None:
    main = tmp_path / "main.conf"
    main.write_bytes(b"visible_hostname caf\xe9\r\n")
    lines, problems = read(main, "n")
    assert problems == ()
    assert render(lines) == b"visible_hostname caf\xe9\n"


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("via on\ninclude /nonexistent/x.conf", ("main.conf", 2), "include /nonexistent/x.conf: there is no such file"),
        ("include DIR", ("main.conf", 1), "cannot read it: Is a directory"),
        ("include DIR/main.conf", ("main.conf", 1), "main.conf: the file would include itself"),
        ("via on\nworkers 2\0http_access", ("main.conf", 2), "a NUL byte"),
        ("via on\nworkers 2\rhttp_access\r", ("main.conf", 2), "a carriage return"),
        (
            f"# {'x' * 8189}http_access allow all",
            ("main.conf", 1),
            "bytes: Squid would read the part after the first 8191",
        ),
        (f"via on\n#{'x' * 8190}", ("main.conf", 2), "a line of 8191 bytes"),
        (f"#{chr(233) * 4095}", ("main.conf", 1), "a line of 8191 bytes"),
        ("if ${process_number} = 1\ninclude /nonexistent/x.conf\nendif", ("main.conf", 2), "there is no such file"),
        ("if ${process_number} = 1\ninclude DIR/nul.conf\nendif", ("nul.conf", 1), "a NUL byte"),
        ("if ${process_number} = 1\ninclude DIR/if.conf\nendif", ("main.conf", 2), "if.conf: the file has an if"),
        ("include DIR/else.conf", ("else.conf", 2), "else: there is no if before it in this file"),
        ("if 1 = 1\ninclude DIR/open.conf\nendif", ("open.conf", 1), "if 1 = 2: there is no endif in this file"),
        (
            "include DIR/${process_number}.conf",
            ("main.conf", 1),
            "${process_number}.conf: the workers would read different files",
        ),
        ("include #DIR/x.conf", ("main.conf", 1), "/x.conf: there is no such file"),
        ("via on \\\n", ("main.conf", 1), "ends in the middle of a continued line"),
    ],
)
def test_problem_names_its_file_and_line(tmp_path: Path, text: str, place: tuple[str, int], words: str) -> None:
    branches = {"if": "if 1 = 1\nvia on\nendif\n", "else": "via on\nelse\n", "open": "if 1 = 2\nvia on\n"}
    _, problems = read(write_files(tmp_path, main=text, nul="# \0", **branches), "n")
    (problem,) = problems
    assert (Path(problem.file).name, problem.line) == place
    assert words in str(problem)


def test_includes_of_sixteen_levels_are_accepted(tmp_path: Path) -> None:
    files = {f"f{depth}": f"include DIR/f{depth + 1}.conf\n" for depth in range(1, MAX_DEPTH)}
    main = write_files(tmp_path, main="include DIR/f1.conf\n", **files, **{f"f{MAX_DEPTH}": "via on"})
    lines, problems = read(main, "n")
    assert problems == ()
    assert "via on" in [line.text for line in lines]


def test_includes_of_seventeen_levels_are_refused(tmp_path: Path) -> None:
    files = {f"f{depth}": f"include DIR/f{depth + 1}.conf\n" for depth in range(1, MAX_DEPTH + 1)}
    main = write_files(tmp_path, main="include DIR/f1.conf\n", **files, **{f"f{MAX_DEPTH + 1}": "via on"})
    _, problems = read(main, "n")
    assert [(Path(each.file).name, each.text) for each in problems] == [("f16.conf", "includes more than 16 deep")]


def test_file_that_includes_itself_is_read_once(tmp_path: Path) -> None:
    """Otherwise, the parser would read the three lines 3**16 times, under several names of the same file."""
    (tmp_path / "link.conf").symlink_to("main.conf")
    main = write_files(tmp_path, main="include DIR/main.conf\ninclude DIR/./ma*.conf\ninclude DIR/link.conf\n")
    lines, problems = read(main, "n")
    assert len(lines) == 3
    assert [each.line for each in problems] == [1, 2, 3]


def test_include_that_is_a_command_or_never_applies_is_kept(tmp_path: Path) -> None:
    main = write_files(tmp_path, main="if false\ninclude /nonexistent/x.conf\nendif\ninclude |/bin/generate\n")
    lines, problems = read(main, "n")
    assert problems == ()
    assert [line.text for line in lines if "include" in line.text] == ["include /nonexistent/x.conf", "include |/bin/generate"]  # fmt: skip  # noqa: E501


def test_line_of_more_than_8190_bytes_is_refused(tmp_path: Path) -> None:
    main = tmp_path / "main.conf"
    main.write_bytes(b"#" + b"x" * 8189 + b"\r\nvia on\r\n")
    lines, problems = read(main, "n")
    assert [problem.line for problem in problems] == [1]
    main.write_bytes(b"#" + b"x" * 8188 + b"\r\nvia on\r\n")
    lines, problems = read(main, "n")
    assert problems == ()
    assert [statement.text for statement in all_statements(lines, "n")] == ["via on"]


def test_include_in_a_condition_on_processes_is_also_replaced(tmp_path: Path) -> None:
    main = write_files(
        tmp_path, main="if ${process_number} = 1\ninclude DIR/one.conf\nendif\n", one="http_access allow all\n"
    )
    lines, problems = read(main, "n")
    assert problems == ()
    assert [(s.text, s.applies) for s in statements(lines, "n") if s.directive == "http_access"] == [
        ("http_access allow all", None)
    ]


def test_only_blanks_and_tabs_separate_words() -> None:
    lines = [PhysicalLine("f", 1, "\v\facl \ta\u00a0b\x1cc\vd  src\t all \f")]
    (statement,) = all_statements(lines, "n")
    assert statement.words == ("acl", "a\u00a0b\x1cc\vd", "src", "all")
    assert [s.text for s in all_statements([PhysicalLine("f", 1, "\u00a0# via on")], "n")] == ["\u00a0# via on"]
    # Between "if" and its condition, Squid accepts any white space as C defines it.
    lines = [PhysicalLine("f", n, text) for n, text in enumerate(["if\vfalse", "via on", "endif", "if\u00a0false"], 1)]
    assert [s.applies for s in all_statements(lines, "n")] == [True, False, False, True]


def test_missing_file_is_a_problem() -> None:
    lines, (problem,) = read(Path("/nonexistent/squid.conf"), "n")
    assert lines == ()
    assert str(problem) == "/nonexistent/squid.conf: cannot read the configuration: No such file or directory"


@pytest.mark.parametrize(
    ("text", "warned"),
    [
        ('request_header_add MPTCP-Client "%>a %>p" check_page', True),
        ('request_header_add mptcp-client   "%>a %>p" check_page', True),
        ('request_header_add MPTCP-Client "%>a %>p %>la %>lp" check_page', False),
        ('request_header_add X-Client "%>a %>p" check_page', False),
    ],
)
def test_check_page_header_of_an_earlier_version_is_a_warning(tmp_path: Path, text: str, warned: bool) -> None:
    """The old header contains only the client's address and port, which another connection may share."""
    checked = check(write_files(tmp_path, main=f"http_port 3128\n{text}\n"), "n", None)
    found = [each for each in checked.problems if "from an earlier version" in each.text]
    assert [(each.line, each.warning) for each in found] == [(2, True)] * warned
    assert all('"%>a %>p %>la %>lp" check_page' in each.allowed for each in found)


@pytest.mark.parametrize(("text", "warned"), [("half_closed_clients on", True), ("half_closed_clients off", False)])
def test_half_closed_clients_are_a_warning(tmp_path: Path, text: str, warned: bool) -> None:
    """With this setting, a client can crash Squid 5.7 and 6.13."""
    checked = check(write_files(tmp_path, main=f"http_port 3128\n{text}\n"), "n", None)
    assert [(each.line, each.warning) for each in checked.problems if "half_closed" in each.text] == [
        (2, True)
    ] * warned


@pytest.mark.parametrize(
    ("text", "warned"),
    [
        ("access_log stdio:/var/log/a.log", True),
        ("access_log /var/log/a.log squid", True),
        ("cache_access_log /var/log/a.log squid", True),
        ("access_log daemon:/var/log/a.log on-error=die", True),
        ("access_log daemon:/var/log/a.log on-error=drop", True),
        ("access_log", False),
        ("access_log stdio:/var/log/a.log on-error=drop", False),
        ("access_log stdio:/var/log/a.log logformat=squid on-error=drop all", False),
        ("access_log none", False),
        ("access_log syslog:daemon.info", False),
    ],
)
def test_log_that_ends_squid_if_its_disk_is_full_is_a_warning(tmp_path: Path, text: str, warned: bool) -> None:
    checked = check(write_files(tmp_path, main=f"http_port 3128\n{text}\n"), "n", None)
    assert [(each.line, each.warning) for each in checked.problems if "disk is full" in each.text] == [
        (2, True)
    ] * warned


@pytest.mark.parametrize(
    ("text", "advised"),
    [
        (
            "access_log /var/log/a.log squid all",
            "on-error=drop right after /var/log/a.log, the rest after it (a format as logformat=NAME)",
        ),
        ("access_log daemon:/var/log/a.log squid", "access_log stdio:PATH on-error=drop"),
    ],
)
def test_advice_on_a_full_disk_keeps_the_format_and_the_acls(tmp_path: Path, text: str, advised: str) -> None:
    checked = check(write_files(tmp_path, main=f"http_port 3128\n{text}\n"), "n", None)
    assert [each.allowed for each in checked.problems if "disk is full" in each.text] == [advised]


def test_port_statement_without_space_for_added_options_is_refused(tmp_path: Path) -> None:
    """The proxy adds options to the statement."""
    for length, problems in ((8150, 0), (8170, 1)):
        checked = check(write_files(tmp_path, main=f"http_port 3128 {'x' * length}\n"), "n", None)
        assert len([each for each in checked.problems if "Squid splits it" in each.text]) == problems
    checked = check(write_files(tmp_path, main=f"http_port \\\n3128 {'x' * 8000} \\\n{'y' * 8170}\n"), "n", None)
    assert not [each for each in checked.problems if "Squid splits it" in each.text], (
        "a statement on several lines was refused"
    )


WORDS = st.lists(st.sampled_from(["a", "10.0.0.0/8", "#", "#b", "\\", "x" * 3000, "ü" * 900]), min_size=1, max_size=30)


@given(
    words=WORDS, end=st.sampled_from(["end", "\\"]), blanks=st.sampled_from([" ", "  ", "\t"]), spare=st.integers(0, 3)
)
def test_changed_statement_is_split_into_lines_that_squid_joins(
    words: list[str], end: str, blanks: str, spare: int
) -> None:
    text = blanks.join(["acl", "a", "src", *words, end])
    line_count = spare + 1 + len(text.encode()) // 4000
    lines = [
        PhysicalLine("squid.conf", 1, "via on"),
        *(PhysicalLine("squid.conf", n, "a\\") for n in range(line_count)),
    ]
    lines += [PhysicalLine("squid.conf", line_count, "end"), PhysicalLine("squid.conf", 9, "via off")]
    (statement,) = (each for each in all_statements(lines, "n") if each.text.endswith("end"))
    replace_statement(lines, statement, text)
    assert len(lines) == line_count + 3
    assert [each.text for each in all_statements(lines, "n")] == ["via on", text, "via off"]
    longest = max(len(line.text.encode()) for line in lines)
    assert longest <= 8190
    if len(text.encode()) < 8190:
        assert lines[statement.last].text.rstrip() == text


@pytest.mark.parametrize("port", ["http_port 3128 name=C:\\ ", "http_port 3128 # C:\\ ", "http_port \\\n3128 name=\\ "])
def test_added_option_does_not_join_the_next_line(tmp_path: Path, port: str) -> None:
    """Defect: the parser lost the blank after the backslash, so that the next line, a deny rule, joined the
    statement."""
    rules = "acl here src 10.0.0.0/8\nhttp_access deny !here\nhttp_access allow all\n"
    main = write_files(tmp_path, main=f"{port}\n{rules}")
    checked = check(main, "n", None)
    assert not [each for each in checked.problems if "open proxy" in each.text]
    main.write_bytes(checked.render(2, mptcp_option=True))
    lines, _ = read(main, "n")
    assert [each.text for each in all_statements(lines, "n")][-3:] == rules.splitlines()


@pytest.mark.parametrize(
    ("text", "warned"),
    [
        ("shutdown_lifetime 2 seconds", False),
        ("shutdown_lifetime 38", False),
        ("shutdown_lifetime 60 seconds", True),
        ("shutdown_lifetime 1 minute", True),
        ("shutdown_lifetime 1 Minutes", True),
        ("shutdown_lifetime 100 milliseconds", False),
        ("shutdown_lifetime", False),
        ("via on", False),
    ],
)
def test_shutdown_longer_than_the_units_stop_timeout_is_a_warning(tmp_path: Path, text: str, warned: bool) -> None:
    """Defect: the check did not warn that systemd kills Squid earlier, before its transfers end."""
    configuration = tmp_path / "squid.conf"
    configuration.write_text(f"http_port 3128\n{text}\n")
    checked = check(configuration, "n", None)
    assert [(each.line, each.warning) for each in checked.problems if "TimeoutStopSec" in str(each)] == [
        (2, True)
    ] * warned


@pytest.mark.parametrize("unit", ["mptcp-proxy", "mptcp-relay"])
def test_check_uses_the_units_stop_timeout(unit: str) -> None:
    text = (Path(__file__).parents[3] / "systemd" / f"{unit}.service").read_text()
    assert f"\nTimeoutStopSec={SERVICE_STOP_SECONDS}\n" in text
    assert MAX_SHUTDOWN_SECONDS + MAX_STOP_DELAY < SERVICE_STOP_SECONDS
