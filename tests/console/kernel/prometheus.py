# SPDX-License-Identifier: GPL-2.0-or-later
"""A real Prometheus in a network namespace of the tests, and what it says."""

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
SECONDS = 300.0
"""For which a state is waited for: the machine may be busy."""
JOB = "mptcp-proxy"


def http_get(node: LiveNode, url: str) -> bytes:
    """Return what *url* has, asked from within the namespace of *node*."""
    with node.entered(), urlopen(url, timeout=60) as answer:
        body: bytes = answer.read()
    return body


@dataclass(frozen=True)
class Prometheus:
    """Debian's, which scrapes every two seconds, for no scrape may take longer, and evaluates the rules of conf/."""

    node: LiveNode

    @classmethod
    def start(cls, node: LiveNode, target: str) -> Prometheus:
        settings = {
            "global": {"scrape_interval": "2s", "evaluation_interval": "1s"},
            "rule_files": [str(ALERTS)],
            "scrape_configs": [{"job_name": JOB, "static_configs": [{"targets": [target]}]}],
        }
        # JSON is YAML.
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
        made = cls(node)
        wait_until(made.ready, "Prometheus answers", timeout=SECONDS, process=program)
        return made

    def ready(self) -> bool:
        try:
            return b"Ready" in http_get(self.node, f"http://127.0.0.1:{PORT}/-/ready")
        except OSError:
            return False

    def ask(self, what: str, **arguments: str) -> Any:
        """Return the data that the API gives. Raises AssertionError with Prometheus' words where it refuses."""
        url = f"http://127.0.0.1:{PORT}/api/v1/{what}?{urlencode(arguments)}"
        try:
            answer = json.loads(http_get(self.node, url))
        except HTTPError as error:
            raise AssertionError(f"{what} {arguments}: {error}: {error.read().decode()}") from error
        return answer["data"]

    def labels(self, expression: str) -> list[dict[str, str]]:
        """Return the labels of each series that *expression* has now."""
        return [each["metric"] for each in self.ask("query", query=expression)["result"]]

    def values(self, expression: str) -> list[float]:
        """Return the values of *expression* now that are numbers. Raises AssertionError where it does not parse."""
        data = self.ask("query", query=expression)
        pairs = [data["value"]] if data["resultType"] == "scalar" else [each["value"] for each in data["result"]]
        return [value for value in (float(text) for _, text in pairs) if not math.isnan(value)]

    def unanswered(self, expressions: Mapping[str, str]) -> list[str]:
        """Return which of *expressions* have no value."""
        return [name for name, expression in expressions.items() if not self.values(expression)]

    def wait_for(self, expression: str, holds: Callable[[list[float]], bool] = bool) -> None:
        """Wait until the values of *expression* are as they should be: there are some, unless it says otherwise."""
        wait_until(lambda: holds(self.values(expression)), expression, timeout=SECONDS)
