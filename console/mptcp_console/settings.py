# SPDX-License-Identifier: GPL-2.0-or-later
"""The console's settings file: its listening address, its sources, and its access rules. All mistakes are reported
together, each with its line."""

from __future__ import annotations

import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field

from mptcp_common.endpoints import address_and_port
from mptcp_common.fields import Parsed, Section, editor_schema
from mptcp_common.paths import FileName, SocketName
from mptcp_common.problems import DocumentError, Problem, shown
from mptcp_common.reasons import reason
from mptcp_common.validate import load, problem_at
from mptcp_common.yaml_document import Document, text_of
from mptcp_console.access import MAX_TOKEN_CHARACTERS, is_loopback, token_problem
from mptcp_console.address_names import read_names

DEFAULT_SETTINGS: Final = Path("/etc/mptcp-console/console.yaml")
TOKEN_NAME: Final = "token"
"""Name of the default token file, in the directory of the settings."""
DEFAULT_LISTEN: Final = "127.0.0.1:8610"
DEFAULT_SOCKET: Final = "/run/mptcp-throttler/status.sock"
DEFAULT_SQUID: Final = "http://127.0.0.1:3128"
_SQUID: Final = r"^http://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9][A-Za-z0-9._-]*):[0-9]{1,5}$"
_URL: Final = r"^https?://[^\s/?#<>]+[^\s<>]*$"
_HOST_NAME: Final = r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,252})$"


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings file, checked."""

    address: str = "127.0.0.1"
    port: int = 8610
    status_socket: Path = Path(DEFAULT_SOCKET)
    token: str | None = None
    hosts: tuple[str, ...] = ()
    certificate: Path | None = None
    key: Path | None = None
    squid: str = DEFAULT_SQUID
    token_file: Path | None = None
    names: Path | None = None
    grafana: str | None = None

    @property
    def url(self) -> str:
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"http{'s' if self.certificate else ''}://{host}:{self.port}/"


def _listen(value: object) -> tuple[str, int]:
    return address_and_port(value, DEFAULT_LISTEN, "[::1]:8610")


def _squid(value: object) -> str:
    found = re.fullmatch(_SQUID, value) if isinstance(value, str) else None
    if found is None or not isinstance(value, str) or not 1 <= int(value.rpartition(":")[2]) <= 65535:
        raise ValueError(f"{shown(value)} is not the address of Squid's listener; write e.g. {DEFAULT_SQUID}")
    return value


def _url(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(_URL, value):
        raise ValueError(f"{shown(value)} is not the address of a web page; write e.g. https://grafana.lan/d/mptcp")
    return value


def _host_name(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(_HOST_NAME, value):
        raise ValueError(f"{shown(value)} is not a host name; write it without http:// and port, e.g. proxy.lan")
    return value


class ConsoleSection(Section):
    """Settings of mptcp-console: its listening address, its sources, and its access rules."""

    listen: Annotated[tuple[str, int], Parsed(_listen, {"type": "string"})] = Field(
        default=("127.0.0.1", 8610),
        description=f"Address and port. Default: {DEFAULT_LISTEN}.",
        examples=[DEFAULT_LISTEN, "[::1]:8610"],
        json_schema_extra={"default": DEFAULT_LISTEN},
    )
    status_socket: SocketName = Field(
        default=Path(DEFAULT_SOCKET),
        description="The throttler's status socket.",
        examples=[DEFAULT_SOCKET],
        json_schema_extra={"default": DEFAULT_SOCKET},
    )
    token_file: FileName | None = Field(
        default=None,
        description="A file with one line, the token that gives access to the console. Only its owner and group may "
        "read it. A relative path starts at the directory of this file. Default: token, which mptcp-console "
        "make-token writes, also at the unit's first start.",
        examples=["token"],
        json_schema_extra={"default": TOKEN_NAME},
    )
    open_to_this_host: bool = Field(
        default=False,
        description="Whether every user of this host may see the console without a token; only on loopback.",
        examples=[True],
    )
    hosts: list[Annotated[str, Parsed(_host_name, {"type": "string", "pattern": _HOST_NAME})]] = Field(
        default=[],
        description="Names by which browsers address the console. Its address is always allowed, and localhost if it "
        "listens on loopback or on all addresses.",
        examples=[["proxy.lan"]],
    )
    certificate: FileName | None = Field(
        default=None, description="A certificate chain (PEM), for HTTPS; together with key.", examples=["console.pem"]
    )
    key: FileName | None = Field(
        default=None, description="The private key of the certificate (PEM).", examples=["console.key"]
    )
    squid: Annotated[str, Parsed(_squid, {"type": "string", "pattern": _SQUID})] = Field(
        default=DEFAULT_SQUID,
        description="Squid's listener, for the metrics of Squid's own counters. Squid gives them only to this host.",
        examples=[DEFAULT_SQUID],
    )
    names: FileName | None = Field(
        default=None,
        description="A file with names for addresses, which the page shows next to them. Each line has an address and "
        "its name, as in /etc/hosts. A relative path starts at the directory of this file.",
        examples=["names"],
    )
    grafana: Annotated[str, Parsed(_url, {"type": "string", "pattern": _URL})] | None = Field(
        default=None,
        description="The address of Grafana, or of a dashboard there, for a link on the page.",
        examples=["https://grafana.lan/d/mptcp"],
    )


def settings_schema() -> dict[str, Any]:
    """Return the JSON Schema of the settings file."""
    return editor_schema(ConsoleSection)


def read_settings(path: Path) -> Settings:
    """Return the settings in *path*, with the token. Raises DocumentError with all problems."""
    return _make_settings(*_section(path), path.parent)


def settings_without_a_file() -> Settings:
    """Return the default settings, with the token. Raises DocumentError without a token."""
    path = DEFAULT_SETTINGS.parent / TOKEN_NAME
    token, problem = _token(path)
    if problem is not None:
        raise DocumentError([_default_token_problem(path, problem)])
    return Settings(token=token, token_file=path)


def uses_default_token(path: Path) -> bool:
    """Return whether the settings in *path*, which may be missing, use the file :data:`TOKEN_NAME` in their
    directory."""
    try:
        section = _section(path)[0] if path.exists() else ConsoleSection()
    except DocumentError:
        return False
    token_file = path.parent / (section.token_file or TOKEN_NAME)
    return not section.open_to_this_host and token_file == path.parent / TOKEN_NAME


def _section(path: Path) -> tuple[ConsoleSection, Document]:
    return load(ConsoleSection, text_of(path), str(path))


def _make_settings(section: ConsoleSection, document: Document, directory: Path) -> Settings:
    problems: list[Problem] = []
    address, port = section.listen
    token = token_file = None
    if not section.open_to_this_host:
        token_file = directory / (section.token_file or TOKEN_NAME)
        token, problem = _token(token_file)
        if problem is not None and section.token_file is None:
            problems.append(_default_token_problem(token_file, problem))
        elif problem is not None:
            problems.append(problem_at(document, ("token_file",), str(section.token_file), f"{token_file} {problem}"))
    elif section.token_file is not None:
        problems.append(problem_at(document, ("open_to_this_host",), None, "is true, so token_file is not used"))
    elif not is_loopback(address):
        problems.append(problem_at(document, ("open_to_this_host",), None, _OFF_LOOPBACK.format(address)))
    if (section.certificate is None) != (section.key is None):
        missing, present = ("key", "certificate") if section.key is None else ("certificate", "key")
        problems.append(problem_at(document, (present,), None, f"needs {missing}, too; HTTPS needs both"))
    for name, file in (("certificate", section.certificate), ("key", section.key)):
        if file is not None and (why := _not_readable(directory / file)) is not None:
            problems.append(problem_at(document, (name,), str(file), f"{directory / file} cannot be read: {why}"))
    names = None if section.names is None else directory / section.names
    if names is not None:
        try:
            read_names(names)
        except (OSError, ValueError) as error:
            why = f"cannot be read: {_why(error)}" if isinstance(error, OSError) else str(error)
            problems.append(problem_at(document, ("names",), str(section.names), f"{names} {why}"))
    if problems:
        raise DocumentError(problems)
    return Settings(
        address,
        port,
        section.status_socket,
        token,
        tuple(section.hosts),
        None if section.certificate is None else directory / section.certificate,
        None if section.key is None else directory / section.key,
        section.squid,
        token_file,
        names,
        section.grafana,
    )


_OFF_LOOPBACK = "{} can be reached from other hosts, so a token is needed: write false, or listen on 127.0.0.1"


def _default_token_problem(path: Path, problem: str) -> Problem:
    remedy = "" if path.exists() else "; write it: mptcp-console make-token"
    return Problem(str(path), 0, 0, "", None, f"{problem}{remedy}")


def _token(path: Path) -> tuple[str | None, str | None]:
    """Return the token in *path*, or the problem of the file."""
    try:
        with path.open("rb") as file:
            mode = path.stat().st_mode
            content = file.read(MAX_TOKEN_CHARACTERS + 2)
    except OSError as error:
        return None, f"cannot be read: {_why(error)}"
    if mode & (stat.S_IRWXO | stat.S_IWGRP):
        allowed = "only its owner may write it, and only owner and group may read it (chmod 0640)"
        return None, f"has mode {stat.S_IMODE(mode):04o}; {allowed}"
    text = content.decode("latin-1").removesuffix("\n")
    problem = token_problem(text)
    return (text, None) if problem is None else (None, problem)


def _not_readable(path: Path) -> str | None:
    try:
        with path.open("rb"):
            return None
    except OSError as error:
        return _why(error)


def _why(error: OSError | UnicodeDecodeError) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"it is not UTF-8 text: byte {error.start} cannot be decoded"
    return error.strerror or reason(error)
