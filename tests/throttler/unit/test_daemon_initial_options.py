# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the daemon with a fake kernel: new connections of clients with one path and with two."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from ipaddress import ip_network
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_kernel import FakeKernel, four_tuple
from test_daemon import CAPPED, Scene, running, scenario, until
from test_daemon import UNCAPPED as NO_RULES

from mptcp_throttler.mptcp.model import FourTuple, KernelEvent, KernelEventKind
from mptcp_throttler.policy.anticipation import CLIENT_TIMEOUT
from mptcp_throttler.policy.values import Network
from mptcp_throttler.runtime import engine
from mptcp_throttler.runtime.pacing import OPTIONS_BATCH
from mptcp_throttler.shaping.initial_options import UNANTICIPATED, options_under_cap
from mptcp_throttler.shaping.model import InitialOptions, SocketLimit, Target

ADDRESS_A, ADDRESS_B = "10.1.0.1", "10.2.0.1"
CLASS = 0x4D500010
UNCAPPED = {four_tuple(ADDRESS_A): Target(0xFFFF, 0)}
PREFIX, CLIENT = ip_network("10.1.0.0/16"), ip_network(f"{ADDRESS_A}/32")


def report_event(scene: Scene, kind: KernelEventKind, token: int, client: str) -> None:
    """Report an event as the kernel does, and process it in the daemon."""
    event = KernelEvent(time.monotonic(), kind, token, four_tuple(client), 0, 0)
    scene.engine.handle_events(scene.engine.tracker.apply_event(event))


def reasons(scene: Scene) -> list[str]:
    (connection,) = scene.status()["connections"]
    return [subflow["reason"] for subflow in connection["subflows"]]


@scenario
async def test_connection_is_capped_from_its_first_subflow(tmp_path: Path) -> None:
    kernel = FakeKernel()
    async with running(tmp_path, CAPPED, kernel) as scene:
        report_event(scene, KernelEventKind.CREATED, 1, ADDRESS_A)
        assert set(kernel.netfilter.entries) == {four_tuple(ADDRESS_A)}, "the subflow has no cap when it begins to send"
        assert reasons(scene) == ["rule cap-a caps path a at 5 Mbit/s: 1 subflow active, 2 anticipated"]
        report_event(scene, KernelEventKind.SUBFLOW_ESTABLISHED, 1, ADDRESS_B)
        assert set(kernel.netfilter.entries) == {four_tuple(ADDRESS_A)}
        assert reasons(scene)[0] == "rule cap-a caps path a at 5 Mbit/s: 2 subflows active"


@scenario
async def test_client_with_one_path_loses_its_cap_and_is_remembered(tmp_path: Path) -> None:
    kernel = FakeKernel()
    async with running(tmp_path, CAPPED, kernel) as scene:
        assert kernel.pacing.initial_options[PREFIX] == options_under_cap(5_000_000, CLASS)
        report_event(scene, KernelEventKind.CREATED, 1, ADDRESS_A)
        # Its socket still sends into the class, so an entry must select the default class.
        await until(lambda: kernel.netfilter.entries == UNCAPPED)
        assert reasons(scene) == ["rule cap-a does not apply: only 1 active subflow (needs 2)"]
        assert kernel.pacing.initial_options[CLIENT] == UNANTICIPATED
        report_event(scene, KernelEventKind.CLOSED, 1, ADDRESS_A)
        await until(lambda: not kernel.netfilter.entries)
        report_event(scene, KernelEventKind.CREATED, 2, ADDRESS_A)
        assert not kernel.netfilter.entries
        report_event(scene, KernelEventKind.SUBFLOW_ESTABLISHED, 2, ADDRESS_B)
        assert set(kernel.netfilter.entries) == {four_tuple(ADDRESS_A)}
        assert CLIENT not in kernel.pacing.initial_options


def test_client_with_one_path_that_does_not_return_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect: the initial limits of the client's subflows were kept forever."""
    kernel = FakeKernel()
    clock_offset = 0.0

    async def scenario() -> None:
        nonlocal clock_offset
        async with running(tmp_path, CAPPED, kernel) as scene:
            report_event(scene, KernelEventKind.CREATED, 1, ADDRESS_A)
            await until(lambda: kernel.pacing.initial_options.get(CLIENT) == UNANTICIPATED)
            report_event(scene, KernelEventKind.CLOSED, 1, ADDRESS_A)
            clock_offset = CLIENT_TIMEOUT
            await until(lambda: CLIENT not in kernel.pacing.initial_options)
            assert not scene.engine.decisions.anticipation.clients
            assert kernel.pacing.initial_options[PREFIX] == options_under_cap(5_000_000, CLASS)

    clock = SimpleNamespace(time=time.time, monotonic=lambda: time.monotonic() + clock_offset)
    monkeypatch.setattr(engine, "time", clock)
    asyncio.run(scenario())


@scenario
async def test_anticipation_can_be_switched_off(tmp_path: Path) -> None:
    kernel = FakeKernel()
    async with running(tmp_path, CAPPED + "anticipate: false\n", kernel) as scene:
        report_event(scene, KernelEventKind.CREATED, 1, ADDRESS_A)
        await asyncio.sleep(0)
        assert not kernel.netfilter.entries
        assert reasons(scene) == ["rule cap-a does not apply: only 1 active subflow (needs 2)"]


@scenario
async def test_connection_from_before_the_start_has_no_anticipated_subflow(tmp_path: Path) -> None:
    kernel = FakeKernel()
    kernel.sockets.connect(1, ADDRESS_A)
    async with running(tmp_path, CAPPED, kernel) as scene:
        assert not kernel.netfilter.entries
        assert "only 1 active subflow" in reasons(scene)[0]


@scenario
async def test_policy_that_names_the_clients_address_keeps_its_socket_options(tmp_path: Path) -> None:
    kernel = FakeKernel()
    policy = CAPPED.replace("10.1.0.0/16", CLIENT.with_prefixlen)
    async with running(tmp_path, policy, kernel) as scene:
        report_event(scene, KernelEventKind.CREATED, 1, ADDRESS_A)
        await until(lambda: kernel.pacing.initial_options[CLIENT] == UNANTICIPATED)
        await scene.reload(policy)
        assert kernel.pacing.initial_options[CLIENT] == UNANTICIPATED, "the reload forgot that the client has one path"
        report_event(scene, KernelEventKind.SUBFLOW_ESTABLISHED, 1, ADDRESS_B)
        assert kernel.pacing.initial_options[CLIENT] == options_under_cap(5_000_000, CLASS)


@scenario
async def test_sockets_are_not_changed_if_nothing_is_capped(tmp_path: Path) -> None:
    kernel = FakeKernel()
    async with running(tmp_path, CAPPED + "dry_run: true\n", kernel) as scene:
        report_event(scene, KernelEventKind.CREATED, 1, ADDRESS_A)
        await until(lambda: "anticipated" not in reasons(scene)[0])
        assert kernel.pacing.initial_options == {}
        await scene.reload(CAPPED)
        assert kernel.pacing.initial_options[CLIENT] == UNANTICIPATED


PREFIX_COUNT = 300
"""More prefixes than one batch has."""
PATHS_WITH_PREFIXES = f"""\
version: 1
paths:
  a: {{clients: [{", ".join(f"10.1.{number % 256}.{number // 256 * 128}/25" for number in range(PREFIX_COUNT))}]}}
  b: {{clients: [10.2.0.0/16]}}
"""
PREFIXES_CAPPED = (
    PATHS_WITH_PREFIXES
    + "rules: [{name: cap-a, paths: [a], when: {min_subflows: 1}, throttle: {rate: 5 Mbit/s}, lift_last: false}]\n"
)
PREFIXES_UNCAPPED = PATHS_WITH_PREFIXES + "rules: [{name: cap-b, paths: [b], throttle: {rate: 5 Mbit/s}}]\n"
NEW_CLIENT = "10.1.255.1"
"""An address whose prefix is not in the first batch."""


def connect_between_changes(scene: Scene, recorded_entries: list[dict[FourTuple, Target]]) -> None:
    """Open a connection after some prefixes were changed. Append the current entries to *recorded_entries*."""
    pacing = scene.kernel.pacing
    set_initial_options = pacing.set_initial_options

    def open_connection() -> None:
        scene.kernel.sockets.connect(1, NEW_CLIENT)
        report_event(scene, KernelEventKind.CREATED, 1, NEW_CLIENT)
        recorded_entries.append(dict(scene.kernel.netfilter.entries))

    def record_changes(changes: Mapping[Network, InitialOptions | None]) -> None:
        if len(changes) == OPTIONS_BATCH and not recorded_entries:
            asyncio.get_running_loop().call_soon(open_connection)
        set_initial_options(changes)

    pacing.set_initial_options = record_changes  # type: ignore[method-assign]


@scenario
async def test_connection_accepted_while_initial_options_change_is_capped(tmp_path: Path) -> None:
    """The connection's socket was accepted without a limit, and is limited at the first sample."""
    async with running(tmp_path, PREFIXES_UNCAPPED) as scene:
        kernel, recorded_entries = scene.kernel, list[dict[FourTuple, Target]]()
        connect_between_changes(scene, recorded_entries)
        await scene.reload(PREFIXES_CAPPED)
        new_subflow = four_tuple(NEW_CLIENT)
        await until(lambda: kernel.netfilter.entries.get(new_subflow) == Target(0x11, 0x10000))
        await until(
            lambda: (
                kernel.pacing.limits.get(kernel.sockets.by_four_tuple[new_subflow].cookie)
                == SocketLimit(5_000_000, 625)
            )
        )


@scenario
async def test_class_is_created_before_its_initial_options_are_set(tmp_path: Path) -> None:
    """Defect: the class was created after all initial options. Until then, connections bypassed it."""
    async with running(tmp_path, NO_RULES) as scene:
        pacing, classes = scene.kernel.pacing, scene.kernel.traffic_control.classes
        set_initial_options, class_exists = pacing.set_initial_options, list[bool]()

        def record_changes(changes: Mapping[Network, InitialOptions | None]) -> None:
            class_exists.append(
                any(options and (options.class_id or 0) & 0xFFFF in classes for options in changes.values())
            )
            set_initial_options(changes)

        pacing.set_initial_options = record_changes  # type: ignore[method-assign]
        networks = ", ".join(f"10.1.{number % 256}.{number // 256 * 8}/29" for number in range(4000))
        await scene.reload(
            PREFIXES_CAPPED.replace(PATHS_WITH_PREFIXES, f"version: 1\npaths: {{a: {{clients: [{networks}]}}}}\n")
        )
        assert len(class_exists) > 20
        assert class_exists[-1]
