# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that the next comparison repairs all damage that another program did in the kernel (docs/contract.md)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path
from typing import Any

import pytest
from bpf_objects import detach, object_ids
from throttler_site import FULL_POLICY, Site, connection, knows_both_subflows, make_site, read_status, running, until

from mptcp_lab.testbed import Testbed, TestbedError
from mptcp_lab.testbed.services import Throttler, write_throttler_config

pytestmark = pytest.mark.kernel

REPAIR_TIMEOUT = 60.0
"""Time limit in seconds for a repair on a busy machine. The throttler compares every second."""


@dataclass
class Scene:
    """A running throttler with a capped connection."""

    site: Site
    throttler: Throttler

    def run(self, command: str) -> str:
        return self.site.proxy.run(["sh", "-c", command]).stdout

    def stable_dump(self) -> str:
        """Return a dump of the kernel without values that change by themselves or when a device is created again."""
        text = re.sub(
            r"counter packets \d+ bytes \d+|packets \d+ bytes \d+|link/ether \S+|initval \S+|^\d+: ",
            "",
            self.site.kernel_dump(),
            flags=re.M,
        )
        # The kernel numbers qdiscs from 8000 and lists the newest last.
        lines = re.sub(r"\b[89a-f][0-9a-f]{3}:", "8000:", text).splitlines()
        # A link gets a new link-local address one or two seconds after its creation.
        return "\n".join(
            sorted(
                line.rstrip()
                for line in lines
                if "fq_codel 0:" not in line and not re.search("dev mptcp-up (proto|table)", line)
            )
        )

    def is_complete(self) -> bool:
        """Return whether no cap is anticipated any longer, and the kernel has the caps in both directions."""
        shown = read_status(self.throttler.socket)
        return (
            knows_both_subflows(self.throttler.socket)
            and shown["in_step"]
            and (shown["counters"]["entries"], shown["counters"]["upload_entries"]) == (1, 1)
            and len(self.site.entries()) == 1
        )

    def warnings(self) -> int:
        """Return how often the daemon logged that the kernel's state differed from its own."""
        return self.throttler.process.output().count("WARNING")

    @property
    def pid(self) -> int:
        """The daemon's process ID. The daemon holds the descriptors of its BPF programs and maps."""
        return self.throttler.process.pid


@pytest.fixture(scope="module")
def scene(request: pytest.FixtureRequest, make_module_testbed: Callable[..., Testbed], require: Any) -> Iterator[Scene]:
    require("htb", "nftables", "ifb", "bpf-pacing")
    site = make_site(request.param, make_module_testbed, require)
    write_throttler_config(site.proxy, site.policy, settings={"netfilter": request.param, "verify_interval": 1})
    site.policy.write_text(FULL_POLICY)
    with running(site) as throttler, connection(site):
        scene = Scene(site, throttler)
        until(scene.is_complete, timeout=REPAIR_TIMEOUT)
        yield scene


COMMON_DAMAGE = {
    "GSO limit": "ip link set wan0 gso_max_size 40000",
    "root qdisc": "tc qdisc del dev wan0 root",
    "class of the link": "tc class change dev wan0 parent 4d50: classid 4d50:fffe htb rate 1mbit",
    "class of a cap": "tc class change dev wan0 parent 4d50:fffe classid 4d50:10 htb rate 1mbit",
    "queue of a cap": "tc qdisc del dev wan0 parent 4d50:10",
    "IFB device is deleted": "ip link del mptcp-up",
    "IFB device is down": "ip link set mptcp-up down",
    "root qdisc of the IFB device": "tc qdisc del dev mptcp-up root",
    "upload table": "nft delete table netdev mptcp_throttler",
    "rules of the upload table": "nft flush chain netdev mptcp_throttler ingress_wan0",
    "path manager": "sysctl -w net.mptcp.pm_type=0",
    "stale loss count": "sysctl -w net.mptcp.stale_loss_cnt=4",
}
IPTABLES_DAMAGE = {
    "rules": "iptables-legacy -t mangle -F POSTROUTING",
    "rules of IPv6": "ip6tables-legacy -t mangle -F POSTROUTING",
    "entries": "ipset flush mptcp-throttler-4-3128",
    # The throttler may restore a rule before the sets are destroyed, so the command tries repeatedly.
    "sets": "for i in 1 2 3 4 5 6 7 8 9; do iptables-legacy -t mangle -F; ip6tables-legacy -t mangle -F;"
    " ipset destroy 2>/dev/null && exit; done; exit 1",
}
NFTABLES_DAMAGE = {
    "table": "nft delete table inet mptcp_throttler",
    "rules": "nft flush chain inet mptcp_throttler postrouting",
    "chain of a class": "nft flush chain inet mptcp_throttler class_10_mark_10000",
    "another rule in the chain of a class": "nft insert rule inet mptcp_throttler class_10_mark_10000 return",
    "entries": "nft flush map inet mptcp_throttler v4",
}


IPTABLES = pytest.mark.parametrize("scene", ["iptables"], indirect=True)
NFTABLES = pytest.mark.parametrize("scene", ["nftables"], indirect=True)


def each_command(damage: dict[str, str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("command", damage.values(), ids=damage)


@IPTABLES
@each_command(COMMON_DAMAGE | IPTABLES_DAMAGE)
def test_damage_is_repaired(scene: Scene, command: str) -> None:
    check_repair(scene, command)


@NFTABLES
@each_command(NFTABLES_DAMAGE)
def test_damage_to_nftables_is_repaired(scene: Scene, command: str) -> None:
    check_repair(scene, command)


def check_repair(scene: Scene, command: str) -> None:
    before, warnings = scene.stable_dump(), scene.warnings()
    scene.run(command)
    try:
        until(lambda: scene.stable_dump() == before, timeout=REPAIR_TIMEOUT)
    except TestbedError:
        pytest.fail("\n".join(unified_diff(before.splitlines(), scene.stable_dump().splitlines(), n=0)))
    until(lambda: scene.warnings() > warnings, timeout=REPAIR_TIMEOUT)


@IPTABLES
@pytest.mark.parametrize("name", ["replaced.json", "sysctls.json"])
def test_deleted_state_file_is_restored(scene: Scene, name: str) -> None:
    path = Path(f"/proc/{scene.pid}/root/run/mptcp-throttler", name)
    before = path.read_text()
    path.unlink()
    until(path.exists, timeout=REPAIR_TIMEOUT)
    assert path.read_text() == before


@IPTABLES
def test_deleted_status_socket_is_created_again(scene: Scene) -> None:
    scene.throttler.socket.unlink()
    until(scene.throttler.socket.exists, timeout=REPAIR_TIMEOUT)
    until(lambda: bool(read_status(scene.throttler.socket)["connections"]), timeout=REPAIR_TIMEOUT)


@IPTABLES
def test_detached_bpf_program_is_attached_again(scene: Scene) -> None:
    before = object_ids(scene.pid, "link")
    detach(before[0])
    until(lambda: "was detached" in scene.throttler.process.output(), timeout=REPAIR_TIMEOUT)
    until(lambda: len(object_ids(scene.pid, "link")) == len(before), timeout=REPAIR_TIMEOUT)
    assert before[0] not in object_ids(scene.pid, "link")
