# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the steering modes with real downloads: backup flags, sysctls, and their reset after a kill."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from throttling import PATHS, UNCAPPED, ThrottledSite

from mptcp_lab.testbed import Testbed
from mptcp_lab.testbed.services import (
    Origin,
    Throttler,
    start_origin,
    start_sink,
    wait_until,
    write_throttler_config,
)
from mptcp_throttler.kernel.sockets.diagnostics import SocketDiagnostics

pytestmark = pytest.mark.kernel

STANDBY = PATHS + "rules: [{name: s, steer: {mode: active-standby, active: wifi, standby: ethernet}}]\n"
BALANCE = PATHS + "rules: [{name: b, steer: {mode: load-balancing, weights: {ethernet: 20, wifi: 80}}}]\n"
PRIORITY = PATHS + "rules: [{name: p, steer: {mode: priority-based, order: [ethernet, wifi]}}]\n"
STANDBY_AND_BUDGET = f"""\
{PATHS}rules:
  - {{name: s, steer: {{mode: active-standby, active: wifi, standby: ethernet}}}}
  - {{name: up, paths: [wifi], direction: up, budget: {{period: day, steps: [{{after: 0, throttle: none}}]}}}}
"""
SYSCTLS = ("net.mptcp.pm_type", "net.mptcp.stale_loss_cnt")


def capped_subflows(throttler: Throttler) -> list[dict[str, Any]]:
    """Return the status of the subflows that have a class."""
    return [s for each in throttler.status()["connections"] for s in each["subflows"] if s["classid"]]


def has_rate_of_its_share(subflow: dict[str, Any]) -> bool:
    reason = "steered load-balancing by rule b: 20 % of the bytes"
    return (subflow["path"], subflow["reason"]) == ("ethernet", reason) and 1_000_000 < subflow["rate"] < 60_000_000


@dataclass
class Site(ThrottledSite):
    """Origin, proxy and the configuration of a throttler."""

    origin: Origin

    @contextmanager
    def download(self, family: int = 4) -> Iterator[None]:
        client = self.testbed["client"].popen(self.curl(self.origin.url("big", family=family), family=family))
        try:
            wait_until(lambda: len(self.backups()) == 2, "the download has both its subflows")
            yield
        finally:
            self.abort(client)

    def backups(self) -> list[bool]:
        """Return for each subflow whether this side made it backup. The Ethernet subflow comes first."""
        with self.node.entered():
            diagnostics = SocketDiagnostics((3128,))
            found = sorted(diagnostics.subflows(), key=lambda each: each.four_tuple.remote)
            diagnostics.close()
        return [each.made_backup for each in found]

    def sysctls(self) -> list[str]:
        return self.node.run(["sysctl", "-n", *SYSCTLS]).stdout.split()

    def standby_bytes(self) -> int:
        """Return the bytes that arrive over Ethernet while 5 MB arrive over Wi-Fi."""
        ethernet, wifi = self.received_bytes("eth0"), self.received_bytes("wlan0")
        wait_until(lambda: self.received_bytes("wlan0") > wifi + 5_000_000, "Wi-Fi carries the download", timeout=60)
        return self.received_bytes("eth0") - ethernet

    def received_bytes(self, device: str) -> int:
        return self.testbed["client"].interface_bytes(device).received


@pytest.fixture(scope="module")
def site(make_module_testbed: Callable[..., Testbed], require: Any) -> Site:
    require("htb", "nftables")
    testbed = make_module_testbed()
    return Site.start_on(testbed, start_origin(testbed["origin"], {"big": 400_000_000}))


@pytest.mark.nightly(except_for=("[4]",))
@pytest.mark.parametrize("family", [4, 6])
def test_standby_is_used_only_if_the_active_path_is_down(site: Site, family: int) -> None:
    before = site.sysctls()
    throttler = site.start(STANDBY)
    assert site.sysctls() == ["1", "3"]
    with site.download(family):
        wait_until(lambda: site.backups() == [True, False], "the standby is backup")
        # Data that were queued for the standby path still arrive over it.
        wait_until(lambda: site.standby_bytes() < 100_000, "the active path carries the download", timeout=60)
        reasons = {s["path"]: s["reason"] for s in throttler.status()["connections"][0]["subflows"]}
        assert reasons == {
            "ethernet": "steered active-standby by rule s: standby",
            "wifi": "steered active-standby by rule s: active",
        }
        ethernet = site.received_bytes("eth0")
        with site.testbed["client"].link_down("wlan0"):
            wait_until(lambda: site.received_bytes("eth0") > ethernet + 5_000_000, "the standby takes over")
            wait_until(lambda: site.backups() == [False, True], "Wi-Fi is backup instead of Ethernet")
        wait_until(lambda: site.backups() == [True, False], "Ethernet is backup again")
    site.stop_cleanly(throttler)
    assert site.sysctls() == before


def test_upload_uses_only_the_first_path(site: Site) -> None:
    """Defect: in one of four uploads, the client used both paths.

    The joined subflow was steered before the initial one, so that its path stayed open.
    """
    client = site.testbed["client"]
    with open(site.testbed.directory / "body", "wb") as file:
        file.truncate(400_000_000)
    upload = site.curl(start_sink(site.testbed["origin"]).url(), "-H", "Expect:", "-T", file.name)
    throttler = site.start(PRIORITY)
    for _ in range(5):
        with client.running(upload):
            wait_until(lambda: site.backups() == [False, True], "the second path is backup")
        wait_until(lambda: not site.backups(), "the upload has ended", timeout=90)
    site.stop_cleanly(throttler)


def test_backup_flags_are_removed_with_the_rule(site: Site) -> None:
    before = site.sysctls()
    throttler = site.start(STANDBY)
    with site.download():
        wait_until(lambda: site.backups() == [True, False], "the standby is backup")
        site.reload(throttler, UNCAPPED)
        wait_until(lambda: site.backups() == [False, False], "the standby is regular again")
        wait_until(lambda: site.sysctls() == before, "the sysctls are restored")
    site.stop_cleanly(throttler)


def test_backup_flags_of_a_killed_throttler_are_removed(site: Site) -> None:
    before = site.sysctls()
    throttler = site.start(STANDBY)
    with site.download():
        wait_until(lambda: site.backups() == [True, False], "the standby is backup")
        throttler.process.kill()
        wait_until(lambda: site.sysctls() == before, "the keeper restores the sysctls")
        throttler = site.start(BALANCE)
        wait_until(lambda: site.backups() == [False, False], "the standby is regular again")
        wait_until(lambda: site.sysctls() == before, "the sysctls are restored")
        site.stop_cleanly(throttler, keeper=True)
    throttler = site.start(STANDBY)
    with site.download():
        wait_until(lambda: site.backups() == [True, False], "the standby is backup")
        throttler.process.kill()
        # Without a successor, only cleanup resets the flag.
        assert "the backup flag of 1 subflow cleared" in site.cleanup()
        assert site.backups() == [False, False]
    assert site.sysctls() == before


@pytest.mark.nightly
def test_load_balancing_caps_the_path_above_its_share(site: Site) -> None:
    throttler = site.start(BALANCE)
    with site.download():
        # The caps follow the load of the paths. For a moment, no path or both may have a cap.
        wait_until(lambda: [s["path"] for s in capped_subflows(throttler)] == ["ethernet"], "only Ethernet is capped")
        wait_until(
            lambda: any(has_rate_of_its_share(s) for s in capped_subflows(throttler)), "the cap is Ethernet's share"
        )
    wait_until(lambda: not throttler.status()["classes"], "the class is removed with the connection")
    site.stop_cleanly(throttler)


def test_refused_reload_changes_no_sysctl_and_creates_no_device(site: Site) -> None:
    """The reload is refused because the ledger cannot be opened."""
    before = site.sysctls()
    (site.testbed.directory / "ledger").mkdir()
    write_throttler_config(site.node, site.policy, settings={"ledger": f"{site.testbed.directory}/ledger"})
    throttler = site.start(UNCAPPED)
    site.reload(throttler, STANDBY_AND_BUDGET)
    wait_until(lambda: "policy not reloaded" in throttler.process.output(), "the reload is refused")
    assert "ledger cannot be opened: Is a directory" in throttler.process.output()
    assert site.sysctls() == before
    assert "mptcp-up" not in site.node.run(["ip", "-o", "link"]).stdout
    site.stop_cleanly(throttler)
