# SPDX-License-Identifier: GPL-2.0-or-later
"""Prepared answers of a throttler to the portal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

Answer = Callable[[Mapping[str, Any]], Mapping[str, Any]]


def answers_for(
    known: Mapping[str, Mapping[str, Any]], volumes: Mapping[str, Sequence[Mapping[str, Any]]] = MappingProxyType({})
) -> Answer:
    """Return a function that answers ``client`` requests from *known*, and ``budgets`` requests from *volumes*.

    *known*: by endpoint, the answer for its owner. *volumes*: budgets by address. The answer to a request with a
    ``token`` is the entry with this token, the answer to any other request the entry of its endpoint. An entry with
    ``local`` is only for that local end.
    """

    def answer(request: Mapping[str, Any]) -> Mapping[str, Any]:
        head = {"schema": 2, "time": 1.0, "version": "0", "pid": 1}
        if request["query"] == "client":
            plain: Mapping[str, Any] = {"multipath": False, "since": None, "subflows": [], "budgets": []}
            if "token" in request:
                found = next((each for each in known.values() if each.get("token") == request["token"]), plain)
            else:
                found = known.get(request["endpoint"], plain)
            found = found if found.get("local") in (None, request["local"]) else plain
            return head | {"since": -100.0, "time_zone": "UTC"} | dict(found)
        if request["query"] == "budgets":
            return head | {"budgets": list(volumes.get(request["client"], ()))}
        return {"schema": 2, "error": "the fake knows no such request"}

    return answer


WIFI = {"path": "Wi-Fi", "address": "10.77.2.2", "capped": False, "rate": None, "rule": None, "bytes": 12_700_000}
LTE = {"path": "LTE", "address": "10.77.1.2", "capped": True, "rate": 5_000_000, "rule": "evening", "bytes": 990}
MONTH = {
    "name": "month", "client": None, "used": 3_800_000_000, "volume": 5 * 10**9, "left": 1_200_000_000, "until": None,
    "shared": False, "step": None, "next_step": 5 * 10**9,
}  # fmt: skip
