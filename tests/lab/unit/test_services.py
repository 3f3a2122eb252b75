"""What the programs of an experiment are given, and what becomes of one that does not come to answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from fake_host import FakeHost

from mptcp_lab.testbed import TestbedError
from mptcp_lab.testbed.services import (
    start_origin,
    start_proxy,
    start_relay,
    start_sink,
    start_throttler,
    write_throttler_config,
)


@pytest.mark.parametrize("settings", [{}, {"verify_interval": 1, "ledger": "/elsewhere"}])
def test_a_throttler_does_not_count_in_the_hosts_ledger(tmp_path: Path, settings: dict[str, object]) -> None:
    written = write_throttler_config(FakeHost(tmp_path), Path("policy.yaml"), settings=settings)
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
"""By service: what starts it, and how it is ended. A throttler that was killed would leave its caps behind."""


@pytest.mark.parametrize("error", [TestbedError("no end after 31 s"), KeyboardInterrupt()], ids=["error", "interrupt"])
@pytest.mark.parametrize("service", STARTS)
def test_a_program_that_does_not_come_to_answer_is_ended(tmp_path: Path, service: str, error: BaseException) -> None:
    """Defect: a throttler whose start had failed lived on, and what was measured without one was under its cap."""

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
