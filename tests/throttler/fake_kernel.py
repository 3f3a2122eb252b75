# SPDX-License-Identifier: GPL-2.0-or-later
"""A fake kernel for the daemon: sockets, captures, classes and set entries in memory."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from ipaddress import ip_address
from itertools import count
from pathlib import Path
from typing import Any, Generic, TypeVar

from fakes import FakeNetfilter, FakeTrafficControl

from mptcp_common.kernel_error import KernelError
from mptcp_throttler.config.settings import Settings
from mptcp_throttler.kernel.access import REAL, KernelAccess
from mptcp_throttler.kernel.bpf import SocketMeter, SocketPacing
from mptcp_throttler.kernel.tc.link import Routes
from mptcp_throttler.mptcp.model import (
    ClosedSocket,
    FourTuple,
    KernelEvent,
    KernelSubflow,
    Segment,
    TcpInfo,
)
from mptcp_throttler.policy.model import Direction
from mptcp_throttler.policy.values import Network
from mptcp_throttler.shaping.model import ClassCounters, InitialOptions, SocketLimit

PROXY = ip_address("10.77.0.1").packed
T = TypeVar("T")
IDLE = TcpInfo(
    rtt=20_000,
    mss=1448,
    unacked=0,
    not_sent=0,
    pacing_rate=10_000_000,
    max_pacing_rate=None,
    delivery_rate=1_000_000,
    receive_window_limited=0,
    sacked=0,
    rtt_variance=4_000,
    retransmits=3,
    segments_out=1_200,
    lost=1,
    congestion_window=10,
)
"""The state of a socket whose data are all sent and acknowledged."""


def four_tuple(client: str, port: int = 40_000) -> FourTuple:
    """Return the four-tuple of a subflow from *client* to the proxy."""
    return FourTuple(PROXY, 3128, ip_address(client).packed, port)


class FakeSockets:
    """The proxy's sockets."""

    def __init__(self) -> None:
        self.by_four_tuple: dict[FourTuple, KernelSubflow] = {}
        self._cookies = count(1)

    def connect(self, token: int, *clients: str, port: int = 40_000, proxy: bytes = PROXY) -> None:
        """Make a connection from *clients* to *proxy*, with a subflow from each client. The first client opened it."""
        for index, client in enumerate(clients):
            subflow = four_tuple(client, port)._replace(local=proxy)
            self.by_four_tuple[subflow] = KernelSubflow(
                token, subflow, index == 0, 0, index, False, 0.0, cookie=next(self._cookies), tcp=IDLE
            )

    def batches(self) -> Iterator[Sequence[KernelSubflow]]:
        yield [each._replace(read=time.monotonic()) for each in self.by_four_tuple.values()]

    def look_up(self, four_tuples: Sequence[FourTuple]) -> Mapping[FourTuple, KernelSubflow]:
        return {
            each: self.by_four_tuple[each]._replace(read=time.monotonic())
            for each in four_tuples
            if each in self.by_four_tuple
        }

    def close_sockets(self, four_tuples: Sequence[FourTuple]) -> Mapping[FourTuple, str]:
        for each in four_tuples:
            self.by_four_tuple.pop(each, None)
        return {}

    def fill(self, subflow: FourTuple) -> None:
        """Queue much data on a subflow."""
        busy = IDLE._replace(unacked=1_000, not_sent=9_000_000)
        self.by_four_tuple[subflow] = self.by_four_tuple[subflow]._replace(tcp=busy)

    def carry(self, subflow: FourTuple, acked: int, received: int = 0) -> None:
        """Increase the byte counts of a socket."""
        socket = self.by_four_tuple[subflow]
        self.by_four_tuple[subflow] = socket._replace(
            bytes_acked=socket.bytes_acked + acked, bytes_received=socket.bytes_received + received
        )

    def disconnect(self, meter: FakeMeter, subflow: FourTuple) -> None:
        """Close a socket and report it to *meter*."""
        socket = self.by_four_tuple.pop(subflow)
        addresses = subflow.remote, subflow.remote_port, subflow.local_port
        meter.waiting.append(ClosedSocket(socket.cookie, addresses, socket.bytes_acked, socket.bytes_received))

    def close(self) -> None: ...


class FakeMeter(SocketMeter):
    """A meter that reports the closed sockets which a test put into ``waiting``."""

    def __init__(self) -> None:
        self.waiting: list[ClosedSocket] = []
        self.open = True

    def closed(self) -> Iterator[ClosedSocket]:
        closed_sockets, self.waiting = self.waiting, []
        return iter(closed_sockets)

    def check(self) -> list[str]:
        return []

    def close(self) -> None:
        self.open = False


class FakeSubflows:
    """Records the requests to set a backup flag. *refusal*: the error message if the kernel refuses requests."""

    def __init__(self) -> None:
        self.requests: list[tuple[int, FourTuple, bool]] = []
        self.refusal = ""

    def set_backup(self, token: int, subflow: FourTuple, backup: bool) -> None:
        self.requests.append((token, subflow, backup))
        if self.refusal:
            raise KernelError(self.refusal)

    def close(self) -> None: ...


class FakePacing(SocketPacing):
    """Applies limits to sockets immediately. Real sockets apply limits after a round trip."""

    def __init__(self, sockets: FakeSockets) -> None:
        self.limits: dict[int, SocketLimit] = {}
        self.initial_options: dict[Network, InitialOptions] = {}
        self.problems: list[str] = []
        """The problems that the next comparison finds."""
        self.closed = False
        self.has_buffers = self.sets_initial_options = True
        self._sockets = sockets

    def set_initial_options(self, changes: Mapping[Network, InitialOptions | None]) -> None:
        for network, options in changes.items():
            if options is None:
                self.initial_options.pop(network, None)
            else:
                self.initial_options[network] = options

    def limit(self, limits: Mapping[int, SocketLimit]) -> None:
        self.limits.update(limits)
        for subflow, sample in self._sockets.by_four_tuple.items():
            if sample.cookie in limits and sample.tcp is not None:
                tcp = sample.tcp._replace(max_pacing_rate=limits[sample.cookie].rate)
                self._sockets.by_four_tuple[subflow] = sample._replace(tcp=tcp)

    def limit_at_once(self) -> bool:
        return True

    def can_rest(self) -> bool:
        return True

    def check(self) -> list[str]:
        problems, self.problems = self.problems, []
        return problems

    def forget(self, cookies: Iterable[int]) -> None:
        for cookie in cookies:
            self.limits.pop(cookie, None)

    def close(self) -> None:
        self.closed = True


class FakeSource(Generic[T]):
    """A source that returns items from tests. Its file descriptor is the read end of a pipe."""

    def __init__(self) -> None:
        self._pipe = os.pipe()
        self._items: list[T] = []

    def give(self, item: T) -> None:
        self._items.append(item)
        os.write(self._pipe[1], b".")

    @property
    def has_unread_items(self) -> bool:
        return bool(self._items)

    def fileno(self) -> int:
        return self._pipe[0]

    def read(self, limit: int) -> Iterator[T]:
        items, self._items = self._items, []
        os.read(self._pipe[0], len(items))
        return iter(items)

    def close(self) -> None:
        for descriptor in self._pipe:
            os.close(descriptor)


class FakeEvents(FakeSource[KernelEvent]):
    """The path manager's events."""

    lost = 0


class FakeCapture(FakeSource[Segment]):
    """Captured segments."""

    def __init__(self, interface: str) -> None:
        super().__init__()
        self.interface = interface

    def read_statistics(self) -> int:
        return 0


class FakeTunnels:
    """The tunnel daemon."""

    def __init__(self) -> None:
        self.tunnels: dict[str, list[dict[str, Any]]] = {}
        self.classes: dict[str, list[int]] = {}
        """The classes in the throttler's latest request."""
        self.requests = 0
        self.is_running = True

    def add_path(
        self, tunnel: str, number: int, remote: str, begun: int = 0, sent: int = 0, **more: Any
    ) -> dict[str, Any]:
        """Add a path.

        *begun*: when the path started, in nanoseconds since the epoch. By default, it started after the throttler.
        """
        path = {
            "path": str(number),
            "number": number,
            "id": begun or (1 << 61) + 1000 * len(self.tunnels.get(tunnel, ())) + number,
            "local": "10.77.0.1",
            "local_port": 51820,
            "remote": remote,
            "remote_port": 51820,
            "interface": "w0",
            "class": 0,
            "silent_s": 0.0,
            "bytes_sent": sent,
            "bytes_received": 0,
            **more,
        }
        self.tunnels.setdefault(tunnel, []).append(path)
        return path

    async def ask(self, path: Path, request: Mapping[str, Any]) -> dict[str, Any]:
        if not self.is_running:
            raise ConnectionRefusedError
        self.classes = request.get("classes", self.classes)
        self.requests += 1
        return {"tunnels": [{"name": name, "paths": list(paths)} for name, paths in self.tunnels.items()]}


class FakeNftables:
    """libnftables with one table. Stores the table as commands."""

    def __init__(self) -> None:
        self.table = ""
        self.refuses = False

    def run(self, commands: str, what: str) -> str:
        if commands.startswith("list"):
            if not self.table:
                raise KernelError(f"{what}: no such table")
            return self.table
        if self.refuses:
            raise KernelError(f"{what}: refused")
        self.table = commands.partition("delete table")[2].partition("\n")[2]
        return ""

    def close(self) -> None: ...


class FakeKernel:
    """Contains all fakes. The daemon uses ``access``."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.traffic_control = FakeTrafficControl(self.log)
        self.netfilter = FakeNetfilter(self.log)
        self.upload_traffic_control = FakeTrafficControl()
        self.upload_netfilter = FakeNetfilter()
        self.sockets = FakeSockets()
        self.pacing = FakePacing(self.sockets)
        self.subflows = FakeSubflows()
        self.meter = FakeMeter()
        self.nftables = FakeNftables()
        self.tunnels = FakeTunnels()
        self.captures: dict[str, FakeCapture] = {}
        self.events: FakeEvents
        """The path-manager events of the running daemon."""
        self.class_counters: dict[int, ClassCounters] = {}

    @property
    def access(self) -> KernelAccess:
        async def log_removal(backend: str, settings: Settings) -> None:
            self.log.append(f"remove what is not {backend}")

        def events() -> FakeEvents:
            self.events = FakeEvents()
            return self.events

        return replace(
            REAL,
            traffic_control=lambda _: self.traffic_control,  # type: ignore[arg-type, return-value]
            netfilter=lambda _: ("iptables", self.netfilter),
            remove_other_backends=log_removal,
            upload_missing=lambda: None,
            upload_traffic_control=lambda _: self.upload_traffic_control,
            upload_netfilter=lambda _: self.upload_netfilter,
            nftables=lambda: self.nftables,  # type: ignore[arg-type, return-value]
            sockets=lambda _: self.sockets,
            pacing=lambda _: self.pacing,
            meter=lambda _: self.meter,
            capture=lambda interface, _: self.captures.setdefault(interface, FakeCapture(interface)),  # type: ignore[arg-type, return-value]
            events=events,  # type: ignore[arg-type]
            routes=lambda s: Routes(s.interfaces[:1]),
            prefer_event_loop=lambda: None,
            notices=lambda _: (),
            class_counters=lambda _, direction: self.class_counters if direction is Direction.DOWN else {},
            mptcp_missing=lambda: None,
            query_tunnels=self.tunnels.ask,
            subflow_commands=lambda: self.subflows,  # type: ignore[arg-type, return-value]
        )
