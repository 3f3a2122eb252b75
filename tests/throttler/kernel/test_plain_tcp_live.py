# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for ``plain_tcp: cap`` on real connections: plain and Multipath TCP share one class, and no state remains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from throttling import PATHS, UNCAPPED, ThrottledSite

from mptcp_lab.testbed import Testbed
from mptcp_lab.testbed.services import Origin, start_origin, wait_until
from mptcp_throttler.shaping.model import PLAIN_TCP_TABLE

pytestmark = pytest.mark.kernel

MEGABITS = 8
DOWNLOAD_BYTES = 2_000_000
CAPPED = f"""\
{PATHS}rules:
  - {{name: never-above, paths: [ethernet], always: true, plain_tcp: cap, throttle: {{rate: {MEGABITS} Mbit/s}}}}
"""


@dataclass
class Site(ThrottledSite):
    """Origin, proxy and the configuration of a throttler."""

    origin: Origin

    def plain_download_seconds(self) -> float:
        """Return the seconds that a plain TCP client takes to download :data:`DOWNLOAD_BYTES` bytes."""
        argv = self.curl(self.origin.url("small"), "-w", "%{time_total}")
        argv = argv[argv.index("curl") :]
        return float(self.testbed["client"].run(argv).stdout)

    def tables(self) -> str:
        return str(self.node.run(["nft", "list", "tables"]).stdout)


@pytest.fixture(scope="module")
def site(make_module_testbed: Callable[..., Testbed], require: Any) -> Site:
    require("htb", "nftables")
    testbed = make_module_testbed()
    origin = start_origin(testbed["origin"], {"big": 400_000_000, "small": DOWNLOAD_BYTES})
    return Site.start_on(testbed, origin, settings={"verify_interval": 1})


def test_plain_and_multipath_tcp_share_one_cap(site: Site) -> None:
    seconds = 8 * DOWNLOAD_BYTES / 1e6 / MEGABITS
    wait_until(lambda: site.plain_download_seconds() < seconds, "plain TCP has no cap before the throttler starts")
    throttler = site.start(CAPPED)
    assert site.plain_download_seconds() > 0.9 * seconds, "plain TCP exceeded the cap"
    mptcp_client = site.testbed["client"].popen(site.curl(site.origin.url("big")))
    wait_until(lambda: len(throttler.status()["connections"]) == 1, "the download over Multipath TCP has begun")
    wait_until(
        lambda: len(throttler.status()["connections"][0]["subflows"]) == 2,
        "the download has a subflow on the other path, too",
    )
    assert site.plain_download_seconds() > 1.2 * seconds, "plain TCP got the whole cap"
    site.abort(mptcp_client)
    site.node.run(["nft", "delete", "table", "inet", PLAIN_TCP_TABLE])
    wait_until(lambda: PLAIN_TCP_TABLE in site.tables(), "the table is restored")
    site.reload(throttler, UNCAPPED)
    wait_until(lambda: PLAIN_TCP_TABLE not in site.tables(), "the table is removed with the rule")
    # A download that begins while its class is deleted can lose the packets queued there, and waits for
    # retransmissions.
    wait_until(lambda: site.plain_download_seconds() < seconds, "plain TCP has no cap without the rule")
    site.reload(throttler, CAPPED)
    wait_until(lambda: PLAIN_TCP_TABLE in site.tables(), "the table is created with the rule")
    throttler.process.kill()
    throttler.process.wait(10)
    assert "plain TCP" in site.cleanup()
    site.stop_cleanly(site.start(CAPPED))
