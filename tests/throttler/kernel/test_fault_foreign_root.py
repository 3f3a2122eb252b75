# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests in which an interface gets a root qdisc that the throttler could not restore: the other one keeps its caps.

The proxy has one interface per path. Capped traffic leaves through wan0; wan1 gets the root qdisc.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from faults import LONG_TIMEOUT, RARE_INTERVAL, repair_seconds, traffic
from throttler_site import Site, clients, connected, listening, running, until

from mptcp_lab.testbed import TWO_PATHS_TWO_INTERFACES, Testbed
from mptcp_lab.testbed.services import Throttler, write_throttler_config

pytestmark = pytest.mark.kernel

POLICY = """\
version: 1
paths:
  ethernet: {clients: [10.77.1.0/24]}
  wifi: {clients: [10.77.2.0/24]}
rules:
  - name: each-on-ethernet
    paths: [ethernet]
    throttle: {rate: 5 Mbit/s, share: connection}
"""
FOREIGN_QDISC = "qdisc pfifo_head_drop 7: root"
"""A kind of qdisc that the throttler does not replace. A single command installs it."""
REFUSAL = "interface wan1 has a qdisc of kind pfifo_head_drop, which could not be restored exactly"
LEFT_OUT = "until its root can be replaced, wan1 is not shaped; others are shaped"
SHAPED_AGAIN = "the root of wan1 can be replaced again: wan1 is shaped"


@dataclass
class Scene:
    site: Site
    throttler: Throttler
    connect: Callable[[], None]
    """Function that opens another connection."""

    def count_in_log(self, words: str) -> int:
        return self.throttler.process.output().count(words)

    def set_foreign_root(self) -> None:
        """Put a foreign root qdisc on wan1, and wait until the throttler has noticed it."""
        before = self.count_in_log(REFUSAL)
        tc(self.site, "qdisc replace dev wan1 root handle 7: pfifo_head_drop limit 100")
        until(lambda: self.count_in_log(REFUSAL) > before, timeout=LONG_TIMEOUT)

    def has_caps(self, count: int) -> bool:
        """Return whether *count* connections have a cap, each with its own class."""
        entries = self.site.entries()
        return clients(entries) == ["10.77.1.2"] * count and set(entries.values()) == cap_classes(self.site, "wan0")


def tc(site: Site, command: str) -> str:
    return site.proxy.run(["tc", *command.split()]).stdout


def cap_classes(site: Site, name: str) -> set[str]:
    """Return the classes of caps on an interface."""
    lines = tc(site, f"class show dev {name}").splitlines()
    return {line.split()[2] for line in lines if "rate 5Mbit" in line}


@pytest.fixture
def site(make_testbed: Callable[..., Testbed], require: Any) -> Site:
    require("htb", "nftables")
    testbed = make_testbed(TWO_PATHS_TWO_INTERFACES)
    policy = testbed.directory / "policy.yaml"
    policy.write_text(POLICY)
    settings = {"netfilter": "nftables", "verify_interval": RARE_INTERVAL}
    config = write_throttler_config(testbed["proxy"], policy, interfaces=("wan0", "wan1"), settings=settings)
    return Site(testbed, "nftables", policy, config)


@contextmanager
def running_with_traffic(site: Site) -> Iterator[Scene]:
    """Run a throttler on both interfaces, with a capped connection that carries traffic."""
    with ExitStack() as stack:
        throttler = stack.enter_context(running(site))
        listener = stack.enter_context(listening(site))
        stack.enter_context(traffic(stack.enter_context(connected(site, listener))))

        def connect() -> None:
            stack.enter_context(connected(site, listener))

        scene = Scene(site, throttler, connect)
        until(
            lambda: scene.has_caps(1) and cap_classes(site, "wan1") == cap_classes(site, "wan0"), timeout=LONG_TIMEOUT
        )
        yield scene


def test_new_caps_work_on_the_other_interface_until_both_are_shaped_again(site: Site) -> None:
    """Defect: while one interface had such a qdisc, new caps with their own class were set on no interface."""
    before = site.state()
    with running_with_traffic(site) as scene:
        scene.set_foreign_root()
        for count in (2, 3):
            scene.connect()
            until(lambda count=count: scene.has_caps(count), timeout=LONG_TIMEOUT)  # type: ignore[misc]
        assert FOREIGN_QDISC in tc(site, "qdisc show dev wan1")
        assert (scene.count_in_log(LEFT_OUT), scene.count_in_log(SHAPED_AGAIN)) == (1, 0)

        def remove_foreign_root() -> None:
            if FOREIGN_QDISC not in tc(site, "qdisc show dev wan1"):  # A further attempt.
                scene.set_foreign_root()
            tc(site, "qdisc del dev wan1 root")

        took = repair_seconds(remove_foreign_root, lambda: cap_classes(site, "wan1") == cap_classes(site, "wan0"))
        print(f"shaped again after {took:.2f} s")
        assert scene.has_caps(3)
        assert scene.count_in_log(LEFT_OUT) == scene.count_in_log(SHAPED_AGAIN)
        scene.connect()
        until(
            lambda: scene.has_caps(4) and cap_classes(site, "wan1") == cap_classes(site, "wan0"), timeout=LONG_TIMEOUT
        )
    site.assert_nothing_left(before)


def test_stop_leaves_the_foreign_root_qdisc(site: Site) -> None:
    before = site.state()
    with running_with_traffic(site) as scene:
        scene.set_foreign_root()
        scene.connect()
        until(lambda: scene.has_caps(2), timeout=LONG_TIMEOUT)
    assert FOREIGN_QDISC in tc(site, "qdisc show dev wan1")
    tc(site, "qdisc del dev wan1 root")
    site.assert_nothing_left(before)
