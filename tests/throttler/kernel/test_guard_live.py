# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the guard with real transfers: a failed path relaxes the other path's cap, unless a rule forbids it."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest

from mptcp_lab.testbed import Testbed
from mptcp_lab.testbed.services import (
    mptcp_command,
    start_origin,
    start_proxy,
    start_sink,
    start_throttler,
    wait_until,
    write_throttler_config,
)

pytestmark = pytest.mark.kernel

POLICY = """\
version: 1
paths:
  ethernet: {clients: [10.77.1.0/24]}
guard: {after: 0.3, retry: 2}
rules: [{name: cap, paths: [ethernet], guard: true, throttle: {rate: 5 Mbit/s}}]
"""
TWO_RULES = """\
version: 1
paths:
  ethernet: {clients: [10.77.1.0/24]}
  by-ipv6: {clients: ["fd77:1::/64"]}
guard: {after: 0.3, retry: 2}
rules:
  - {name: cap, paths: [ethernet], throttle: {rate: 5 Mbit/s}}
  - {name: hard, paths: [by-ipv6], guard: false, throttle: {rate: 5 Mbit/s}}
"""
DROP = 'table inet fault { chain forward { type filter hook forward priority 0; oifname "wlan0" drop; }; }'


def test_failing_path_relaxes_the_cap_of_a_download(make_testbed: Callable[..., Testbed], require: Any) -> None:
    require("htb", "nftables")
    testbed = make_testbed()
    policy = testbed.directory / "policy.yaml"
    policy.write_text(POLICY)
    throttler = start_throttler(testbed["proxy"], write_throttler_config(testbed["proxy"], policy))
    origin, proxy = start_origin(testbed["origin"], {"big": 400_000_000}), start_proxy(testbed["proxy"])
    command = ["curl", "-s", "-m", "300", "-o", "/dev/null", "-x", proxy.url(), origin.url("big")]
    testbed["client"].popen(mptcp_command(command))

    def status() -> dict[str, Any]:
        return throttler.status()

    def capped_subflow_count() -> int:
        return sum(s["classid"] is not None for c in status()["connections"] for s in c["subflows"])

    def received_bytes() -> int:
        return int(testbed["client"].counters()["wlan0"].received)

    def highest_rate() -> int:
        """Return the rate of the relaxed cap."""
        (connection,) = status()["connections"]
        return max(each["rate"] or 0 for each in connection["subflows"])

    def is_relaxed() -> bool:
        """Return whether the cap is relaxed, with its reason.

        Both values are from a single answer, because a trial may begin before the next answer.
        """
        (connection,) = status()["connections"]
        reason = {each["path"]: each["reason"] for each in connection["subflows"]}.get("ethernet", "")
        cause = "its uncapped path from 10.77.2.2 alone once carried"
        return cause in (connection["relaxed"] or "") and "cap of rule cap relaxed" in reason

    wait_until(lambda: capped_subflow_count() == 1, "the cap is in force")
    wait_until(lambda: received_bytes() > 5_000_000, "Wi-Fi has carried enough to measure its rate")
    device = testbed["core"].run(["sh", "-c", "ip -o -4 addr | awk '/10.77.2.1/ {print $2}'"]).stdout.strip()
    drop = DROP.replace("wlan0", device)
    with testbed["core"].changed(["nft", drop], ["nft", "delete", "table", "inet", "fault"]):
        wait_until(is_relaxed, "the cap is relaxed")
        # Defect: Ethernet's cap was lifted completely. It must be relaxed to the rate of Wi-Fi, which has 30 Mbit/s.
        assert 10_000_000 < highest_rate() < 36_000_000
    wait_until(lambda: status()["counters"]["guard"]["resumptions"] > 0, "the cap is tried again")
    throttler.process.signal(signal.SIGTERM)
    assert throttler.process.wait(60) == 0
    assert "caps relaxed" in throttler.process.output()


@pytest.mark.nightly
def test_cap_without_guard_stays_while_another_cap_is_relaxed(
    make_testbed: Callable[..., Testbed], require: Any
) -> None:
    require("htb", "nftables")
    testbed = make_testbed()
    policy = testbed.directory / "policy.yaml"
    policy.write_text(TWO_RULES)
    throttler = start_throttler(testbed["proxy"], write_throttler_config(testbed["proxy"], policy))
    origin, proxy = start_origin(testbed["origin"], {"big": 400_000_000}), start_proxy(testbed["proxy"])
    for family in (4, 6):
        url = origin.url("big", family=family)
        command = ["curl", "-s", "-m", "300", "-o", "/dev/null", "-x", proxy.url(family), url]
        testbed["client"].popen(mptcp_command(command), name=f"download-{family}")

    def capped_connections() -> dict[str, Any]:
        """Map each capped path to its connection."""
        found = throttler.status()["connections"]
        return {s["path"]: c for c in found for s in c["subflows"] if s["classid"] is not None}

    def received_bytes(device: str) -> int:
        return int(testbed["client"].counters()[device].received)

    def guard_counter(name: str) -> int:
        return int(throttler.status()["counters"]["guard"][name])

    tokens: dict[str, str] = {}

    def both_are_capped() -> bool:
        """Return whether both paths have a cap, and store the tokens. An anticipated cap may be lifted for a moment."""
        found = capped_connections()
        tokens.update({path: each["token"] for path, each in found.items()})
        return len(found) == 2

    wait_until(both_are_capped, "both caps are in force")
    wait_until(lambda: received_bytes("wlan0") > 10_000_000, "Wi-Fi has carried enough to measure its rate")
    device = testbed["core"].run(["sh", "-c", "ip -o -4 addr | awk '/10.77.2.1/ {print $2}'"]).stdout.strip()
    drop = DROP.replace("wlan0", device)
    with testbed["core"].changed(["nft", drop], ["nft", "delete", "table", "inet", "fault"]):
        wait_until(lambda: guard_counter("relaxations") > 0, "a cap is relaxed")
        # The guard checks all connections at the same time. This transfer lasts longer than the guard needs to relax a
        # cap.
        before = received_bytes("eth0")
        wait_until(
            lambda: received_bytes("eth0") > before + 20_000_000, "the connection with the relaxed cap downloads more"
        )
        assert capped_connections()["by-ipv6"]["relaxed"] is None
    wait_until(lambda: guard_counter("resumptions") > 0, "the cap is tried again")
    throttler.process.signal(signal.SIGTERM)
    assert throttler.process.wait(60) == 0
    relaxed = [line for line in throttler.process.output().splitlines() if "caps relaxed" in line]
    assert relaxed
    assert all(f"connection {tokens['ethernet']}" in line for line in relaxed), relaxed


@pytest.mark.nightly
def test_failing_path_relaxes_the_cap_of_an_upload(make_testbed: Callable[..., Testbed], require: Any) -> None:
    require("htb", "nftables", "ifb", "nft-ingress")
    testbed = make_testbed()
    policy = testbed.directory / "policy.yaml"
    policy.write_text(POLICY.replace("guard: true", "direction: up"))
    throttler = start_throttler(testbed["proxy"], write_throttler_config(testbed["proxy"], policy))
    sink, proxy = start_sink(testbed["origin"]), start_proxy(testbed["proxy"])
    body = testbed.directory / "body"
    with open(body, "wb") as file:
        file.truncate(1_000_000_000)
    command = ["curl", "-s", "-m", "300", "-o", "/dev/null", "-H", "Expect:", "-x", proxy.url(), "-T", str(body)]
    testbed["client"].popen(mptcp_command([*command, sink.url()]))

    def status() -> dict[str, Any]:
        return throttler.status()

    def rate() -> int:
        (connection,) = status()["connections"]
        (ethernet,) = [each for each in connection["subflows"] if each["path"] == "ethernet"]
        return ethernet["upload"]["rate"] or 0

    def is_in_force() -> bool:
        return status()["counters"]["upload_entries"] == 1 and rate() == 5_000_000

    def sent_bytes() -> int:
        return int(testbed["client"].counters()["wlan0"].sent)

    def is_relaxed() -> bool:
        """Return whether the cap is relaxed, with its reason and rate, from a single answer."""
        found = status()
        (connection,) = found["connections"]
        (ethernet,) = [each for each in connection["subflows"] if each["path"] == "ethernet"]
        return (
            (connection["relaxed"] or "").startswith("upload: the connection got ")
            and "upload: cap of rule cap relaxed" in ethernet["upload"]["reason"]
            and 10_000_000 < ethernet["upload"]["rate"] < 36_000_000
        )

    wait_until(is_in_force, "the cap is in force")
    before = sent_bytes()
    wait_until(lambda: sent_bytes() > before + 5_000_000, "Wi-Fi has carried enough to measure its rate")
    device = testbed["core"].run(["sh", "-c", "ip -o -4 addr | awk '/10.77.2.1/ {print $2}'"]).stdout.strip()
    drop = DROP.replace('oifname "wlan0"', f'meta iifname "{device}" drop; oifname "{device}"')
    with testbed["core"].changed(["nft", drop], ["nft", "delete", "table", "inet", "fault"]):
        wait_until(is_relaxed, "the cap is relaxed")
    wait_until(lambda: status()["counters"]["guard"]["resumptions"] > 0, "the cap is tried again")
    wait_until(is_in_force, "the cap is in force again")
