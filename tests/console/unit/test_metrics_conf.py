# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the dashboard and the alerts in conf/: promtool accepts them, their metrics exist, checks detect faults."""

from __future__ import annotations

import itertools
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from grafana import faults
from monitoring import (
    ALERT_TESTS,
    ALERTS,
    DASHBOARD,
    METRIC,
    alert_expressions,
    alerts,
    dashboard,
    panels,
    shown_expressions,
    variables,
)
from sample_answers import exposition, kernel_answer, samples, squid_answer, summary_answer

from mptcp_console.metrics import families

FILES = (DASHBOARD, ALERTS, ALERT_TESTS)


def exported_names() -> set[str]:
    text = exposition(families(summary_answer(), squid_answer(), kernel_answer()))
    return {name for name, _ in samples(text)}


def unknown_metrics(text: str) -> set[str]:
    """Return the metrics in *text* that nothing exports."""
    return set(METRIC.findall(text)) - exported_names()


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)


def test_alerts_file_names_its_source_and_target_paths() -> None:
    """Defect: the file named a directory that no package creates, and docs/metrics.md named another one."""
    root = ALERTS.parents[2]
    head = ALERTS.read_text().partition("groups:")[0]
    (rules,) = re.findall(r"rule_files: \[(.+?)\]", head)
    assert f"rule_files: [{rules}]" in (root / "docs" / "metrics.md").read_text()
    ((source, target),) = re.findall(r"cp (\S+) (\S+)", head)
    assert target == rules
    packaging = (root / "debian" / "rules").read_text()
    (name,) = re.findall(r"^NAME = (\S+)", packaging, re.MULTILINE)
    assert source == f"/usr/share/doc/{name}/examples/prometheus/{ALERTS.name}"
    assert "conf/prometheus" in packaging
    assert "install -Dm644 -t $(DOC)/examples/" in packaging


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_each_metric_is_exported(file: Path) -> None:
    text = file.read_text()
    assert METRIC.search(text)
    assert not unknown_metrics(text)


def test_promtool_accepts_the_alerts(require: Callable[..., None]) -> None:
    require("promtool")
    checked = promtool("check", "rules", str(ALERTS))
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_alerts_pass_their_promtool_tests(require: Callable[..., None]) -> None:
    require("promtool")
    tested = promtool("test", "rules", str(ALERT_TESTS))
    assert tested.returncode == 0, tested.stdout + tested.stderr


@pytest.mark.nightly(except_for=("[never]",))
@pytest.mark.parametrize("expression", ["vector(0) > 1", "vector(1)"], ids=["never", "always"])
def test_alert_tests_detect_an_alert_that_never_or_always_fires(
    tmp_path: Path, expression: str, require: Callable[..., None]
) -> None:
    require("promtool")
    text = re.sub(r"expr: >-\n *.*\n *.*", "expr: X", ALERTS.read_text())
    text, replaced = re.subn(r"expr: .*", f"expr: {expression}", text)
    assert replaced == len(alerts())
    (tmp_path / ALERTS.name).write_text(text)
    (tmp_path / ALERT_TESTS.name).write_text(ALERT_TESTS.read_text())
    tested = promtool("test", "rules", str(tmp_path / ALERT_TESTS.name))
    assert set(re.findall(r"alertname: (\w+)", tested.stderr)) == {rule["alert"] for rule in alerts()}


def test_each_alert_has_severity_summary_and_description() -> None:
    for rule in alerts():
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert "{{ $labels.instance }}" in rule["annotations"]["summary"]
        assert rule["annotations"]["description"].endswith(".")


def test_alert_names_and_positions_of_expressions_are_unique() -> None:
    assert len(alert_expressions()) == len(alerts())
    assert len(shown_expressions()) == sum(len(panel["targets"]) for panel in panels()) + 1


def test_dashboard_matches_grafanas_types() -> None:
    assert faults(dashboard()) == []


def dashboard_with(panel: int, path: str, value: Any) -> dict[str, Any]:
    """Return the dashboard with *value* at *path* (keys and indexes, separated by dots) of the panel number *panel*."""
    document = dashboard()
    found = document["panels"][panel]
    *parents, last = (int(word) if word.isdigit() else word for word in path.split("."))
    for word in parents:
        found = found[word]
    found[last] = value
    return document


@pytest.mark.nightly(except_for=("exrp", "colorMode"))
@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("titel", "x", ".titel is unknown"),
        ("options.colourMode", "value", ".options.colourMode is unknown"),
        ("fieldConfig.defaults.unit", "seconds", "unit is 'seconds'"),
        ("fieldConfig.defaults.thresholds.mode", "relative", "thresholds.mode is 'relative'"),
        ("gridPos.w", "wide", "grid_pos.w is 'wide'"),
        ("targets.0.exrp", "up", ".targets[0].exrp is unknown"),
        ("id", "one", ".id_val is 'one'"),
        ("options.colorMode", "loud", "color_mode is 'loud'"),
        ("type", "gauge", "unknown"),
    ],
)
def test_check_finds_a_value_that_grafana_does_not_know(path: str, value: Any, expected: str) -> None:
    number = next(index for index, panel in enumerate(dashboard()["panels"]) if panel["type"] == "stat")
    assert any(expected in fault for fault in faults(dashboard_with(number, path, value)))


def test_dashboard_uses_exactly_its_variables() -> None:
    names = {variable["name"] for variable in dashboard()["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", DASHBOARD.read_text())) - {"__rate_interval", "__interval", "__all"}
    assert used == names == {"datasource", *variables()}
    for each in panels():
        assert each["datasource"]["uid"] == "${datasource}"
        assert [target["refId"] for target in each["targets"]] == [*"ABCDEFGH"[: len(each["targets"])]]


def test_each_dashboard_expression_selects_the_instance() -> None:
    for panel in panels():
        for target in panel["targets"]:
            selectors = re.findall(r"\b(?:mptcp|squid)_[a-z0-9_]+(\{[^}]*\})?", target["expr"])
            assert all('instance=~"$instance"' in selector for selector in selectors), target["expr"]


def test_expressions_sum_rates_of_squid_processes_not_counters() -> None:
    """A sum of counters falls if one process restarts. Prometheus would then count the others a second time."""
    for expression in (*shown_expressions().values(), *alert_expressions().values()):
        for counter in re.finditer(r"squid_\w+_total", expression):
            assert expression[: counter.start()].endswith("sum without (process) (rate("), expression


def test_each_dashboard_range_holds_two_samples() -> None:
    """Defect: the annotation of a new policy used Grafana's $__interval, the distance between two points of the graph.
    It can be as short as one scrape interval; then the range has only one sample, and the annotation is missing."""
    ranges = set(re.findall(r"\[[^][]*\](?=\))", " ".join(query["expr"] for query in queries())))
    assert ranges == {"[$__rate_interval]"}


def queries() -> Iterator[dict[str, Any]]:
    """Yield everything that queries Prometheus: the targets of panels, and annotations."""
    for panel in panels():
        yield from panel["targets"]
    yield from dashboard()["annotations"]["list"]


def test_panels_do_not_overlap() -> None:
    boxes = [panel["gridPos"] for panel in dashboard()["panels"]]
    assert len({panel["id"] for panel in dashboard()["panels"]}) == len(boxes)
    for first, second in itertools.combinations(boxes, 2):
        assert not set(cells(first)) & set(cells(second))
    assert all(box["x"] + box["w"] <= 24 for box in boxes)


def cells(box: dict[str, int]) -> Iterator[tuple[int, int]]:
    return itertools.product(range(box["x"], box["x"] + box["w"]), range(box["y"], box["y"] + box["h"]))
