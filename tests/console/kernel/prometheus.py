# SPDX-License-Identifier: GPL-2.0-or-later
"""Runs a real Prometheus in a network namespace of the tests, and queries it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

from monitoring import ALERTS

from mptcp_lab.testbed import LiveNode
from mptcp_lab.testbed.services import wait_until

PORT = 9090
TIMEOUT = 300.0
"""Seconds to wait for a state, because the machine may be busy."""
JOB = "mptcp-proxy"


def http_get(node: LiveNode, url: str) -> bytes:
    """Return the content of *url*, fetched within the namespace of *node*."""
    with node.entered(), urlopen(url, timeout=60) as answer:
        body: bytes = answer.read()
    return body


@dataclass(frozen=True)
class Prometheus:
    """Debian's Prometheus.

    It scrapes every two seconds, which also limits the duration of a scrape, and evaluates the rules of conf/.
    """

    node: LiveNode

    @classmethod
    def start(cls, node: LiveNode, target: str) -> Prometheus:
        settings = {
            "global": {"scrape_interval": "2s", "evaluation_interval": "1s"},
            "rule_files": [str(ALERTS)],
            "scrape_configs": [{"job_name": JOB, "static_configs": [{"targets": [target]}]}],
        }
        # JSON is valid YAML.
        file = node.directory / "prometheus.yml"
        file.write_text(json.dumps(settings))
        program = node.popen(
            [
                "prometheus",
                f"--config.file={file}",
                f"--storage.tsdb.path={node.directory / 'prometheus'}",
                f"--web.listen-address=127.0.0.1:{PORT}",
            ],
            name="prometheus",
        )
        prometheus = cls(node)
        wait_until(prometheus.is_ready, "Prometheus answers", timeout=TIMEOUT, process=program)
        return prometheus

    def is_ready(self) -> bool:
        try:
            return b"Ready" in http_get(self.node, f"http://127.0.0.1:{PORT}/-/ready")
        except OSError:
            return False

    def query_api(self, resource: str, **arguments: str) -> Any:
        """Return the data of the API's answer. If the API refuses, raise AssertionError with Prometheus' message."""
        url = f"http://127.0.0.1:{PORT}/api/v1/{resource}?{urlencode(arguments)}"
        try:
            answer = json.loads(http_get(self.node, url))
        except HTTPError as error:
            raise AssertionError(f"{resource} {arguments}: {error}: {error.read().decode()}") from error
        return answer["data"]

    def labels(self, expression: str) -> list[dict[str, str]]:
        """Return the labels of each series of *expression*."""
        return [each["metric"] for each in self.query_api("query", query=expression)["result"]]

    def values(self, expression: str) -> list[float]:
        """Return the current values of *expression*, without NaN. Raise AssertionError if it is invalid."""
        data = self.query_api("query", query=expression)
        pairs = [data["value"]] if data["resultType"] == "scalar" else [each["value"] for each in data["result"]]
        return [value for value in (float(text) for _, text in pairs) if not math.isnan(value)]

    def without_values(self, expressions: Mapping[str, str]) -> list[str]:
        """Return the names of those *expressions* that have no value."""
        return [name for name, expression in expressions.items() if not self.values(expression)]

    def wait_for(self, expression: str, holds: Callable[[list[float]], bool] = bool) -> None:
        """Wait until *holds* accepts the values of *expression*; by default until there are values."""
        wait_until(lambda: holds(self.values(expression)), expression, timeout=TIMEOUT)
