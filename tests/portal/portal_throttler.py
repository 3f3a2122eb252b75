# SPDX-License-Identifier: GPL-2.0-or-later
"""Prepared answers of a throttler to the portal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

Answer = Callable[[Mapping[str, Any]], Mapping[str, Any]]


def answers_for(
    clients: Mapping[str, Mapping[str, Any]], volumes: Mapping[str, Sequence[Mapping[str, Any]]] = MappingProxyType({})
) -> Answer:
    """Return a function that answers ``client`` requests from *clients*, and ``budgets`` requests from *volumes*.

    *clients*: answers by endpoint, which is a client's address and port. *volumes*: budgets by address. A request with
    a ``token`` gets the answer with this token; any other request gets the answer of its endpoint. An answer with
    ``local`` is only for connections with that local end.
    """

    def answer(request: Mapping[str, Any]) -> Mapping[str, Any]:
        head = {"schema": 2, "time": 1.0, "version": "0", "pid": 1}
        if request["query"] == "client":
            plain: Mapping[str, Any] = {"multipath": False, "since": None, "subflows": [], "budgets": []}
            if "token" in request:
                found = next((each for each in clients.values() if each.get("token") == request["token"]), plain)
            else:
                found = clients.get(request["endpoint"], plain)
            found = found if found.get("local") in (None, request["local"]) else plain
            return head | {"since": -100.0, "time_zone": "UTC"} | dict(found)
        if request["query"] == "budgets":
            return head | {"budgets": list(volumes.get(request["client"], ()))}
        return {"schema": 2, "error": "the fake throttler does not support this request"}

    return answer


WIFI = {"path": "Wi-Fi", "address": "10.77.2.2", "capped": False, "rate": None, "rule": None, "bytes": 12_700_000}
LTE = {"path": "LTE", "address": "10.77.1.2", "capped": True, "rate": 5_000_000, "rule": "evening", "bytes": 990}
MONTH = {
    "name": "month", "client": None, "used": 3_800_000_000, "volume": 5 * 10**9, "left": 1_200_000_000, "until": None,
    "shared": False, "step": None, "next_step": 5 * 10**9,
}  # fmt: skip
