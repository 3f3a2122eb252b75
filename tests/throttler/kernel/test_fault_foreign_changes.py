# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests in which another program changes the throttler's kernel objects.

The kernel notifies the throttler of the change, and the throttler logs the name of the program that made it.
If the kernel sends no notification, the next periodic comparison finds the change.
"""

from __future__ import annotations

import signal
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from bpf_objects import detach, object_ids
from faults import LONG_TIMEOUT, RARE_INTERVAL, Pulse, repair_seconds, traffic
from throttler_site import FULL_POLICY, Site, clients, connected, listening, make_site, read_status, running, until

from mptcp_lab.testbed import Testbed
from mptcp_lab.testbed.services import Throttler, write_throttler_config

pytestmark = pytest.mark.kernel

PROGRAMS = 2
"""Number of the throttler's BPF programs: one limits sockets, the other counts the bytes that sockets carried."""
DOWNLOADS, UPLOADS = "inet mptcp_throttler", "netdev mptcp_throttler"
Change = Callable[[], object]
IsRepaired = Callable[[], bool]


@dataclass
class Scene:
    site: Site
    throttler: Throttler
    listener: socket.socket
    pulse: Pulse

    def is_shaped(self) -> bool:
        """Return whether the kernel has all objects that a capped subflow needs."""
        if not (
            self.sets_are_complete()
            if self.site.backend == "iptables"
            else self.table_is_complete(DOWNLOADS, "vmap @v6")
        ):
            return False
        command = "tc qdisc show; tc class show dev wan0; tc class show dev mptcp-up"
        listing = self.site.proxy.run(["sh", "-c", command], check=False)
        return (
            all(
                words in listing.stdout
                for words in (
                    "qdisc htb 4d50: dev wan0 root",
                    "qdisc htb 4d50: dev mptcp-up root",
                    "dev wan0 parent 4d50:10 limit",
                    "class htb 4d50:10 parent 4d50:fffe",
                    "rate 5Mbit",
                )
            )
            and listing.stdout.count("rate 5Mbit ceil 5Mbit") == 2
            and self.table_is_complete(UPLOADS, "fwd to")
        )

    def sets_are_complete(self) -> bool:
        command = "iptables-legacy -t mangle -S; ip6tables-legacy -t mangle -S"
        rules = self.site.proxy.run(["sh", "-c", command]).stdout
        return rules.count("--comment mptcp-throttler") == 4 and clients(self.site.entries()) == ["10.77.1.2"]

    def table_is_complete(self, table: str, rule: str) -> bool:
        """Return whether *table*, of either direction, has *rule*, the rule for IPv4 and the connection's entry."""
        listing = self.site.proxy.run(["nft", "-n", "list", "table", *table.split()], check=False).stdout
        return all(words in listing for words in (rule, "vmap @v4", "10.77.1.2 . "))

    def classes(self) -> str:
        return self.site.proxy.run(["tc", "class", "show", "dev", "wan0"]).stdout

    def change_counters(self) -> dict[str, int]:
        counters: dict[str, int] = read_status(self.throttler.socket)["counters"]["changes"]
        return counters


@pytest.fixture(scope="module")
def scene(request: pytest.FixtureRequest, make_module_testbed: Callable[..., Testbed], require: Any) -> Iterator[Scene]:
    require("htb", "nftables", "ifb", "bpf-pacing")
    backend, interval = request.param
    site = make_site(backend, make_module_testbed, require)
    # The kernel does not report which program changed an interface, so the throttler changes no interface here.
    settings = {"netfilter": backend, "verify_interval": interval, "gso_max_size": "keep"}
    write_throttler_config(site.proxy, site.policy, settings=settings)
    site.policy.write_text(FULL_POLICY)
    with ExitStack() as stack:
        throttler = stack.enter_context(running(site))
        listener = stack.enter_context(listening(site))
        pulse = stack.enter_context(traffic(stack.enter_context(connected(site, listener))))
        scene = Scene(site, throttler, listener, pulse)
        until(lambda: read_status(throttler.socket)["in_step"] and scene.is_shaped(), timeout=LONG_TIMEOUT)
        yield scene


COMMON_CHANGES = {
    "root qdisc": ("tc qdisc del dev wan0 root", "process "),
    "another root qdisc": (
        "tc qdisc replace dev wan0 root handle 7: tbf rate 50mbit burst 50k latency 50ms",
        "process ",
    ),
    "another rate of a cap": ("tc class change dev wan0 parent 4d50:fffe classid 4d50:10 htb rate 1mbit", "process "),
    "class of a cap": ("tc class del dev wan0 classid 4d50:10", "process "),
    "queue of a cap": ("tc qdisc del dev wan0 parent 4d50:10", "process "),
    "IFB device": ("ip link del mptcp-up", ": interface mptcp-up"),
    "all of nftables": ("nft flush ruleset", "(nft)"),
}
"""For each test: the command that changes the kernel, and what the throttler logs about the program that did it."""
IPTABLES_CHANGES = {
    "the rules": ("iptables-legacy -t mangle -F", "does not report"),
    "the entries": ("ipset flush mptcp-throttler-4-3128", "does not report"),
    "a set": (
        "iptables-legacy -t mangle -F; ip6tables-legacy -t mangle -F; ipset destroy mptcp-throttler-4-3128",
        "does not report",
    ),
}
NFTABLES_CHANGES = {
    "the entries": ("nft flush map inet mptcp_throttler v4", "(nft)"),
    "the table": ("nft delete table inet mptcp_throttler", "(nft)"),
    "a map with its rules": (
        "nft flush chain inet mptcp_throttler postrouting; nft delete map inet mptcp_throttler v4",
        "(nft)",
    ),
    "a rule": ("nft flush chain inet mptcp_throttler postrouting", "(nft)"),
}


def each_change(changes: dict[str, tuple[str, str]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("command", "logged_author"), changes.values(), ids=changes)


def with_notices(backend: str) -> pytest.MarkDecorator:
    """Use a throttler that compares its state with the kernel's only after a notice."""
    return pytest.mark.parametrize("scene", [(backend, RARE_INTERVAL)], indirect=True, ids=[f"{backend}-notices"])


def with_comparisons(backend: str) -> pytest.MarkDecorator:
    """Use a throttler that compares its state with the kernel's every second. The default is every ten seconds."""
    return pytest.mark.parametrize("scene", [(backend, 1)], indirect=True, ids=[f"{backend}-comparisons"])


@with_notices("iptables")
@each_change(COMMON_CHANGES)
def test_noticed_change_is_repaired(scene: Scene, command: str, logged_author: str) -> None:
    check_repair(scene, command, logged_author)


@with_comparisons("iptables")
@each_change(IPTABLES_CHANGES)
def test_change_to_iptables_is_found_by_comparison(scene: Scene, command: str, logged_author: str) -> None:
    check_repair(scene, command, logged_author)


@with_notices("nftables")
@each_change({"all of nftables": COMMON_CHANGES["all of nftables"]} | NFTABLES_CHANGES)
def test_noticed_change_to_nftables_is_repaired(scene: Scene, command: str, logged_author: str) -> None:
    check_repair(scene, command, logged_author)


@pytest.mark.nightly
@pytest.mark.parametrize("scene", [("iptables", RARE_INTERVAL), ("nftables", RARE_INTERVAL)], indirect=True)
def test_throttlers_own_changes_do_not_count_as_foreign(scene: Scene) -> None:
    before = scene.change_counters()["noticed"]
    for rate in ("6 Mbit/s", "5 Mbit/s"):
        with connected(scene.site, scene.listener):
            until(lambda: len(scene.site.entries()) == 2, timeout=LONG_TIMEOUT)
            scene.site.policy.write_text(FULL_POLICY.replace("5 Mbit/s", rate))
            scene.throttler.process.signal(signal.SIGHUP)
            until(lambda text=f"rate {rate[0]}Mbit": text in scene.classes(), timeout=LONG_TIMEOUT)  # type: ignore[misc]
        until(lambda: len(scene.site.entries()) == 1, timeout=LONG_TIMEOUT)
    until(scene.is_shaped, timeout=LONG_TIMEOUT)
    assert scene.change_counters()["noticed"] == before, "own changes were counted as foreign"


def detach_program(scene: Scene, index: int) -> tuple[Change, IsRepaired]:
    """Return two functions: one detaches the BPF program at *index*, the other checks that it is attached again."""
    pid, detached = scene.throttler.process.pid, [0]

    def change() -> None:
        detached[:] = [sorted(object_ids(pid, "link"))[index]]
        detach(detached[0])

    return change, lambda: detached[0] not in (found := object_ids(pid, "link")) and len(found) == PROGRAMS


def remove_file(path: Path) -> tuple[Change, IsRepaired]:
    before = path.stat()
    return path.unlink, lambda: path.exists() and stat.S_IFMT(path.stat().st_mode) == stat.S_IFMT(before.st_mode)


def state_file(scene: Scene, name: str) -> Path:
    return Path(f"/proc/{scene.throttler.process.pid}/root/run/mptcp-throttler", name)


CHANGES_WITHOUT_NOTICE: dict[str, Callable[[Scene], tuple[Change, IsRepaired]]] = {
    "a BPF program": lambda scene: detach_program(scene, 0),
    "the other BPF program": lambda scene: detach_program(scene, 1),
    "the status socket": lambda scene: remove_file(scene.throttler.socket),
    "the file of replaced qdiscs": lambda scene: remove_file(state_file(scene, "replaced.json")),
    "the file of sysctls": lambda scene: remove_file(state_file(scene, "sysctls.json")),
}


@with_comparisons("nftables")
@pytest.mark.parametrize("change", CHANGES_WITHOUT_NOTICE)
def test_change_without_a_notice_is_found_by_comparison(scene: Scene, change: str) -> None:
    change_and_check(scene, *CHANGES_WITHOUT_NOTICE[change](scene), "does not report")


def check_repair(scene: Scene, command: str, logged_author: str) -> None:
    change_and_check(scene, lambda: scene.site.proxy.run(["sh", "-c", command]), scene.is_shaped, logged_author)


def change_and_check(scene: Scene, change: Change, is_repaired: IsRepaired, logged_author: str) -> None:
    before, trips_before = scene.change_counters(), scene.pulse.round_trips
    length_before = len(scene.throttler.process.output())

    def change_lines() -> list[str]:
        return [each for each in scene.throttler.process.output()[length_before:].splitlines() if "changed by" in each]

    seconds = repair_seconds(change, is_repaired)
    print(f"repaired after {seconds:.2f} s; longest pause so far {scene.pulse.longest_pause:.2f} s")
    until(lambda: bool(change_lines()), timeout=LONG_TIMEOUT)
    assert all(logged_author in line for line in change_lines()), change_lines()
    assert scene.change_counters()["repaired"] > before["repaired"], "the repair was not counted"
    assert scene.is_shaped()
    until(lambda: scene.pulse.round_trips > trips_before, timeout=LONG_TIMEOUT)
