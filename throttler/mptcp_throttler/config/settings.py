"""The daemon's settings, checked as text like a policy: all errors at once, each with its line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal, cast

from pydantic import Field

from mptcp_common.fields import Interface, Parsed, Section, between, editor_schema, one_of
from mptcp_common.paths import absolute_path, file_path, socket_path
from mptcp_common.problems import DocumentError, Problem, Severity, did_you_mean, in_order, shown
from mptcp_common.throttler_needs import BACKENDS, BY_EITHER
from mptcp_common.units import SIZE_PATTERN, parse_size
from mptcp_common.validate import problem_at, validate
from mptcp_common.yaml_document import Document, parse_document
from mptcp_throttler.config.status_socket import DEFAULT_SOCKET
from mptcp_throttler.policy.model import Policy
from mptcp_throttler.shaping.model import Ownership

GsoChoice = Literal["auto", "keep"]
LogLevel = Literal["error", "warning", "info", "debug"]

SMALLEST_GSO: Final = 2048
LARGEST_GSO: Final = 65536
_WORD: Final = 0xFFFFFFFF
_GROUP_NAME: Final = r"[A-Za-z_][A-Za-z0-9_.-]{0,31}"
_OURS: Final = Ownership()


class SettingsError(DocumentError):
    """The settings cannot be used. ``problems`` has all errors, ``str()`` one line for each."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The checked settings. Sizes in bytes, times in seconds."""

    interfaces: tuple[str, ...]
    """The interfaces of the subflows: the daemon captures on them and shapes their egress."""
    policy: Path
    """The policy file; relative paths start at the directory of the settings file."""
    ownership: Ownership
    netfilter: str
    """One of ``BACKENDS``, or ``BY_EITHER`` (``mptcp_common.throttler_needs``)."""
    status_socket: Path
    state_directory: Path
    gso_max_size: int | GsoChoice
    verify_interval: float
    max_connections: int
    log_level: LogLevel
    ledger: Path = Path("/var/lib/mptcp-throttler/ledger.sqlite")
    tunnel_socket: Path = Path("/run/mptcp-tunnel/status.sock")
    status_group: str | None = None
    """The group that may ask for the status, besides root; None: the group of the daemon."""
    source: str = ""
    """The settings file, for messages."""
    lines: Mapping[str, int] = field(default_factory=dict, compare=False, repr=False)
    """Line number of each key in the file, for messages."""


def _mask(value: object) -> int:
    number = _number(value)
    text = shown(value) if number is None or isinstance(value, str) else f"0x{number:08x}"
    if number is None:
        raise ValueError(f"{text} is not a mark mask; write a hexadecimal number (e.g. 0x00ff0000)")
    if not 0 < number <= _WORD:
        raise ValueError(f"{text} is out of range; a packet mark has 32 bits, 0x00000001 to 0xffffffff is allowed")
    bits = number // (number & -number)
    if bits & (bits + 1):
        raise ValueError(f"{text} has gaps; its bits must stand next to each other (e.g. 0x00ff0000)")
    return number


def _major(value: object) -> int:
    number = _number(value)
    if number is None:
        raise ValueError(f"{shown(value)} is not a handle; write a hexadecimal number (e.g. 0x4d50)")
    if not 1 <= number <= 0xFFFE:
        text = shown(value) if isinstance(value, str) else f"0x{number:04x}"
        raise ValueError(f"{text} is out of range; 0x0001 to 0xfffe is allowed")
    return number


def _number(value: object) -> int | None:
    if type(value) is int:
        return value
    try:
        return int(value, 16) if isinstance(value, str) and value.lower().startswith("0x") else None
    except ValueError:
        return None


def _group(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(_GROUP_NAME, value):
        raise ValueError(f"{shown(value)} is not the name of a group; write e.g. adm")
    return value


def _gso(value: object) -> int | str:
    if value in ("auto", "keep") and isinstance(value, str):
        return value
    try:
        return parse_size(value, SMALLEST_GSO, LARGEST_GSO)
    except ValueError as error:
        raise ValueError(f"{error}; or write auto or keep") from None


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{shown(value)} is not a number of seconds; 1 to 3600 is allowed")
    if not 1 <= value <= 3600:
        raise ValueError(f"{shown(value)} is out of range; 1 to 3600 seconds is allowed")
    return float(value)


_HEXADECIMAL: Final = {"type": "string", "pattern": "^0[xX][0-9a-fA-F]{1,8}$"}
_PATH: Final = {"type": "string", "minLength": 1}
_GROUP: Final = {"type": "string", "pattern": f"^{_GROUP_NAME}$"}
_ABSOLUTE: Final = {"type": "string", "pattern": "^/"}


class SettingsSection(Section):
    """Settings of mptcp-throttler: what it watches, what it may touch in the kernel, where it talks."""

    interfaces: list[Interface] = Field(
        min_length=1,
        description="Interfaces that carry the clients' subflows. Of two that lie on each other (VLAN, bridge, bond),"
        " only one.",
        examples=[["wan0"]],
    )
    listen_ports: list[Annotated[int, between(1, 65535)]] = Field(
        default=list(_OURS.listen_ports),
        min_length=1,
        description="Ports on which the proxy listens; other traffic is left alone. Ports of `ip mptcp endpoint` are "
        "added.",
        examples=[[3128]],
    )
    tunnel_ports: list[Annotated[int, between(1, 65535)]] = Field(
        default=[],
        description="Ports of programs whose UDP packets `mptcp-tunnel` carries: their tunnels come under the policy.",
        examples=[[51820]],
    )
    tunnel_socket: Annotated[str, Parsed(socket_path, _ABSOLUTE)] = Field(
        default="/run/mptcp-tunnel/status.sock",
        description="The Unix socket of `mptcp-tunnel`.",
        examples=["/run/mptcp-tunnel/status.sock"],
    )
    policy: Annotated[str, Parsed(file_path, _PATH)] = Field(
        description="The policy file, relative to the directory of this file.",
        examples=["policy.yaml"],
    )
    netfilter: Annotated[str, one_of(BY_EITHER, *BACKENDS)] = Field(
        default="auto",
        description="What marks packets: iptables with ipset, or nftables. auto: the first that the kernel offers.",
        examples=["nftables"],
    )
    mark_mask: Annotated[
        int, Parsed(_mask, {"anyOf": [{"type": "integer", "minimum": 1, "maximum": _WORD}, _HEXADECIMAL]})
    ] = Field(
        default=_OURS.mark_mask,
        description="Bits of the packet mark for the throttler: adjacent, and enough to number the rules from 1.",
        examples=["0x00ff0000"],
        json_schema_extra={"default": f"0x{_OURS.mark_mask:08x}"},
    )
    htb_major: Annotated[
        int, Parsed(_major, {"anyOf": [{"type": "integer", "minimum": 1, "maximum": 0xFFFE}, _HEXADECIMAL]})
    ] = Field(
        default=_OURS.htb_major,
        description="The major number of the root qdisc, 0x0001 to 0xfffe.",
        examples=["0x4d50"],
        json_schema_extra={"default": f"0x{_OURS.htb_major:04x}"},
    )
    status_socket: Annotated[str, Parsed(socket_path, _ABSOLUTE)] = Field(
        default=DEFAULT_SOCKET,
        description="The Unix socket that answers `mptcp-throttler status`.",
        examples=["/run/mptcp-throttler/status.sock"],
    )
    status_group: Annotated[str, Parsed(_group, _GROUP)] | None = Field(
        default=None,
        description="The group whose members may ask for the status; the daemon must be a member "
        "(`SupplementaryGroups=`). Default: the daemon's own, `mptcp-throttler`.",
        examples=["adm"],
    )
    state_directory: Annotated[str, Parsed(absolute_path, _ABSOLUTE)] = Field(
        default="/run/mptcp-throttler",
        description="Records what to restore after a crash.",
        examples=["/run/mptcp-throttler"],
    )
    ledger: Annotated[str, Parsed(absolute_path, _ABSOLUTE)] = Field(
        default="/var/lib/mptcp-throttler/ledger.sqlite",
        description="The database of what budgets have used.",
        examples=["/var/lib/mptcp-throttler/ledger.sqlite"],
    )
    gso_max_size: Annotated[
        int | str,
        Parsed(
            _gso,
            {
                "anyOf": [
                    {"enum": ["auto", "keep"]},
                    {"type": "integer", "minimum": SMALLEST_GSO, "maximum": LARGEST_GSO},
                    {"type": "string", "pattern": SIZE_PATTERN},
                ]
            },
        ),
    ] = Field(
        default="auto",
        description="The largest segment given to the interfaces at once. auto: by the lowest cap; keep: unchanged; "
        "or bytes.",
        examples=["auto", 4500],
    )
    verify_interval: Annotated[float, Parsed(_seconds, {"type": "number", "minimum": 1, "maximum": 3600})] = Field(
        default=10.0,
        description="Seconds between comparisons of the kernel's state with the intended state.",
        examples=[10],
    )
    max_connections: Annotated[int, between(1, 1_000_000)] = Field(
        default=65536,
        description="Connections tracked. A client (IPv4 address or IPv6 /64) may have as many as there is room left;"
        " the kernel closes others.",
        examples=[65536],
    )
    log_level: Annotated[str, one_of("error", "warning", "info", "debug")] = Field(
        default="info", description="The least important messages logged.", examples=["debug"]
    )


def settings_schema() -> dict[str, Any]:
    """Return the JSON Schema of the settings file."""
    return editor_schema(SettingsSection)


def load_settings(text: str, source: str) -> Settings:
    """Return the settings in *text*. Raises :class:`SettingsError` with all problems.

    *source* is the path of the file, for messages; relative paths start at its directory.
    """
    document = parse_document(text, source)
    section, problems = validate(SettingsSection, document)
    problems = in_order([*problems, *_repeated_items(document)])
    if section is None or problems:
        raise SettingsError(problems)
    return Settings(
        interfaces=tuple(section.interfaces),
        policy=Path(source).parent / section.policy,
        ownership=Ownership(
            listen_ports=tuple(section.listen_ports),
            tunnel_ports=tuple(section.tunnel_ports),
            mark_mask=section.mark_mask,
            htb_major=section.htb_major,
        ),
        netfilter=section.netfilter,
        status_socket=Path(section.status_socket),
        state_directory=Path(section.state_directory),
        tunnel_socket=Path(section.tunnel_socket),
        status_group=section.status_group,
        ledger=Path(section.ledger),
        gso_max_size=cast("int | GsoChoice", section.gso_max_size),
        verify_interval=section.verify_interval,
        max_connections=section.max_connections,
        log_level=cast("LogLevel", section.log_level),
        source=source,
        lines={str(path[0]): at.line for path, at in document.keys.items() if len(path) == 1},
    )


def with_announced_ports(settings: Settings, announced: Iterable[int]) -> Settings:
    """Return *settings* with the *announced* ports, at which clients may join, added to ``listen_ports``."""
    ownership = settings.ownership
    ports = tuple(dict.fromkeys((*ownership.listen_ports, *announced)))
    return replace(settings, ownership=replace(ownership, listen_ports=ports))


def check_together(settings: Settings, policy: Policy) -> tuple[Problem, ...]:
    """Return the contradictions between settings and policy."""

    def problem(key: str, value: str, message: str, severity: Severity) -> Problem:
        return Problem(settings.source, settings.lines.get(key, 0), 0, key, value, message, severity)

    problems = []
    mask = settings.ownership.mark_mask
    numbers = mask >> settings.ownership.mark_shift
    if len(policy.rules) > numbers:
        need = len(policy.rules).bit_length()
        problems.append(
            problem(
                "mark_mask",
                f"0x{mask:08x}",
                f"0x{mask:08x} numbers {numbers} {'rule' if numbers == 1 else 'rules'}, but the policy has "
                f"{len(policy.rules)}; give it at least {need} bits, or the policy fewer rules",
                Severity.ERROR,
            )
        )
    if settings.ownership.tunnel_ports and (policy.acts_on_upload or any(rule.steer for rule in policy.rules)):
        message = "of tunnels, uploads are counted and not capped, and no rule steers them"
        problems.append(problem("tunnel_ports", "", message, Severity.WARNING))
    for path in policy.paths.values():
        unseen = sorted(set(path.interfaces or ()) - set(settings.interfaces))
        problems += [
            problem(
                "interfaces",
                name,
                f"the policy's path {path.name} names {name}, on which nothing is captured"
                f"{did_you_mean(name, settings.interfaces)}: add it here, or no subflow is seen on it",
                Severity.WARNING,
            )
            for name in unseen
        ]
    return in_order(problems)


def _repeated_items(document: Document) -> Iterator[Problem]:
    taken = (document.data or {}).get("listen_ports", _OURS.listen_ports)
    for key in ("interfaces", "listen_ports", "tunnel_ports"):
        items = (document.data or {}).get(key)
        if not isinstance(items, list):
            continue
        for index, item in enumerate(items):
            if isinstance(item, str | int) and item in items[:index]:
                message = f"{shown(item)} is listed twice; once is enough"
                yield problem_at(document, (key, index), item, message)
            elif key == "tunnel_ports" and isinstance(taken, list | tuple) and item in taken:
                message = (
                    f"{shown(item)} is among listen_ports; a tunnel's must be another, for the port tells which is UDP"
                )
                yield problem_at(document, (key, index), item, message)
