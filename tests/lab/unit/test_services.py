# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that a service is ended if it does not become ready, or cannot use the requested congestion control."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mptcp_lab.testbed import TestbedError
from mptcp_lab.testbed.services import start_origin, start_proxy, start_sink, start_throttler


def host(ends: list[str], run: Callable[[Sequence[str]], str]) -> Any:
    """Return a fake host whose programs end at once. *ends* records how they are ended; *run* runs a command."""
    ways = {name: partial(ends.append, name) for name in ("stop", "kill", "kill_tree")}
    return SimpleNamespace(
        name="proxy",
        directory=Path("/fake"),
        run=lambda argv, **_: SimpleNamespace(returncode=0, stdout=run(argv)),
        popen=lambda argv, **_: SimpleNamespace(name="fake", running=False, returncode=3, tail=str, **ways),
        agent=lambda module, *arguments: [module, *arguments],
        program=str,
        provide=Path,
        write=lambda name, text: Path("/fake") / name,
        at_end=lambda callback: None,
    )


@pytest.mark.parametrize("interrupt", [None, KeyboardInterrupt()])
@pytest.mark.parametrize(
    ("start", "end"),
    [
        (lambda host: start_origin(host, {}), "stop"),
        (start_sink, "stop"),
        (start_proxy, "kill_tree"),
        # A killed throttler would leave its caps behind.
        (start_throttler, "stop"),
    ],
    ids=["origin", "sink", "proxy", "throttler"],
)
def test_service_that_does_not_become_ready_is_ended(
    start: Callable[[Any], object], end: str, interrupt: KeyboardInterrupt | None
) -> None:
    """Defect: a throttler whose start had failed kept running, so that later runs without a throttler were capped."""

    def run(argv: Sequence[str]) -> str:
        if argv[0] in ("ss", "mptcp-throttler"):
            raise interrupt or TestbedError("no answer")
        return "{}"

    ends: list[str] = []
    with pytest.raises((TestbedError, KeyboardInterrupt)):
        start(host(ends, run))
    assert ends == [end]


def test_proxy_is_ended_if_its_kernel_lacks_the_congestion_control() -> None:
    """Defect: the proxy used the host's own congestion control, but the result named the requested one."""
    ends: list[str] = []
    message = "^the proxy on proxy: the kernel has no congestion control bbr; it has reno"
    with pytest.raises(TestbedError, match=message):
        start_proxy(host(ends, lambda argv: "reno cubic\n"), control="bbr")
    assert ends == ["kill_tree"]


def test_kept_congestion_control_need_not_be_in_the_kernel() -> None:
    """Defect: ``keep`` (the proxy's value for the host's own one) was looked up in the kernel as a name."""
    ends: list[str] = []
    start_proxy(host(ends, lambda argv: "reno cubic\n"), control="keep")
    assert not ends
