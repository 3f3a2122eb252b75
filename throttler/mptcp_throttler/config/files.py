# SPDX-License-Identifier: GPL-2.0-or-later
"""Reads and checks the operator's files: settings, policy, and the connections of ``plan --subflows``:

    connections:
      - subflows:
          - {local: "10.0.0.1:3128", remote: "10.1.0.2:40000"}
          - {local: "10.0.0.1:3128", remote: "10.2.0.2:40001", backup: true}

The first subflow of a connection is its initial subflow; all are active.
"""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path
from typing import Annotated

from pydantic import Field

from mptcp_common.endpoints import address_and_port
from mptcp_common.fields import Parsed, Section, between
from mptcp_common.problems import DocumentError, Problem, Severity
from mptcp_common.validate import load, problem_at
from mptcp_common.yaml_document import text_of
from mptcp_throttler.config.settings import Settings, check_together, load_settings
from mptcp_throttler.mptcp.model import Connection, FourTuple, Subflow, unmap
from mptcp_throttler.policy.load import check_policy
from mptcp_throttler.policy.model import Policy


def read_settings(path: Path) -> Settings:
    """Return the settings of *path*. Raises DocumentError with every problem of the file."""
    return load_settings(text_of(path), str(path))


def changed_settings(path: Path, running: Settings) -> list[str]:
    """Return messages about changes in the file at *path* that need a restart of the *running* daemon."""
    try:
        changed = read_settings(path)
    except DocumentError as error:
        return [*str(error).splitlines(), f"{path} was changed; the next start would be refused"]
    keys = [key for key in Settings.model_fields if getattr(changed, key) != getattr(running, key)]
    return [f"{path}: {', '.join(keys)} changed; restart the throttler"] if keys else []


def read_policy(path: Path, settings: Settings | None = None) -> tuple[Policy, tuple[Problem, ...]]:
    """Return the policy of *path*, checked with *settings*, and its warnings and notes. Raises DocumentError."""
    return accept_policy(text_of(path), str(path), settings)


def accept_policy(text: str, source: str, settings: Settings | None) -> tuple[Policy, tuple[Problem, ...]]:
    """Return the same as :func:`read_policy` for *text*; messages call the text *source*."""
    checked = check_policy(text, source, None if settings is None else settings.interfaces)
    if checked.policy is None:
        raise DocumentError(checked.problems)
    problems = (*checked.problems, *(() if settings is None else check_together(settings, checked.policy)))
    if errors := [problem for problem in problems if problem.severity is Severity.ERROR]:
        raise DocumentError(errors)
    return checked.policy, problems + checked.notes


def _parse_endpoint(value: object) -> tuple[bytes, int]:
    address, port = address_and_port(value, "10.0.0.1:3128", "[fd00::1]:3128")
    return unmap(ip_address(address).packed), port


_Endpoint = Annotated[tuple[bytes, int], Parsed(_parse_endpoint, {"type": "string"})]


class SubflowSection(Section):
    """One subflow; *local* is the proxy's endpoint."""

    local: _Endpoint
    remote: _Endpoint
    backup: bool = False
    remote_id: Annotated[int, between(0, 255)] | None = None
    interface: str | None = None


class ConnectionSection(Section):
    """One MPTCP connection."""

    subflows: list[SubflowSection] = Field(min_length=1)


class ConnectionsSection(Section):
    """The whole file."""

    connections: list[ConnectionSection]


def read_connections(path: Path, settings: Settings, now: float) -> list[Connection]:
    """Return the connections written in *path*, with tokens from 1. Raises DocumentError with every problem."""
    section, document = load(ConnectionsSection, text_of(path), str(path))
    ports = settings.ownership.listen_ports
    connections, mismatches = [], []
    for index, connection in enumerate(section.connections):
        subflows = []
        for number, each in enumerate(connection.subflows):
            key = ("connections", index, "subflows", number, "local")
            if each.local[1] not in ports:
                message = f"port {each.local[1]} is not one of listen_ports ({', '.join(map(str, ports))})"
                mismatches.append(problem_at(document, key, None, message))
            elif len(each.local[0]) != len(each.remote[0]):
                message = "local and remote are addresses of different families"
                mismatches.append(problem_at(document, key, None, message))
            subflows.append(
                Subflow(
                    FourTuple(*each.local, *each.remote),
                    initial=number == 0,
                    local_id=None,
                    remote_id=0 if number == 0 and each.remote_id is None else each.remote_id,
                    backup=each.backup,
                    interface=each.interface or settings.interfaces[0],
                    since=now,
                )
            )
        connections.append(Connection(index + 1, tuple(subflows), now))
    if mismatches:
        raise DocumentError(mismatches)
    return connections
