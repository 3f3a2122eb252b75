"""What the doctor says of a relay's endpoints, and that its remedy corrects it."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from relaying import configuration, peer

from mptcp_lab.agent.processes import with_mounts
from mptcp_lab.testbed import RELAY, Testbed
from mptcp_lab.testbed.services import program
from mptcp_proxy import shim

pytestmark = pytest.mark.kernel
Findings = dict[str, dict[str, str]]


@pytest.fixture(autouse=True)
def _needs(require: Callable[..., None]) -> None:
    require("squid", "gcc")
    shim.library()


def doctor(testbed: Testbed, *statements: str) -> Findings:
    """Return what it says on the relay, which does not run; *statements* are all that its configuration has added."""
    node = testbed["relay"]
    config = configuration(node, *statements)
    argv = [program("mptcp-proxy"), "doctor", "--role", "relay", "--json", "--config", str(config)]
    empty = node.directory / "empty"
    empty.mkdir(exist_ok=True)
    answer = node.run(with_mounts(argv, {"/run/mptcprelay": str(empty)}), check=False, timeout=120)
    return {finding["check"]: finding for finding in json.loads(answer.stdout)}


def test_what_removes_lost_endpoints_leaves_none(make_testbed: Callable[..., Testbed]) -> None:
    """Defect: what was advised removed nothing, and ended well."""
    testbed = make_testbed(RELAY)
    node = testbed["relay"]
    node.run(["ip", "mptcp", "endpoint", "flush"])
    for address in ("10.0.0.9", "2001:db8::9"):
        node.run(["ip", "mptcp", "endpoint", "add", address, "subflow"])
    found = doctor(testbed, peer(testbed["proxy"]))["uplinks"]
    assert found["status"] == "fail"
    assert "the endpoint 10.0.0.9, 2001:db8::9" in found["text"]
    for command in found["remedy"].split("; "):
        # What is to be added in their place the operator alone knows.
        if "ADDRESS" not in command:
            node.run(["sh", "-c", command])
    assert node.run(["ip", "mptcp", "endpoint", "show"]).stdout == ""
