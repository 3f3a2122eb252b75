# SPDX-License-Identifier: GPL-2.0-or-later
"""The settings file, tunnel.yaml: the tunnels and their paths. Pure: it parses text.

A tunnel with ``peer`` is a relay's: the relay has uplinks, and probes them. A tunnel without ``peer`` is a proxy's: it
serves one relay, and learns the paths from that relay's probes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field

from mptcp_common.endpoints import address_and_port
from mptcp_common.fields import (
    Interface,
    Name,
    Parsed,
    Port,
    Section,
    alternatives,
    between,
    editor_schema,
    one_of,
)
from mptcp_common.paths import AbsoluteFileName, SocketName
from mptcp_common.problems import DocumentError, Problem
from mptcp_common.validate import load, problem_at
from mptcp_common.yaml_document import text_of
from mptcp_tunnel.message import MIN_KEY_BYTES
from mptcp_tunnel.model import MAX_PATHS, MAX_TUNNELS, End, Mode, Split

DEFAULT_SETTINGS: Final = Path("/etc/mptcp-tunnel/tunnel.yaml")
MODES: Final = {
    "spill": Split(spill_share=0.75),
    "rate": Split(spill=0),
    "earliest": Split(spill=3_600_000_000_000),
    "order": Split(Mode.ORDER, 30_000_000),  # with less, bursts leave a path before its rate is learned
    "weights": Split(Mode.WEIGHTS),
    "one": Split(Mode.ONE),
}
"""The modes by name, each with its defaults."""
_MODES_WITH_SPILL: Final = ("spill", "order")
_TEXT: Final = {"type": "string", "minLength": 1}


def _peer(value: object) -> End:
    address, port = address_and_port(value, "203.0.113.5:51820", "[2001:db8::5]:51820")
    return End(ip_address(address), port)


class TunnelSection(Section):
    """One tunnel: the UDP packets between a program on this host and one on the other."""

    port: Port = Field(
        description="Local port of the tunnel program (ListenPort of WireGuard, lport of OpenVPN).", examples=[51820]
    )
    key: AbsoluteFileName = Field(
        description=f"File with the secret that both ends share, at least {MIN_KEY_BYTES} bytes.",
        examples=["/etc/mptcp-tunnel/home.key"],
    )
    peer: Annotated[End, Parsed(_peer, _TEXT)] | None = Field(
        default=None,
        description="Only on a relay: address and port of the other end's tunnel program, as configured there.",
        examples=["203.0.113.5:51820"],
    )
    paths: dict[Name, Interface] = Field(
        default={},
        description="Only on a relay: its uplinks by name, 2 to 8.",
        examples=[{"dsl": "eth0", "lte": "wwan0"}],
    )
    mode: Annotated[str, one_of(*MODES)] = Field(
        default="spill",
        description="How to choose a packet's path. spill: the path on which it would arrive first, where at most "
        "spill_ms of a path's additional delay counts; rate: the same without any delay; earliest: the same with the "
        "whole delay; order: the first in the relay's file whose queue is short; weights: by fixed shares; one: the "
        "first that is alive.",
    )
    spill_ms: Annotated[int, between(0, 1000)] | None = Field(
        default=None,
        description="Milliseconds. Mode spill: up to which limit a path's additional delay counts (default: three "
        "quarters of the greatest one, at least 10); mode order: how long a path's queue may be before the next path "
        "is used (default 30).",
    )
    queue_ms: Annotated[int, between(0, 1000)] = Field(
        default=30,
        description="Milliseconds that a packet may wait on a path, in addition to the paths' difference of delay. A "
        "packet that would wait longer is dropped, so that a download does not slow down calls and games. 0: no limit.",
    )
    weights: list[Annotated[int, between(1, 1000)]] = Field(
        default=[],
        description="Mode weights: the paths' shares of the bytes, in the order of the relay's file.",
        examples=[[90, 10]],
    )
    duplicate: bool = Field(
        default=False,
        description="IP packets under 286 bytes, and those marked as expedited (DSCP EF), are sent on two paths.",
    )


class TunnelsSection(Section):
    """Settings of mptcp-tunnel."""

    status_socket: SocketName = Field(
        default=Path("/run/mptcp-tunnel/status.sock"), description="The daemon's status socket."
    )
    uplinks: list[Interface] = Field(
        default=[], description="Only on a proxy: the interfaces on which relays' packets arrive.", examples=[["eth0"]]
    )
    tunnels: dict[Name, TunnelSection] = Field(
        description="The tunnels, by name.",
        examples=[{"home": {"port": 51820, "key": "/etc/mptcp-tunnel/home.key"}}],
    )


@dataclass(frozen=True, slots=True)
class Tunnel:
    """One tunnel, checked."""

    name: str
    port: int
    key: Path
    peer: End | None
    paths: tuple[tuple[str, str], ...]
    """Names and interfaces."""
    split: Split
    """How to split the packets in the direction from this host."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The checked settings with which the daemon runs."""

    status_socket: Path
    uplinks: tuple[str, ...]
    """Interfaces on which the tunnels' packets leave and arrive."""
    tunnels: tuple[Tunnel, ...]
    source: str


def settings_schema() -> dict[str, Any]:
    """Return the JSON Schema of the settings file."""
    return editor_schema(TunnelsSection)


def load_settings(text: str, source: str) -> Settings:
    """Return the settings in *text*; raise DocumentError with all mistakes. *source*: name of the file, for
    messages."""
    section, document = load(TunnelsSection, text, source)
    problems: list[Problem] = []

    def complain(path: tuple[str | int, ...], message: str) -> None:
        problems.append(problem_at(document, path, None, message, document.key_position(path)))

    peers: dict[End, str] = {}
    if len(section.tunnels) > MAX_TUNNELS:
        complain(("tunnels",), f"{len(section.tunnels)} tunnels are too many; {MAX_TUNNELS} are allowed")
    for name, each in section.tunnels.items():
        key_path = ("tunnels", name)
        if each.peer is None and each.paths:
            complain(
                (*key_path, "paths"), 'paths need a "peer": only a relay has them; a proxy learns them from its relay'
            )
        if each.peer is None and not section.uplinks:
            complain(
                key_path,
                'a tunnel without a "peer" belongs to a proxy, which needs "uplinks"; write its interfaces to relays',
            )
        if each.peer is not None and not 2 <= len(each.paths) <= MAX_PATHS:
            complain(key_path, f"{len(each.paths)} paths; a relay has 2 to {MAX_PATHS}")
        if len(set(each.paths.values())) < len(each.paths):
            complain((*key_path, "paths"), "two paths have the same interface")
        if each.spill_ms is not None and each.mode not in _MODES_WITH_SPILL:
            complain(
                (*key_path, "spill_ms"),
                f"mode {each.mode} does not use it; write mode {alternatives(_MODES_WITH_SPILL)}",
            )
        if each.weights and each.mode != "weights":
            complain((*key_path, "weights"), f'mode {each.mode} does not use weights; write "mode: weights"')
        if each.mode == "weights":
            minimum, maximum = (2, MAX_PATHS) if each.peer is None else (len(each.paths),) * 2
            if not minimum <= len(each.weights) <= maximum:
                requirement = (
                    f"{minimum} to {maximum} are" if each.peer is None else f"{maximum}, one for each path, are"
                )
                complain((*key_path, "mode"), f"{len(each.weights)} weights; {requirement} needed")
        if each.peer is not None and (other := peers.setdefault(each.peer, name)) != name:
            complain((*key_path, "peer"), f"tunnel {other} has the same peer, so their packets cannot be distinguished")
    if problems:
        raise DocumentError(problems)
    tunnels = tuple(
        Tunnel(name, each.port, each.key, each.peer, tuple(each.paths.items()), _split(each))
        for name, each in section.tunnels.items()
    )
    uplinks = dict.fromkeys([*section.uplinks, *(interface for each in tunnels for _, interface in each.paths)])
    return Settings(section.status_socket, tuple(uplinks), tunnels, source)


def _split(section: TunnelSection) -> Split:
    mode = MODES[section.mode]
    if section.spill_ms is not None:
        mode = replace(mode, spill=section.spill_ms * 1_000_000, spill_share=0.0)
    queue = section.queue_ms * 1_000_000
    return replace(mode, queue=queue, weights=tuple(section.weights), duplicate=section.duplicate)


def read_settings(path: Path) -> Settings:
    """Return the settings in the file *path*; raise DocumentError, also for a file that cannot be read."""
    return load_settings(text_of(path), str(path))


def read_key(path: Path) -> bytes:
    """Return the secret in a key file, without white space at its ends. Raises ValueError and OSError."""
    if path.stat().st_mode & 0o077:
        raise ValueError(f"{path} can be read by other users than its owner; chmod 600 {path}")
    key = path.read_bytes().strip()
    if len(key) < MIN_KEY_BYTES:
        raise ValueError(f"{path} has {len(key)} bytes; a key has at least {MIN_KEY_BYTES}")
    return key
