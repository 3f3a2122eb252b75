"""What the daemon knows and does, as JSON over a Unix socket: for ``mptcp-throttler status`` and for monitoring.

A client connects and reads one JSON document until the end. Keys are stable; new ones may be added.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from . import __version__
from .guard import CapGuard, why
from .kernel.ports import KernelError
from .mptcp.model import Connection, FourTuple, KernelSubflow, Subflow, SubflowState
from .mptcp.tracker import Tracker
from .observe import Observers
from .policy.model import Direction, Policy, Verdict
from .reconcile import Reconciler
from .settings import Settings
from .shaping.plan import Planner
from .upload import UploadLane

log = logging.getLogger(__name__)

_ANSWER_SECONDS = 5.0


class StatusServer:
    """Answers each connection to the socket at *path* with what *snapshot* returns."""

    def __init__(self, path: Path, snapshot: Callable[[], dict[str, Any]]) -> None:
        self._path = path
        self._snapshot = snapshot
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Listen; a socket left by a crashed daemon is replaced. Raises KernelError where the path cannot be used."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            if self._path.exists() and not self._path.is_socket():
                raise KernelError(f"status socket {self._path}: there is something else of that name")
            self._path.unlink(missing_ok=True)
            old_mask = os.umask(0o117)  # readable and writable for owner and group only
            try:
                self._server = await asyncio.start_unix_server(self._answer, path=str(self._path))
            finally:
                os.umask(old_mask)
        except OSError as error:
            raise KernelError(f"status socket {self._path}: {error.strerror or error}") from error

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._path.unlink(missing_ok=True)

    async def _answer(self, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.TimeoutError):
            writer.write(json.dumps(self._snapshot()).encode())
            await asyncio.wait_for(writer.drain(), _ANSWER_SECONDS)
        writer.close()


def ask(path: Path) -> dict[str, Any]:
    """Return the status of the daemon that listens at *path*. Raises OSError where none does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(_ANSWER_SECONDS)
        client.connect(str(path))
        answer = b"".join(iter(lambda: client.recv(1 << 16), b""))
    status: dict[str, Any] = json.loads(answer)
    return status


def snapshot(
    settings: Settings,
    policy: Policy,
    backend: str,
    started: float,
    tracker: Tracker,
    planner: Planner,
    upload: UploadLane,
    guard: CapGuard,
    observers: Observers,
    reconciler: Reconciler,
    paced: bool,
    decide: Callable[[Connection], tuple[Verdict, ...]],
) -> dict[str, Any]:
    """Return the whole status; *decide* says what holds for a connection.

    Times are seconds since the epoch, rates bits/s, sizes bytes.
    """
    now = time.time()
    try:
        sockets = {subflow.four_tuple: subflow for subflow in observers.subflows()}
    except KernelError as error:
        log.warning("%s; status shows no byte counts", error)
        sockets = {}
    return {
        "version": __version__,
        "started": started,
        "now": now,
        "interfaces": list(settings.interfaces),
        "netfilter": backend,
        "paced": paced,
        "policy": {
            "source": str(settings.policy),
            "dry_run": policy.dry_run,
            "rules": [rule.name for rule in policy.rules],
        },
        "uploads_shaped": upload.in_force,
        "in_step": all(each.classes.settled and each.entries.settled for each in (planner, upload.planner)),
        "connections": [
            _connection(connection, decide(connection), planner, upload.planner, guard, sockets)
            for connection in tracker.connections.values()
        ],
        "classes": [
            {
                "classid": f"{settings.ownership.htb_major:x}:{minor:x}",
                "direction": each.direction.value,
                "rate": spec.rate,
                "ceil": spec.ceil,
            }
            for each in (planner, upload.planner)
            for minor, spec in sorted(each.classes.actual.items())
        ],
        "counters": {
            "observers": asdict(observers.counters),
            "tracker": asdict(tracker.counters),
            "reconciler": asdict(reconciler.counters),
            "upload_reconciler": None if upload.reconciler is None else asdict(upload.reconciler.counters),
            "guard": asdict(guard.counters),
            "entries": len(planner.entries.actual),
            "upload_entries": len(upload.planner.entries.actual),
            "tables": dict(tracker.table_sizes),
        },
    }


def _connection(
    connection: Connection,
    decided: Iterable[Verdict],
    planner: Planner,
    upload: Planner,
    guard: CapGuard,
    sockets: dict[FourTuple, KernelSubflow],
) -> dict[str, Any]:
    verdicts = {(each.direction, each.four_tuple): each for each in decided}
    relaxation = guard.relaxation(connection.token)
    return {
        "token": f"{connection.token:08x}",
        "version": connection.version,
        "since": connection.since,
        "relaxed": None if relaxation is None else why(relaxation),
        "subflows": [
            _subflow(s, verdicts.get((Direction.DOWN, s.four_tuple)), planner, sockets.get(s.four_tuple))
            | {"upload": _upload(verdicts.get((Direction.UP, s.four_tuple)), upload)}
            for s in connection.subflows
        ],
    }


def _subflow(
    subflow: Subflow, verdict: Verdict | None, planner: Planner, in_kernel: KernelSubflow | None
) -> dict[str, Any]:
    return {
        "local": _end(subflow.four_tuple.local, subflow.four_tuple.local_port),
        "remote": _end(subflow.four_tuple.remote, subflow.four_tuple.remote_port),
        "state": subflow.state.value,
        "initial": subflow.initial,
        "local_id": subflow.local_id,
        "remote_id": subflow.remote_id,
        "backup": subflow.backup,
        "interface": subflow.interface,
        "since": subflow.since,
        "path": verdict.path if verdict else None,
        **_cap(subflow.four_tuple, verdict, planner),
        "landing": subflow.four_tuple in planner.landing,
        "pacing_limit": in_kernel.tcp.max_pacing_rate if in_kernel and in_kernel.tcp else None,
        "reason": verdict.reason if verdict else _why_no_verdict(subflow.state),
        "bytes_sent": in_kernel.bytes_sent if in_kernel else None,
        "bytes_received": in_kernel.bytes_received if in_kernel else None,
    }


def _upload(verdict: Verdict | None, planner: Planner) -> dict[str, Any] | None:
    """Return what holds for what comes from the client; None where no rule is for uploads."""
    return None if verdict is None else _cap(verdict.four_tuple, verdict, planner) | {"reason": verdict.reason}


def _cap(four_tuple: FourTuple, verdict: Verdict | None, planner: Planner) -> dict[str, Any]:
    target = planner.entries.actual.get(four_tuple)
    throttle = verdict.throttle if verdict else None
    return {
        "rule": verdict.rule.name if verdict and verdict.rule else None,
        "rate": throttle.rate if throttle else None,
        "ceil": throttle.ceil if throttle else None,
        "classid": f"{planner.ownership.htb_major:x}:{target.minor:x}" if target else None,
    }


def _why_no_verdict(state: SubflowState) -> str:
    return f"not active ({state.value})"


def _end(address: bytes, port: int) -> str:
    text = ip_address(address)
    return f"[{text}]:{port}" if text.version == 6 else f"{text}:{port}"
