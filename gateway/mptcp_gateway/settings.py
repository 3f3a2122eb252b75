# SPDX-License-Identifier: GPL-2.0-or-later
"""The settings file, gateway.yaml: the uplinks, the parents for their trials, and the home network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field

from mptcp_common.fields import Interface, Name, Parsed, Port, Section, editor_schema, one_of
from mptcp_common.problems import DocumentError, Problem
from mptcp_common.validate import load, problem_at
from mptcp_common.yaml_document import text_of
from mptcp_gateway.model import Lan, Network
from mptcp_gateway.plan import MAX_UPLINKS

DEFAULT_SETTINGS: Final = Path("/etc/mptcp-gateway/gateway.yaml")
_TEXT: Final = {"type": "string", "minLength": 1}


def _parent(value: object) -> tuple[str, int]:
    text = str(value)
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or not 1 <= int(port) <= 65535:
        raise ValueError("write a name or an address, and a port: proxy.example.net:3128 or [2001:db8::5]:3128")
    return host, int(port)


def _prefix(value: object) -> Network:
    try:
        return ip_network(str(value))
    except ValueError as error:
        raise ValueError(f"{error}; write 192.168.1.20, 192.168.1.32/28 or 2001:db8::/32") from None


_Prefixes = list[Annotated[Network, Parsed(_prefix, _TEXT)]]


class PastSection(Section):
    """Traffic that bypasses the parents and the tunnel: it uses the best uplink, as with any router."""

    devices: _Prefixes = Field(default=[], description="Addresses or prefixes of devices.", examples=[["192.168.1.20"]])
    destinations: _Prefixes = Field(default=[], description="Addresses or prefixes of destinations.")
    ports: list[Port] = Field(default=[], description="Destination ports of TCP and UDP.", examples=[[5060]])


class LanSection(Section):
    """The home network, whose devices use this host as their gateway. No device needs a setting."""

    devices: list[Interface] = Field(description="Interfaces to the home network.", examples=[["br0"]])
    tunnel: Interface | None = Field(
        None, description="A VPN's interface for all traffic except TCP; without it, the best uplink is used."
    )
    quic: Annotated[str, one_of("refuse", "pass")] = Field(
        "refuse", description="refuse: UDP to port 443 is rejected, so that browsers use TCP, and so all uplinks."
    )
    fail: Annotated[str, one_of("open", "closed")] = Field(
        "open",
        description="open: if no parent answers, or the forwarder does not run, TCP uses the best uplink.",
    )
    past: PastSection = PastSection()


class GatewaySection(Section):
    """Settings of mptcp-gateway."""

    uplinks: dict[Name, Interface] = Field(
        description=f"The uplinks' devices by name, 2 to {MAX_UPLINKS}; connections begin on the first good one.",
        examples=[{"dsl": "eth0", "lte": "wwan0"}],
    )
    parents: list[Annotated[tuple[str, int], Parsed(_parent, _TEXT)]] = Field(
        description="Proxies. Multipath TCP connections to them test each uplink.",
        examples=[["proxy.example.net:3128"]],
    )
    lan: LanSection | None = Field(None, description="The home network, if this host is its gateway.")
    login: str | None = Field(None, description="NAME:PASSWORD for the parents; then only root may read the file.")


@dataclass(frozen=True, slots=True)
class Settings:
    """The checked settings with which the daemon runs."""

    uplinks: Mapping[str, str]
    """Devices by name of the uplink, in the order of preference."""
    parents: tuple[tuple[str, int], ...]
    """Host names or addresses, and ports."""
    source: str
    lan: Lan | None = None
    login: str = ""
    """NAME:PASSWORD, or empty."""


def settings_schema() -> dict[str, Any]:
    """Return the JSON Schema of the settings file."""
    return editor_schema(GatewaySection)


def load_settings(text: str, source: str) -> Settings:
    """Return the settings in *text*; raise DocumentError with all mistakes. *source*: name of the file, for
    messages."""
    section, document = load(GatewaySection, text, source)
    problems: list[Problem] = []

    def complain(key: str, message: str) -> None:
        problems.append(problem_at(document, (key,), None, message, document.key_position((key,))))

    if not 2 <= len(section.uplinks) <= MAX_UPLINKS:
        complain("uplinks", f"{len(section.uplinks)} uplinks; 2 to {MAX_UPLINKS} are allowed")
    if len(set(section.uplinks.values())) < len(section.uplinks):
        complain("uplinks", "two uplinks have the same device")
    if not section.parents:
        complain("parents", "no parent; uplinks are tried by connections to a parent")
    lan = section.lan
    if lan is not None and not lan.devices:
        complain("lan", "no devices; name the interfaces that lead to the home network")
    if lan is not None:
        for device in (*section.uplinks.values(), *lan.devices, *filter(None, [lan.tunnel])):
            if set(device) & set('"*'):
                complain("lan", f"{device}: nftables accepts no interface name with a quote or an asterisk")
    if section.login is not None and not all(section.login.partition(":")):
        complain("login", "write NAME:PASSWORD")
    if problems:
        raise DocumentError(problems)
    return Settings(
        section.uplinks, tuple(section.parents), source, None if lan is None else _lan(lan), section.login or ""
    )


def _lan(section: LanSection) -> Lan:
    past = section.past
    return Lan(
        tuple(section.devices),
        tuple(past.devices),
        tuple(past.destinations),
        tuple(past.ports),
        section.tunnel or "",
        section.quic == "refuse",
        section.fail == "open",
    )


def read_settings(path: Path) -> Settings:
    """Return the settings in the file *path*; raise DocumentError, also for a file that cannot be read."""
    return load_settings(text_of(path), str(path))
