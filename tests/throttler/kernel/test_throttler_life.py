# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the throttler's life cycle: start, reload, stop, kill, and changes by other programs."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from contextlib import suppress

import pytest
from faults import traffic
from throttler_site import POLICY, Site, clients, connection, knows_both_subflows, read_status, running, until

from mptcp_common.exit_status import CONFIGURATION
from mptcp_lab.testbed import TWO_PATHS_TWO_INTERFACES, Testbed
from mptcp_lab.testbed.services import program, start_throttler, throttler_mounts, write_throttler_config
from mptcp_lab.testbed.system_state import differences

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.usefixtures("unchanged_kernel"),
    pytest.mark.nightly(except_for=("iptables",)),
]


def test_successor_of_a_killed_throttler_keeps_all_entries(site: Site) -> None:
    first = site.start()
    with connection(site):
        until(lambda: knows_both_subflows(first.socket))
        until(lambda: clients(site.entries()) == ["10.77.1.2"])
        entries = site.entries()
        first.process.kill()
        assert site.entries() == entries
        second = site.proxy.popen(
            [program("mptcp-throttler"), "run", "--config", str(site.config)],
            name="second",
            mounts=throttler_mounts(site.proxy),
        )
        socket_path = first.socket

        def answers() -> bool:
            assert site.entries() == entries
            assert second.running, second.output()
            with suppress(OSError):
                return bool(read_status(socket_path)["connections"])
            return False

        until(answers, timeout=60)
        second.signal(signal.SIGTERM)
        assert second.wait(60) == 0


def test_cleanup_is_refused_while_the_throttler_runs_and_cleans_after_a_kill(site: Site) -> None:
    before = site.state()
    throttler = site.start()
    with connection(site):
        until(lambda: len(site.entries()) == 1)
        refused = site.throttler("cleanup")
        assert refused.returncode == 1
        assert "already runs" in refused.stdout
        assert site.entries()
        throttler.process.kill()
        assert differences(before, site.state())
        done = site.throttler("cleanup")
        assert done.returncode == 0, done.stdout
        site.assert_nothing_left(before)
    repeated = site.throttler("cleanup")
    assert repeated.returncode == 0


def test_reload_accepts_a_valid_policy_and_refuses_an_invalid_one(site: Site) -> None:
    with running(site) as throttler, connection(site) as ends, traffic(ends):
        until(lambda: len(site.entries()) == 1)

        def rates() -> set[int]:
            return {entry["rate"] for entry in read_status(throttler.socket)["classes"]}

        site.policy.write_text(POLICY.replace("5 Mbit/s", "8 Mbit/s"))
        throttler.process.signal(signal.SIGHUP)
        until(lambda: rates() == {8_000_000})
        site.policy.write_text(POLICY.replace("5 Mbit/s", "fast"))
        throttler.process.signal(signal.SIGHUP)
        until(lambda: "policy not reloaded" in throttler.process.output())
        assert f"{site.policy}:8: " in throttler.process.output()
        assert rates() == {8_000_000}
        assert len(site.entries()) == 1
        site.policy.write_text(POLICY.replace("[ethernet]", "[wifi]"))
        throttler.process.signal(signal.SIGHUP)
        until(lambda: clients(site.entries()) == ["10.77.2.2"])


def test_log_reports_new_caps(site: Site) -> None:
    # Without anticipation, the throttler sets the cap once. An anticipated cap could be lifted and set again.
    site.policy.write_text(POLICY + "anticipate: false\n")
    with running(site) as throttler, connection(site):
        cap_text = "rule spare-ethernet caps path ethernet at 5 Mbit/s"
        until(lambda: f" (5 Mbit/s): {cap_text}" in throttler.process.output())
        (line,) = (each for each in throttler.process.output().splitlines() if cap_text in each)
        assert line.startswith("INFO: 10.77.8.2:3128-10.77.1.2:")


def test_interface_that_was_down_is_captured_and_shaped_again(site: Site) -> None:
    with running(site) as throttler:
        with site.proxy.link_down("wan0"):
            until(lambda: "capturing again when the interface is up" in throttler.process.output())
        until(lambda: "capturing again on wan0" in throttler.process.output())
        with connection(site):
            until(lambda: clients(site.entries()) == ["10.77.1.2"])


def test_removed_rules_and_classes_are_restored(site: Site) -> None:
    with running(site) as throttler, connection(site):
        until(lambda: knows_both_subflows(throttler.socket))
        until(lambda: len(site.entries()) == 1)
        (classid,) = site.entries().values()
        if site.backend == "iptables":
            site.proxy.run(["ipset", "flush", "mptcp-throttler-4-3128"])
            site.proxy.run(["iptables-legacy", "-t", "mangle", "-F", "POSTROUTING"])
        else:
            site.proxy.run(["nft", "delete", "table", "inet", "mptcp_throttler"])
        site.proxy.run(["tc", "class", "del", "dev", "wan0", "classid", classid])
        until(lambda: clients(site.entries()) == ["10.77.1.2"])
        until(lambda: f"class htb {classid} " in site.proxy.run(["tc", "class", "show", "dev", "wan0"]).stdout)


def test_failed_start_reports_its_reason(site: Site) -> None:
    config = site.testbed.directory / "no-such-interface.yaml"
    config.write_text(site.config.read_text().replace('"wan0"', '"wan7"'))
    process = site.proxy.popen(
        [program("mptcp-throttler"), "run", "--config", str(config)],
        name="failing",
        mounts=throttler_mounts(site.proxy),
    )
    assert process.wait(60) == CONFIGURATION
    assert f"{config}:1: interfaces: there is no interface wan7 on this host" in process.output()
    assert "Traceback" not in process.output()
    site.policy.write_text("version: 1\nrules: 7\n")
    process = site.proxy.popen(
        [program("mptcp-throttler"), "run", "--config", str(site.config)],
        name="failing2",
        mounts=throttler_mounts(site.proxy),
    )
    assert process.wait(60) == CONFIGURATION
    assert f"{site.policy}:2: rules" in process.output()


@pytest.mark.parametrize("moment", ["immediately", "while starting"])
def test_stop_during_the_start_leaves_the_kernel_unchanged(site: Site, moment: str) -> None:
    process = site.proxy.popen(
        [program("mptcp-throttler"), "run", "--config", str(site.config)],
        name="stopped-early",
        mounts=throttler_mounts(site.proxy),
    )
    if moment == "while starting":
        until(lambda: " replaces " in process.output())
        process.signal(signal.SIGHUP)
    process.signal(signal.SIGTERM)
    process.wait(60)
    assert "Traceback" not in process.output()


def test_repeated_stop_signals_leave_the_kernel_unchanged(site: Site) -> None:
    throttler = site.start()
    with connection(site):
        until(lambda: len(site.entries()) == 1)
        for _ in range(5):
            throttler.process.signal(signal.SIGTERM)
            time.sleep(0.01)
    assert throttler.process.wait(60) == 0


def test_recreated_interface_does_not_affect_the_others(make_testbed: Callable[..., Testbed], site: Site) -> None:
    testbed = make_testbed(TWO_PATHS_TWO_INTERFACES)
    policy = testbed.directory / "policy.yaml"
    policy.write_text(POLICY)
    config = write_throttler_config(
        testbed["proxy"],
        policy,
        interfaces=("wan0", "extra0"),
        settings={"netfilter": site.backend, "verify_interval": 1},
    )
    other_site = Site(testbed, site.backend, policy, config)
    add = ["ip", "link", "add", "extra0", "type", "veth", "peer", "extra1"]
    set_up = ["ip", "link", "set", "extra0", "up"]
    other_site.proxy.run(add)
    other_site.proxy.run(set_up)
    with running(other_site) as throttler:
        other_site.proxy.run(["ip", "link", "del", "extra0"])
        until(lambda: "there is no interface extra0" in throttler.process.output())
        with connection(other_site):
            until(lambda: clients(other_site.entries()) == ["10.77.1.2"])
        other_site.proxy.run(add)
        other_site.proxy.run(set_up)
        until(lambda: "htb 4d50: root" in other_site.proxy.run(["tc", "qdisc", "show", "dev", "extra0"]).stdout)
        until(lambda: "class htb 4d50:10 " in other_site.proxy.run(["tc", "class", "show", "dev", "extra0"]).stdout)
    assert "4d50" not in other_site.proxy.run(["tc", "qdisc", "show"]).stdout


def test_successor_with_another_backend_removes_the_objects_of_the_first(site: Site) -> None:
    first = site.start()
    with connection(site):
        until(lambda: len(site.entries()) == 1)
        first.process.kill()
        backend = "nftables" if site.backend == "iptables" else "iptables"
        config = site.testbed.directory / "other.yaml"
        config.write_text(site.config.read_text().replace(f'"{site.backend}"', f'"{backend}"'))
        successor = start_throttler(site.proxy, config)
        assert not site.entries()
        assert clients(Site(site.testbed, backend, site.policy, config).entries()) == ["10.77.1.2"]
        successor.process.signal(signal.SIGTERM)
        assert successor.process.wait(60) == 0
