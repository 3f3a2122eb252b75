# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the listeners that the check finds in statements."""

from __future__ import annotations

from pathlib import Path

import pytest
from in_squid_conf import parse

from mptcp_proxy.configuration.check import check
from mptcp_proxy.configuration.listeners import listener_problems, listeners, states_a_port, with_option
from mptcp_proxy.configuration.source import PhysicalLine
from mptcp_proxy.problem import Problem


def port_problems(*texts: str) -> list[Problem]:
    configuration = parse(*texts)
    return list(listener_problems(listeners(configuration), "squid.conf", states_a_port(configuration)))


@pytest.mark.parametrize(
    ("text", "host", "port", "options"),
    [
        ("http_port 3128", "", 3128, ()),
        ("http_port 10.0.0.1:8080 name=inner", "10.0.0.1", 8080, ("name=inner",)),
        ("https_port [fd00::1]:443 tls-cert=/x", "[fd00::1]", 443, ("tls-cert=/x",)),
        ("http_port proxy.example:3128 tproxy", "proxy.example", 3128, ("tproxy",)),
        ("http_port 65535 # comment", "", 65535, ()),
        ("ascii_port 3128 tproxy", "", 3128, ("tproxy",)),
    ],
)
def test_listener_is_read_from_a_port_statement(text: str, host: str, port: int, options: tuple[str, ...]) -> None:
    (listener,) = listeners(parse(text))
    assert (listener.host, listener.port, listener.options) == (host, port, options)


@pytest.mark.parametrize("text", ["http_port", "http_port 0", "http_port 65536", "http_port abc", "http_port fd00::1:80", "icp_port 3130", "http_portx 1"])  # fmt: skip  # noqa: E501
def test_statement_without_a_valid_port_is_not_a_listener(text: str) -> None:
    assert list(listeners(parse(text))) == []


@pytest.mark.parametrize(
    ("first_port", "second_port", "overlap"),
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
        # Defect: check accepted this, but with one worker Squid did not open its second listener.
        ("0.0.0.0:3128", "[::]:3128", True),
        ("[::]:3128", "10.0.0.1:3128", True),
        ("127.0.0.1:3128", "[::]:3128", True),
        ("[0:0::0]:3128", "a.example:3128", True),
        ("[::]:3128", "10.0.0.1:3129", False),
        ("[::ffff:10.0.0.1]:3128", "10.0.0.1:3128", True),
    ],
)
def test_overlapping_ports_are_refused(first_port: str, second_port: str, overlap: bool) -> None:
    problems = port_problems(f"http_port {first_port}", f"http_port {second_port}")
    assert len(problems) == overlap
    if overlap:
        assert (problems[0].line, problems[0].warning) == (2, False)
        assert f"already taken by http_port {first_port} in line 1" in problems[0].text


@pytest.mark.parametrize(
    ("first_port", "second_port", "workers", "warning"),
    [
        ("[::]:3128", "10.0.0.1:3128", 2, True),
        ("0.0.0.0:3128", "[::]:3128", 2, True),
        ("[::]:3128", "10.0.0.1:3128", 1, False),
        # These conflict even with several workers.
        ("3128", "10.0.0.1:3128", 2, False),
        ("[::]:3128", "[fd00::1]:3128", 2, False),
    ],
)
def test_overlapping_addresses_are_only_a_warning_with_several_workers(
    tmp_path: Path, first_port: str, second_port: str, workers: int, warning: bool
) -> None:
    """With SO_REUSEPORT, several workers can open both listeners, so check must accept this configuration."""
    file = tmp_path / "squid.conf"
    file.write_text(f"http_port {first_port}\nhttp_port {second_port}\nworkers {workers}\n")
    (problem,) = (each for each in check(file, "n", None).problems if "already taken" in each.text)
    assert (problem.line, problem.warning) == (2, warning)
    assert problem.text.endswith("this works only with several workers") == warning


def test_same_port_in_two_branches_is_accepted() -> None:
    branches = ("if ${process_number} = 1", "http_port 3128", "else", "http_port 3128", "endif")
    assert port_problems(*branches) == []


def test_listener_with_the_name_ascii_port_is_checked() -> None:
    """Defect: Squid listened with plain TCP on a port that the check did not find."""
    assert port_problems("ascii_port 3128") == []
    (problem,) = port_problems("http_port 3128", "ascii_port 3128 name=other")
    assert (problem.line, "already taken" in problem.text) == (2, True)
    lines = [PhysicalLine("squid.conf", 1, "ascii_port 3128 # here")]
    assert [line.text for line in with_option(lines, "mptcp")] == ["ascii_port 3128 mptcp # here"]


@pytest.mark.parametrize("mode", ["intercept", "transparent"])
def test_intercepting_listener_is_refused(mode: str) -> None:
    (problem,) = port_problems(f"http_port 3128 {mode}")
    assert problem.line == 1
    assert "MPTCP" in problem.text
    assert "tproxy" in problem.allowed


def test_tproxy_listener_on_another_port_is_a_warning() -> None:
    assert port_problems("http_port 80 tproxy", "http_port 443 tproxy") == []
    (problem,) = port_problems("http_port 80", "http_port 3129 tproxy")
    assert (problem.line, problem.warning) == (2, True)


def test_configuration_without_a_port_is_refused() -> None:
    (problem,) = port_problems("via on")
    assert str(problem).startswith("squid.conf: no http_port: Squid would not listen")
    # A malformed port statement is another mistake, which Squid reports.
    assert port_problems("http_port abc") == []
