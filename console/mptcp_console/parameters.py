# SPDX-License-Identifier: GPL-2.0-or-later
"""Checks the parameters of browsers' requests, and builds the queries to the throttler or the history."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from typing import Any, Final

from mptcp_common.problems import shown
from mptcp_console.event_log import EventFilter
from mptcp_console.history import COARSE_STEP, FINE_STEP, SPAN

CLIENT_SORTS: Final = ("rate", "bytes", "connections", "client", "budget")
SORTS: Final = ("rate", "bytes", "age", "client")
MAX_ROWS: Final = 200
MAX_EVENTS: Final = 500
MAX_SPAN: Final = 2 * SPAN
"""Maximum seconds of a request: twice the kept span, because a page may also request the time before it."""
MAX_POLICY_BYTES: Final = 48 * 1024
"""Maximum size of a policy in UTF-8, bytes: the throttler reads a line of 64 KiB, in which a newline takes two
bytes."""
POLICY_TEXT: Final = {"query": "policy"}
_TOKEN: Final = re.compile(r"[0-9a-f]{8,9}")
_WORD: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")


class InvalidParameter(Exception):
    """A parameter is not allowed; the text is the message for the user."""


def connections(parameters: Mapping[str, str]) -> dict[str, object]:
    """Return the query for a part of the table of connections."""
    _allow_only(parameters, "client", "path", "rule", "token", "sort", "limit", "offset")
    request: dict[str, object] = {"query": "connections"}
    if client := parameters.get("client"):
        request["client"] = _address(client)
    for name in ("path", "rule"):
        if word := parameters.get(name):
            request[name] = _word(name, word)
    if token := parameters.get("token"):
        request["token"] = _token(token)
    return {
        **request,
        "sort": _sort(parameters, SORTS),
        "limit": _number(parameters, "limit", 50, 1, MAX_ROWS),
        "offset": _number(parameters, "offset", 0, 0, 1_000_000),
    }


def clients(parameters: Mapping[str, str]) -> dict[str, object]:
    """Return the query for the clients' usage."""
    _allow_only(parameters, "sort", "limit")
    return {
        "query": "clients",
        "sort": _sort(parameters, CLIENT_SORTS),
        "limit": _number(parameters, "limit", 50, 1, MAX_ROWS),
    }


def explain(parameters: Mapping[str, str]) -> dict[str, object]:
    """Return the query about why a connection's subflows are capped or not."""
    _allow_only(parameters, "client", "token")
    if token := parameters.get("token"):
        return {"query": "explain", "token": _token(token)}
    if client := parameters.get("client"):
        return {"query": "explain", "client": _address(client)}
    raise InvalidParameter("write token=TOKEN or client=ADDRESS")


def what_if(document: object) -> dict[str, object]:
    """Return the query about the caps and other effects that another policy would have."""
    policy = document.get("policy") if isinstance(document, dict) else None
    if not isinstance(policy, str) or not policy.strip():
        raise InvalidParameter('policy: is required; send {"policy": "TEXT"}')
    if (size := len(policy.encode("utf-8", "surrogatepass"))) > MAX_POLICY_BYTES:
        raise InvalidParameter(f"policy: {size} bytes are too many; at most {MAX_POLICY_BYTES} are allowed")
    return {"query": "what_if", "policy": policy}


def events(parameters: Mapping[str, str]) -> tuple[EventFilter, float | None, int]:
    """Return the filter for events, the time near which to search (None: now), and the limit."""
    _allow_only(parameters, "from", "to", "near", "after", "kind", "token", "client", "rule", "limit")
    event_filter = EventFilter(
        after=_number(parameters, "after", 0, 0, 1 << 53),
        first=_time(parameters, "from"),
        last=_time(parameters, "to"),
        kind=_word("kind", parameters["kind"]) if parameters.get("kind") else None,
        token=_token(parameters["token"]) if parameters.get("token") else None,
        client=_address(parameters["client"]) if parameters.get("client") else None,
        rule=_word("rule", parameters["rule"]) if parameters.get("rule") else None,
    )
    return event_filter, _time(parameters, "near"), _number(parameters, "limit", 200, 1, MAX_EVENTS)


def window(parameters: Mapping[str, str], now: float) -> tuple[int, int, int]:
    """Return the first second, the last second and the step. A browser sends a ``span`` before now instead of times,
    because its clock may differ."""
    _allow_only(parameters, "from", "to", "span", "step")
    last = _time(parameters, "to") or now
    first = _time(parameters, "from")
    step = _number(parameters, "step", FINE_STEP, FINE_STEP, COARSE_STEP)
    if step not in (FINE_STEP, COARSE_STEP):
        raise InvalidParameter(f"step: {step} is not allowed; write {FINE_STEP} or {COARSE_STEP}")
    span = _number(parameters, "span", 600, 1, MAX_SPAN)
    return int(last - span if first is None else first), int(last), step


def _allow_only(parameters: Mapping[str, str], *names: str) -> None:
    for name in parameters:
        if name not in names:
            raise InvalidParameter(f"{shown(name)} is not a parameter here; allowed: {', '.join(names)}")


def _sort(parameters: Mapping[str, str], allowed: Sequence[str]) -> str:
    sort = parameters.get("sort", "rate")
    if sort not in allowed:
        raise InvalidParameter(f"sort: {shown(sort)} is not allowed; write {', '.join(allowed)}")
    return sort


def _number(parameters: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    text = parameters.get(name)
    if text is None:
        return default
    if not re.fullmatch("[0-9]{1,18}", text) or not low <= int(text) <= high:
        raise InvalidParameter(f"{name}: {shown(text)} is not allowed; write a whole number from {low} to {high}")
    return int(text)


def _time(parameters: Mapping[str, str], name: str) -> float | None:
    text = parameters.get(name)
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,9})?", text):
        raise InvalidParameter(f"{name}: {shown(text)} is not a time; write seconds since the epoch")
    return float(text)


def _token(text: str) -> str:
    if not _TOKEN.fullmatch(text):
        raise InvalidParameter(
            f"token: {shown(text)} is not a token; write eight hexadecimal digits, or nine for a tunnel"
        )
    return text


def _word(name: str, text: str) -> str:
    if not _WORD.fullmatch(text):
        raise InvalidParameter(
            f"{name}: {shown(text)} is not a name; write letters, digits, dots, dashes and underscores"
        )
    return text


def _address(text: str) -> str:
    try:
        return str(ip_address(text.strip()))
    except ValueError:
        raise InvalidParameter(f"client: {shown(text)} is not an IP address") from None


def refusal(answer: Mapping[str, Any]) -> str | None:
    """Return why the throttler refused a query; None if it answered."""
    error = answer.get("error")
    return None if error is None else str(error)
