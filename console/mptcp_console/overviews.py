# SPDX-License-Identifier: GPL-2.0-or-later
"""Builds the pages' excerpts of a summary. Their size does not grow with the connections. Rates are bits/s."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from mptcp_common.accounts import fullest
from mptcp_console.rates import PathKey, capping_rules, present_paths

MAX_RULES: Final = 100
"""Maximum number of capping rules; if there are more, those with the most capped subflows are shown."""
MAX_BUDGETS: Final = 20
"""Maximum number of accounts of budgets. If the policy has more budgets, one account of each is shown."""


def overview(summary: Mapping[str, Any], rates: Mapping[PathKey, float]) -> dict[str, Any]:
    """Return the excerpt for every page. Raises KeyError, TypeError or AttributeError if *summary* is malformed."""
    active = sorted(capping_rules(summary), key=lambda each: -each["capped"])
    return {
        "time": summary["time"],
        "version": summary.get("version"),
        "pid": summary.get("pid"),
        "connections": summary["connections"],
        "subflows": summary["subflows"],
        "clients": summary["clients"],
        "capped": sum(each["capped"] for each in active),
        "landing": sum(each["landing"] for each in active),
        "relaxed": summary["guard"]["relaxed"],
        "paths": [
            {"path": key.path, "direction": key.direction, "rate": round(rate)}
            for key, rate in sorted(
                present_paths(summary, rates).items(), key=lambda item: (str(item[0].path), item[0].direction)
            )
        ],
        "rules": active[:MAX_RULES],
        "more_rules": max(0, len(active) - MAX_RULES),
        "rule_names": summary["policy"]["rules"],
        "dry_run": summary["policy"]["dry_run"],
        "time_zone": summary["policy"].get("time_zone"),
        "budgets": fullest(summary.get("budgets", []), MAX_BUDGETS)[:MAX_BUDGETS],
        "budgets_used_up": sum(each["used_up"] for each in summary.get("budget_totals", [])),
        "budget_totals": _per_client_totals(summary)[:MAX_BUDGETS],
        "refused_reload": (summary.get("reloads") or {}).get("last_refused"),
    }


def _per_client_totals(summary: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the budgets that have an account per client. Budgets that all clients share are among the accounts."""
    return [each for each in summary.get("budget_totals", []) if each["per"] == "client"]


def policy_page(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the excerpt for the policy's page."""
    names = (
        *("time", "version", "pid", "started", "policy", "guard", "loop", "reaction", "effect", "reloads", "counters"),
        *("ledger_error", "captures", "bpf"),
    )
    return {
        **{name: summary.get(name) for name in names},
        "rules": summary["rules"],
        "budget_totals": summary.get("budget_totals", []),
        "budgets": fullest(summary.get("budgets", []), MAX_BUDGETS),
    }
