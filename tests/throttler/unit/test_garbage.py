# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for excluding objects from garbage collection: none is excluded during work that creates reference cycles."""

from __future__ import annotations

import asyncio
import gc
import weakref
from contextlib import AsyncExitStack

import pytest

from mptcp_throttler.runtime import event_loop


class Node:
    """An object that refers to itself."""

    def __init__(self) -> None:
        self.reference = self


@pytest.mark.usefixtures("manual_collection")
@pytest.mark.parametrize("announced", [True, False])
def test_cycles_created_between_slices_are_collected_if_announced(announced: bool) -> None:
    async def create_cycle() -> weakref.ref[Node]:
        async with AsyncExitStack() as stack:
            if announced:
                await stack.enter_async_context(event_loop.skip_collection())
            node = Node()
            reference = weakref.ref(node)
            await asyncio.sleep(0)  # Slices of other tasks run in between.
            return reference

    async def scenario() -> weakref.ref[Node]:
        work = asyncio.create_task(create_cycle())
        while not work.done():
            event_loop.begin_acyclic()
            event_loop.end_acyclic()
            await asyncio.sleep(0)
        event_loop.begin_acyclic()
        event_loop.end_acyclic()
        return work.result()

    assert (asyncio.run(scenario())() is None) is announced


@pytest.mark.usefixtures("manual_collection")
def test_objects_created_in_a_slice_are_not_collected() -> None:
    event_loop.begin_acyclic()
    objects = [[number] for number in range(10_000)]
    event_loop.end_acyclic()
    assert gc.get_count()[0] < 1000
    assert not any(each in gc.get_objects(generation=0) for each in objects[:3])


def test_nothing_is_excluded_while_the_collector_is_on() -> None:
    before = gc.get_freeze_count()
    event_loop.begin_acyclic()
    event_loop.end_acyclic()
    assert gc.get_freeze_count() == before
