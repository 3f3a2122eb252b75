# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests in which connections and policies are replaced often: the daemon frees their memory."""

from __future__ import annotations

import asyncio
import gc
import itertools
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_kernel import FakeKernel
from mptcp_dialogue import PROXY, ClientSubflow, Host
from test_daemon import BOTH_DIRECTIONS, CAPPED, PATHS, Scene, running, until

from mptcp_throttler.mptcp.model import KernelEventKind, Segment
from mptcp_throttler.runtime import decisions, engine, observe

CLIENTS, BATCH = 8, 50
WARM_UP, COUNT, ROUNDS = 300, 1_000, 3
"""Number of connections (with two subflows each) before the first round and in each round, and number of rounds."""
FORGET_SECONDS = 60.0
"""Seconds after which the whole daemon has forgotten an ended connection and its entries."""
MAX_BLOCKS_PER_CONNECTION = 0.1
"""Maximum memory blocks that remain per connection. A dictionary entry with its key would need one or two."""


class Clock:
    """The daemon's clock, which the test sets. The event loop uses the real clock."""

    def __init__(self) -> None:
        self.now = time.monotonic()

    def __call__(self) -> float:
        return self.now


async def churn(scene: Scene, clock: Clock, first: int, count: int) -> None:
    """Open and close *count* connections in batches. Each connection has its own keys."""
    capture, events = scene.kernel.captures["w0"], scene.kernel.events
    for start in range(first, first + count, BATCH):
        dialogues = []
        for number in range(start, start + BATCH):
            host, client = Host(str(number), clock.now), number % CLIENTS + 1
            port = 1024 + number % 60_000
            initial = ClientSubflow(host, f"10.1.0.{client}", port, True, PROXY, "w0")
            join = ClientSubflow(host, f"10.2.0.{client}", port, False, PROXY, "w0")
            # With one address identifier for all clients, the table of addresses and identifiers does not grow.
            join.remote_id = 1
            dialogues.append((host, join))
            for item in (*initial.established(), *join.established()):
                (capture if isinstance(item, Segment) else events).give(item)  # type: ignore[arg-type]
            clock.now = max(clock.now, host.time)
        await until(lambda: len(scene.engine.tracker.connections) >= BATCH)
        for host, join in dialogues:
            host.time = clock.now
            events.give(join.kernel_event(KernelEventKind.SUBFLOW_CLOSED))
            events.give(host.close_event())
            clock.now = max(clock.now, host.time)
        await asyncio.sleep(0.01)
        # Entries that are kept for some time are freed in slices.
        for _ in range(3):
            clock.now += FORGET_SECONDS / 2
            scene.engine.tick()
            await asyncio.sleep(0.005)


async def allocated_blocks(scene: Scene, clock: Clock) -> int:
    """Wait until the daemon has no work left. Return the number of memory blocks that Python has allocated."""
    async with asyncio.timeout(60):
        while scene.kernel.netfilter.entries or scene.engine.tracker.table_sizes["connections"]:
            clock.now += 1.0
            scene.engine.tick()
            await asyncio.sleep(0.01)
    scene.kernel.log.clear()  # This log belongs to the fake kernel.
    scene.engine.events.ring._events.clear()  # Another test checks that the number of events is bounded.
    # The latest entries are bounded, too. Some of them, a random number, belong to no join.
    scene.engine.join_latency._entries.drop_until(float("inf"))
    scene.engine.join_latency._pending.drop_until(float("inf"))
    # Closed subflows that a meter may still report stay for two minutes of the real clock.
    assert not scene.engine.traffic._subflows
    scene.engine.traffic._closed.drop_until(float("inf"))
    gc.unfreeze()
    gc.collect()
    return sys.getallocatedblocks()


def test_no_memory_is_kept_for_ended_connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    for module in (engine, decisions, observe):
        monkeypatch.setattr(
            module, "time", SimpleNamespace(time=time.time, thread_time=time.thread_time, monotonic=clock)
        )

    async def scenario() -> None:
        async with running(tmp_path, CAPPED, FakeKernel()) as scene:
            await churn(scene, clock, 0, WARM_UP)
            counts = [await allocated_blocks(scene, clock)]
            for first in range(WARM_UP, WARM_UP + ROUNDS * COUNT, COUNT):
                await churn(scene, clock, first, COUNT)
                counts.append(await allocated_blocks(scene, clock))
            growth = [after - before for before, after in itertools.pairwise(counts)]
            print(f"additional blocks after {COUNT} connections, per round: {growth}")
            # Memory of ended connections would grow in each round. Memory of unfinished work does not.
            assert min(growth) < MAX_BLOCKS_PER_CONNECTION * COUNT

    asyncio.run(scenario())


METERED = BOTH_DIRECTIONS.replace("rules: [", "time_zone: Europe/Athens\nrules: [{name: all, budget: %s}, ")
DAILY = "{period: day, steps: [{after: 1 MB, throttle: {rate: 1 Mbit/s}}]}"


def cyclic_garbage() -> Counter[str]:
    """Count, per class, the objects of our own classes that only reference cycles keep alive."""
    gc.unfreeze()
    gc.collect()
    leaked = Counter(type(each).__qualname__ for each in gc.garbage if type(each).__module__.startswith("mptcp_"))
    gc.garbage.clear()
    return leaked


async def wait_for_next_sample(scene: Scene) -> None:
    """Wait until the sockets have been sampled again."""
    before = scene.engine.sampler.sweeps + scene.engine.sampler.lookups
    await until(lambda: scene.engine.sampler.sweeps + scene.engine.sampler.lookups > before)


@pytest.mark.usefixtures("manual_collection")
def test_reload_leaves_no_reference_cycles(tmp_path: Path) -> None:
    """Defect: paths, subflows, accounts and the compiled policy were in reference cycles.

    The daemon's garbage collector examines only young objects, and never freed them.
    """

    async def scenario() -> None:
        kernel = FakeKernel()
        for token in range(1, 101):
            kernel.sockets.connect(token, f"10.1.0.{token}", f"10.2.0.{token}")
        async with running(tmp_path, METERED % DAILY, kernel) as scene:
            cyclic_garbage()
            gc.set_debug(gc.DEBUG_SAVEALL)
            for policy in (METERED % DAILY, CAPPED, METERED % DAILY.replace("day", "week"), PATHS + "rules: []\n"):
                await wait_for_next_sample(scene)
                await scene.reload(policy)
                assert cyclic_garbage() == {}
            assert scene.daemon._reloads["accepted"] == 4

    try:
        asyncio.run(scenario())
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
