# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that the portal requests Squid's server_list page until Squid has found the portal, and stops if Squid does not
answer."""

from __future__ import annotations

import asyncio

import pytest

from mptcp_portal import squid_probe
from mptcp_portal.settings import ListenAddress
from mptcp_portal.squid_probe import is_dead, make_squid_probe

PORTAL = ListenAddress("127.0.0.1", 3180)
PARENTS = "by kid1 {\nParent     : other\nHost       : 192.0.2.1/3128/0\nStatus     : Down\n\n%s}\n"
PORTAL_PARENT = "Parent     : portal\nHost       : 127.0.0.1/3180/0\nFlags      : no-query\nStatus     : %s\n"


@pytest.mark.parametrize(
    ("states", "dead"), [([], False), (["Up"], False), (["Down"], True), (["Up", "Down"], True), (["Up", "Up"], False)]
)
def test_portal_counts_as_dead_while_a_worker_reports_it(states: list[str], dead: bool) -> None:
    assert is_dead("".join(PARENTS % (PORTAL_PARENT % state) for state in states), PORTAL) is dead


def test_portal_sends_requests_until_squid_has_found_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(squid_probe, "_RETRY_SECONDS", 0)
    answers = [PARENTS % (PORTAL_PARENT % state) for state in ("Down", "Down", "Up", "Down")]

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert b"server_list" in await reader.readuntil(b"\r\n\r\n")
        writer.write(answers.pop(0).encode())
        writer.close()

    async def probe() -> None:
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            await make_squid_probe(port, PORTAL, 60)
        await make_squid_probe(port, PORTAL, 60)

    asyncio.run(probe())
    assert len(answers) == 1


def test_probe_stops_if_squid_does_not_answer() -> None:
    async def probe() -> None:
        async with await asyncio.start_server(lambda *_: asyncio.sleep(60), "127.0.0.1", 0) as server:
            await make_squid_probe(server.sockets[0].getsockname()[1], PORTAL, 0.01)

    asyncio.run(asyncio.wait_for(probe(), 60))
