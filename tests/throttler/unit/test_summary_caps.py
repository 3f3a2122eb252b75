# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the query ``summary``: the number of classes of each cap, and the rates that they allow."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

from fake_kernel import FakeKernel, four_tuple
from test_daemon import PATHS, Scene, running, scenario

from mptcp_throttler.policy.model import Direction

MBIT = 1_000_000
KEYS = ("classes", "shared_classes", "rate", "lowest_ceil", "ceil", "total_ceil")


def policy(share: str, paths: str = "[a, b]", throttle: str = "rate: 5 Mbit/s, ceil: 10 Mbit/s") -> str:
    cap = f"throttle: {{{throttle}, share: {share}}}"
    return PATHS + f"rules: [{{name: cap, paths: {paths}, direction: both, {cap}}}]\n"


def caps(scene: Scene, *keys: str, direction: str = "down") -> dict[str, tuple[int, ...]]:
    rules = scene.request(query="summary")["rules"]
    return {each["path"]: tuple(each[key] for key in keys) for each in rules if each["direction"] == direction}


def kernel_with(*connections: tuple[int, str, str]) -> FakeKernel:
    kernel = FakeKernel()
    for token, first, second in connections:
        kernel.sockets.connect(token, first, second, port=40_000 + token)
    return kernel


# Two connections of one client, and one of another client.
CONNECTIONS = (7, "10.1.0.1", "10.2.0.1"), (8, "10.1.0.1", "10.2.0.1"), (9, "10.1.0.9", "10.2.0.9")


@scenario
async def test_class_shared_by_several_paths_counts_once_as_shared(tmp_path: Path) -> None:
    async with running(tmp_path, policy("path"), kernel_with(*CONNECTIONS)) as scene:
        per_path = (1, 1, 5 * MBIT, 10 * MBIT, 10 * MBIT, 10 * MBIT)
        assert caps(scene, *KEYS) == caps(scene, *KEYS, direction="up") == {"a": per_path, "b": per_path}
        await scene.reload(policy("path", "[a]"))
        assert caps(scene, *KEYS)["a"] == (1, 0, *per_path[2:])


@scenario
async def test_connections_of_a_client_share_its_class(tmp_path: Path) -> None:
    """Defect: ten connections of a client with a cap of 5 Mbit/s were reported as 50 Mbit/s."""
    async with running(tmp_path, policy("client"), kernel_with(*CONNECTIONS)) as scene:
        expected = (2, 0, 5 * MBIT, 10 * MBIT, 10 * MBIT, 20 * MBIT)
        assert caps(scene, "capped", *KEYS) == {"a": (3, *expected), "b": (3, *expected)}


@scenario
async def test_connection_has_one_class_on_all_its_paths(tmp_path: Path) -> None:
    async with running(tmp_path, policy("connection"), kernel_with(*CONNECTIONS)) as scene:
        expected = (3, 3, 5 * MBIT, 10 * MBIT, 10 * MBIT, 30 * MBIT)
        assert caps(scene, *KEYS) == {"a": expected, "b": expected}


@scenario
async def test_cap_without_subflows_has_no_class(tmp_path: Path) -> None:
    async with running(tmp_path, policy("client"), FakeKernel()) as scene:
        no_classes = (0, 0, 5 * MBIT, 10 * MBIT, 10 * MBIT, 0)
        assert caps(scene, *KEYS) == {"a": no_classes, "b": no_classes}


@scenario
async def test_clients_at_different_budget_steps_have_different_caps(tmp_path: Path) -> None:
    """Defect: the latest cap was reported for all clients."""
    steps = ", ".join(
        f"{{after: {volume} MB, throttle: {{rate: {rate}, share: client}}}}"
        for volume, rate in ((1, "1 Mbit/s"), (2, "64 kbit/s"))
    )
    volume = f"{{name: volume, paths: [a, b], budget: {{per: client, period: month, steps: [{steps}]}}}}"
    kernel = kernel_with(*CONNECTIONS)
    async with running(tmp_path, PATHS + f"rules: [{volume}]\n", kernel) as scene:
        kernel.sockets.carry(four_tuple("10.1.0.1", 40_007), 1_500_000)
        kernel.sockets.carry(four_tuple("10.1.0.9", 40_009), 2_500_000)
        await scene.engine.sampler.sweep()
        assert caps(scene, "capped", *KEYS) == {"a": (3, 2, 0, 64_000, 64_000, MBIT, MBIT + 64_000)}
        kernel.sockets.carry(four_tuple("10.1.0.1", 40_007), 1_000_000)
        await scene.engine.sampler.sweep()
        assert caps(scene, "capped", *KEYS) == {"a": (3, 2, 0, 64_000, 64_000, 64_000, 128_000)}


@scenario
async def test_summary_counts_the_classes_of_all_verdicts(tmp_path: Path) -> None:
    """Connections begin, change and end under policies with each *share*. At the end, the number of classes is 0."""
    rng, kernel = random.Random(11), FakeKernel()
    policies = [policy(share, paths) for share in ("path", "client", "connection") for paths in ("[a, b]", "[b]")]
    async with running(tmp_path, policies[0], kernel) as scene:
        for step in range(60):
            token, sockets = rng.randrange(8), kernel.sockets.by_four_tuple
            for four_tuple_of_token in [each for each, socket in sockets.items() if socket.token == token]:
                del sockets[four_tuple_of_token]
            clients = rng.sample(["10.1.0.1", "10.2.0.1", "10.1.0.2", "10.2.0.2", "10.9.0.1"], rng.randrange(4))
            kernel.sockets.connect(token, *clients, port=40_000 + 10 * token)
            engine = scene.engine
            engine.handle_events(engine.tracker.resync(list(sockets.values()), time.monotonic() + 3.0 * step))
            if step % 5 == 4:
                await scene.reload(rng.choice(policies))
            for direction in Direction:
                totals = caps(scene, "classes", "shared_classes", "total_ceil", direction=direction.value)
                assert {path: each for path, each in totals.items() if each[0]} == count_classes(scene, direction)
        sockets.clear()
        engine.handle_events(engine.tracker.resync([], time.monotonic() + 1000.0))
        assert len(engine.traffic.classes) == 0


def count_classes(scene: Scene, direction: Direction) -> dict[str | None, tuple[int, ...]]:
    """Count the classes by iterating over all verdicts."""
    paths: dict[Any, set[str | None]] = {}
    for verdicts in scene.engine.decisions.verdicts.values():
        for each in verdicts:
            if each.scope is not None and each.direction is direction:
                paths.setdefault(each.scope, set()).add(each.path)
    totals: dict[str | None, tuple[int, ...]] = {}
    for paths_of_class in paths.values():
        for path in paths_of_class:
            number, shared, _ = totals.get(path, (0, 0, 0))
            totals[path] = number + 1, shared + (len(paths_of_class) > 1), 10 * MBIT * (number + 1)
    return totals
