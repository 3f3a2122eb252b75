# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the query ``budgets``: it returns the remaining volumes of an address, with and without a connection."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from fake_kernel import FakeKernel, four_tuple
from test_daemon import PATHS, Scene, running, scenario
from test_status_answers import LTE, WIFI, sweep_and_count

MB = 1_000_000
STEP = "steps: [{after: %d MB, throttle: {rate: 1 Mbit/s}}]"
PER_CLIENT_BUDGETS = PATHS + (
    "rules:\n"
    f"  - {{name: wifi, paths: [a], budget: {{per: client, period: month, {STEP % 5}}}}}\n"
    f"  - {{name: lte, paths: [b], budget: {{per: client, period: month, {STEP % 2}}}}}\n"
)
MIXED_BUDGETS = PATHS.replace("b: {", "c: {interfaces: [w1]}\n  d: {interfaces: [w0]}\n  b: {") + (
    "rules:\n"
    "  - {name: guests, when: {clients: [10.1.9.0/24]}, budget: none}\n"
    f"  - {{name: all, paths: [a], budget: {{per: path, period: month, {STEP % 7}}}}}\n"
    f"  - {{name: night, paths: [b], budget: {{per: path, period: month, {STEP % 3}}}}}\n"
    f"  - {{name: roaming, paths: [c], budget: {{per: path, period: month, {STEP % 4}}}}}\n"
    f"  - {{name: home, paths: [d], budget: {{per: client, period: month, {STEP % 6}}}}}\n"
)


def budgets_of(scene: Scene, client: str) -> dict[str, tuple[Any, ...]]:
    """Return each budget's client, used bytes, bytes left, and whether clients share the budget."""
    found = scene.request(query="budgets", client=client)["budgets"]
    return {each["name"]: (each["client"], each["used"], each["left"], each["shared"]) for each in found}


@scenario
async def test_address_gets_its_own_volume_and_not_that_of_the_clients_other_path(tmp_path: Path) -> None:
    kernel = FakeKernel()
    kernel.sockets.connect(7, WIFI, LTE)
    async with running(tmp_path, PER_CLIENT_BUDGETS, kernel) as scene:
        kernel.sockets.carry(four_tuple(WIFI), 1 * MB)
        kernel.sockets.carry(four_tuple(LTE), 2 * MB)
        await sweep_and_count(scene)
        assert budgets_of(scene, WIFI) == {"wifi": (WIFI, 1 * MB, 4 * MB, False)}
        assert budgets_of(scene, LTE) == {"lte": (LTE, 2 * MB, 0, False)}
        # Both addresses belong to the owner of the connection.
        found = scene.request(query="client", endpoint=f"{WIFI}:40000")["budgets"]
        assert {each["client"] for each in found} == {WIFI, LTE}


SHARED = PATHS + (
    "rules:\n"
    f"  - {{name: mine, paths: [a], budget: {{per: path, period: month, {STEP % 7}}}}}\n"
    f"  - {{name: others, paths: [b], budget: {{per: path, period: month, {STEP % 3}}}}}\n"
)


@scenario
async def test_owner_sees_no_shared_volume_that_only_others_use(tmp_path: Path) -> None:
    """The answer contains only shared budgets that count bytes of the owner's connection."""
    kernel = FakeKernel()
    kernel.sockets.connect(7, WIFI)
    kernel.sockets.connect(8, LTE)
    async with running(tmp_path, SHARED, kernel) as scene:
        kernel.sockets.carry(four_tuple(LTE), 2 * MB)
        await sweep_and_count(scene)
        found = scene.request(query="client", endpoint=f"{WIFI}:40000")["budgets"]
        assert [each["name"] for each in found] == ["mine"]


@scenario
async def test_answer_has_the_connections_age_and_the_policys_time_zone(tmp_path: Path) -> None:
    """Defect: the start of the next period was in the host's time zone instead of the policy's."""
    kernel = FakeKernel()
    begin = time.time()
    kernel.sockets.connect(7, WIFI, LTE)
    async with running(tmp_path, PER_CLIENT_BUDGETS + "time_zone: Europe/Athens\n", kernel) as scene:
        found = scene.request(query="client", endpoint=f"{WIFI}:40000")
        assert found["time_zone"] == "Europe/Athens"
        assert begin - 1 <= found["since"] <= found["time"]
        unknown = scene.request(query="client", endpoint=f"{WIFI}:9")
        assert (unknown["since"], unknown["time_zone"]) == (None, "Europe/Athens")


@scenario
async def test_remaining_volume_is_known_before_and_after_a_connection(tmp_path: Path) -> None:
    kernel = FakeKernel()
    async with running(tmp_path, PER_CLIENT_BUDGETS, kernel) as scene:
        assert budgets_of(scene, WIFI) == {"wifi": (WIFI, 0, 5 * MB, False)}
        assert budgets_of(scene, "10.3.0.1") == {}
        kernel.sockets.connect(7, WIFI)
        scene.engine.handle_events(scene.engine.tracker.resync(list(kernel.sockets.by_four_tuple.values()), 0.0))
        kernel.sockets.carry(four_tuple(WIFI), 1 * MB)
        await sweep_and_count(scene)
        kernel.sockets.by_four_tuple.clear()
    kernel = FakeKernel()
    async with running(tmp_path, PER_CLIENT_BUDGETS, kernel) as scene:
        assert not scene.request(query="connections")["connections"]
        assert budgets_of(scene, WIFI) == {"wifi": (WIFI, 1 * MB, 4 * MB, False)}
        assert budgets_of(scene, "10.1.0.77") == {"wifi": ("10.1.0.77", 0, 5 * MB, False)}


@scenario
async def test_budgets_of_an_address_follow_the_policys_conditions(tmp_path: Path) -> None:
    kernel = FakeKernel()
    async with running(tmp_path, MIXED_BUDGETS, kernel) as scene:
        assert budgets_of(scene, WIFI) == {"all": (None, 0, 7 * MB, True)}
        assert budgets_of(scene, "10.1.9.1") == {}, "the answer has a budget from which a rule exempts the client"
        assert budgets_of(scene, "10.9.0.1") == {}, "the answer has a budget although the client's interface is unknown"
        kernel.sockets.connect(9, "10.9.0.1")
        scene.engine.handle_events(scene.engine.tracker.resync(list(kernel.sockets.by_four_tuple.values()), 0.0))
        assert budgets_of(scene, "10.9.0.1") == {"home": ("10.9.0.1", 0, 6 * MB, False)}
        assert budgets_of(scene, WIFI) == {"all": (None, 0, 7 * MB, True)}
