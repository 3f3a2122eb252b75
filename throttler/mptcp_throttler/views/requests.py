"""What may be asked of the status socket: one line of JSON, checked by hand: libraries load too slowly.

docs/status.md has the requests for people, ``views.answer_models`` their JSON Schema.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Final

from mptcp_common.problems import did_you_mean, shown
from mptcp_throttler.mptcp.model import unmap

SCHEMA: Final = 1
"""Version of the answers: a key that changes its meaning or goes makes it another."""
LARGEST_REQUEST: Final = 64 * 1024
"""Bytes of the line."""
LONGEST_NAME: Final = 200
SORTS: Final = ("rate", "bytes", "age", "client")
STATUS: Final = "status"

_TOKEN: Final = re.compile("[0-9a-fA-F]{1,8}")
Value = str | int | bytes | tuple[bytes, int]
_Check = Callable[[object], Value]


class RequestError(ValueError):
    """A request that cannot be answered; the text says why, for people."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request. Its arguments are checked; addresses are packed, endpoints packed with their port."""

    query: str
    arguments: Mapping[str, Any]

    def get(self, name: str, default: Any = None) -> Any:
        return self.arguments.get(name, default)


def parse_request(line: bytes) -> Request:
    """Return the request that *line* is; nothing is what an old client sends, who wants the status."""
    if not line.strip():
        return Request(STATUS, {})
    if len(line) > LARGEST_REQUEST:
        raise RequestError(f"the request is longer than {LARGEST_REQUEST} bytes")
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        raise RequestError("the request is not one line of JSON") from None
    if not isinstance(found, dict):
        raise RequestError('the request is not a JSON object; write {"query": "summary"}')
    if "query" not in found:
        raise RequestError(f'the request has no "query"; there are {", ".join(QUERIES)}')
    query = found.pop("query")
    if not isinstance(query, str) or query not in QUERIES:
        guess = did_you_mean(query, QUERIES) if isinstance(query, str) else ""
        raise RequestError(f'"query": {_shown(query)} is not one{guess}; there are {", ".join(QUERIES)}')
    allowed = QUERIES[query]
    arguments = {}
    for key, value in found.items():
        if key not in allowed:
            raise RequestError(f'"{_cut(key)}" is not an argument of {query}{_those(allowed)}')
        if value is None:
            continue
        try:
            arguments[key] = allowed[key](value)
        except ValueError as error:
            raise RequestError(f'"{key}": {_shown(value)} {error}') from None
    if query == "explain" and len(arguments) != 1:
        raise RequestError('explain needs one of "client", "token" and "endpoint"')
    for key in _NEEDED.get(query, ()):
        if key not in arguments:
            raise RequestError(f'{query} needs "{key}"')
    return Request(query, arguments)


def _address(value: object) -> bytes:
    try:
        if isinstance(value, str):
            return unmap(ip_address(value).packed)
    except ValueError:
        pass
    raise ValueError("is not an address, such as 192.0.2.1 or 2001:db8::1")


def _endpoint(value: object) -> tuple[bytes, int]:
    if isinstance(value, str):
        host, _, port = value.rpartition(":")
        bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
        try:
            packed = ip_address(bare).packed
        except ValueError:
            packed = b""
        if packed and (len(packed) == 4 or bare != host) and port.isascii() and port.isdigit() and int(port) < 1 << 16:
            return unmap(packed), int(port)
    raise ValueError("is not an address with a port, such as 192.0.2.1:40000 or [2001:db8::1]:40000")


def _token(value: object) -> int:
    if isinstance(value, str) and _TOKEN.fullmatch(value):
        return int(value, 16)
    raise ValueError("is not a token: at most 8 hexadecimal digits")


def _text(longest: int) -> _Check:
    def check(value: object) -> str:
        if isinstance(value, str) and len(value) <= longest:
            return value
        raise ValueError(f"is not text of at most {longest} characters")

    return check


def _whole(least: int, most: int) -> _Check:
    def check(value: object) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
            return value
        raise ValueError(f"is not a whole number from {least} to {most}")

    return check


def _one_of(allowed: tuple[str, ...]) -> _Check:
    def check(value: object) -> str:
        if isinstance(value, str) and value in allowed:
            return value
        raise ValueError(f"is none of {', '.join(allowed)}")

    return check


_NAME = _text(LONGEST_NAME)
QUERIES: Final[Mapping[str, Mapping[str, _Check]]] = {
    STATUS: {},
    "head": {},
    "summary": {},
    "connections": {
        "client": _address,
        "path": _NAME,
        "rule": _NAME,
        "token": _token,
        "sort": _one_of(SORTS),
        "limit": _whole(1, 1000),
        "offset": _whole(0, 1 << 31),
    },
    "explain": {"client": _address, "token": _token, "endpoint": _endpoint},
    "events": {
        "after": _whole(0, 1 << 62),
        "client": _address,
        "token": _token,
        "rule": _NAME,
        "limit": _whole(1, 10_000),
    },
    "client": {"endpoint": _endpoint, "local": _endpoint, "token": _token},
    "budgets": {"client": _address},
    "policy": {},
    "what_if": {"policy": _text(LARGEST_REQUEST)},
}
_NEEDED: Final[Mapping[str, tuple[str, ...]]] = {
    "client": ("endpoint",),
    "budgets": ("client",),
    "what_if": ("policy",),
}


def _those(allowed: Mapping[str, object]) -> str:
    return f"; it takes {', '.join(allowed)}" if allowed else ", which takes none"


def _cut(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:60]}…"


def _shown(value: object) -> str:
    if value is None:
        return "null"
    return shown(value) if isinstance(value, str | int | float) else "what is given"
