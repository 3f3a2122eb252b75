# SPDX-License-Identifier: GPL-2.0-or-later
"""The inventory: which real hosts are client, proxy and origin, how ssh reaches them, and their interfaces.

An inventory is parsed in the same way as a policy, so that errors have the same form: all errors of a file at once,
each with line, key, value and what is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated

from pydantic import Field

from mptcp_common.fields import Interface, Parsed, Section
from mptcp_common.problems import DocumentError, Problem, shown
from mptcp_common.validate import validate
from mptcp_common.yaml_document import parse_document

from ..testbed.commands import TestbedError
from ..testbed.host import ClientPath
from .connection import HostRole


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


def _text(pattern: str, mistake: str) -> Parsed:
    """Return a parser of text in one line that matches *pattern*."""

    def parse(value: object) -> str:
        if not isinstance(value, str) or not re.fullmatch(pattern, value) or not value.isprintable():
            raise ValueError(f"{shown(value)} is {mistake}")
        return value

    return Parsed(parse, {"type": "string"})


def _address(value: object) -> str:
    try:
        return str(ip_address(str(value)))
    except ValueError:
        raise ValueError(f'{shown(value)} is not an IP address; write one such as "192.0.2.7"') from None


def _option(value: object) -> str:
    if not isinstance(value, bool | int | str):
        raise ValueError(f"{shown(value)} is not a setting; write text, a number, true or false")
    return ("no", "yes")[value] if isinstance(value, bool) else str(value)


# A leading dash is refused, because ssh would take it for an option.
Destination = Annotated[
    str, _text(r"[^\s-]\S*", "not a destination; write user@host, or a Host of your ssh configuration")
]
Directory = Annotated[str, _text("/.*", "not a directory of that host; write an absolute path")]
Options = dict[str, Annotated[str, Parsed(_option, {"type": "string"})]]
Address = Annotated[str, Parsed(_address, {"type": "string"})]


class HostSection(Section):
    """How to reach a host by ssh."""

    ssh: Destination = Field(description="The destination of ssh: user@host, or a Host of its configuration.")
    options: Options = Field(default={}, description="Options of ssh_config(5) for this host, by keyword.")
    directory: Directory | None = Field(
        default=None, description="The parent of the run's directory on the host, e.g. /var/tmp."
    )


class PathsSection(Section):
    """The client's interface of each path that scenarios use."""

    ethernet: Interface
    wifi: Interface


class ClientSection(HostSection):
    paths: PathsSection = Field(description="The client's interfaces, by path.")


class ServerSection(HostSection):
    address: Address | None = Field(
        default=None, description="The address at which others reach it, if it is not the first interface's."
    )
    address6: Address | None = Field(default=None, description="The same for IPv6.")


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
    if section is None or problems:
        raise InventoryError(problems)

    def role(name: str, host: HostSection, devices: Iterable[str], commands: str | None = None) -> HostRole:
        # ssh_config(5) ignores the case of keywords.
        options = {key.lower(): value for key, value in (*section.options.items(), *host.options.items())}
        addresses: dict[int, str] = {}
        if isinstance(host, ServerSection):
            addresses = {ip_address(a).version: a for a in (host.address, host.address6) if a is not None}
        return HostRole(name, host.ssh, options, host.directory, tuple(devices), addresses, commands)

    client, proxy, origin = section.client, section.proxy, section.origin
    # The order of the paths in the file matters.
    names = [str(key[2]) for key in document.keys if len(key) == 3 and key[:2] == ("client", "paths")]
    paths = tuple(ClientPath(name, getattr(client.paths, name)) for name in names)
    return Inventory(
        client=role("client", client, [path.device for path in paths]),
        proxy=role("proxy", proxy, proxy.interfaces, proxy.commands),
        origin=role("origin", origin, [origin.interface]),
        paths=paths,
    )
