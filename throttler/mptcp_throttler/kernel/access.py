"""The kernel parts that the daemon opens, as one value, so that tests can substitute fakes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from mptcp_common.status_client import ask_async
from mptcp_throttler.config.settings import Settings
from mptcp_throttler.kernel.capture import Capture
from mptcp_throttler.kernel.mptcp_pm.family import PathManagerEvents, SubflowCommands
from mptcp_throttler.kernel.mptcp_pm.keeping import KeeperConnection, find_or_start_keeper
from mptcp_throttler.kernel.netfilter.backends import open_netfilter, remove_other_backends
from mptcp_throttler.kernel.netfilter.nftables import LibNftables, NftablesNetfilter
from mptcp_throttler.kernel.netfilter.nftables import available as nftables_missing
from mptcp_throttler.kernel.notices import KernelChange, LinkNotices, NftablesNotices
from mptcp_throttler.kernel.ports import (
    EgressTrafficControl,
    KernelSockets,
    Netfilter,
    SocketMeter,
    SocketPacing,
    TrafficControl,
)
from mptcp_throttler.kernel.scheduling import prefer_event_loop
from mptcp_throttler.kernel.sockets.diagnostics import SocketDiagnostics
from mptcp_throttler.kernel.sockets.meter import open_socket_meter
from mptcp_throttler.kernel.sockets.pacing import open_socket_pacing
from mptcp_throttler.kernel.sysctl import OwnedSysctls, mptcp_missing
from mptcp_throttler.kernel.tc.egress import HtbTrafficControl
from mptcp_throttler.kernel.tc.htb import IfbTrafficControl, read_class_counters
from mptcp_throttler.kernel.tc.link import Routes
from mptcp_throttler.mptcp.model import FourTuple, KernelEvent, Segment
from mptcp_throttler.policy.model import Direction
from mptcp_throttler.shaping.commands import NftTable
from mptcp_throttler.shaping.model import UPLOAD_DEVICE, ClassCounters


class Source(Protocol):
    """Something that the event loop waits for and reads."""

    def fileno(self) -> int: ...

    def close(self) -> None: ...


class NoticeSource(Source, Protocol):
    """Changes by others to our objects."""

    def read(self) -> Iterator[KernelChange]:
        """Yield what waits. Raises OSError."""


class SegmentSource(Source, Protocol):
    """Captured segments of one interface."""

    interface: str

    def read(self, limit: int) -> Iterator[Segment]:
        """Yield what waits. Raises KernelError if the interface is gone."""

    def read_statistics(self) -> int:
        """Return how many segments were dropped since the last call."""


class EventSource(Source, Protocol):
    """The path manager's events."""

    lost: int

    def read(self, limit: int) -> Iterator[KernelEvent]:
        """Yield what waits. Raises OSError."""


class RouteSource(Protocol):
    """The host's routing."""

    def interface(self, four_tuple: FourTuple) -> str | None:
        """Return the subflow's egress interface, None if it is not ours."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class KernelAccess:
    """How each part is opened. All raise KernelError if the kernel refuses, except ``prefer_event_loop``."""

    traffic_control: Callable[[Settings], EgressTrafficControl]
    netfilter: Callable[[Settings], tuple[str, Netfilter]]
    remove_other_backends: Callable[[str, Settings], Awaitable[None]]
    upload_missing: Callable[[], str | None]
    """Says what this host lacks to shape uploads; None if nothing."""
    upload_traffic_control: Callable[[Settings], TrafficControl]
    upload_netfilter: Callable[[Settings], Netfilter]
    nftables: Callable[[], LibNftables]
    sockets: Callable[[Settings], KernelSockets]
    pacing: Callable[[Settings], SocketPacing | None]
    meter: Callable[[Settings], SocketMeter | None]
    """None if this kernel does not support it."""
    capture: Callable[[str, Settings], SegmentSource]
    events: Callable[[], EventSource]
    routes: Callable[[Settings], RouteSource]
    prefer_event_loop: Callable[[], None]
    notices: Callable[[Settings], Sequence[Callable[[], NoticeSource]]]
    class_counters: Callable[[Settings, Direction], Mapping[int, ClassCounters]]
    """By minor number."""
    mptcp_missing: Callable[[], str | None]
    """Says why connections to this host cannot be Multipath TCP; None if they can."""
    sysctls: Callable[[Path], OwnedSysctls]
    """Takes the state directory."""
    keeper: Callable[[Path], Awaitable[KeeperConnection]]
    """Finds a killed daemon's keeper in the state directory, or starts one."""
    subflow_commands: Callable[[], SubflowCommands]
    ask_tunnels: Callable[[Path, Mapping[str, object]], Awaitable[Mapping[str, Any]]]
    """Asks the tunnel daemon at its socket."""


REAL = KernelAccess(
    traffic_control=lambda s: HtbTrafficControl(s.interfaces, s.ownership, s.state_directory),
    netfilter=lambda s: open_netfilter(s.netfilter, s.ownership),
    remove_other_backends=lambda backend, s: remove_other_backends(backend, s.ownership),
    upload_missing=nftables_missing,
    upload_traffic_control=lambda s: IfbTrafficControl(s.ownership),
    upload_netfilter=lambda s: NftablesNetfilter(NftTable.upload(s.ownership, s.interfaces)),
    nftables=LibNftables,
    sockets=lambda s: SocketDiagnostics(s.ownership.listen_ports),
    pacing=lambda s: open_socket_pacing(s.ownership),
    meter=lambda s: open_socket_meter(s.ownership.listen_ports),
    capture=lambda interface, s: Capture(interface, s.ownership.listen_ports),
    events=PathManagerEvents,
    routes=lambda s: Routes(s.interfaces),
    prefer_event_loop=prefer_event_loop,
    notices=lambda s: (
        lambda: LinkNotices((*s.interfaces, UPLOAD_DEVICE), s.ownership.htb_major),
        NftablesNotices,
    ),
    class_counters=lambda s, direction: read_class_counters(
        s.interfaces if direction is Direction.DOWN else (UPLOAD_DEVICE,), s.ownership.htb_major
    ),
    mptcp_missing=mptcp_missing,
    sysctls=OwnedSysctls,
    keeper=find_or_start_keeper,
    subflow_commands=SubflowCommands,
    ask_tunnels=ask_async,
)
