"""Hand-written connections for ``plan --subflows``, with the same checks and messages as a policy. Pure.

    connections:
      - subflows:
          - {local: "10.0.0.1:3128", remote: "10.1.0.2:40000"}
          - {local: "10.0.0.1:3128", remote: "10.2.0.2:40001", backup: true}

The first subflow of a connection is its initial one; all are active.
"""

from __future__ import annotations

from collections.abc import Collection
from ipaddress import ip_address
from typing import Annotated

from pydantic import Field

from mptcp_common.endpoints import address_and_port
from mptcp_common.fields import Parsed, Section, between
from mptcp_common.problems import DocumentError
from mptcp_common.validate import problem_at, validate
from mptcp_common.yaml_document import parse_document
from mptcp_throttler.mptcp.model import Connection, FourTuple, Subflow, unmap


def _parse_end(value: object) -> tuple[bytes, int]:
    address, port = address_and_port(value, "10.0.0.1:3128", "[fd00::1]:3128")
    return unmap(ip_address(address).packed), port


_End = Annotated[tuple[bytes, int], Parsed(_parse_end, {"type": "string"})]


class SubflowSection(Section):
    """One subflow; *local* is the proxy."""

    local: _End
    remote: _End
    backup: bool = False
    remote_id: Annotated[int, between(0, 255)] | None = None
    interface: str | None = None


class ConnectionSection(Section):
    """One MPTCP connection."""

    subflows: list[SubflowSection] = Field(min_length=1)


class ConnectionsSection(Section):
    """The whole file."""

    connections: list[ConnectionSection]


def load_connections(
    text: str, source: str, interface: str | None, listen_ports: Collection[int], now: float
) -> list[Connection]:
    """Return the connections of *text*, with tokens from 1; *interface*: the default. Raises DocumentError."""
    document = parse_document(text, source)
    section, problems = validate(ConnectionsSection, document)
    if section is None or problems:
        raise DocumentError(problems)
    strangers = [
        problem_at(document, ("connections", i, "subflows", j, "local"), None, message)
        for i, connection in enumerate(section.connections)
        for j, subflow in enumerate(connection.subflows)
        if (message := _stranger(subflow, listen_ports))
    ]
    if strangers:
        raise DocumentError(strangers)
    return [
        Connection(
            token=number,
            subflows=tuple(
                _subflow(subflow, index == 0, interface, now) for index, subflow in enumerate(connection.subflows)
            ),
            since=now,
        )
        for number, connection in enumerate(section.connections, 1)
    ]


def _stranger(subflow: SubflowSection, listen_ports: Collection[int]) -> str | None:
    """Return why *subflow* cannot be a subflow of the proxy; None if it can."""
    (local, port), (remote, _) = subflow.local, subflow.remote
    if port not in listen_ports:
        return f"port {port} is not one of listen_ports ({', '.join(map(str, listen_ports))})"
    if len(local) != len(remote):
        return "local and remote are addresses of different families"
    return None


def _subflow(section: SubflowSection, initial: bool, interface: str | None, now: float) -> Subflow:
    return Subflow(
        four_tuple=FourTuple(*section.local, *section.remote),
        initial=initial,
        local_id=None,
        remote_id=0 if initial and section.remote_id is None else section.remote_id,
        backup=section.backup,
        interface=section.interface or interface,
        since=now,
    )
