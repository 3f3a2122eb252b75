# SPDX-License-Identifier: GPL-2.0-or-later
"""Represents Multipath UDP tunnels as connections and their paths as subflows, from the tunnel daemon's answers.

A tunnel gets a token above that of any MPTCP connection (``model.MAX_TOKEN``). Path 0 counts as its initial
subflow, and the path's number serves as the remote address identifier. A path has byte counts like a socket, stored
under a cookie that no socket has; it has no TCP statistics.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any, Final

from mptcp_throttler.mptcp.model import MAX_TOKEN, FourTuple, KernelEvent, KernelEventKind, KernelSubflow

PATH_TIMEOUT: Final = 10.0  # a path counts as ended after this long without a message and without traffic
FIRST_COOKIE: Final = 1 << 62  # the kernel counts sockets from 1
_Activity = tuple[float, tuple[int, int]]  # time of a path's last activity, and the bytes sent and received until then


@dataclass(frozen=True, slots=True)
class TunnelPath:
    tunnel: str
    name: str
    path_id: int  # time when the path got these endpoints, nanoseconds since the epoch; unique
    class_id: int  # HTB class of its packets, as the tunnel daemon reports it; 0 if it is not ours
    interface: str | None
    socket: KernelSubflow

    def is_same_path(self, other: TunnelPath | None) -> bool:
        """Return whether *other* is the same path. Addresses do not identify it: two paths of a relay may swap them."""
        socket = self.socket
        return other is not None and (socket.token, socket.remote_id) == (other.socket.token, other.socket.remote_id)


@dataclass(slots=True)
class TunnelTable:
    """The paths of the tunnels with these local *ports*."""

    ports: Collection[int]
    paths: dict[FourTuple, TunnelPath] = field(default_factory=dict)
    ignored: set[tuple[str, int]] = field(default_factory=set)  # name and port of tunnels at other ports
    _tokens: dict[str, int] = field(default_factory=dict)  # tokens of the tunnels, by name
    _activities: dict[int, _Activity] = field(default_factory=dict)  # the last activity, by :attr:`TunnelPath.path_id`
    _last_token: int = MAX_TOKEN

    def update(self, answer: Mapping[str, Any], now: float) -> list[KernelEvent]:
        """Replace all paths with those of *answer*; return the changes as kernel events. Raises ValueError, and changes
        nothing, if the answer cannot be parsed."""
        activities: dict[int, _Activity] = {}
        try:
            paths = dict(self._parse(answer, now, activities))
        except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"cannot parse the tunnel daemon's answer: {error!r}") from error
        before, self.paths, self._activities = self.paths, paths, activities
        events = [
            KernelEvent(now, KernelEventKind.SUBFLOW_CLOSED, path.socket.token, four_tuple)
            for four_tuple, path in before.items()
            if not path.is_same_path(paths.get(four_tuple))
        ]
        names = {each.tunnel for each in paths.values()}
        for name in [each for each in self._tokens if each not in names]:
            events.append(KernelEvent(now, KernelEventKind.CLOSED, self._tokens.pop(name), None))
        for four_tuple, path in paths.items():
            if not path.is_same_path(before.get(four_tuple)):
                socket = path.socket
                kind = KernelEventKind.CREATED if socket.initial else KernelEventKind.SUBFLOW_ESTABLISHED
                events.append(KernelEvent(now, kind, socket.token, four_tuple, remote_id=socket.remote_id))
        return events

    def _parse(
        self, answer: Mapping[str, Any], now: float, activities: dict[int, _Activity]
    ) -> Iterator[tuple[FourTuple, TunnelPath]]:
        for tunnel in answer["tunnels"]:
            if tunnel.get("role") == "relay":
                continue  # the policy is for tunnels for which this host is the proxy, not the relay
            name = str(tunnel["name"])
            for path in sorted(tunnel["paths"], key=lambda each: int(each["number"])):
                local, remote = (ip_address(path[end]).packed for end in ("local", "remote"))
                four_tuple = FourTuple(local, int(path["local_port"]), remote, int(path["remote_port"]))
                if four_tuple.local_port not in self.ports:
                    self.ignored.add((name, four_tuple.local_port))
                    continue
                number, path_id = int(path["number"]), int(path["id"])
                byte_counts, silence = (int(path["bytes_sent"]), int(path["bytes_received"])), path["silent_s"]
                last_active = -math.inf if silence is None else now - float(silence)
                # Traffic counts like a message: it can continue after the relay's daemon has ended.
                if (previous := self._activities.get(path_id)) is not None:
                    last_active = max(last_active, previous[0]) if byte_counts == previous[1] else now
                activities[path_id] = last_active, byte_counts
                if now - last_active >= PATH_TIMEOUT:
                    continue
                token, ids, cookie = self._token(name), (None, number), FIRST_COOKIE | path_id
                socket = KernelSubflow(token, four_tuple, number == 0, *ids, False, now, *byte_counts, cookie)
                fields = name, str(path["path"]), path_id, int(path["class"]), path["interface"]
                yield four_tuple, TunnelPath(*fields, socket)

    def _token(self, tunnel: str) -> int:
        if tunnel not in self._tokens:
            self._last_token += 1
            self._tokens[tunnel] = self._last_token
        return self._tokens[tunnel]
