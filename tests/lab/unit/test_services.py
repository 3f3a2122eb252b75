# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the arguments of an experiment's programs, and for programs that never become ready."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from fake_host import FakeHost

from mptcp_lab.testbed import Host, TestbedError, services
from mptcp_lab.testbed.services import (
    REPOSITORY,
    start_origin,
    start_proxy,
    start_relay,
    start_sink,
    start_throttler,
    write_throttler_config,
)


@pytest.mark.parametrize("settings", [{}, {"verify_interval": 1, "ledger": "/elsewhere"}])
def test_a_throttler_does_not_count_in_the_hosts_ledger(tmp_path: Path, settings: dict[str, object]) -> None:
    written = write_throttler_config(cast(Host, FakeHost(tmp_path)), Path("policy.yaml"), settings=settings)
    lines = dict(line.split(": ", 1) for line in written.read_text().splitlines())
    assert json.loads(lines["ledger"]) == settings.get("ledger", f"{tmp_path}/proxy-ledger.sqlite")
    assert json.loads(lines["policy"]) == "policy.yaml"
    assert lines.get("verify_interval", "1") == "1"


STARTS: dict[str, tuple[Callable[[Any], object], str]] = {
    "origin": (lambda host: start_origin(host, {}), "stop"),
    "sink": (start_sink, "stop"),
    "proxy": (start_proxy, "kill_tree"),
    "relay": (lambda host: start_relay(host, Path("squid.conf")), "kill_tree"),
    "throttler": (start_throttler, "stop"),
}
"""For each service: the function that starts it, and how it is ended.

A killed throttler would leave its caps behind.
"""


@pytest.mark.parametrize("error", [TestbedError("no end after 31 s"), KeyboardInterrupt()], ids=["error", "interrupt"])
@pytest.mark.parametrize("service", STARTS)
def test_a_program_that_does_not_come_to_answer_is_ended(tmp_path: Path, service: str, error: BaseException) -> None:
    """Defect: a throttler whose start had failed kept running, so that later runs without one were capped."""

    def answer(argv: Sequence[str]) -> str:
        if argv[0] == "answers":
            raise error
        return "{}"

    host = FakeHost(tmp_path, answer)
    start, ended = STARTS[service]
    with pytest.raises(type(error)) as raised:
        start(host)
    assert raised.value is error
    [program] = host.started
    assert program.ends == [ended]


@pytest.mark.parametrize("service", STARTS)
def test_a_program_that_answers_goes_on(tmp_path: Path, service: str) -> None:
    host = FakeHost(tmp_path)
    STARTS[service][0](host)
    assert [program.running for program in host.started] == [True]


def proxy_host(directory: Path) -> FakeHost:
    """Return a host whose kernel has reno and cubic."""
    asked = ["sysctl", "-n", "net.ipv4.tcp_available_congestion_control"]
    return FakeHost(directory, lambda argv: "reno cubic\n" if argv == asked else "{}")


def test_a_congestion_control_that_the_proxys_kernel_lacks_is_refused(tmp_path: Path) -> None:
    """Defect: the proxy used the host's own congestion control, but the result named the requested one."""
    host = proxy_host(tmp_path)
    with pytest.raises(TestbedError) as raised:
        start_proxy(cast(Host, host), control="bbr")
    assert str(raised.value) == "the proxy on proxy: the kernel has no congestion control bbr; it has reno, cubic"
    assert [program.ends for program in host.started] == [["kill_tree"]]


@pytest.mark.parametrize("control", ["cubic", "keep", None])
def test_one_that_it_has_is_the_proxys(tmp_path: Path, control: str | None) -> None:
    host = proxy_host(tmp_path)
    assert start_proxy(cast(Host, host), control=control).process.running
    [command] = host.commands
    assert command[4:] == (["--congestion-control", control] if control else [])


def test_whoever_asks_for_a_congestion_control_has_it_looked_for() -> None:
    sources = {
        source for source in (REPOSITORY / "bench").rglob("*.py") if "--congestion-control" in source.read_text()
    }
    assert sources == {Path(services.__file__)}
