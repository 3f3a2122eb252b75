# SPDX-License-Identifier: GPL-2.0-or-later
"""The forwarder: accepts TCP connections of a home's devices to any destination, and tunnels them through a parent.

device ──TCP, as if to the origin──▶ forwarder ──CONNECT over Multipath TCP──▶ parent ──TCP──▶ origin

The kernel passes the connections to the forwarder (TPROXY): the local address of a socket is the address to which the
device connected. If no parent opens the tunnel, the forwarder itself connects to the origin over the best uplink,
unless the settings say ``fail: closed``.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import resource
import signal
import socket
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Final, TypeVar

from mptcp_common.kernel_error import KernelError
from mptcp_common.reasons import reason
from mptcp_common.service_manager import READY, WATCHDOG, notify_or_warn, status
from mptcp_common.state_file import write_state
from mptcp_gateway import connect
from mptcp_gateway.firewall import FORWARDER_PORT
from mptcp_gateway.kernel.resolver import Resolver
from mptcp_gateway.model import Address, Lan, Mark, ParentAddress
from mptcp_gateway.pump import Pump, abort
from mptcp_gateway.settings import Settings

log = logging.getLogger(__name__)
T = TypeVar("T")

STAGGER_SECONDS: Final = 1.0
"""Delay before the next attempt starts in parallel. During the delay, the gateway daemon may find a dead uplink."""
ATTEMPTS: Final = 4
"""Minimum number of attempts to connect to parents, if no parent answers before."""
PARENT_SECONDS: Final = 5.0
"""Maximum time for all attempts together."""
TUNNEL_SECONDS: Final = 20.0
"""Maximum time for a parent to reach the origin."""
DIRECT_SECONDS: Final = 20.0
PARENT_RETRY_SECONDS: Final = 2.0
"""Pause between two attempts to reach parents that did not answer."""
_STATUS_SECONDS: Final = 1.0
_FORBIDDEN: Final = 403
_MAX_REFUSED: Final = 100
_MAX_PARENTS: Final = 2
"""Maximum number of parents that are asked to open the tunnel for one connection."""
MAX_PER_DEVICE: Final = 1000
"""Maximum number of connections of one device. Further connections are reset, so that a device that scans the network
does not use up the connections of the others."""
_ACCEPT_PAUSE_SECONDS: Final = 0.1
_MAX_ACCEPTS: Final = 64
"""Maximum number of connections that one event of the listener accepts."""
_BACKLOG: Final = 4096
_IPPROTO_MPTCP: Final = 262
_IP_TRANSPARENT, _IPV6_TRANSPARENT = 19, 75
"""linux/in.h, linux/in6.h."""
_CONGESTION_CONTROL: Final = b"bbr"
_KEEPALIVE: Final = ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 15), (socket.TCP_KEEPCNT, 4))
_LOOPBACK: Final = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}


class NoTunnelError(Exception):
    """No parent opened the tunnel; the text says why."""


class RefusedError(NoTunnelError):
    """A parent's rules forbid the tunnel. Other parents are not tried, because they have the same rules."""


class Forwarder:
    """The forwarder of one host."""

    def __init__(self, settings: Settings, directory: Path) -> None:
        """*directory*: the directory to which the forwarder writes its status."""
        self._settings = settings
        self._lan = settings.lan or Lan(())
        self._directory = directory
        self._resolver = Resolver(settings.parents, lambda: None)
        self._last_parent: ParentAddress | None = None
        """The parent that answered last."""
        self._silence_reason: str | None = None
        """Why no parent answered the last attempt; None if a parent answered."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._pumps: set[Pump] = set()
        self._counts: Counter[str] = Counter()
        self._open_by_device: Counter[str] = Counter()
        self._refused: list[int] = []
        """Ports to which parents forbid tunnels, up to a limit."""
        self._direct_because = ""
        """Why the last direct connection bypassed the parents."""
        self._bytes_of_ended_connections = 0
        self._out_of_descriptors = False

    async def run(self, ending: asyncio.Event) -> None:
        """Forward until *ending* is set. Raises KernelError."""
        loop = asyncio.get_running_loop()
        with _listeners() as listeners:
            self._resolver.start()
            for each in listeners:
                loop.add_reader(each, self._accept, each)
            notify_or_warn("mptcp-forwarder", READY, status(f"{len(self._settings.parents)} parents"))
            retrying = loop.create_task(self._retry_parents())
            while not ending.is_set():
                self._write_status()
                notify_or_warn("mptcp-forwarder", WATCHDOG)
                with suppress(TimeoutError):
                    await asyncio.wait_for(ending.wait(), _STATUS_SECONDS)
            for each in listeners:
                loop.remove_reader(each)
            for task in (retrying, *self._tasks):
                task.cancel()
        for pump in tuple(self._pumps):
            pump.fail()
        (self._directory / "forwarder.json").unlink(missing_ok=True)

    def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(_MAX_ACCEPTS):
            try:
                client, (device, *_) = listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:  # no descriptor is left: the connection waits in the kernel
                if not self._out_of_descriptors:
                    log.error("accept a connection: %s", reason(error))
                self._out_of_descriptors = True
                loop.remove_reader(listener)
                loop.call_later(_ACCEPT_PAUSE_SECONDS, self._resume_accepting, listener)
                return
            self._out_of_descriptors = False
            client.setblocking(False)
            if self._open_by_device[device] >= MAX_PER_DEVICE:
                self._counts["failed"] += 1
                abort(client)
                continue
            self._open_by_device[device] += 1
            task = loop.create_task(self._serve(client, device))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _resume_accepting(self, listener: socket.socket) -> None:
        if listener.fileno() >= 0:
            asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    async def _serve(self, client: socket.socket, device: str) -> None:
        upstream = None
        try:
            host, port = client.getsockname()[:2]
            address = ip_address(host)
            if address.is_loopback:
                raise NoTunnelError("the destination is this host")
            _tune(client)
            self._counts["connections"] += 1
            upstream, first = await self._upstream(client, address, port)
            pump = Pump(client, upstream, lambda octets: self._on_end(pump, device, octets))
            self._pumps.add(pump)
            pump.start(first)
        except (OSError, ValueError, TimeoutError, NoTunnelError, asyncio.CancelledError) as error:
            self._release(device)
            for each in (client, upstream):
                if each is not None:
                    abort(each)
            if isinstance(error, asyncio.CancelledError):
                raise
            self._counts["failed"] += 1
            log.debug("%s", error)

    async def _upstream(self, client: socket.socket, address: Address, port: int) -> tuple[socket.socket, bytes]:
        """Return a connection to the client's destination, and its first bytes. Raises OSError and others."""
        if (str(address), port) == (connect.CHECK_ADDRESS, 80):
            return await self._check_page(client), b""
        try:
            if self._silence_reason is not None and self._lan.fail_open:
                raise NoTunnelError(self._silence_reason)
            return await self._tunnel(address, port)
        except NoTunnelError as error:
            if not self._lan.fail_open:
                raise
            self._counts["direct"] += 1
            self._direct_because = str(error)
            return await _direct(address, port), b""

    async def _check_page(self, client: socket.socket) -> socket.socket:
        login = self._settings.login
        async with asyncio.timeout(TUNNEL_SECONDS):
            request = await _receive(client, lambda data: connect.check_request(data, login))
        _, upstream = await self._parent()
        try:
            await _send(upstream, request)
        except BaseException:
            abort(upstream)
            raise
        return upstream

    async def _tunnel(self, address: Address, port: int) -> tuple[socket.socket, bytes]:
        """Open a tunnel through a parent, or through another parent if that fails. Raises NoTunnelError."""
        failed: set[ParentAddress] = set()
        while True:
            target, upstream = await self._parent(excluded=failed)
            try:
                return upstream, await self._open_tunnel(upstream, address, port)
            except BaseException as error:
                abort(upstream)
                if not isinstance(error, NoTunnelError) or isinstance(error, RefusedError):
                    raise
                failed.add(target)
                self._last_parent = None if self._last_parent == target else self._last_parent
                if len(failed) >= _MAX_PARENTS or failed.issuperset(self._resolver.targets):
                    raise

    async def _open_tunnel(self, upstream: socket.socket, address: Address, port: int) -> bytes:
        """Send CONNECT to a parent; return the first bytes of the tunnel. Raises NoTunnelError."""
        try:
            async with asyncio.timeout(TUNNEL_SECONDS):
                await _send(upstream, connect.request(address, port, self._settings.login))
                answer = await _receive(upstream, connect.answer)
        except (OSError, ValueError, TimeoutError) as error:
            raise NoTunnelError(str(error) or "no answer to CONNECT") from None
        if answer.status == 200:
            return answer.after_head
        if answer.status == _FORBIDDEN:
            self._note_refusal(port)
            raise RefusedError(f"the parent answers {answer.status}")
        raise NoTunnelError(f"the parent answers {answer.status}")

    def _note_refusal(self, port: int) -> None:
        if port not in self._refused and len(self._refused) < _MAX_REFUSED:
            log.warning("a parent refuses tunnels to port %d; its squid.conf must allow this port", port)
            self._refused.append(port)

    async def _parent(self, excluded: Collection[ParentAddress] = ()) -> tuple[ParentAddress, socket.socket]:
        """Return the first parent that connects, and the connection. Raises NoTunnelError."""
        candidates = (each for each in self._resolver.targets if each not in excluded)
        targets = sorted(candidates, key=lambda each: each != self._last_parent)
        if not targets:
            self._set_silence_reason("no parent has a known address")
            raise NoTunnelError("no parent has a known address")
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PARENT_SECONDS
        attempts: set[asyncio.Task[tuple[ParentAddress, socket.socket]]] = set()
        last_error = "no answer"
        pending = [targets[number % len(targets)] for number in range(max(ATTEMPTS, len(targets)))]
        try:
            while (pending or attempts) and loop.time() < deadline:
                if pending:
                    attempts.add(loop.create_task(_connect(pending.pop(0))))
                wait = STAGGER_SECONDS if pending else deadline - loop.time()
                done, attempts = await asyncio.wait(attempts, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
                for each in done:
                    error = each.exception()
                    if error is None:
                        done.remove(each)
                        attempts |= done
                        self._last_parent, _ = found = each.result()
                        self._set_silence_reason(None)
                        return found
                    last_error = reason(error) if isinstance(error, OSError) else str(error)
        finally:
            for each in attempts:
                each.add_done_callback(_abort_attempt)
                each.cancel()
        if not excluded:
            self._set_silence_reason(last_error)
        raise NoTunnelError(f"no parent answers: {last_error}")

    def _set_silence_reason(self, why: str | None) -> None:
        if (why is None) is not (self._silence_reason is None):
            if why is None:
                log.info("a parent answers again")
            else:
                effect = "connections bypass the parents" if self._lan.fail_open else "connections fail"
                log.warning("no parent answers: %s; %s", why, effect)
        self._silence_reason = why

    async def _retry_parents(self) -> None:
        while True:
            await asyncio.sleep(PARENT_RETRY_SECONDS)
            if self._silence_reason is not None:
                with suppress(NoTunnelError):
                    abort((await self._parent())[1])

    def _on_end(self, pump: Pump, device: str, octets: int) -> None:
        self._pumps.discard(pump)
        self._bytes_of_ended_connections += octets
        self._release(device)

    def _release(self, device: str) -> None:
        self._open_by_device[device] -= 1
        if not self._open_by_device[device]:
            del self._open_by_device[device]

    def _write_status(self) -> None:
        found = {
            "open": len(self._pumps),
            "connections": self._counts["connections"],
            "direct": self._counts["direct"],
            "direct_because": self._direct_because,
            "failed": self._counts["failed"],
            "octets": self._bytes_of_ended_connections,
            "silent": self._silence_reason,
            "refused_ports": self._refused,
        }
        try:
            write_state(self._directory / "forwarder.json", json.dumps(found, indent=1) + "\n", 0o644)
        except KernelError as error:
            log.debug("%s", error)


@contextmanager
def _listeners() -> Iterator[list[socket.socket]]:
    """Yield the listeners. They listen on loopback addresses, so that they get only connections that the kernel passes
    to them. Raises KernelError."""
    _, maximum = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (maximum, maximum))
    with ExitStack() as scope:
        listeners = []
        for family, level, option in (
            (socket.AF_INET, socket.SOL_IP, _IP_TRANSPARENT),
            (socket.AF_INET6, socket.IPPROTO_IPV6, _IPV6_TRANSPARENT),
        ):
            try:
                listener = scope.enter_context(socket.socket(family, socket.SOCK_STREAM))
            except OSError:
                if family == socket.AF_INET6:
                    continue  # the kernel was started without IPv6
                raise
            try:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.setsockopt(level, option, 1)
                if family == socket.AF_INET6:
                    listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                listener.bind((_LOOPBACK[family], FORWARDER_PORT))
                listener.listen(_BACKLOG)
            except OSError as error:
                if family == socket.AF_INET6 and error.errno == errno.EADDRNOTAVAIL:
                    continue
                raise KernelError(f"listen on {_LOOPBACK[family]}, port {FORWARDER_PORT}: {reason(error)}") from error
            listener.setblocking(False)
            listeners.append(listener)
        yield listeners


def _tune(connection: socket.socket) -> None:
    """Set options: detect a peer that no longer answers after two minutes, and send small amounts of data
    immediately."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (*_KEEPALIVE, (socket.TCP_NODELAY, 1)):
        with suppress(OSError):  # older kernels lack some of these options for Multipath TCP
            connection.setsockopt(socket.IPPROTO_TCP, option, value)


async def _connect(target: ParentAddress) -> tuple[ParentAddress, socket.socket]:
    """Connect to a parent, over Multipath TCP if possible. Raises OSError."""
    family = socket.AF_INET if target.address.version == 4 else socket.AF_INET6
    try:
        upstream = socket.socket(family, socket.SOCK_STREAM, _IPPROTO_MPTCP)
    except OSError:  # a kernel without Multipath TCP
        upstream = socket.socket(family, socket.SOCK_STREAM)
    with suppress(OSError):  # a kernel without BBR
        upstream.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, _CONGESTION_CONTROL)
    return target, await _open(upstream, target.address, target.port)


async def _direct(address: Address, port: int) -> socket.socket:
    """Return a connection to an origin over the best uplink. Raises OSError and TimeoutError."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    upstream = socket.socket(family, socket.SOCK_STREAM)
    upstream.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, Mark.BEST)
    async with asyncio.timeout(DIRECT_SECONDS):
        return await _open(upstream, address, port)


async def _open(upstream: socket.socket, address: Address, port: int) -> socket.socket:
    """Connect a socket. The loop's sock_connect() is not used: it would look up the address, and does not support
    Multipath TCP."""
    loop = asyncio.get_running_loop()
    writable = asyncio.Event()
    try:
        upstream.setblocking(False)
        _tune(upstream)
        error = upstream.connect_ex((str(address), port))
        if error == errno.EINPROGRESS:
            loop.add_writer(upstream, writable.set)
            try:
                await writable.wait()
            finally:
                loop.remove_writer(upstream)
            error = upstream.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise OSError(error, os.strerror(error))
    except BaseException:
        upstream.close()
        raise
    return upstream


def _abort_attempt(attempt: asyncio.Task[tuple[ParentAddress, socket.socket]]) -> None:
    if not attempt.cancelled() and attempt.exception() is None:
        abort(attempt.result()[1])


async def _send(connection: socket.socket, data: bytes) -> None:
    await asyncio.get_running_loop().sock_sendall(connection, data)


async def _receive(source: socket.socket, read: Callable[[bytes], T | None]) -> T:
    """Receive bytes until *read* returns a result, and return the result. Raises OSError, and the exceptions of
    *read*."""
    data = b""
    while (result := read(data)) is None:
        chunk = await asyncio.get_running_loop().sock_recv(source, connect.MAX_HEAD)
        if not chunk:
            raise ConnectionResetError("the connection was closed before the head was complete")
        data += chunk
    return result


async def serve(settings: Settings, directory: Path) -> None:
    """Run until SIGTERM or SIGINT. Raises KernelError and OSError."""
    ending = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ending.set)
    await Forwarder(settings, directory).run(ending)
