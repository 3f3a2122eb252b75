# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for a start with host names in squid.conf while no name server answers."""

from __future__ import annotations

import pytest

from mptcp_common.exit_status import FAILED
from mptcp_lab.testbed import Testbed
from mptcp_lab.testbed.services import SQUID_CONFIG

pytestmark = pytest.mark.kernel


def test_start_without_name_servers_exits_with_a_retryable_status(testbed: Testbed) -> None:
    """Defect: the exit status was that of a mistake in the file, after which systemd does not restart the unit."""
    node = testbed["proxy"]  # this node reaches no name server
    config = node.write("squid.conf", f"{SQUID_CONFIG.read_text()}\nacl office src office.example\n")
    answer = node.run([node.program("mptcp-proxy"), "run", "--config", str(config)], check=False, timeout=120)
    assert answer.returncode == FAILED
    assert "no name server answers: this program ends" in answer.stderr
