# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for writing initial socket options to the kernel: only differences, and without blocking the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from ipaddress import ip_network
from typing import cast

import pytest
from examples import examples
from fake_kernel import FakePacing, FakeSockets
from hypothesis import given, settings
from hypothesis import strategies as st

from mptcp_common.kernel_error import KernelError
from mptcp_throttler.kernel import scheduling
from mptcp_throttler.policy.load import load_policy
from mptcp_throttler.policy.values import Network
from mptcp_throttler.runtime import pacing as pacing_module
from mptcp_throttler.runtime.pacing import OPTIONS_BATCH, SocketLimiter
from mptcp_throttler.shaping.initial_options import DEFAULT_OPTIONS, UNANTICIPATED, options_under_cap
from mptcp_throttler.shaping.model import InitialOptions, Ownership
from mptcp_throttler.shaping.plan import Planner

CLASS, OTHER_CLASS = 0x4D500010, 0x4D500011
CAPPED, OTHER = options_under_cap(5_000_000, CLASS), options_under_cap(5_000_000, OTHER_CLASS)
CLIENT_COUNT = 1000


def address(number: int) -> bytes:
    return ((10 << 24) + number).to_bytes(4, "big")


def client_prefix(number: int) -> Network:
    return ip_network((address(number), 32))


def prefixes(count: int, options: InitialOptions = CAPPED) -> dict[Network, InitialOptions]:
    """Return initial options of *count* prefixes. The objects of two calls are equal, but not identical."""
    return {ip_network(((172 << 24) + number * 256, 24)): options for number in range(count)}


class CountingPacing(FakePacing):
    """Fake pacing that records the changes of each call."""

    refusal = ""

    def __init__(self) -> None:
        super().__init__(FakeSockets())
        self.calls: list[Mapping[Network, InitialOptions | None]] = []

    def set_initial_options(self, changes: Mapping[Network, InitialOptions | None]) -> None:
        self.calls.append(changes)
        super().set_initial_options(changes)
        if self.refusal:
            raise KernelError(self.refusal)

    def take_calls(self) -> list[Mapping[Network, InitialOptions | None]]:
        calls, self.calls = self.calls, []
        return calls


class Scene:
    def __init__(self) -> None:
        self.kernel = CountingPacing()
        self.planner = Planner(Ownership())
        self.limiter = SocketLimiter(self.planner, lambda: self.kernel, FakeSockets(), lambda: None)

    async def begin(self) -> None:
        await self.limiter.prepare(load_policy("version: 1\npaths: {a: {subflow: initial}}\nrules: []\n", "p"))

    def set_single_path_clients(self, clients: int) -> None:
        self.limiter.set_clients({address(number): True for number in range(clients)})


@pytest.fixture
def scene() -> Scene:
    prepared = Scene()
    asyncio.run(prepared.begin())
    return prepared


def test_unchanged_initial_options_are_not_written_again(scene: Scene) -> None:
    """Defect: a reload wrote all prefixes and all single-path clients again.

    This blocked the event loop for 100 ms.
    """

    async def reload() -> None:
        scene.set_single_path_clients(CLIENT_COUNT)
        assert scene.kernel.take_calls() == [], "options were written although no prefix is capped"
        await scene.limiter.set_initial_options(prefixes(300))
        assert scene.kernel.initial_options == prefixes(300) | {
            client_prefix(number): UNANTICIPATED for number in range(CLIENT_COUNT)
        }
        scene.kernel.take_calls()
        await scene.limiter.set_initial_options(prefixes(300))
        assert scene.kernel.take_calls() == []
        changed = prefixes(299) | prefixes(1, OTHER)
        await scene.limiter.set_initial_options(changed)
        removed = [*prefixes(300)][-1]
        assert scene.kernel.take_calls() == [prefixes(1, OTHER) | {removed: None}]
        assert set(scene.planner.initial_classes) == {CLASS, OTHER_CLASS}

    asyncio.run(reload())


def test_options_of_single_path_clients_are_written_while_the_loop_runs(scene: Scene) -> None:
    iterations = 0

    async def count_iterations() -> None:
        nonlocal iterations
        while True:
            iterations += 1
            await asyncio.sleep(0)

    async def reload_twice() -> None:
        scene.set_single_path_clients(CLIENT_COUNT)
        other_task = asyncio.create_task(count_iterations())
        for options in (prefixes(1), {}):
            before = iterations
            await scene.limiter.set_initial_options(options)
            calls = scene.kernel.take_calls()
            assert max(map(len, calls)) == OPTIONS_BATCH
            assert iterations - before >= len(calls) - 1 > CLIENT_COUNT / OPTIONS_BATCH - 1
            assert len(scene.kernel.initial_options) == (CLIENT_COUNT + 1 if options else 0)
        other_task.cancel()

    asyncio.run(reload_twice())


def test_client_forgotten_during_a_removal_keeps_no_entry(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect: the client kept its entry, so its connections had no cap when the options were set again."""
    monkeypatch.setattr(scheduling, "SLICE_SECONDS", 0.0)

    async def remove_options() -> None:
        scene.set_single_path_clients(3)
        await scene.limiter.set_initial_options(prefixes(300))
        removal = asyncio.create_task(scene.limiter.set_initial_options({}))
        await asyncio.sleep(0)
        scene.limiter.set_clients({address(1): False})
        await removal
        assert scene.kernel.initial_options == {}

    asyncio.run(remove_options())


def test_options_of_the_policy_apply_again_when_a_client_is_forgotten(scene: Scene) -> None:
    async def reload() -> None:
        scene.set_single_path_clients(1)
        await scene.limiter.set_initial_options(prefixes(1) | {client_prefix(0): CAPPED})
        assert scene.kernel.initial_options[client_prefix(0)] == UNANTICIPATED
        scene.limiter.set_clients({address(0): False})
        assert scene.kernel.initial_options[client_prefix(0)] == CAPPED

    asyncio.run(reload())


def test_planner_has_the_classes_of_old_and_new_options_during_a_change(scene: Scene) -> None:
    async def reload() -> None:
        await scene.limiter.set_initial_options(prefixes(OPTIONS_BATCH))
        assert set(scene.planner.initial_classes) == {CLASS}
        setting = asyncio.create_task(scene.limiter.set_initial_options(prefixes(2 * OPTIONS_BATCH, OTHER)))
        await asyncio.sleep(0)
        assert not setting.done()
        assert set(scene.planner.initial_classes) == {CLASS, OTHER_CLASS}
        await setting
        assert set(scene.planner.initial_classes) == {OTHER_CLASS}

    asyncio.run(reload())


def test_planner_has_no_initial_class_if_the_kernel_cannot_set_options(scene: Scene) -> None:
    async def reload() -> None:
        scene.kernel.sets_initial_options = False
        for count in (1, 2 * OPTIONS_BATCH):
            setting = asyncio.create_task(scene.limiter.set_initial_options(prefixes(count)))
            await asyncio.sleep(0)
            assert not scene.planner.initial_classes
            await setting
            assert not scene.planner.initial_classes

    asyncio.run(reload())


def test_refused_options_are_logged_once_and_written_again_later(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    async def reload() -> None:
        scene.set_single_path_clients(CLIENT_COUNT)
        scene.kernel.refusal = "the BPF map is full"
        with caplog.at_level(logging.ERROR):
            await scene.limiter.set_initial_options(prefixes(1))
        written = [network for changes in scene.kernel.take_calls() for network in changes]
        assert sorted(written) == sorted({*prefixes(1), *map(client_prefix, range(CLIENT_COUNT))}), (
            "a network was not written exactly once"
        )
        assert caplog.messages == ["the BPF map is full"]
        scene.kernel.refusal = ""
        await scene.limiter.set_initial_options(prefixes(1))
        written_again = {network for changes in scene.kernel.take_calls() for network in changes}
        assert written_again == {*prefixes(1), *map(client_prefix, range(CLIENT_COUNT))}
        assert set(scene.planner.initial_classes) == {CLASS}
        await scene.limiter.set_initial_options(prefixes(1))
        assert scene.kernel.take_calls() == []

    asyncio.run(reload())


def test_refused_clients_are_written_again_by_the_next_comparison(scene: Scene) -> None:
    async def scenario() -> None:
        await scene.limiter.set_initial_options(prefixes(1))
        scene.kernel.refusal = "the BPF map is full"
        scene.set_single_path_clients(1)
        scene.kernel.refusal = ""
        scene.kernel.take_calls()
        await scene.limiter.verify()
        assert [set(changes) for changes in scene.kernel.take_calls()] == [{client_prefix(0)}]
        await scene.limiter.verify()
        assert scene.kernel.take_calls() == []

    asyncio.run(scenario())


NETWORKS = st.sampled_from([client_prefix(0), client_prefix(1), *prefixes(3)])
STEPS = st.lists(
    st.one_of(
        st.dictionaries(NETWORKS, st.sampled_from([CAPPED, OTHER, DEFAULT_OPTIONS]), max_size=4),
        st.dictionaries(st.integers(0, 4), st.booleans(), min_size=1, max_size=3),
        st.none(),
    ),
    max_size=12,
)


@settings(max_examples=examples(400), deadline=None)
@given(STEPS)
def test_latest_options_of_each_network_apply_after_concurrent_changes(
    steps: list[dict[Network, InitialOptions] | dict[int, bool] | None],
) -> None:
    """The steps are new options, changes of single-path clients, and turns of the event loop (None)."""

    async def run() -> None:
        scene = Scene()
        await scene.begin()
        options: dict[Network, InitialOptions] = {}
        single_path: dict[Network, InitialOptions] = {}
        tasks = []
        for step in steps:
            if step is None:
                await asyncio.sleep(0)
            elif any(isinstance(key, int) for key in step):
                clients = cast(dict[int, bool], step)
                for number, is_single in clients.items():
                    single_path.pop(client_prefix(number), None)
                    if is_single:
                        single_path[client_prefix(number)] = UNANTICIPATED
                scene.limiter.set_clients({address(number): is_single for number, is_single in clients.items()})
            else:
                options = cast(dict[Network, InitialOptions], step)
                tasks.append(asyncio.create_task(scene.limiter.set_initial_options(options)))
                await asyncio.sleep(0)
        await asyncio.gather(*tasks)
        assert scene.kernel.initial_options == ({**options, **single_path} if options else {})
        classes = {each.class_id for each in options.values()} - {None}
        assert set(scene.planner.initial_classes) == classes

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pacing_module, "OPTIONS_BATCH", 1)
        asyncio.run(run())
