# SPDX-License-Identifier: GPL-2.0-or-later
"""The daemon's access to the kernel, as one object, so that tests can substitute fakes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mptcp_common.status_client import ask_async
from mptcp_throttler.config.settings import Settings
from mptcp_throttler.kernel.bpf import SocketMeter, SocketPacing, open_socket_meter, open_socket_pacing
from mptcp_throttler.kernel.capture import Capture
from mptcp_throttler.kernel.mptcp_pm.family import PathManagerEvents, SubflowCommands
from mptcp_throttler.kernel.mptcp_pm.keeper_client import KeeperConnection, find_or_start_keeper
from mptcp_throttler.kernel.netfilter.backends import open_netfilter, remove_other_backends
from mptcp_throttler.kernel.netfilter.nftables import LibNftables, NftablesNetfilter
from mptcp_throttler.kernel.netfilter.nftables import missing_support as nftables_missing
from mptcp_throttler.kernel.notices import LinkNotices, NftablesNotices, NoticeSource
from mptcp_throttler.kernel.ports import KernelSockets, Netfilter, TrafficControl
from mptcp_throttler.kernel.scheduling import prefer_event_loop
from mptcp_throttler.kernel.sockets.diagnostics import SocketDiagnostics
from mptcp_throttler.kernel.sysctl import OwnedSysctls, mptcp_missing
from mptcp_throttler.kernel.tc.egress import HtbTrafficControl
from mptcp_throttler.kernel.tc.htb import IfbTrafficControl, read_class_counters
from mptcp_throttler.kernel.tc.link import Routes
from mptcp_throttler.policy.model import Direction
from mptcp_throttler.shaping.commands import NftTable
from mptcp_throttler.shaping.model import UPLOAD_DEVICE, ClassCounters


def _notices(settings: Settings) -> Sequence[Callable[[], NoticeSource]]:
    names = (*settings.interfaces, UPLOAD_DEVICE)
    return lambda: LinkNotices(names, settings.ownership.htb_major), NftablesNotices


def _class_counters(settings: Settings, direction: Direction) -> Mapping[int, ClassCounters]:
    names = settings.interfaces if direction is Direction.DOWN else (UPLOAD_DEVICE,)
    return read_class_counters(names, settings.ownership.htb_major)


@dataclass(frozen=True, slots=True)
class KernelAccess:
    """Functions that open parts of the kernel. All but ``prefer_event_loop`` raise KernelError if it refuses."""

    traffic_control: Callable[[Settings], HtbTrafficControl] = lambda s: HtbTrafficControl(
        s.interfaces, s.ownership, s.state_directory
    )
    netfilter: Callable[[Settings], tuple[str, Netfilter]] = lambda s: open_netfilter(s.netfilter, s.ownership)
    remove_other_backends: Callable[[str, Settings], Awaitable[None]] = lambda backend, s: remove_other_backends(
        backend, s.ownership
    )
    upload_missing: Callable[[], str | None] = nftables_missing
    """Returns the reason why this host cannot shape uploads; None if it can."""
    upload_traffic_control: Callable[[Settings], TrafficControl] = lambda s: IfbTrafficControl(s.ownership)
    upload_netfilter: Callable[[Settings], Netfilter] = lambda s: NftablesNetfilter(NftTable(s.ownership, s.interfaces))
    nftables: Callable[[], LibNftables] = LibNftables
    sockets: Callable[[Settings], KernelSockets] = lambda s: SocketDiagnostics(s.ownership.listen_ports)
    pacing: Callable[[Settings], SocketPacing | None] = lambda s: open_socket_pacing(s.ownership)
    meter: Callable[[Settings], SocketMeter | None] = lambda s: open_socket_meter(s.ownership.listen_ports)
    capture: Callable[[str, Settings], Capture] = lambda interface, s: Capture(interface, s.ownership.listen_ports)
    events: Callable[[], PathManagerEvents] = PathManagerEvents
    routes: Callable[[Settings], Routes] = lambda s: Routes(s.interfaces)
    prefer_event_loop: Callable[[], None] = prefer_event_loop
    notices: Callable[[Settings], Sequence[Callable[[], NoticeSource]]] = _notices
    class_counters: Callable[[Settings, Direction], Mapping[int, ClassCounters]] = _class_counters  # by minor number
    mptcp_missing: Callable[[], str | None] = mptcp_missing
    """Returns why connections to this host cannot be Multipath TCP; None if they can."""
    sysctls: Callable[[Path], OwnedSysctls] = OwnedSysctls  # takes the state directory
    keeper: Callable[[Path], Awaitable[KeeperConnection]] = find_or_start_keeper
    """Finds a killed daemon's keeper in the state directory, or starts one."""
    subflow_commands: Callable[[], SubflowCommands] = SubflowCommands
    query_tunnels: Callable[[Path, Mapping[str, object]], Awaitable[Mapping[str, Any]]] = ask_async
    """Queries the tunnel daemon."""


REAL = KernelAccess()
