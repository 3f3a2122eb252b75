# SPDX-License-Identifier: GPL-2.0-or-later
"""The PromQL expressions in conf/ for the tests: the expressions of the dashboard and of the alerts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

CONF = Path(__file__).resolve().parents[2] / "conf"
DASHBOARD = CONF / "grafana" / "mptcp-proxy.json"
ALERTS = CONF / "prometheus" / "alerts.yml"
ALERT_TESTS = CONF / "prometheus" / "alerts.test.yml"
METRIC = re.compile(r"\b(?:mptcp_throttler|mptcp_ext|squid)_[a-z0-9_]*[a-z0-9]")
"""Matches each metric of this project in an expression."""
_COMPARISON = re.compile(r" (==|!=|>=|<=|>|<) ")
_VARIABLE = re.compile(r"label_values\((?P<selector>[^,]+), (?P<label>\w+)\)")


def dashboard() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return document


def panels() -> Iterator[dict[str, Any]]:
    """Yield all panels except rows."""
    for panel in dashboard()["panels"]:
        if panel["type"] != "row":
            yield panel


def alerts() -> list[dict[str, Any]]:
    document = YAML(typ="safe").load(ALERTS.read_text())
    return [rule for group in document["groups"] for rule in group["rules"]]


def fill_variables(text: str, interval: str = "20s", chosen: Mapping[str, Sequence[str]] | None = None) -> str:
    """Return *text* with Grafana's variables replaced by the *chosen* values, or by a pattern for all."""
    text = text.replace("$__rate_interval", interval).replace("$__interval", interval)
    return re.sub(r"\$(instance|rule|path)\b", lambda found: _alternatives((chosen or {}).get(found[1])), text)


def _alternatives(values: Sequence[str] | None) -> str:
    """Return the regular expression that Grafana inserts for *values*, with several values as alternatives."""
    if values is None:
        return ".*"  # the value for "All" in the variables
    escaped = [re.sub(r"([][\\^$.*+?(){}|])", r"\\\\\1", each) for each in values]
    return escaped[0] if len(escaped) == 1 else f"({'|'.join(escaped)})"


def with_bool_comparisons(expression: str) -> str:
    """Return *expression* with comparisons that yield 0 or 1 instead of filtering. It then always has a value."""
    return _COMPARISON.sub(r" \1 bool ", " ".join(expression.split()))


def places_using(name: str) -> set[str]:
    """Return the places of those dashboard expressions that use the variable *name*."""
    return {
        f"{panel['title']}, {target['refId']}"
        for panel in panels()
        for target in panel["targets"]
        if f"${name}" in target["expr"]
    }


def variables() -> dict[str, tuple[str, str]]:
    """Return the selector and the label that each query variable of the dashboard lists."""
    found = {}
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            match = _VARIABLE.fullmatch(variable["query"]["query"])
            assert match is not None, variable["query"]
            found[variable["name"]] = fill_variables(match["selector"]), match["label"]
    return found


def shown_expressions(chosen: Mapping[str, Sequence[str]] | None = None) -> dict[str, str]:
    """Return every expression of the dashboard by its place, for the *chosen* values of variables."""
    found = {
        f"{panel['title']}, {target['refId']}": fill_variables(target["expr"], chosen=chosen)
        for panel in panels()
        for target in panel["targets"]
    }
    for annotation in dashboard()["annotations"]["list"]:
        found[f"annotation {annotation['name']}"] = with_bool_comparisons(
            fill_variables(annotation["expr"], chosen=chosen)
        )
    return found


def alert_expressions() -> dict[str, str]:
    """Return the expression of every alert, unchanged, by its name."""
    return {rule["alert"]: " ".join(rule["expr"].split()) for rule in alerts()}
