# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the throttler as a program, on real MPTCP connections: it caps the right subflows and no others."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest
from throttler_site import POLICY, PORT, Site, clients, connection, knows_both_subflows, read_status, running, until

from mptcp_lab.testbed import TWO_PATHS_TWO_INTERFACES, Testbed, TestbedError
from mptcp_lab.testbed.services import write_throttler_config
from mptcp_throttler.shaping.plan import DRAIN_SECONDS

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.usefixtures("unchanged_kernel"),
    pytest.mark.nightly(except_for=("nftables",)),
]


@pytest.mark.nightly(except_for=("fd77",))
@pytest.mark.parametrize(("family", "ethernet"), [(4, "10.77.1.2"), (6, "fd77:1::2")])
def test_rule_caps_the_chosen_subflow_only(site: Site, family: int, ethernet: str) -> None:
    with running(site) as throttler:
        with connection(site, family):
            until(lambda: knows_both_subflows(throttler.socket))
            until(lambda: clients(site.entries()) == [ethernet])
            (classid,) = site.entries().values()
            classes = site.proxy.run(["tc", "class", "show", "dev", "wan0"]).stdout
            assert f"class htb {classid} " in classes
            assert "rate 5Mbit ceil 5Mbit" in classes.split(f"class htb {classid} ")[1].splitlines()[0]
            (shown,) = read_status(throttler.socket)["connections"]
            capped, free = shown["subflows"]
            assert (capped["path"], capped["rule"], capped["rate"], capped["classid"]) == (
                "ethernet", "spare-ethernet", 5_000_000, classid,
            )  # fmt: skip
            assert (free["path"], free["classid"], free["initial"]) == ("wifi", None, False)
        until(lambda: not site.entries(), timeout=DRAIN_SECONDS + 60)
        until(lambda: not read_status(throttler.socket)["connections"])


def test_single_subflow_and_plain_tcp_are_not_capped(site: Site) -> None:
    with running(site) as throttler:
        with connection(site, protocol=socket.IPPROTO_TCP):
            assert not read_status(throttler.socket)["connections"]
        with site.client.link_down("wlan0"), connection(site):
            until(lambda: len(read_status(throttler.socket)["connections"]) == 1)
            (shown,) = read_status(throttler.socket)["connections"]
            assert len(shown["subflows"]) == 1
            until(lambda: not site.entries())  # At first, the throttler anticipates a second subflow.
            (shown,) = read_status(throttler.socket)["connections"]
            assert "only 1 active subflow" in shown["subflows"][0]["reason"]


def test_connections_older_than_the_daemon_are_capped(site: Site) -> None:
    with connection(site), running(site) as throttler:
        until(lambda: clients(site.entries()) == ["10.77.1.2"])
        (shown,) = read_status(throttler.socket)["connections"]
        assert [s["interface"] for s in shown["subflows"]] == ["wan0", "wan0"]


def test_cap_is_lifted_from_the_last_subflow_of_a_connection(site: Site) -> None:
    with running(site) as throttler, connection(site):
        until(lambda: clients(site.entries()) == ["10.77.1.2"])
        site.client.run(["ip", "mptcp", "endpoint", "delete", "id", "4"])
        try:
            until(lambda: not site.entries())
            (shown,) = read_status(throttler.socket)["connections"]
            assert [s["path"] for s in shown["subflows"]] == ["ethernet"]
        finally:
            site.client.run(["ip", "mptcp", "endpoint", "add", "10.77.2.2", "dev", "wlan0", "id", "4", "subflow"])


def test_dry_run_sets_no_caps_and_reports_those_that_it_would_set(site: Site) -> None:
    site.policy.write_text(POLICY + "dry_run: true\n")
    with running(site) as throttler, connection(site):
        until(lambda: len(read_status(throttler.socket)["connections"]) == 1)
        until(lambda: len(read_status(throttler.socket)["connections"][0]["subflows"]) == 2)
        status = site.throttler("status")
        assert "dry run" in status.stdout
        (shown,) = read_status(throttler.socket)["connections"]
        assert "would cap path ethernet at 5 Mbit/s" in shown["subflows"][0]["reason"]
        assert not site.entries()
        assert not read_status(throttler.socket)["classes"]


def test_path_can_be_defined_by_the_proxys_interface(make_testbed: Callable[..., Testbed], site: Site) -> None:
    testbed = make_testbed(TWO_PATHS_TWO_INTERFACES)
    policy = testbed.directory / "policy.yaml"
    policy.write_text(
        "version: 1\npaths: {second: {interfaces: [wan1]}}\n"
        "rules: [{name: cap, paths: [second], throttle: {rate: 2 Mbit/s, share: connection}}]\n"
    )
    config = write_throttler_config(
        testbed["proxy"], policy, interfaces=("wan0", "wan1"), settings={"netfilter": site.backend}
    )
    other = Site(testbed, site.backend, policy, config)
    before = other.state()
    with running(other) as throttler, connection(other):
        try:
            until(lambda: knows_both_subflows(throttler.socket))
            until(lambda: clients(other.entries()) == ["10.77.2.2"])
        except TestbedError:
            print(other.throttler("status", "--json").stdout)
            raise
        (classid,) = other.entries().values()
        for interface in ("wan0", "wan1"):
            assert f"class htb {classid} " in other.proxy.run(["tc", "class", "show", "dev", interface]).stdout
    other.assert_nothing_left(before)


def test_forged_join_does_not_count_as_a_subflow(site: Site) -> None:
    """An attacker who knows the token, but not the keys, joins from an address in the client's Wi-Fi network."""
    from mptcp_layers import MpJoinAck, MpJoinSyn, tcp_option
    from scapy.config import conf
    from scapy.layers.inet import IP, TCP
    from scapy.layers.l2 import Ether

    attacker, core = "10.77.2.77", site.testbed["core"]
    mac = site.client.run(["cat", "/sys/class/net/wlan0/address"]).stdout.strip()
    core_mac = core.run(["cat", "/sys/class/net/to-wlan0/address"]).stdout.strip()
    core.run(["ip", "neigh", "replace", attacker, "lladdr", mac, "dev", "to-wlan0"])
    site.client.run(["ip", "mptcp", "endpoint", "delete", "id", "4"])
    try:
        with running(site) as throttler, connection(site):
            until(lambda: len(read_status(throttler.socket)["connections"]) == 1)
            until(lambda: not site.entries())  # At first, the throttler anticipates a join.
            token = int(read_status(throttler.socket)["connections"][0]["token"], 16)
            frame = Ether(src=mac, dst=core_mac) / IP(src=attacker, dst=site.proxy.address("wan0"))
            syn = MpJoinSyn(address_id=9, token=token, nonce=1)
            with (
                site.client.entered(),
                conf.L2socket(iface="wlan0", filter=f"dst host {attacker}", promisc=False) as l2_socket,
            ):
                opening = TCP(sport=4444, dport=PORT, flags="S", seq=1000, options=[tcp_option(syn)])
                answer = l2_socket.sr1(frame / opening, timeout=60, verbose=0)
                assert answer is not None, "the proxy's kernel did not answer a join with the right token"
                join_ack_options = [tcp_option(MpJoinAck(hmac=b"x" * 20))]
                l2_socket.send(
                    frame
                    / TCP(
                        sport=4444, dport=PORT, flags="A", seq=1001, ack=answer[TCP].seq + 1, options=join_ack_options
                    )
                )
            until(lambda: read_status(throttler.socket)["counters"]["tracker"]["joins_refused"] >= 1)
            (shown,) = read_status(throttler.socket)["connections"]
            assert [s["remote"].split(":")[0] for s in shown["subflows"]] == ["10.77.1.2"]
            assert not site.entries()
    finally:
        site.client.run(["ip", "mptcp", "endpoint", "add", "10.77.2.2", "dev", "wlan0", "id", "4", "subflow"])
        core.run(["ip", "neigh", "del", attacker, "dev", "to-wlan0"])


def test_only_the_throttlers_bits_of_the_mark_change(site: Site) -> None:
    mangle = ["iptables-legacy", "-t", "mangle"]
    site.proxy.run(
        [*mangle, "-A", "OUTPUT", "-p", "tcp", "--sport", str(PORT), "-j", "MARK", "--set-mark", "0x12000034"]
    )
    try:
        with running(site) as throttler, connection(site) as (client, proxy):
            until(lambda: knows_both_subflows(throttler.socket))
            until(lambda: len(site.entries()) == 1)
            for mark in ("0x12010034", "0x12000034"):
                site.proxy.run([*mangle, "-A", "POSTROUTING", "-m", "mark", "--mark", mark])

            def both_subflows_counted() -> bool:
                """Return whether both subflows have sent data past the counters.

                Few bytes might all go over one subflow.
                """
                proxy.sendall(bytes(20_000))
                client.recv(1 << 20)
                listing = site.proxy.run([*mangle, "-nvxL", "POSTROUTING"]).stdout
                counts = [int(line.split()[0]) for line in listing.splitlines() if "mark match" in line]
                return len(counts) == 2 and all(counts)

            # The nftables chain has the same priority as legacy iptables, and may run after its counters.
            if site.backend == "iptables":
                until(both_subflows_counted)
            rules = site.proxy.run(["sh", "-c", "nft list ruleset; ipset save"]).stdout
            assert "0x10000/0xff0000" in rules or "meta mark & 0xff01ffff | 0x00010000" in rules
            site.proxy.run([*mangle, "-F", "POSTROUTING"])
    finally:
        site.proxy.run([*mangle, "-F", "OUTPUT"])
        site.proxy.run([*mangle, "-F", "POSTROUTING"])
