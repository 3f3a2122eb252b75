# SPDX-License-Identifier: GPL-2.0-or-later
"""Fixtures of the throttler's kernel tests: a site for a throttler that runs as a program, and nodes without one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator

import pytest
from throttler_site import Site, check_restored, make_site

from mptcp_common.throttler_needs import BACKENDS
from mptcp_lab.testbed import LiveNode, Testbed
from mptcp_lab.testbed.services import wait_until


@pytest.fixture(scope="module", params=BACKENDS)
def site(
    request: pytest.FixtureRequest, make_module_testbed: Callable[..., Testbed], require: Callable[..., None]
) -> Site:
    """The site of a throttler that runs as a program, once with each netfilter backend."""
    return make_site(request.param, make_module_testbed, require)


@pytest.fixture(scope="module")
def host(module_testbed: Testbed) -> LiveNode:
    """The proxy's node, for tests of one adapter without a throttler."""
    return module_testbed["proxy"]


@pytest.fixture
def link(module_testbed: Testbed, require: Callable[..., None]) -> Iterator[LiveNode]:
    """The origin's node, with a pair of interfaces, t0 and t1, for tests of traffic control."""
    require("htb")
    host = module_testbed["origin"]
    host.run(["ip", "link", "add", "t0", "type", "veth", "peer", "t1"])
    for device in ("t0", "t1"):
        host.run(["ip", "link", "set", device, "up"])
    # The interface comes up after the command returns, and the tests compare the interface's initial state.
    wait_until(lambda: "state UP" in host.run(["ip", "link", "show", "t0"]).stdout, "t0 is up")
    yield host
    host.run(["ip", "link", "del", "t0"])


@pytest.fixture
def ordinary_scheduling() -> Iterator[None]:
    """Run the test with SCHED_OTHER, independent of this process's policy. Skip it if real time is not permitted."""
    if subprocess.run(["chrt", "--rr", "1", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this host permits no real-time scheduling (chrt --rr 1 true)")
    before = os.sched_getscheduler(0)
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    yield
    os.sched_setscheduler(0, before, os.sched_param(0))


@pytest.fixture
def unchanged_kernel(site: Site) -> Iterator[None]:
    """Check after the test that the throttler has restored the kernel's state."""
    with check_restored(site):
        yield
