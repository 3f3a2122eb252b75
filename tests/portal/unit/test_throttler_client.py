# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for clients that wait for a slow throttler: how many per network, how long, and at the portal's shutdown."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from answering_socket import answering
from portal_throttler import answers_for

from mptcp_portal.bounded import REQUEST_SECONDS
from mptcp_portal.check_report import ThrottlerOutcome
from mptcp_portal.throttler_client import (
    _TIMEOUT,
    MAX_ADDRESSES,
    MAX_ADDRESSES_PER_NETWORK,
    MAX_WAIT_SECONDS,
    ThrottlerClient,
)


@pytest.fixture
def silent(tmp_path: Path) -> Iterator[Path]:
    """A throttler that accepts each request and answers none."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        yield tmp_path / "s"


def test_waiting_request_ends_as_busy_after_the_limit(silent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect: each client waited without a limit for all earlier clients, until its connection was closed."""
    monkeypatch.setattr("mptcp_portal.throttler_client.MAX_WAIT_SECONDS", 0.01)
    monkeypatch.setattr("mptcp_portal.throttler_client._TIMEOUT", 600.0)

    async def run_queries() -> None:
        throttler_client = ThrottlerClient(silent, pause=0)
        first = asyncio.ensure_future(throttler_client.budgets_of("10.0.0.1"))
        others = await asyncio.gather(*(throttler_client.budgets_of(f"10.0.0.{number}") for number in range(2, 10)))
        assert others == [(ThrottlerOutcome.BUSY, {})] * 8
        assert not first.done()
        first.cancel()

    asyncio.run(run_queries())


def test_client_waits_for_a_starting_throttler(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[dict[str, Any] | None] = [None, None, {"schema": 99}, None]

    async def answer(*_: object) -> dict[str, Any]:
        if (found := answers.pop(0)) is None:
            raise ConnectionRefusedError
        return found

    async def run_queries() -> None:
        throttler_client = ThrottlerClient(Path("/run/s"), pause=0, start=600)
        assert (await throttler_client.budgets_of("10.0.0.1"))[0] is ThrottlerOutcome.ANSWERED
        later = ThrottlerClient(Path("/run/s"), pause=0)
        assert (await later.budgets_of("10.0.0.1"))[0] is ThrottlerOutcome.ABSENT

    monkeypatch.setattr("mptcp_portal.throttler_client.ask_async", answer)
    monkeypatch.setattr("mptcp_portal.throttler_client._RETRY_SECONDS", 0)
    asyncio.run(run_queries())


def test_answer_is_not_reused_for_another_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    requests = list[object]()

    async def answer(_: Path, request: dict[str, object], *__: object) -> dict[str, Any]:
        requests.append(request.get("token"))
        return {"schema": 99, "token": request.get("token")}

    async def run_queries() -> None:
        throttler_client = ThrottlerClient(Path("/run/s"), pause=0)
        for token in (1, 2, 2, None):
            await throttler_client.client("10.0.0.1:1", "10.0.0.2:3128", token)

    monkeypatch.setattr("mptcp_portal.throttler_client.ask_async", answer)
    asyncio.run(run_queries())
    assert requests == ["00000001", "00000002", None]


def test_longest_wait_is_shorter_than_the_request_limit() -> None:
    assert MAX_WAIT_SECONDS + _TIMEOUT < REQUEST_SECONDS


def test_close_ends_waiting_requests(silent: Path) -> None:
    async def run_queries() -> None:
        throttler_client = ThrottlerClient(silent, pause=0)
        waiting = [asyncio.ensure_future(throttler_client.budgets_of(f"10.0.0.{number}")) for number in range(3)]
        waiting.append(asyncio.ensure_future(throttler_client.client("10.0.0.1:1", "10.0.0.2:3128", None)))
        await asyncio.sleep(0)
        throttler_client.close()
        assert await asyncio.gather(*waiting) == [(ThrottlerOutcome.BUSY, {})] * 4
        assert await throttler_client.budgets_of("10.0.0.9") == (ThrottlerOutcome.BUSY, {})

    asyncio.run(run_queries())


def test_refused_permission_is_logged_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Defect: pages said that a running throttler does not run, and the journal had no message about it."""

    async def refuse(*_: object) -> dict[str, Any]:
        raise PermissionError(errno.EACCES, "Permission denied")

    async def run_queries() -> None:
        throttler_client = ThrottlerClient(Path("/run/s"), pause=0)
        for number in range(3):
            assert await throttler_client.budgets_of(f"10.0.0.{number}") == (ThrottlerOutcome.ABSENT, {})

    monkeypatch.setattr("mptcp_portal.throttler_client.ask_async", refuse)
    asyncio.run(run_queries())
    assert capsys.readouterr().err == "mptcp-portal: cannot query the throttler at /run/s: Permission denied\n"


def outcomes_of(path: Path, addresses: list[str]) -> list[ThrottlerOutcome]:
    """Return the outcomes if the devices with these *addresses* all request their volume at the same time."""

    async def run_queries() -> list[ThrottlerOutcome]:
        throttler_client = ThrottlerClient(path, pause=0.001)
        return [
            outcome for outcome, _ in await asyncio.gather(*(throttler_client.budgets_of(each) for each in addresses))
        ]

    with answering(path, answers_for({})):
        return asyncio.run(run_queries())


def test_phones_of_one_network_get_half_of_the_queue(tmp_path: Path) -> None:
    """Defect: all phones of an IPv6 network, which share a /64, shared one place in the queue.

    When an access point started again, one phone got its volume, and all others got BUSY.
    """
    phones = [f"2001:db8:0:1::{number:x}" for number in range(1, MAX_ADDRESSES_PER_NETWORK + 2)]
    elsewhere = [f"2001:db8:0:{number:x}::1" for number in range(2, MAX_ADDRESSES - MAX_ADDRESSES_PER_NETWORK + 2)]
    outcomes = outcomes_of(tmp_path / "s", [*phones, *elsewhere])
    assert outcomes[: len(phones)] == [ThrottlerOutcome.ANSWERED] * MAX_ADDRESSES_PER_NETWORK + [ThrottlerOutcome.BUSY]
    assert set(outcomes[len(phones) :]) == {ThrottlerOutcome.ANSWERED}


def test_place_in_the_queue_is_free_after_the_answer(tmp_path: Path) -> None:
    phones = [f"2001:db8:0:1::{number:x}" for number in range(1, 3 * MAX_ADDRESSES_PER_NETWORK + 1)]

    async def send_groups() -> list[ThrottlerOutcome]:
        throttler_client, found = ThrottlerClient(tmp_path / "s", pause=0.001), []
        for begin in range(0, len(phones), MAX_ADDRESSES_PER_NETWORK):
            group = phones[begin : begin + MAX_ADDRESSES_PER_NETWORK]
            found += [
                outcome for outcome, _ in await asyncio.gather(*(throttler_client.budgets_of(each) for each in group))
            ]
        return found

    with answering(tmp_path / "s", answers_for({})):
        assert set(asyncio.run(send_groups())) == {ThrottlerOutcome.ANSWERED}


def test_repeated_requests_of_one_address_take_one_place_in_the_queue(tmp_path: Path) -> None:
    others = [f"10.0.1.{number}" for number in range(1, MAX_ADDRESSES)]
    assert set(outcomes_of(tmp_path / "s", ["10.0.0.9"] * 50 + others)) == {ThrottlerOutcome.ANSWERED}
