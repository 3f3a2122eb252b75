# SPDX-License-Identifier: GPL-2.0-or-later
"""Checks the parameters of browsers' requests, and builds the queries to the throttler or the history."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from typing import Any, Final

from mptcp_common.problems import shown
from mptcp_console.happenings import Wanted
from mptcp_console.history import COARSE_STEP, FINE_STEP, SPAN

CLIENT_SORTS: Final = ("rate", "bytes", "connections", "client", "budget")
SORTS: Final = ("rate", "bytes", "age", "client")
MAX_ROWS: Final = 200
MAX_EVENTS: Final = 500
LONGEST_SPAN: Final = 2 * SPAN
"""Maximum seconds: the kept span, and the time that a page requests beyond it."""
LONGEST_POLICY: Final = 48 * 1024
"""Maximum size of a policy in UTF-8, bytes: the throttler reads a line of 64 KiB, in which a newline takes two
bytes."""
POLICY_TEXT: Final = {"query": "policy"}
_TOKEN: Final = re.compile(r"[0-9a-f]{8,9}")
_WORD: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Wrong(Exception):
    """A parameter is not allowed; the text is the message for the user."""


def connections(given: Mapping[str, str]) -> dict[str, object]:
    """Return the query for a part of the table of connections."""
    _only(given, "client", "path", "rule", "token", "sort", "limit", "offset")
    request: dict[str, object] = {"query": "connections"}
    if client := given.get("client"):
        request["client"] = _address(client)
    for name in ("path", "rule"):
        if word := given.get(name):
            request[name] = _word(name, word)
    if token := given.get("token"):
        request["token"] = _token(token)
    return {
        **request,
        "sort": _sort(given, SORTS),
        "limit": _number(given, "limit", 50, 1, MAX_ROWS),
        "offset": _number(given, "offset", 0, 0, 1_000_000),
    }


def clients(given: Mapping[str, str]) -> dict[str, object]:
    """Return the query for the clients' usage."""
    _only(given, "sort", "limit")
    return {
        "query": "clients",
        "sort": _sort(given, CLIENT_SORTS),
        "limit": _number(given, "limit", 50, 1, MAX_ROWS),
    }


def explain(given: Mapping[str, str]) -> dict[str, object]:
    """Return the query for why a connection's subflows are capped or not."""
    _only(given, "client", "token")
    if token := given.get("token"):
        return {"query": "explain", "token": _token(token)}
    if client := given.get("client"):
        return {"query": "explain", "client": _address(client)}
    raise Wrong("write token=TOKEN or client=ADDRESS")


def what_if(document: object) -> dict[str, object]:
    """Return the query for the caps and other effects that another policy would have."""
    policy = document.get("policy") if isinstance(document, dict) else None
    if not isinstance(policy, str) or not policy.strip():
        raise Wrong('policy: is required; send {"policy": "TEXT"}')
    if (size := len(policy.encode("utf-8", "surrogatepass"))) > LONGEST_POLICY:
        raise Wrong(f"policy: {size} bytes are too many; at most {LONGEST_POLICY} are allowed")
    return {"query": "what_if", "policy": policy}


def events(given: Mapping[str, str]) -> tuple[Wanted, float | None, int]:
    """Return the filter for events, the time near which to search (None: now), and the limit."""
    _only(given, "from", "to", "near", "after", "kind", "token", "client", "rule", "limit")
    wanted = Wanted(
        after=_number(given, "after", 0, 0, 1 << 53),
        first=_time(given, "from"),
        last=_time(given, "to"),
        kind=_word("kind", given["kind"]) if given.get("kind") else None,
        token=_token(given["token"]) if given.get("token") else None,
        client=_address(given["client"]) if given.get("client") else None,
        rule=_word("rule", given["rule"]) if given.get("rule") else None,
    )
    return wanted, _time(given, "near"), _number(given, "limit", 200, 1, MAX_EVENTS)


def window(given: Mapping[str, str], now: float) -> tuple[int, int, int]:
    """Return first second, last second and step. A browser sends the ``span`` before now, because its clock may
    differ."""
    _only(given, "from", "to", "span", "step")
    last = _time(given, "to") or now
    first = _time(given, "from")
    step = _number(given, "step", FINE_STEP, FINE_STEP, COARSE_STEP)
    if step not in (FINE_STEP, COARSE_STEP):
        raise Wrong(f"step: {step} is not allowed; write {FINE_STEP} or {COARSE_STEP}")
    span = _number(given, "span", 600, 1, LONGEST_SPAN)
    return int(last - span if first is None else first), int(last), step


def _only(given: Mapping[str, str], *names: str) -> None:
    for name in given:
        if name not in names:
            raise Wrong(f"{shown(name)} is not a parameter here; allowed: {', '.join(names)}")


def _sort(given: Mapping[str, str], allowed: Sequence[str]) -> str:
    sort = given.get("sort", "rate")
    if sort not in allowed:
        raise Wrong(f"sort: {shown(sort)} is not allowed; write {', '.join(allowed)}")
    return sort


def _number(given: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    text = given.get(name)
    if text is None:
        return default
    if not re.fullmatch("[0-9]{1,18}", text) or not low <= int(text) <= high:
        raise Wrong(f"{name}: {shown(text)} is not allowed; write a whole number from {low} to {high}")
    return int(text)


def _time(given: Mapping[str, str], name: str) -> float | None:
    text = given.get(name)
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,9})?", text):
        raise Wrong(f"{name}: {shown(text)} is not a time; write seconds since the epoch")
    return float(text)


def _token(text: str) -> str:
    if not _TOKEN.fullmatch(text):
        raise Wrong(f"token: {shown(text)} is not a token; write eight hexadecimal digits, or nine for a tunnel")
    return text


def _word(name: str, text: str) -> str:
    if not _WORD.fullmatch(text):
        raise Wrong(f"{name}: {shown(text)} is not a name; write letters, digits, dots, dashes and underscores")
    return text


def _address(text: str) -> str:
    try:
        return str(ip_address(text.strip()))
    except ValueError:
        raise Wrong(f"client: {shown(text)} is not an IP address") from None


def refusal(answer: Mapping[str, Any]) -> str | None:
    """Return why the throttler refused a query; None if it did not."""
    error = answer.get("error")
    return None if error is None else str(error)
