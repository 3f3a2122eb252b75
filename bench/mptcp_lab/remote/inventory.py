# SPDX-License-Identifier: GPL-2.0-or-later
"""The inventory: which real hosts are client, proxy and origin, how ssh reaches them, and their interfaces.

An inventory is parsed in the same way as a policy, so that errors have the same form: all errors of a file at once,
each with line, key, value and what is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field

from mptcp_common.fields import Parsed, Section, parse_interface, parse_name
from mptcp_common.problems import DocumentError, Problem, in_order, shown
from mptcp_common.validate import problem_at, validate
from mptcp_common.yaml_document import Document, parse_document

from ..testbed.commands import TestbedError
from ..testbed.host import ClientPath
from .connection import HostRole

SCENARIO_PATHS: Final = ("ethernet", "wifi")
"""Names of the client's paths in scenarios."""


class InventoryError(DocumentError, TestbedError):
    """An inventory cannot be used. ``problems`` has all problems, ``str()`` a line for each."""


@dataclass(frozen=True, slots=True)
class Inventory:
    """The three hosts of an experiment, checked as far as the file allows."""

    client: HostRole
    proxy: HostRole
    origin: HostRole
    paths: tuple[ClientPath, ...]
    """The client's paths. Connections open over the first path."""

    @property
    def hosts(self) -> tuple[HostRole, HostRole, HostRole]:
        return self.client, self.proxy, self.origin


def _destination(value: object) -> str:
    # A leading dash is refused, because ssh would take it for an option.
    if not isinstance(value, str) or not re.fullmatch(r"[^\s-]\S*", value) or not value.isprintable():
        raise ValueError(f"{shown(value)} is not a destination; write user@host, or a Host of your ssh configuration")
    return value


def _directory(value: object) -> str:
    if not isinstance(value, str) or not value.startswith("/") or not value.isprintable():
        raise ValueError(f"{shown(value)} is not a directory of that host; write an absolute path")
    return value


def _address(family: int, example: str) -> Callable[[object], str]:
    def parse(value: object) -> str:
        try:
            address = ip_address(value) if isinstance(value, str) else None
        except ValueError:
            address = None
        if address is None or address.version != family:
            raise ValueError(f'{shown(value)} is not an IPv{family} address; write one such as "{example}"')
        return str(address)

    return parse


def _option(value: object) -> str:
    if not isinstance(value, bool | int | str):
        raise ValueError(f"{shown(value)} is not a setting; write text, a number, true or false")
    return ("no", "yes")[value] if isinstance(value, bool) else str(value)


Destination = Annotated[str, Parsed(_destination, {"type": "string"})]
Directory = Annotated[str, Parsed(_directory, {"type": "string"})]
Interface = Annotated[str, Parsed(parse_interface, {"type": "string"})]
Options = dict[str, Annotated[str, Parsed(_option, {"type": "string"})]]
Address4 = Annotated[str, Parsed(_address(4, "192.0.2.7"), {"type": "string"})]
Address6 = Annotated[str, Parsed(_address(6, "2001:db8::7"), {"type": "string"})]
PathName = Annotated[str, Parsed(parse_name, {"type": "string"})]


class HostSection(Section):
    """How to reach a host by ssh."""

    ssh: Destination = Field(description="Where ssh logs in: user@host, or a Host of the ssh configuration.")
    options: Options = Field(default={}, description="Options of ssh_config(5) for this host, by keyword.")
    directory: Directory | None = Field(
        default=None, description="Where the run's files are made there, e.g. /var/tmp."
    )


class ClientSection(HostSection):
    paths: dict[PathName, Interface] = Field(description="The client's interfaces, by path.")


class ServerSection(HostSection):
    address: Address4 | None = Field(
        default=None, description="Where others reach it, if not at its first interface's."
    )
    address6: Address6 | None = Field(default=None, description="The same for IPv6.")


class ProxySection(ServerSection):
    interfaces: list[Interface] = Field(min_length=1, description="The interfaces towards the client.")
    commands: Directory | None = Field(default=None, description="The directory of mptcp-proxy and mptcp-throttler.")


class OriginSection(ServerSection):
    interface: Interface = Field(description="The interface towards the proxy.")


class InventorySection(Section):
    options: Options = Field(default={}, description="Options of ssh_config(5) for all hosts, by keyword.")
    client: ClientSection
    proxy: ProxySection
    origin: OriginSection


def read_inventory(file: Path) -> Inventory:
    """Return the inventory in *file*. Raises :class:`InventoryError` with all problems."""
    try:
        document = parse_document(file.read_text(), str(file))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file in UTF-8"
        raise InventoryError([Problem(str(file), 0, 0, "", None, f"cannot be read: {reason}")]) from None
    section, problems = validate(InventorySection, document)
    problems = in_order([*problems, *_path_problems(document)])
    if section is None or problems:
        raise InventoryError(problems)

    def role(name: str, host: HostSection, devices: Iterable[str], commands: str | None = None) -> HostRole:
        # ssh_config(5) ignores the case of keywords.
        options = {key.lower(): value for key, value in (*section.options.items(), *host.options.items())}
        addresses: dict[int, str] = {}
        if isinstance(host, ServerSection):
            addresses = {f: a for f, a in ((4, host.address), (6, host.address6)) if a is not None}
        return HostRole(name, host.ssh, options, host.directory, tuple(devices), addresses, commands)

    client, proxy, origin = section.client, section.proxy, section.origin
    return Inventory(
        client=role("client", client, client.paths.values()),
        proxy=role("proxy", proxy, proxy.interfaces, proxy.commands),
        origin=role("origin", origin, [origin.interface]),
        paths=tuple(ClientPath(name, device) for name, device in client.paths.items()),
    )


def _path_problems(document: Document) -> Iterator[Problem]:
    """Yield the problem that a path which scenarios need is missing."""
    client = document.data.get("client") if document.data else None
    paths = client.get("paths") if isinstance(client, dict) else None
    if isinstance(paths, dict):
        for name in (name for name in SCENARIO_PATHS if name not in paths):
            message = f"the path {name} is missing; the scenarios use {' and '.join(SCENARIO_PATHS)}"
            where = ("client", "paths")
            yield problem_at(document, where, None, message, document.key_position(where))
