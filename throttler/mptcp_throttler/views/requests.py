# SPDX-License-Identifier: GPL-2.0-or-later
"""The requests that the status socket accepts: one line of JSON. Each argument is defined once, for its check and for
the JSON Schema; docs/status.md documents them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import Any, Final

from mptcp_common.endpoints import address_and_port
from mptcp_common.problems import did_you_mean, shown
from mptcp_throttler.mptcp.model import unmap

MAX_REQUEST: Final = 64 * 1024  # bytes of the line
STATUS: Final = "status"
Arguments = Mapping[str, Any]
"""Checked arguments, also those with a default. Addresses are packed, endpoints are (packed address, port)."""
_TOKEN: Final = "[0-9a-fA-F]{1,9}"


class RequestError(ValueError):
    """A request that cannot be answered; the text is the message for the client."""


@dataclass(frozen=True, slots=True)
class Argument:
    check: Callable[[object], Any]  # converts a value; raises ValueError
    schema: Mapping[str, Any]
    description: str = ""
    default: Any = None
    required: bool = False


def parse_request(line: bytes) -> tuple[str, Arguments]:
    """Return the query in *line* and its arguments. An empty line means the query ``status``. Raises RequestError."""
    if not line.strip():
        return STATUS, {}
    if len(line) > MAX_REQUEST:
        raise RequestError(f"the request is longer than {MAX_REQUEST} bytes")
    try:
        request = json.loads(line)
    except (ValueError, RecursionError):
        raise RequestError("the request is not one line of JSON") from None
    if not isinstance(request, dict):
        raise RequestError('the request is not a JSON object; write {"query": "summary"}')
    if "query" not in request:
        raise RequestError(f'the request has no "query"; the queries are {", ".join(QUERIES)}')
    query = request.pop("query")
    if not isinstance(query, str) or query not in QUERIES:
        guess = did_you_mean(query, QUERIES) if isinstance(query, str) else ""
        raise RequestError(f'"query": {_value_text(query)} is not a query{guess}; the queries are {", ".join(QUERIES)}')
    allowed = QUERIES[query]
    arguments = {name: each.default for name, each in allowed.items() if each.default is not None}
    for key, value in request.items():
        if key not in allowed:
            hint = f"; its arguments are {', '.join(allowed)}" if allowed else ", which has no arguments"
            raise RequestError(f"{shown(key)} is not an argument of {query}{hint}")
        if value is None:
            continue
        try:
            arguments[key] = allowed[key].check(value)
        except ValueError as error:
            raise RequestError(f'"{key}": {_value_text(value)} {error}') from None
    if query == "explain" and len(arguments) != 1:
        raise RequestError('explain needs one of "client", "token" and "endpoint"')
    for key, each in allowed.items():
        if each.required and key not in arguments:
            raise RequestError(f'{query} needs "{key}"')
    return query, arguments


def _address(value: object) -> bytes:
    try:
        if isinstance(value, str):
            return unmap(ip_address(value).packed)
    except ValueError:
        pass
    raise ValueError("is not an address, such as 192.0.2.1 or 2001:db8::1")


def _endpoint(value: object) -> tuple[bytes, int]:
    try:
        address, port = address_and_port(value)
    except ValueError:
        raise ValueError("is not an address with a port, such as 192.0.2.1:40000 or [2001:db8::1]:40000") from None
    return unmap(ip_address(address).packed), port


def _token(value: object) -> int:
    if isinstance(value, str) and re.fullmatch(_TOKEN, value):
        return int(value, 16)
    raise ValueError("is not a token: at most 9 hexadecimal digits")


def _text(max_length: int, description: str = "", required: bool = False) -> Argument:
    def check(value: object) -> str:
        if isinstance(value, str) and len(value) <= max_length:
            return value
        raise ValueError(f"is not text of at most {max_length} characters")

    return Argument(check, {"type": "string", "maxLength": max_length}, description, required=required)


def _integer(minimum: int, maximum: int, default: int | None, description: str = "") -> Argument:
    def check(value: object) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and minimum <= value <= maximum:
            return value
        raise ValueError(f"is not a whole number from {minimum} to {maximum}")

    return Argument(check, {"type": "integer", "minimum": minimum, "maximum": maximum}, description, default)


def _one_of(*allowed: str, default: str) -> Argument:
    def check(value: object) -> str:
        if isinstance(value, str) and value in allowed:
            return value
        raise ValueError(f"is none of {', '.join(allowed)}")

    return Argument(check, {"enum": list(allowed)}, default=default)


_ADDRESS = Argument(_address, {"type": "string"}, "An address: `192.0.2.1`, `2001:db8::1`.")
_ENDPOINT = Argument(_endpoint, {"type": "string"}, "The client's end of any subflow: `ADDR:PORT`, `[ADDR]:PORT`.")
_LOCAL = Argument(_endpoint, {"type": "string"}, "The proxy's end of that subflow.")
_TOKEN_ARGUMENT = Argument(_token, {"type": "string", "pattern": f"^{_TOKEN}$"})
_NAME = _text(200)
_AFTER = _integer(0, 1 << 62, None, "Return the first events after this number; without it, the latest events.")

QUERIES: Final[Mapping[str, Mapping[str, Argument]]] = {
    STATUS: {},
    "head": {},
    "summary": {},
    "connections": {
        "client": _ADDRESS,
        "path": _NAME,
        "rule": _NAME,
        "token": _TOKEN_ARGUMENT,
        "sort": _one_of("rate", "bytes", "age", "client", default="age"),
        "limit": _integer(1, 1000, 50),
        "offset": _integer(0, 1 << 31, 0),
    },
    "clients": {
        "sort": _one_of("rate", "bytes", "connections", "client", "budget", default="rate"),
        "limit": _integer(1, 1000, 50),
    },
    "explain": {"client": _ADDRESS, "token": _TOKEN_ARGUMENT, "endpoint": _ENDPOINT},
    "events": {
        "after": _AFTER,
        "client": _ADDRESS,
        "token": _TOKEN_ARGUMENT,
        "rule": _NAME,
        "limit": _integer(1, 10_000, 1000),
    },
    "client": {"endpoint": replace(_ENDPOINT, required=True), "local": _LOCAL, "token": _TOKEN_ARGUMENT},
    "budgets": {"client": replace(_ADDRESS, required=True)},
    "policy": {},
    "what_if": {"policy": _text(MAX_REQUEST, "The text of a policy file.", required=True)},
}


def request_schema(query: str) -> dict[str, Any]:
    """Return the JSON Schema of a request. An argument that is not required may be null, too."""
    arguments = QUERIES[query]
    properties: dict[str, Any] = {"query": {"const": query}}
    for name, each in arguments.items():
        schema = dict(each.schema) if each.required else {"anyOf": [each.schema, {"type": "null"}]}
        schema |= {"description": each.description} if each.description else {}
        properties[name] = schema if each.required else schema | {"default": each.default}
    required = ["query", *(name for name, each in arguments.items() if each.required)]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _value_text(value: object) -> str:
    if value is None:
        return "null"
    return shown(value) if isinstance(value, str | int | float) else "the value"
