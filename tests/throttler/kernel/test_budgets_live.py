# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for budgets with real transfers: the counted volume (also after kill -9), the start of the cap, and quota."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from throttling import ThrottledSite

from mptcp_common.status_client import ask
from mptcp_lab.testbed import Testbed
from mptcp_lab.testbed.services import (
    ANSWER_TIMEOUT,
    Origin,
    Throttler,
    start_origin,
    throttler_mounts,
    wait_until,
)

pytestmark = pytest.mark.kernel

POLICY = """\
version: 1
paths: {ethernet: {clients: [10.77.1.0/24, "fd77:1::/64"]}}
rules:
  - name: volume
    budget: {period: month, per: path, count: down, steps: [{after: %s, throttle: {rate: 2 Mbit/s}}]}
"""
SMALL_FILE, LARGE_FILE = 100_000, 20_000_000


@dataclass
class Site(ThrottledSite):
    """Origin, proxy, the configuration of a throttler, and downloads whose bytes are counted."""

    origin: Origin

    def start_with(self, after: str, reset_ledger: bool = True) -> Throttler:
        self.policy.write_text(POLICY % after)
        if reset_ledger:
            self.quota("reset")
        return self.start(POLICY % after)

    def command(self, name: str, family: int = 4) -> list[str]:
        return self.curl(self.origin.url(name, family=family), "-w", "%{size_download} %{size_header}\n", family=family)

    def download(self, name: str, family: int = 4) -> int:
        """Download a file. Return the received bytes of HTTP header and body."""
        return sum(map(int, self.testbed["client"].run(self.command(name, family), timeout=90).stdout.split()))

    def received_bytes(self) -> int:
        """Return the bytes that both interfaces of the client received, with headers."""
        return sum(self.testbed["client"].interface_bytes(each).received for each in ("eth0", "wlan0"))

    def quota(self, *arguments: str) -> tuple[int, str]:
        """Return the exit status and the output of ``quota``."""
        argv = [self.node.program("mptcp-throttler"), "quota", *arguments, "--config", str(self.config)]
        process = self.node.popen(argv, name="quota")
        return process.wait(60), process.output()


@pytest.fixture(scope="module")
def site(make_module_testbed: Callable[..., Testbed], require: Any) -> Site:
    require("htb", "bpf-pacing")
    testbed = make_module_testbed()
    origin = start_origin(testbed["origin"], {"small": SMALL_FILE, "big": LARGE_FILE, "endless": 400_000_000})
    return Site.start_on(testbed, origin, settings={"ledger": str(testbed.directory / "ledger.sqlite")})


def is_nearly_equal(used: int, downloaded: int) -> bool:
    return abs(used - downloaded) <= max(0.01 * downloaded, 65_536)


@pytest.mark.nightly(except_for=("[6]",))
@pytest.mark.parametrize("family", [4, 6])
def test_all_bytes_of_long_and_short_downloads_are_counted(site: Site, family: int) -> None:
    throttler = site.start_with("5 GB")
    downloaded = site.download("big", family)
    downloaded += sum(site.download("small", family) for _ in range(30))
    wait_until(lambda: is_nearly_equal(site.used(), downloaded), f"{downloaded} bytes are counted")
    site.stop_cleanly(throttler)
    (shown,) = json.loads(site.quota("show", "--json")[1])
    assert is_nearly_equal(shown["used"], downloaded)


@pytest.mark.nightly
def test_kills_during_a_transfer_neither_lose_nor_double_count_bytes(site: Site) -> None:
    throttler = site.start_with("5 GB")
    before = site.received_bytes()
    # Bytes of a socket that ends while no throttler runs are not counted, so the download must last (200 seconds).
    client = site.testbed["client"].popen([*site.command("endless"), "--limit-rate", "2M"])
    for megabytes in (2, 6, 10):
        wait_until(lambda volume=megabytes: site.used() > volume * 1e6, "the ledger counts the download")  # type: ignore[misc]
        throttler.process.kill()
        throttler = site.start_with("5 GB", reset_ledger=False)
    assert client.running, "the download ended before the last kill"
    site.abort(client)
    wait_until(lambda: not throttler.status()["connections"], "the connection has ended")
    site.stop_cleanly(throttler)
    received = site.received_bytes() - before
    assert 0.9 * received < site.used() < received, "the count includes headers, or misses data"


def was_lifted(throttler: Throttler) -> bool:
    """Return whether the throttler has lifted a cap since its start."""
    return "lifted" in {each["kind"] for each in ask(throttler.socket, {"query": "events"}, ANSWER_TIMEOUT)["events"]}


def test_cap_begins_after_the_volume_and_ends_at_a_reset(site: Site) -> None:
    throttler = site.start_with("8 MB")
    client = site.testbed["client"].popen(site.command("endless"))
    try:
        wait_until(lambda: throttler.status()["counters"]["entries"] > 0, "the cap is in force")
        # The ledger is written once a second.
        wait_until(lambda: site.used() >= 8_000_000, "the volume is used up in the ledger")
        expected = "rule volume caps what exceeds 8.00 MB"
        reasons = {s["reason"][: len(expected)] for c in throttler.status()["connections"] for s in c["subflows"]}
        assert reasons == {expected}
        _, shown = site.quota("show")
        assert "volume" in shown
        assert "8.00 MB" in shown
        assert not was_lifted(throttler)
        assert site.quota("reset", "--rule", "volume") == (0, "reset: 1 volume\n")
        # The cap returns after the next 8 MB, which take less than a second.
        wait_until(lambda: was_lifted(throttler), "the cap is lifted")
    finally:
        site.abort(client)
    site.stop_cleanly(throttler)


RULE_AND_BUDGET = """\
version: 1
paths: {ethernet: {clients: [10.77.1.0/24, "fd77:1::/64"]}}
budgets: {month: {period: month, per: path, count: down, steps: [{after: 30 MB, throttle: {rate: 2 Mbit/s}}]}}
rules:
  - {name: cap, paths: [ethernet], throttle: {rate: 10 Mbit/s}, lift_last: false}
  - {name: volume, budget: month}
"""


def test_lower_cap_of_rule_and_budget_applies(site: Site) -> None:
    site.policy.write_text(RULE_AND_BUDGET)
    site.quota("reset")
    throttler = site.start(RULE_AND_BUDGET)

    def rates() -> set[int]:
        return {s["rate"] for c in throttler.status()["connections"] for s in c["subflows"] if s["path"]}

    client = site.testbed["client"].popen(site.command("endless"))
    try:
        wait_until(lambda: rates() == {10_000_000}, "the rule's cap holds")
        wait_until(lambda: rates() == {2_000_000}, "the budget's cap holds")
        wait_until(lambda: site.used() >= 30_000_000, "the ledger has counted the volume")
        (reason,) = {s["reason"] for c in throttler.status()["connections"] for s in c["subflows"] if s["path"]}
        assert reason.startswith("budget month caps what exceeds 30.0 MB until ")
        assert reason.endswith("; tighter than the 10 Mbit/s of rule cap")
        assert site.quota("reset", "--rule", "volume") == (0, "reset: 1 volume\n")
        wait_until(lambda: rates() == {10_000_000}, "the rule's cap holds again")
    finally:
        site.abort(client)
    site.stop_cleanly(throttler)


def test_each_error_is_reported_in_one_line(site: Site) -> None:
    site.policy.write_text(POLICY % "1 GB")
    assert site.quota("show", "--rule", "volum") == (
        1, '--rule: "volum" is not a rule with a budget; the rules with a budget are volume\n',
    )  # fmt: skip
    assert site.quota("reset", "--client", "10.77.1") == (1, '--client: "10.77.1" is not an address\n')
    ledger = site.testbed.directory / "ledger.sqlite"
    ledger.rename(ledger.with_suffix(".kept"))
    try:
        assert "there is no ledger yet" in site.quota("show")[1]
        ledger.write_text("no database" * 1000)
        process = site.node.popen(
            [site.node.program("mptcp-throttler"), "run", "--config", str(site.config)],
            name="refused",
            mounts=throttler_mounts(site.node),
        )
        assert process.wait(60) == 1
        assert "file is not a database" in process.output()
        assert "Traceback" not in process.output()
    finally:
        ledger.with_suffix(".kept").rename(ledger)
