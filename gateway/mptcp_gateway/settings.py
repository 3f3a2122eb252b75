"""The settings file, gateway.yaml: which uplinks there are, and what they are tried by. Text comes in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field

from mptcp_common.fields import Interface, Name, Parsed, Section, editor_schema
from mptcp_common.problems import DocumentError, Problem
from mptcp_common.validate import problem_at, validate
from mptcp_common.yaml_document import parse_document, text_of
from mptcp_gateway.plan import MOST_UPLINKS

DEFAULT_SETTINGS: Final = Path("/etc/mptcp-gateway/gateway.yaml")
_TEXT: Final = {"type": "string", "minLength": 1}


def _parent(value: object) -> tuple[str, int]:
    text = str(value)
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or not 1 <= int(port) <= 65535:
        raise ValueError("write a name or an address, and a port: proxy.example.net:3128 or [2001:db8::5]:3128")
    return host, int(port)


class GatewaySection(Section):
    """Settings of mptcp-gateway."""

    uplinks: dict[Name, Interface] = Field(
        description=f"The uplinks' devices by name, 2 to {MOST_UPLINKS}; connections begin on the first that is good.",
        examples=[{"dsl": "eth0", "lte": "wwan0"}],
    )
    parents: list[Annotated[tuple[str, int], Parsed(_parent, _TEXT)]] = Field(
        description="Proxies to which each uplink is tried by a Multipath TCP connection.",
        examples=[["proxy.example.net:3128"]],
    )


@dataclass(frozen=True, slots=True)
class Settings:
    """What the daemon runs with, checked."""

    uplinks: Mapping[str, str]
    """Devices by name, in order."""
    parents: tuple[tuple[str, int], ...]
    """Host names or addresses, and ports."""
    source: str


def settings_schema() -> dict[str, Any]:
    """Return the JSON Schema of the settings file."""
    return editor_schema(GatewaySection)


def load_settings(text: str, source: str) -> Settings:
    """Return the settings in *text*; raise DocumentError with all that is wrong. *source* names the file to people."""
    document = parse_document(text, source)
    section, problems = validate(GatewaySection, document)
    if section is None or problems:
        raise DocumentError(problems)
    wrong: list[Problem] = []

    def complain(key: str, message: str) -> None:
        wrong.append(problem_at(document, (key,), None, message, document.key_position((key,))))

    if not 2 <= len(section.uplinks) <= MOST_UPLINKS:
        complain("uplinks", f"{len(section.uplinks)} uplinks; allowed are 2 to {MOST_UPLINKS}")
    if len(set(section.uplinks.values())) < len(section.uplinks):
        complain("uplinks", "two uplinks have the same device")
    if not section.parents:
        complain("parents", "no parent; uplinks are tried by connections to one")
    if wrong:
        raise DocumentError(wrong)
    return Settings(section.uplinks, tuple(section.parents), source)


def read_settings(path: Path) -> Settings:
    """Return the settings in the file *path*; raise DocumentError, also for a file that cannot be read."""
    return load_settings(text_of(path), str(path))
