# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that repeated refusals create no reference cycles.

The daemon excludes cycles from collection and never frees them.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import struct
from collections.abc import Callable, Iterable
from itertools import count
from zoneinfo import ZoneInfo

import pytest
from fakes import FakeNetfilter, FakeTrafficControl
from policy_values import a_policy
from test_netlink import FakeKernel, connect_fake, message
from test_reconcile import CAP, NOW, uncapped, verdict

from mptcp_common.kernel_error import KernelError
from mptcp_common.netlink import NLMSG_ERROR, NetlinkSocket
from mptcp_throttler.kernel.netfilter.iptables import IptablesNetfilter
from mptcp_throttler.kernel.sockets.diagnostics import SocketDiagnostics
from mptcp_throttler.kernel.tc import htb
from mptcp_throttler.mptcp.model import FourTuple
from mptcp_throttler.runtime import reconcile
from mptcp_throttler.runtime.reconcile import Reconciler
from mptcp_throttler.shaping import cap as cap_module
from mptcp_throttler.shaping.cap import PlanError
from mptcp_throttler.shaping.model import FIRST_MINOR, ClassSpec, Ownership
from mptcp_throttler.shaping.plan import IDLE_SECONDS, Planner

pytestmark = pytest.mark.usefixtures("manual_collection")

ATTEMPTS = 200
SUBFLOWS = [FourTuple(b"\x0a\0\0\1", 3128, b"\x0a\1\0\2", port) for port in (1, 2)]


def assert_no_cycles(action: Callable[[], object]) -> None:
    """Call *action* many times, and ignore its refusals. Check that it leaves no reference cycles."""
    gc.collect()
    for _ in range(ATTEMPTS):
        with contextlib.suppress(KernelError, PlanError):
            action()
    assert gc.collect() < ATTEMPTS


class RefusingTrafficControl(FakeTrafficControl):
    """Refuses each change of the kinds in `refused`."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: set[str] = set()

    async def upsert_classes(self, specs: Iterable[ClassSpec]) -> None:
        if "create class" in self.refused:
            raise KernelError("create class: refused")
        await super().upsert_classes(specs)

    async def delete_classes(self, minors: Iterable[int]) -> None:
        if "remove class" in self.refused:
            raise KernelError("remove class: refused")
        await super().delete_classes(minors)

    async def settle(self) -> None:
        raise KernelError("limit segments: refused")


class RefusingEntries(FakeNetfilter):
    """Refuses to remove entries."""

    async def delete_entries(self, four_tuples: Iterable[FourTuple]) -> None:
        raise KernelError("remove entry: refused")


async def reconciler_with_refused_change(action: str) -> Reconciler:
    """Return a reconciler whose only remaining change is refused."""
    tc, netfilter = RefusingTrafficControl(), RefusingEntries() if action == "remove entry" else FakeNetfilter()
    planner = Planner(Ownership())
    planner.set_policy(a_policy((), (CAP,), ZoneInfo("UTC")))
    reconciler = Reconciler(planner, tc, netfilter)
    await reconciler.prepare()
    tc.refused = {action}
    netfilter.refused_ports = {1000} if action == "create entry" else set()
    if action == "limit segments":
        tc.set_gso_limit(lambda before: before // 2)
        return reconciler
    planner.set_verdicts(1, [verdict(1000)], NOW)
    with contextlib.suppress(KernelError):
        await reconciler.apply()
    if action in ("remove entry", "remove class"):
        planner.set_verdicts(1, [uncapped(1000)], NOW)
        planner.expire(NOW + IDLE_SECONDS)
    return reconciler


@pytest.mark.parametrize("action", ["limit segments", "create class", "create entry", "remove entry", "remove class"])
def test_refused_change_of_the_reconciler_leaves_no_cycle(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, action: str
) -> None:
    """Defect: each retry leaked about 1.5 kB, or 27 MB per day.

    A frame in an error's traceback referred to the error.
    """
    monkeypatch.setattr(reconcile, "_MIN_PAUSE", 0.0)
    monkeypatch.setattr(reconcile, "_MAX_PAUSE", 0.0)
    caplog.set_level(logging.CRITICAL, reconcile.log.name)  # pytest would store each logged error.

    async def scenario() -> None:
        reconciler = await reconciler_with_refused_change(action)
        gc.collect()
        running = asyncio.create_task(reconciler.run())
        reconciler.wake()
        async with asyncio.timeout(60):
            while reconciler.counters.failures < ATTEMPTS:  # noqa: ASYNC110 - the condition has no event
                await asyncio.sleep(0)
        assert gc.collect() < ATTEMPTS
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running

    asyncio.run(scenario())


def denial(number: int) -> list[bytes]:
    return [message(NLMSG_ERROR, number, struct.pack("=i", -errno.EPERM))]


def test_refused_netlink_request_leaves_no_cycle() -> None:
    """Defect: each refusal left a reference cycle."""
    netlink = connect_fake(NetlinkSocket(0), denial)
    assert_no_cycles(lambda: netlink.request(9, 0, b"", "a request"))
    netlink.close()


def test_refused_socket_look_up_leaves_no_cycle() -> None:
    """Defect: each refusal left a reference cycle."""
    diagnostics = SocketDiagnostics((3128,))
    connect_fake(diagnostics._look_ups, denial)
    assert_no_cycles(lambda: diagnostics.look_up(SUBFLOWS))
    diagnostics.close()


@pytest.mark.parametrize("failure", [OSError, TimeoutError])
def test_refused_closing_of_sockets_leaves_no_cycle(failure: type[OSError]) -> None:
    """Defect: the errors that were returned left reference cycles."""

    class Unreadable(FakeKernel):
        def recv(self, _size: int) -> bytes:
            raise failure(errno.ENOBUFS, "No buffer space available")

    diagnostics = SocketDiagnostics((3128,))
    diagnostics._look_ups._socket.close()
    diagnostics._look_ups._socket = Unreadable(lambda _: [])  # type: ignore[assignment]
    assert_no_cycles(lambda: diagnostics.close_sockets(SUBFLOWS))
    diagnostics.close()


class RefusingSocket:
    """Refuses each request with a new error."""

    def __init__(self, *_: object) -> None:
        self._numbers = count()

    def __enter__(self) -> RefusingSocket:
        return self

    def __exit__(self, *_: object) -> None: ...

    def request(self, *_: object) -> None:
        raise KernelError(f"refused {next(self._numbers)}")

    requests = request


def test_refused_classes_and_entries_leave_no_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect: each refusal left a reference cycle."""
    monkeypatch.setattr(htb, "NetlinkSocket", RefusingSocket)
    netfilter = IptablesNetfilter.__new__(IptablesNetfilter)  # The constructor would open netlink sockets.

    async def scenario() -> None:
        gc.collect()
        for _ in range(ATTEMPTS):
            with pytest.raises(KernelError, match="refused 0"):
                await htb._request([("set class", 0, 0, b"")] * 2)
            netfilter._netlink = RefusingSocket()  # type: ignore[assignment]
            with pytest.raises(KernelError, match="refused 0"):
                await netfilter._request(iter([(0, 0, b"")] * 2000), "add")
        assert gc.collect() < ATTEMPTS

    asyncio.run(scenario())


def test_caps_without_a_class_leave_no_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect: each decision about such a connection left a reference cycle."""
    monkeypatch.setattr(cap_module, "LAST_MINOR", FIRST_MINOR)
    planner = Planner(Ownership())
    planner.set_policy(a_policy((), (CAP,), ZoneInfo("UTC")))
    planner.set_verdicts(1, [verdict(1000)], NOW)
    with pytest.raises(PlanError):
        planner.set_verdicts(2, [verdict(2000, 2), verdict(2001, 2)], NOW)
    assert_no_cycles(lambda: planner.set_verdicts(2, [verdict(2000, 2), verdict(2001, 2)], NOW))
