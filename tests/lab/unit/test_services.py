# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the arguments of an experiment's programs, and for programs that never become ready."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from fake_host import FakeHost

from mptcp_lab.testbed import Host, TestbedError
from mptcp_lab.testbed.services import (
    start_origin,
    start_proxy,
    start_relay,
    start_sink,
    start_throttler,
)

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
def test_program_is_ended_when_it_does_not_answer(tmp_path: Path, service: str, error: BaseException) -> None:
    """Defect: a throttler whose start had failed kept running, so that later runs without a throttler were capped."""

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


def proxy_host(directory: Path) -> FakeHost:
    """Return a host whose kernel has reno and cubic."""
    asked = ["sysctl", "-n", "net.ipv4.tcp_available_congestion_control"]
    return FakeHost(directory, lambda argv: "reno cubic\n" if argv == asked else "{}")


def test_proxy_is_refused_a_congestion_control_that_its_kernel_lacks(tmp_path: Path) -> None:
    """Defect: the proxy used the host's own congestion control, but the result named the requested one."""
    host = proxy_host(tmp_path)
    with pytest.raises(TestbedError) as raised:
        start_proxy(cast(Host, host), control="bbr")
    assert str(raised.value) == "the proxy on proxy: the kernel has no congestion control bbr; it has reno, cubic"
    assert [program.ends for program in host.started] == [["kill_tree"]]
