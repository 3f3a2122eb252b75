# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for reloads while a connection closes: each reload sets the maximum size of GSO segments."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from typing import Any

import pytest
from throttler_site import POLICY, connection, make_site, running, until

from mptcp_lab.testbed import Testbed

pytestmark = pytest.mark.kernel

RELOADS = 12
LIMITS = {"20 Mbit/s": "12500", "1 Mbit/s": "3028"}
"""Maximum segment size in bytes under the lowest cap: the bytes that the cap allows in 5 ms, but at least two MTUs."""


def test_gso_limit_follows_each_reload(make_module_testbed: Callable[..., Testbed], require: Any) -> None:
    site = make_site("iptables", make_module_testbed, require)

    def gso_limits() -> set[str]:
        shown = site.proxy.run(["ip", "-d", "link", "show", "wan0"]).stdout
        return set(re.findall(r"gso_(?:ipv4_)?max_size (\d+)", shown))

    site.policy.write_text(POLICY)
    # Two of four reloads begin before a connection closes, the other two after it has closed.
    with running(site) as throttler:
        for number in range(RELOADS):
            rate = list(LIMITS)[number % 2]
            with connection(site):
                site.policy.write_text(POLICY.replace("5 Mbit/s", rate))
                if number % 4 < 2:
                    throttler.process.signal(signal.SIGHUP)
            if number % 4 >= 2:
                throttler.process.signal(signal.SIGHUP)
            until(lambda limit=LIMITS[rate]: gso_limits() == {limit})  # type: ignore[misc]
        assert "ERROR" not in throttler.process.output()
        # One comparison may have happened between a reload and its effect.
        assert throttler.process.output().count("limit on GSO segments") <= 1
