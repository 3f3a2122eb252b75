"""Takes back what is set on the sockets: all of it at a stop and by ``cleanup``, and at a start what nobody knows of.

What a socket has stays on it when the daemon is killed: its pacing limit, and how much may wait on it, which it may
have had from its acceptance on and which no list of sockets shows. So it is taken from all of them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping
from types import MappingProxyType

from mptcp_throttler.kernel.ports import SocketPacing, Sockets
from mptcp_throttler.mptcp.model import FourTuple, KernelSubflow
from mptcp_throttler.shaping.model import NO_LIMIT, SocketLimit

_STEP_SECONDS = 0.02
"""Between two looks whether sockets have taken their limits back."""


async def lift_all(
    pacing: SocketPacing, sockets: Sockets, seconds: float, instead: Mapping[int, SocketLimit] = MappingProxyType({})
) -> tuple[int, Collection[KernelSubflow]]:
    """Take everything back from all sockets; return how many had a pacing limit, and those that keep it.

    Some have something *instead* of no limit, by cookie. Where it cannot be done at once, busy sockets take it a round
    trip later: it waits for them *seconds* at the most. Raises KernelError.
    """
    found = await _listed(sockets)
    waiting = {each.four_tuple: each for each in found if _limit(each) is not None}
    limited = len(waiting)
    pacing.limit({each.cookie: instead.get(each.cookie, NO_LIMIT) for each in found})
    await asyncio.to_thread(pacing.limit_at_once)
    deadline = time.monotonic() + seconds
    while waiting := _still(waiting, sockets):
        if time.monotonic() > deadline:
            break
        await asyncio.sleep(_STEP_SECONDS)
    return limited, waiting.values()


async def lift_births(pacing: SocketPacing, sockets: Sockets) -> None:
    """Take back what sockets without a pacing limit began with under a daemon that was killed. Raises KernelError.

    Those with one are known by it, and adopted with it.
    """
    begun = [each.cookie for each in await _listed(sockets) if _limit(each) is None]
    if not begun:
        return
    pacing.limit(dict.fromkeys(begun, NO_LIMIT))
    if await asyncio.to_thread(pacing.limit_at_once):
        pacing.forget(begun)


async def _listed(sockets: Sockets) -> list[KernelSubflow]:
    found: list[KernelSubflow] = []
    for piece in sockets.pieces():
        found += (each for each in piece if each.cookie)
        await asyncio.sleep(0)
    return found


def _limit(subflow: KernelSubflow) -> int | None:
    return None if subflow.tcp is None else subflow.tcp.max_pacing_rate


def _still(waiting: dict[FourTuple, KernelSubflow], sockets: Sockets) -> dict[FourTuple, KernelSubflow]:
    """Return those of *waiting* that have their limit yet, as they are now."""
    now = sockets.look_up(list(waiting))
    same = {each: now[each] for each, before in waiting.items() if each in now and now[each].cookie == before.cookie}
    return {four_tuple: each for four_tuple, each in same.items() if _limit(each) is not None}
