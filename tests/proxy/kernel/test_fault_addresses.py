# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for addresses of the proxy's host that change each second: traffic continues, and Squid is reconfigured only
once."""

from __future__ import annotations

import time

import pytest
from proxying import WITH_RETRIES

from mptcp_lab.testbed import Testbed
from mptcp_lab.testbed.services import start_origin, start_proxy, wait_until

pytestmark = pytest.mark.kernel

RECONFIGURED = "this host's addresses have changed"


def test_flapping_address_reconfigures_squid_once(testbed: Testbed) -> None:
    node = testbed["proxy"]
    proxy, origin = start_proxy(node), start_origin(testbed["origin"], {"file": 1000})
    succeeded = 0
    for _ in range(3):
        node.run(["ip", "addr", "add", "192.0.2.77/32", "dev", "lo"])
        time.sleep(1.2)  # the supervisor combines changes within a shorter time
        answer = testbed["client"].run(
            ["curl", "-sf", "-m", "60", *WITH_RETRIES, "-o", "/dev/null", "-x", proxy.url(), origin.url("file")],
            check=False,
            timeout=90,
        )
        succeeded += answer.returncode == 0
        # The address returns long before the ten seconds after which the removal would reconfigure Squid.
        node.run(["ip", "addr", "del", "192.0.2.77/32", "dev", "lo"])
        time.sleep(1.2)
    assert succeeded == 3
    assert proxy.process.output().count(RECONFIGURED) == 1


@pytest.mark.nightly
def test_frequent_address_changes_reconfigure_squid_less_often(testbed: Testbed) -> None:
    """Defect: each change reconfigured Squid, which refused clients for a moment each second."""
    node = testbed["proxy"]
    proxy = start_proxy(node)
    numbers = iter(range(1, 250))
    warning = "this host's addresses keep changing"

    def changes_again() -> bool:
        address = f"192.0.2.{next(numbers)}/32"
        node.run(["ip", "addr", "add", address, "dev", "lo"])
        time.sleep(1.2)  # the supervisor combines changes within a shorter time
        node.run(["ip", "addr", "del", address, "dev", "lo"])
        return warning in proxy.process.output()

    wait_until(changes_again, "the supervisor logs the warning", timeout=240, process=proxy.process)
    for _ in range(5):
        changes_again()
    output = proxy.process.output()
    # The supervisor reconfigures Squid after 2, 4 and 8 seconds. Then it logs the warning once, and reconfigures after
    # 16, 32 and 60 seconds.
    assert (output.count(RECONFIGURED), output.count(warning)) == (3, 1)
