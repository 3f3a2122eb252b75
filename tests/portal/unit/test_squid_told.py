# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that Squid is asked for its parents until it has found the portal, and that a silent one delays nothing."""

from __future__ import annotations

import asyncio

import pytest

from mptcp_portal import squid_told
from mptcp_portal.settings import End
from mptcp_portal.squid_told import is_dead, tell_squid

PORTAL = End("127.0.0.1", 3180)
PARENTS = "by kid1 {\nParent     : other\nHost       : 192.0.2.1/3128/0\nStatus     : Down\n\n%s}\n"
OURS = "Parent     : portal\nHost       : 127.0.0.1/3180/0\nFlags      : no-query\nStatus     : %s\n"


@pytest.mark.parametrize(
    ("states", "dead"), [([], False), (["Up"], False), (["Down"], True), (["Up", "Down"], True), (["Up", "Up"], False)]
)
def test_the_portal_is_dead_while_it_is_for_one_worker(states: list[str], dead: bool) -> None:
    assert is_dead("".join(PARENTS % (OURS % state) for state in states), PORTAL) is dead


def test_squid_is_asked_until_it_has_found_the_portal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(squid_told, "_AGAIN_SECONDS", 0)
    answers = [PARENTS % (OURS % state) for state in ("Down", "Down", "Up", "Down")]

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert b"server_list" in await reader.readuntil(b"\r\n\r\n")
        writer.write(answers.pop(0).encode())
        writer.close()

    async def told() -> None:
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            await tell_squid(port, PORTAL, 60)
        await tell_squid(port, PORTAL, 60)

    asyncio.run(told())
    assert len(answers) == 1


def test_a_squid_that_says_nothing_is_given_up() -> None:
    async def told() -> None:
        async with await asyncio.start_server(lambda *_: asyncio.sleep(60), "127.0.0.1", 0) as server:
            await tell_squid(server.sockets[0].getsockname()[1], PORTAL, 0.01)

    asyncio.run(asyncio.wait_for(told(), 60))
