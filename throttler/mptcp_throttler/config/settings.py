# SPDX-License-Identifier: GPL-2.0-or-later
"""The daemon's settings, checked as text like a policy: all errors at once, each with its line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final

from pydantic import AfterValidator, Field, PrivateAttr

from mptcp_common.fields import Interface, Parsed, Port, Section, between, one_of, seconds
from mptcp_common.paths import AbsoluteFileName, FileName, SocketName
from mptcp_common.problems import Problem, Severity, did_you_mean, shown
from mptcp_common.throttler_needs import ANY_BACKEND, BACKENDS
from mptcp_common.units import SIZE_PATTERN, counted, parse_size
from mptcp_common.validate import load, problem_at
from mptcp_common.yaml_document import Document
from mptcp_throttler.config import DEFAULT_SOCKET
from mptcp_throttler.policy.model import Policy
from mptcp_throttler.shaping.model import Ownership

MIN_GSO: Final = 2048
MAX_GSO: Final = 65536
_GROUP_NAME: Final = r"[A-Za-z_][A-Za-z0-9_.-]{0,31}"
_DEFAULT: Final = Ownership()  # the default ports, mark bits and major number
_TUNNEL_SOCKET: Final = "/run/mptcp-tunnel/status.sock"
_LEDGER: Final = "/var/lib/mptcp-throttler/ledger.sqlite"


def _number_field(noun: str, maximum: int, example: str, note: str = "") -> Parsed:
    """Return the annotation for a number from 1 to *maximum*, or hexadecimal text as long as *example*."""
    digits = len(example)

    def parse(value: object) -> int:
        number = value
        if isinstance(value, str) and value.lower().startswith("0x"):
            with suppress(ValueError):
                number = int(value, 16)
        if type(number) is not int:
            raise ValueError(f"{shown(value)} is not {noun}; write a hexadecimal number (e.g. {example})")
        if not 1 <= number <= maximum:
            shown_number = f"{number:#0{digits}x}"
            raise ValueError(f"{shown_number} is out of range; {note}{1:#0{digits}x} to {maximum:#x} is allowed")
        return number

    text = {"type": "string", "pattern": "^0[xX][0-9a-fA-F]{1,8}$"}
    return Parsed(parse, {"anyOf": [{"type": "integer", "minimum": 1, "maximum": maximum}, text]})


def _check_contiguous(mask: int) -> int:
    bits = mask // (mask & -mask)
    if bits & (bits + 1):
        raise ValueError(f"{mask:#010x} has gaps; its bits must be contiguous (e.g. 0x00ff0000)")
    return mask


def _parse_group(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(_GROUP_NAME, value):
        raise ValueError(f"{shown(value)} is not the name of a group; write e.g. adm")
    return value


def _parse_gso(value: object) -> int | str:
    if value in ("auto", "keep") and isinstance(value, str):
        return value
    try:
        return parse_size(value, MIN_GSO, MAX_GSO)
    except ValueError as error:
        raise ValueError(f"{error}; or write auto or keep") from None


_GSO_BYTES: Final = {"type": "integer", "minimum": MIN_GSO, "maximum": MAX_GSO}
_GSO_TEXT: Final = {"type": "string", "pattern": SIZE_PATTERN}

_MarkMask = _number_field("a mark mask", 0xFFFFFFFF, "0x00ff0000", "a packet mark has 32 bits, ")
_Mask = Annotated[int, _MarkMask, AfterValidator(_check_contiguous)]
_Major = Annotated[int, _number_field("a handle", 0xFFFE, "0x4d50")]
_Group = Annotated[str, Parsed(_parse_group, {"type": "string", "pattern": f"^{_GROUP_NAME}$"})]
_Gso = Annotated[int | str, Parsed(_parse_gso, {"anyOf": [{"enum": ["auto", "keep"]}, _GSO_BYTES, _GSO_TEXT]})]


class Settings(Section):
    """Settings of mptcp-throttler: its interfaces and ports, its kernel objects, its files and sockets."""

    interfaces: list[Interface] = Field(min_length=1, examples=[["wan0"]])
    """Interfaces that carry the clients' subflows. Of two stacked interfaces (VLAN, bridge, bond), list only one."""
    listen_ports: list[Port] = Field(default=list(_DEFAULT.listen_ports), min_length=1, examples=[[3128]])
    """Ports on which the proxy listens; other traffic is ignored. Ports of `ip mptcp endpoint` are added."""
    tunnel_ports: list[Port] = Field(default=[], examples=[[51820]])
    """Ports of programs whose UDP packets `mptcp-tunnel` carries: their tunnels come under the policy."""
    tunnel_socket: SocketName = Field(default=Path(_TUNNEL_SOCKET), examples=[_TUNNEL_SOCKET])
    """The Unix socket of `mptcp-tunnel`."""
    policy: FileName = Field(examples=["policy.yaml"])
    """The policy file, relative to the directory of this file."""
    netfilter: Annotated[str, one_of(ANY_BACKEND, *BACKENDS)] = Field(default="auto", examples=["nftables"])
    """How packets are marked: iptables with ipset, or nftables. auto: the first that the kernel supports."""
    mark_mask: _Mask = Field(
        default=_DEFAULT.mark_mask,
        examples=["0x00ff0000"],
        json_schema_extra={"default": f"0x{_DEFAULT.mark_mask:08x}"},
    )
    """Bits of the packet mark for the throttler: adjacent, and enough to number the rules from 1."""
    htb_major: _Major = Field(
        default=_DEFAULT.htb_major, examples=["0x4d50"], json_schema_extra={"default": f"0x{_DEFAULT.htb_major:04x}"}
    )
    """The major number of the root qdisc, 0x0001 to 0xfffe."""
    status_socket: SocketName = Field(default=Path(DEFAULT_SOCKET), examples=["/run/mptcp-throttler/status.sock"])
    """The Unix socket that answers `mptcp-throttler status`."""
    status_group: _Group | None = Field(default=None, examples=["adm"])
    """The group whose members may query the status; the daemon must be a member (`SupplementaryGroups=`). Default:
    the daemon's own, `mptcp-throttler`."""
    state_directory: AbsoluteFileName = Field(default=Path("/run/mptcp-throttler"), examples=["/run/mptcp-throttler"])
    """Records what to restore after a crash."""
    ledger: AbsoluteFileName = Field(default=Path(_LEDGER), examples=[_LEDGER])
    """The database of what budgets have used."""
    gso_max_size: _Gso = Field(default="auto", examples=["auto", 4500])
    """The largest segment given to the interfaces at once. auto: by the lowest cap; keep: unchanged; or bytes."""
    verify_interval: Annotated[float, seconds(1, 3600)] = Field(default=10.0, examples=[10])
    """Seconds between comparisons of the kernel's state with the intended state."""
    max_connections: Annotated[int, between(1, 1_000_000)] = Field(default=65536, examples=[65536])
    """Maximum number of tracked connections. A client (IPv4 address or IPv6 /64) may have as many as are free; the
    kernel closes others."""
    log_level: Annotated[str, one_of("error", "warning", "info", "debug")] = Field(default="info", examples=["debug"])
    """The least important messages logged."""
    _source: str = PrivateAttr("")
    _lines: dict[str, int] = PrivateAttr(default_factory=dict)

    @property
    def ownership(self) -> Ownership:
        return Ownership(tuple(self.listen_ports), tuple(self.tunnel_ports), self.mark_mask, self.htb_major)

    def problem(self, key: str, message: str, severity: Severity = Severity.ERROR) -> Problem:
        """Return a problem with *key* of the settings file, on its line."""
        return Problem(self._source, self._lines.get(key, 0), 0, key, None, message, severity)


def load_settings(text: str, source: str) -> Settings:
    """Return the settings in *text*. *source* is the file's path; relative paths start at its directory. Raises
    :class:`DocumentError` with all problems."""
    settings, document = load(Settings, text, source, _item_problems)
    settings._source = source
    settings._lines = {str(path[0]): position.line for path, position in document.keys.items() if len(path) == 1}
    return settings.model_copy(update={"policy": Path(source).parent / settings.policy})


def add_announced_ports(settings: Settings, announced: Iterable[int]) -> Settings:
    """Return *settings* with the *announced* ports, at which clients may join, added to ``listen_ports``."""
    return settings.model_copy(update={"listen_ports": [*dict.fromkeys((*settings.listen_ports, *announced))]})


def check_together(settings: Settings, policy: Policy) -> Iterator[Problem]:
    """Yield the contradictions between settings and policy."""
    ownership, rule_count = settings.ownership, len(policy.rules)
    max_rules = ownership.mark_mask >> ownership.mark_shift
    if rule_count > max_rules:
        message = (
            f"{ownership.mark_mask:#010x} is enough for {counted(max_rules, 'rule')}, but the policy has {rule_count}; "
            f"use at least {rule_count.bit_length()} bits, or fewer rules"
        )
        yield settings.problem("mark_mask", message)
    if ownership.tunnel_ports and (policy.acts_on_upload or any(rule.steer for rule in policy.rules)):
        message = "uploads of tunnels are counted but not capped, and no rule steers tunnels"
        yield settings.problem("tunnel_ports", message, Severity.WARNING)
    for path in policy.paths.values():
        for name in sorted(set(path.interfaces or ()) - set(settings.interfaces)):
            message = (
                f"the policy's path {path.name} names {name}, which is not listed here"
                f"{did_you_mean(name, settings.interfaces)}: add it, or its subflows are not captured"
            )
            yield settings.problem("interfaces", message, Severity.WARNING)


def _item_problems(document: Document) -> Iterator[Problem]:
    tcp_ports = (document.data or {}).get("listen_ports", _DEFAULT.listen_ports)
    for key in ("interfaces", "listen_ports", "tunnel_ports"):
        items = (document.data or {}).get(key)
        if not isinstance(items, list):
            continue
        for index, item in enumerate(items):
            message = ""
            if isinstance(item, str | int) and item in items[:index]:
                message = "is listed twice; once is enough"
            elif key == "tunnel_ports" and isinstance(tcp_ports, list | tuple) and item in tcp_ports:
                message = "is among listen_ports; use another port, because the port distinguishes tunnels from TCP"
            if message:
                yield problem_at(document, (key, index), item, f"{shown(item)} {message}")
