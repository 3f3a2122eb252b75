# SPDX-License-Identifier: GPL-2.0-or-later
"""A start while no name server answers, and names of hosts are in squid.conf."""

from __future__ import annotations

import pytest

from mptcp_common.exit_status import FAILED
from mptcp_lab.testbed import Testbed
from mptcp_lab.testbed.services import SQUID_CONFIG

pytestmark = pytest.mark.kernel


def test_a_start_without_name_servers_is_to_be_tried_again(testbed: Testbed) -> None:
    """Defect: its exit status was that of a mistake in the file, for which systemd starts nothing again."""
    node = testbed["proxy"]  # which reaches no name server
    file = node.write("squid.conf", f"{SQUID_CONFIG.read_text()}\nacl office src office.example\n")
    done = node.run([node.program("mptcp-proxy"), "run", "--config", str(file)], check=False, timeout=120)
    assert done.returncode == FAILED
    assert "no name server answers: the end waits" in done.stderr
