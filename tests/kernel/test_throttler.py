"""The throttler as a program, on real MPTCP connections: what it caps, what it leaves alone, what it leaves behind."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mptcp_bench.testbed import TWO_PATHS_TWO_INTERFACES, LiveNode, Testbed
from mptcp_bench.testbed.services import Throttler, program, start_throttler, throttler_mounts, write_throttler_config
from mptcp_throttler.views.ask import ask

pytestmark = pytest.mark.kernel

POLICY = """\
version: 1
paths:
  ethernet: {clients: [10.77.1.0/24, "fd77:1::/64"]}
  wifi: {clients: [10.77.2.0/24, "fd77:2::/64"]}
rules:
  - name: spare-ethernet
    paths: [ethernet]
    throttle: {rate: 5 Mbit/s}
"""
IPPROTO_MPTCP = 262
PORT = 3128
MAJOR = "4d50:"


@dataclass
class Site:
    """A testbed with a throttler's configuration, and what a test asks about it."""

    testbed: Testbed
    backend: str
    policy: Path
    config: Path

    @property
    def proxy(self) -> LiveNode:
        return self.testbed["proxy"]

    @property
    def client(self) -> LiveNode:
        return self.testbed["client"]

    def start(self) -> Throttler:
        return start_throttler(self.proxy, self.config)

    def throttler(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run ``mptcp-throttler`` with *arguments* where the daemon's state is."""
        process = self.proxy.popen(
            [program("mptcp-throttler"), *arguments, "--config", str(self.config)],
            name=f"throttler-{arguments[0]}-{time.monotonic_ns()}",
            mounts=throttler_mounts(self.proxy),
        )
        code = process.wait(30)
        return subprocess.CompletedProcess(arguments, code, process.output(), "")

    def entries(self) -> dict[str, str]:
        """Return the client end of each capped subflow and its class, as ipset or nft shows them."""
        if self.backend == "iptables":
            lines = self.proxy.run(["ipset", "save"]).stdout.splitlines()
            adds = [line.split() for line in lines if line.startswith("add mptcp-throttler-")]
            return {
                words[2].split(",")[0] + " " + words[2].split("tcp:")[1].split(",")[0]: words[
                    words.index("skbprio") + 1
                ]
                for words in adds
            }
        listing = self.proxy.run(["nft", "-n", "list", "ruleset"]).stdout
        found = {}
        for line in listing.replace("elements = {", "\n").splitlines():
            for item in line.split(","):
                if " : jump class_" in item:
                    remote, port = item.split(" . ")[:2]
                    found[f"{remote.strip()} {port.strip()}"] = MAJOR + item.split("class_")[1].split("_")[0]
        return found

    def kernel_dump(self) -> str:
        """Return all that could differ in the kernel: tc, iptables, ipset, nft; counters aside."""
        strip = "grep -v '^#' | sed 's/\\[[0-9]*:[0-9]*\\]//; s/direct_packets_stat [0-9]*//; s/refcnt [0-9]*//'"
        commands = (
            "tc -d qdisc show; for dev in $(ls /sys/class/net); do tc -d class show dev $dev; ip -d -o link show $dev; "
            "done; iptables-legacy-save -t mangle; ip6tables-legacy-save -t mangle; ipset save; nft list ruleset"
        )
        return self.proxy.run(["sh", "-c", f"({commands}) | {strip}"]).stdout


@pytest.fixture(scope="module", params=["iptables", "nftables"])
def site(request: pytest.FixtureRequest, make_module_testbed: Callable[..., Testbed], require: Any) -> Site:
    require("htb", *(["ipset", "iptables-legacy"] if request.param == "iptables" else ["nftables"]))
    testbed = make_module_testbed()
    policy = testbed.directory / "policy.yaml"
    policy.write_text(POLICY)
    config = write_throttler_config(
        testbed["proxy"], policy, settings={"netfilter": request.param, "verify_interval": 2}
    )
    return Site(testbed, request.param, policy, config)


@pytest.fixture(autouse=True)
def _untouched_afterwards(site: Site) -> Iterator[None]:
    """Whatever a test does, its throttler must leave the kernel as it was."""
    site.policy.write_text(POLICY)
    before = site.kernel_dump()
    yield
    assert site.kernel_dump() == before


@contextmanager
def running(site: Site) -> Iterator[Throttler]:
    """A throttler that is stopped as systemd would, and must then end well."""
    throttler = site.start()
    try:
        yield throttler
    finally:
        throttler.process.signal(signal.SIGTERM)
        code = throttler.process.wait(10)
    assert code == 0, throttler.process.output()
    assert "Traceback" not in throttler.process.output()


@contextmanager
def connection(
    site: Site, family: int = 4, protocol: int = IPPROTO_MPTCP
) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A connection from client to proxy that is up on all its paths; yields both ends."""
    kind = socket.AF_INET6 if family == 6 else socket.AF_INET
    with ExitStack() as stack:
        with site.proxy.entered():
            listener = stack.enter_context(socket.socket(socket.AF_INET6, socket.SOCK_STREAM, protocol))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("::", PORT))
            listener.listen()
        with site.client.entered():
            client = stack.enter_context(socket.socket(kind, socket.SOCK_STREAM, protocol))
        client.settimeout(10)
        client.connect((site.proxy.address("wan0", family), PORT))
        proxy, _ = listener.accept()
        stack.enter_context(proxy)
        proxy.settimeout(10)
        client.sendall(b"?")
        assert proxy.recv(1) == b"?"
        proxy.sendall(b"!")
        assert client.recv(1) == b"!"
        yield client, proxy
        client.shutdown(socket.SHUT_WR)
        proxy.shutdown(socket.SHUT_WR)


def until(holds: Callable[[], bool], timeout: float = 8) -> None:
    """Wait until *holds*, which must be within *timeout* seconds."""
    deadline = time.monotonic() + timeout
    while not holds():
        assert time.monotonic() < deadline, "did not come true"
        time.sleep(0.02)


def clients(entries: dict[str, str]) -> list[str]:
    return sorted(key.split()[0] for key in entries)


@pytest.mark.parametrize(("family", "ethernet"), [(4, "10.77.1.2"), (6, "fd77:1::2")])
def test_the_chosen_subflow_is_capped_and_the_other_is_not(site: Site, family: int, ethernet: str) -> None:
    with running(site) as throttler:
        with connection(site, family):
            until(lambda: clients(site.entries()) == [ethernet])
            (classid,) = site.entries().values()
            classes = site.proxy.run(["tc", "class", "show", "dev", "wan0"]).stdout
            assert f"class htb {classid} " in classes
            assert "rate 5Mbit ceil 5Mbit" in classes.split(f"class htb {classid} ")[1].splitlines()[0]
            (shown,) = ask(throttler.socket)["connections"]
            capped, free = shown["subflows"]
            assert (capped["path"], capped["rule"], capped["rate"], capped["classid"]) == (
                "ethernet", "spare-ethernet", 5_000_000, classid,
            )  # fmt: skip
            assert (free["path"], free["classid"], free["initial"], free["state"]) == ("wifi", None, False, "active")
        until(lambda: not site.entries())
        until(lambda: not ask(throttler.socket)["connections"])


def test_one_subflow_and_plain_tcp_are_left_alone(site: Site) -> None:
    with running(site) as throttler:
        with connection(site, protocol=socket.IPPROTO_TCP):
            assert not ask(throttler.socket)["connections"]
        with site.client.link_down("wlan0"), connection(site):
            until(lambda: len(ask(throttler.socket)["connections"]) == 1)
            (shown,) = ask(throttler.socket)["connections"]
            assert len(shown["subflows"]) == 1
            assert not site.entries()


def test_connections_older_than_the_daemon_are_known(site: Site) -> None:
    with connection(site), running(site) as throttler:
        until(lambda: clients(site.entries()) == ["10.77.1.2"])
        (shown,) = ask(throttler.socket)["connections"]
        assert [s["interface"] for s in shown["subflows"]] == ["wan0", "wan0"]


def test_a_killed_daemons_successor_adopts_and_no_entry_is_ever_missing(site: Site) -> None:
    first = site.start()
    with connection(site):
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
        answered = False
        for _ in range(200):
            assert site.entries() == entries
            try:
                answered = bool(ask(socket_path)["connections"])
            except OSError:
                answered = False
            if answered:
                break
            time.sleep(0.01)
        assert answered, second.output()
        second.signal(signal.SIGTERM)
        assert second.wait(10) == 0


def test_cleanup_after_a_kill_removes_all_and_refuses_while_a_daemon_runs(site: Site) -> None:
    before = site.kernel_dump()
    throttler = site.start()
    with connection(site):
        until(lambda: len(site.entries()) == 1)
        refused = site.throttler("cleanup")
        assert refused.returncode == 1
        assert "running already" in refused.stdout
        assert site.entries()
        throttler.process.kill()
        assert site.kernel_dump() != before
        done = site.throttler("cleanup")
        assert done.returncode == 0, done.stdout
        assert site.kernel_dump() == before
    again = site.throttler("cleanup")
    assert again.returncode == 0


def test_reload_takes_a_good_policy_and_refuses_a_bad_one(site: Site) -> None:
    with running(site) as throttler, connection(site):
        until(lambda: len(site.entries()) == 1)

        def rates() -> set[int]:
            return {entry["rate"] for entry in ask(throttler.socket)["classes"]}

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


def test_the_cap_is_lifted_from_the_last_usable_subflow(site: Site) -> None:
    with running(site) as throttler, connection(site):
        until(lambda: clients(site.entries()) == ["10.77.1.2"])
        site.client.run(["ip", "mptcp", "endpoint", "delete", "id", "4"])
        try:
            until(lambda: not site.entries())
            (shown,) = ask(throttler.socket)["connections"]
            assert [(s["state"], s["path"]) for s in shown["subflows"] if s["state"] == "active"] == [
                ("active", "ethernet")
            ]
        finally:
            site.client.run(["ip", "mptcp", "endpoint", "add", "10.77.2.2", "dev", "wlan0", "id", "4", "subflow"])


def test_dry_run_touches_no_subflow_and_says_what_it_would_do(site: Site) -> None:
    site.policy.write_text(POLICY + "dry_run: true\n")
    with running(site) as throttler, connection(site):
        until(lambda: len(ask(throttler.socket)["connections"]) == 1)
        until(lambda: len(ask(throttler.socket)["connections"][0]["subflows"]) == 2)
        status = site.throttler("status")
        assert "dry run" in status.stdout
        (shown,) = ask(throttler.socket)["connections"]
        assert "would cap path ethernet at 5 Mbit/s" in shown["subflows"][0]["reason"]
        assert not site.entries()
        assert not ask(throttler.socket)["classes"]


def test_an_interface_that_goes_and_returns_is_captured_and_shaped_again(site: Site) -> None:
    with running(site) as throttler:
        with site.proxy.link_down("wan0"):
            until(lambda: "trying to capture again" in throttler.process.output())
        until(lambda: "capturing again on wan0" in throttler.process.output())
        with connection(site):
            until(lambda: clients(site.entries()) == ["10.77.1.2"])


def test_what_somebody_removes_is_put_back(site: Site) -> None:
    with running(site), connection(site):
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


def test_a_start_that_fails_says_why_and_changes_nothing(site: Site) -> None:
    config = site.testbed.directory / "no-such-interface.yaml"
    config.write_text(site.config.read_text().replace('"wan0"', '"wan7"'))
    process = site.proxy.popen(
        [program("mptcp-throttler"), "run", "--config", str(config)],
        name="failing",
        mounts=throttler_mounts(site.proxy),
    )
    assert process.wait(10) == 1
    assert "there is no interface wan7" in process.output()
    assert "Traceback" not in process.output()
    site.policy.write_text("version: 1\nrules: 7\n")
    process = site.proxy.popen(
        [program("mptcp-throttler"), "run", "--config", str(site.config)],
        name="failing2",
        mounts=throttler_mounts(site.proxy),
    )
    assert process.wait(10) == 1
    assert f"{site.policy}:2: rules" in process.output()


def test_paths_told_apart_by_the_proxys_interface(make_testbed: Callable[..., Testbed], site: Site) -> None:
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
    before = other.kernel_dump()
    with running(other), connection(other):
        try:
            until(lambda: clients(other.entries()) == ["10.77.2.2"])
        except AssertionError:
            print(other.throttler("status", "--json").stdout)
            raise
        (classid,) = other.entries().values()
        for interface in ("wan0", "wan1"):
            assert f"class htb {classid} " in other.proxy.run(["tc", "class", "show", "dev", interface]).stdout
    assert other.kernel_dump() == before


def test_a_forged_join_never_counts(site: Site) -> None:
    """A stranger who knows the token but not the keys joins from an address of the client's Wi-Fi network."""
    from scapy.config import conf
    from scapy.layers.inet import IP, TCP
    from scapy.layers.l2 import Ether

    from mptcp_throttler.views.mptcp_layers import MpJoinAck, MpJoinSyn, tcp_option

    stranger, core = "10.77.2.77", site.testbed["core"]
    mac = site.client.run(["cat", "/sys/class/net/wlan0/address"]).stdout.strip()
    core_mac = core.run(["cat", "/sys/class/net/to-wlan0/address"]).stdout.strip()
    core.run(["ip", "neigh", "replace", stranger, "lladdr", mac, "dev", "to-wlan0"])
    site.client.run(["ip", "mptcp", "endpoint", "delete", "id", "4"])
    try:
        with running(site) as throttler, connection(site):
            until(lambda: len(ask(throttler.socket)["connections"]) == 1)
            token = int(ask(throttler.socket)["connections"][0]["token"], 16)
            frame = Ether(src=mac, dst=core_mac) / IP(src=stranger, dst=site.proxy.address("wan0"))
            syn = MpJoinSyn(address_id=9, token=token, nonce=1)
            with (
                site.client.entered(),
                conf.L2socket(iface="wlan0", filter=f"dst host {stranger}", promisc=False) as wire,
            ):
                opening = TCP(sport=4444, dport=PORT, flags="S", seq=1000, options=[tcp_option(syn)])
                answer = wire.sr1(frame / opening, timeout=5, verbose=0)
                assert answer is not None, "the proxy's kernel answers a join with the right token"
                proof = [tcp_option(MpJoinAck(hmac=b"x" * 20))]
                wire.send(
                    frame / TCP(sport=4444, dport=PORT, flags="A", seq=1001, ack=answer[TCP].seq + 1, options=proof)
                )
            until(lambda: ask(throttler.socket)["counters"]["tracker"]["joins_refused"] >= 1)
            (shown,) = ask(throttler.socket)["connections"]
            assert [s["remote"].split(":")[0] for s in shown["subflows"] if s["state"] == "active"] == ["10.77.1.2"]
            assert not site.entries()
    finally:
        site.client.run(["ip", "mptcp", "endpoint", "add", "10.77.2.2", "dev", "wlan0", "id", "4", "subflow"])
        core.run(["ip", "neigh", "del", stranger, "dev", "to-wlan0"])


@pytest.mark.parametrize("moment", ["at once", "while starting"])
def test_a_stop_during_the_start_leaves_the_kernel_as_it_was(site: Site, moment: str) -> None:
    process = site.proxy.popen(
        [program("mptcp-throttler"), "run", "--config", str(site.config)],
        name="hasty",
        mounts=throttler_mounts(site.proxy),
    )
    if moment == "while starting":
        until(lambda: "takes the place of" in process.output())
        process.signal(signal.SIGHUP)
    process.signal(signal.SIGTERM)
    process.wait(10)
    assert "Traceback" not in process.output()


def test_an_impatient_stop_leaves_the_kernel_as_it_was(site: Site) -> None:
    throttler = site.start()
    with connection(site):
        until(lambda: len(site.entries()) == 1)
        for _ in range(5):
            throttler.process.signal(signal.SIGTERM)
            time.sleep(0.01)
    assert throttler.process.wait(10) == 0


def test_a_rst_that_the_clients_host_never_sent_lifts_no_cap(site: Site) -> None:
    """The handshake does not tell which sequence number a RST may have; the kernel, which knows, closes nothing."""
    from scapy.config import conf
    from scapy.layers.inet import IP, TCP
    from scapy.layers.l2 import Ether

    mac = site.client.run(["cat", "/sys/class/net/eth0/address"]).stdout.strip()
    core_mac = site.testbed["core"].run(["cat", "/sys/class/net/to-eth0/address"]).stdout.strip()
    with running(site) as throttler, connection(site) as (client, _):
        until(lambda: len(site.entries()) == 1)
        address, port = client.getsockname()[:2]
        forged = Ether(src=mac, dst=core_mac) / IP(src=address, dst=site.proxy.address("wan0"))
        before = ask(throttler.socket)["counters"]["observers"]["segments"]
        with site.client.entered(), conf.L2socket(iface="eth0", promisc=False) as wire:
            wire.send(forged / TCP(sport=port, dport=PORT, flags="RA", seq=1, ack=1))
        until(lambda: ask(throttler.socket)["counters"]["observers"]["segments"] > before)
        assert len(site.entries()) == 1
        assert [s["state"] for s in ask(throttler.socket)["connections"][0]["subflows"]] == ["active", "active"]


def test_an_interface_that_is_made_anew_does_not_stop_the_others(
    make_testbed: Callable[..., Testbed], site: Site
) -> None:
    testbed = make_testbed(TWO_PATHS_TWO_INTERFACES)
    policy = testbed.directory / "policy.yaml"
    policy.write_text(POLICY)
    config = write_throttler_config(
        testbed["proxy"],
        policy,
        interfaces=("wan0", "extra0"),
        settings={"netfilter": site.backend, "verify_interval": 1},
    )
    other = Site(testbed, site.backend, policy, config)
    add = ["ip", "link", "add", "extra0", "type", "veth", "peer", "extra1"]
    up = ["ip", "link", "set", "extra0", "up"]
    other.proxy.run(add)
    other.proxy.run(up)
    with running(other) as throttler:
        other.proxy.run(["ip", "link", "del", "extra0"])
        until(lambda: "there is no interface extra0" in throttler.process.output())
        with connection(other):
            until(lambda: clients(other.entries()) == ["10.77.1.2"])
        other.proxy.run(add)
        other.proxy.run(up)
        until(lambda: "htb 4d50: root" in other.proxy.run(["tc", "qdisc", "show", "dev", "extra0"]).stdout)
        until(lambda: "class htb 4d50:10 " in other.proxy.run(["tc", "class", "show", "dev", "extra0"]).stdout)
    assert "4d50" not in other.proxy.run(["tc", "qdisc", "show"]).stdout


def test_a_successor_with_the_other_backend_removes_what_the_first_left(site: Site) -> None:
    first = site.start()
    with connection(site):
        until(lambda: len(site.entries()) == 1)
        first.process.kill()
        other = "nftables" if site.backend == "iptables" else "iptables"
        config = site.testbed.directory / "other.yaml"
        config.write_text(site.config.read_text().replace(f'"{site.backend}"', f'"{other}"'))
        successor = start_throttler(site.proxy, config)
        assert not site.entries()
        assert clients(Site(site.testbed, other, site.policy, config).entries()) == ["10.77.1.2"]
        successor.process.signal(signal.SIGTERM)
        assert successor.process.wait(10) == 0


def test_only_our_bits_of_the_mark_are_changed(site: Site) -> None:
    mangle = ["iptables-legacy", "-t", "mangle"]
    site.proxy.run(
        [*mangle, "-A", "OUTPUT", "-p", "tcp", "--sport", str(PORT), "-j", "MARK", "--set-mark", "0x12000034"]
    )
    try:
        with running(site), connection(site) as (client, proxy):
            until(lambda: len(site.entries()) == 1)
            for mark in ("0x12010034", "0x12000034"):
                site.proxy.run([*mangle, "-A", "POSTROUTING", "-m", "mark", "--mark", mark])

            def both_counted() -> bool:
                """Both subflows have carried data past the counters; a few bytes may all go by one of them."""
                proxy.sendall(bytes(20_000))
                client.recv(1 << 20)
                listing = site.proxy.run([*mangle, "-nvxL", "POSTROUTING"]).stdout
                counts = [int(line.split()[0]) for line in listing.splitlines() if "mark match" in line]
                return len(counts) == 2 and all(counts)

            # The nftables chain stands at the same priority and may come after the counters of legacy iptables.
            if site.backend == "iptables":
                until(both_counted)
            rules = site.proxy.run(["sh", "-c", "nft list ruleset; ipset save"]).stdout
            assert "0x10000/0xff0000" in rules or "meta mark & 0xff01ffff | 0x00010000" in rules
            site.proxy.run([*mangle, "-F", "POSTROUTING"])
    finally:
        site.proxy.run([*mangle, "-F", "OUTPUT"])
        site.proxy.run([*mangle, "-F", "POSTROUTING"])
