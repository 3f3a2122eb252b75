# SPDX-License-Identifier: GPL-2.0-or-later
"""Checks of the package's services on a booted host: proxy, throttler, console, portal and relay.

The relay represents a box at home. Its unit gets a network namespace of its own, with two uplinks to the proxy and one
client that speaks plain TCP. Everything else is as shipped.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from containers import Container, wait_until
from persistent_connection import CHECK, Connection
from prometheus_client.parser import text_string_to_metric_families

from mptcp_lab.testbed import End, Link, LiveNode, Node, Testbed, Topology
from mptcp_lab.testbed.services import PROXY_PORT, Origin, accepts, mptcp_command
from mptcp_lab.testbed.topologies import MBIT, TWO_PATHS, with_second_client

FILE_BYTES: Final = 40_000_000
RELAYED_BYTES: Final = 10_000_000
CAP_BITS_PER_SECOND: Final = 5_000_000
"""The cap on path ethernet in conf/policy.yaml."""
RELAY_NETWORK: Final = "/relay-network"
"""Path of the relay's network namespace within the container."""
LAN: Final = "10.77.48.1"
"""Address of the relay towards its client."""
UPLINKS: Final = ("eth0", "wlan0")
PAGE_PORT, CAPTIVE_PORT = 3181, 3182
"""Ports of the portal's pages in conf/portal.yaml."""
CHECK_PORT: Final = 3180


def topology() -> Topology:
    """Return a topology with two paths to the proxy, and a relay that has two uplinks of its own and one client."""
    both = with_second_client(TWO_PATHS, "relay", (40 * MBIT, 20 * MBIT))
    lan = Link(End("relay", "lan0", (f"{LAN}/24",)), End("laptop", "eth0", ("10.77.48.2/24",)))
    return replace(both, name="two-paths-and-relay", nodes=(*both.nodes, Node("laptop")), links=(lan, *both.links))


@dataclass(frozen=True)
class Site:
    """The container, which is the proxy's host, and the hosts around it."""

    container: Container
    testbed: Testbed
    origin: Origin

    @property
    def address(self) -> str:
        return self.testbed["proxy"].service_address()

    def boot(self) -> None:
        namespaces = {name: self.testbed[name].namespace for name in ("proxy", "relay")}
        self.container.boot(namespaces["proxy"], {RELAY_NETWORK: namespaces["relay"]})


def fetch(node: LiveNode, url: str, *options: str) -> tuple[int, str]:
    """Return status and body of *url* as *node* fetches it."""
    command = ["curl", "-sSg", "-m", "120", "--noproxy", "*", "-w", "\n%{http_code}", *options, url]
    result = node.run(command, check=False, timeout=150)
    assert result.returncode == 0, f"{url}: {result.stderr}"
    body, _, status = result.stdout.rpartition("\n")
    return int(status), body


def check_download_is_throttled(site: Site) -> None:
    """Check a download over both paths: one subflow is capped while it runs, and its path carries the smaller part."""
    client, container = site.testbed["client"], site.container
    wait_until(lambda: accepts(client, site.address, PROXY_PORT), "the proxy listens")
    before, start_time = client.counters(), time.monotonic()
    proxy = f"http://{site.address}:{PROXY_PORT}"
    command = ["curl", "-sS", "-m", "120", "-o", "/dev/null", "-w", "%{http_code} %{size_download}", "-x", proxy]
    download = client.popen(mptcp_command([*command, site.origin.url("file")]), name="curl")
    status: dict[str, Any] = {}

    def is_capped() -> bool:
        answer = container.run(["mptcp-throttler", "status", "--json"], check=False)
        if answer.returncode == 0:
            status.update(json.loads(answer.stdout))
        return any(
            len(each["subflows"]) == 2 and any(subflow["classid"] for subflow in each["subflows"])
            for each in status.get("connections", ())
        )

    wait_until(lambda: is_capped() or not download.running, "a subflow is capped, or the download has ended")
    assert is_capped(), (
        f"no subflow was capped: {download.output()}\n{status}\n{container.sh('journalctl --no-pager --lines 60')}"
    )
    assert download.wait(150) == 0, download.output()
    assert download.output().split() == ["200", str(FILE_BYTES)]
    seconds, after = time.monotonic() - start_time, client.counters()
    ethernet, wifi = (after[device].received - before[device].received for device in ("eth0", "wlan0"))
    # Other tests judge the bytes before the cap and their repayment; this one only checks that the cap works.
    assert ethernet < wifi / 2, (
        f"ethernet {ethernet}, wifi {wifi} bytes in {seconds:.1f} s under a cap of {CAP_BITS_PER_SECOND} bits/s"
    )
    assert ethernet > 0


def check_squid_reports_a_missing_check_page(site: Site) -> None:
    """Check that Squid reports the missing check page while the portal does not run."""
    with Connection(site.testbed["client"], site.address) as client:
        status, _, body = client.get(CHECK)
    assert status == 503
    assert "The check page does not answer" in body.decode()


def wait_for_check_page(client: Connection) -> None:
    """Wait for the check page: the portal may just be starting."""
    wait_until(lambda: client.get(CHECK)[0] == 200, "the check page answers")


@contextmanager
def capped_client(site: Site) -> Iterator[Connection]:
    """Yield a connection whose check page reports, as HTML and as JSON, that Ethernet is capped."""
    with Connection(site.testbed["client"], site.address) as client:
        wait_for_check_page(client)
        # The cap may come before the second subflow: the throttler expects one from a client that had two paths before.
        answer = client.until(
            lambda answer: len(answer["subflows"]) == 2 and any(each["capped"] for each in answer["subflows"]),
            "the check page shows two paths and the cap",
        )
        assert (answer["transport"], answer["throttler"]) == ("multipath", "answered")
        limits = {each["path"]: each["limit"] for each in answer["subflows"]}
        assert limits == {"ethernet": "5 Mbit/s", "wifi": "none"}, answer
        page = client.get(CHECK)[2].decode()
        assert "Multipath TCP with 2 subflows" in page, page
        assert "ethernet is limited to 5 Mbit/s by rule spare-ethernet." in page, page
        yield client


def check_that_check_page_answers_only_clients(site: Site) -> None:
    with Connection(site.testbed["client"], site.address, socket.IPPROTO_TCP) as client:
        wait_for_check_page(client)
        assert client.report()["transport"] == "tcp"
    header = f"MPTCP-Client: 10.77.1.2 1 {site.address} {PROXY_PORT}"
    assert fetch(site.testbed["proxy"], f"http://127.0.0.1:{CHECK_PORT}/", "-H", header)[0] == 403


def check_new_clients_are_served(site: Site) -> None:
    """Check the example pages of conf/portal.yaml: onboarding with scripts and profile, captive portal over HTTPS."""
    client, pages = site.testbed["client"], f"http://{site.address}:{PAGE_PORT}"
    status, page = fetch(client, f"{pages}/")
    assert status == 200
    assert site.address in page
    assert "Proxy at home" in page
    scripts = [fetch(client, f"{pages}/{name}") for name in ("proxy.pac", "wpad.dat")]
    assert scripts[0] == scripts[1]
    status, script = scripts[0]
    assert status == 200
    assert f"PROXY {site.address}:{PROXY_PORT}" in script
    assert "[3405803776, 24]" in script, "proxy.pac lacks 203.0.113.0/24, which the example lists"
    assert fetch(client, f"{pages}/proxy.mobileconfig")[0] == 200
    status, answer = fetch(client, f"https://{site.address}:{CAPTIVE_PORT}/captive-portal", "--insecure")
    assert status == 200
    assert json.loads(answer)["captive"] is False


def metrics(node: LiveNode, console: str, *options: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return the metrics that Prometheus would read, by name and labels."""
    status, text = fetch(node, f"{console}/metrics", *options)
    assert status == 200
    samples = (each for family in text_string_to_metric_families(text) for each in family.samples)
    return {(each.name, frozenset(each.labels.items())): each.value for each in samples}


def check_console_shows_throttler_and_squid(site: Site, console: str, *, throttler: int) -> None:
    """Check the console without settings: with its token it shows a page and the metrics of Squid and the kernel.

    *throttler*: expected value of mptcp_throttler_up, 1 or 0.
    """
    node = site.testbed["proxy"]
    token_file = "/etc/mptcp-console/token"
    assert site.container.sh(f"stat --format='%U:%G %a' {token_file}") == "root:mptcp-throttler 640\n"
    assert fetch(node, f"{console}/metrics")[0] == 401, "the metrics were served without the token"
    header = f"Authorization: Bearer {site.container.sh(f'cat {token_file}').strip()}"
    assert "MPTCP console" in fetch(node, f"{console}/", "-H", header)[1]
    found = metrics(node, console, "-H", header)
    assert found["mptcp_throttler_up", frozenset()] == throttler
    assert found["squid_up", frozenset()] == 1
    assert ("mptcp_ext_mp_join_ack_rx_total", frozenset()) in found


def check_console_shows_the_cap(site: Site, console: str, token: str) -> None:
    """Check that another host, with the token, sees the throttler, its paths and the cap in force on the console."""
    client, header = site.testbed["client"], f"Authorization: Bearer {token}"
    assert fetch(client, f"{console}/metrics")[0] == 401
    status, page = fetch(client, f"{console}/", "-H", header)
    assert status == 200
    assert "MPTCP console" in page
    cap = {"policy": "policy", "rule": "spare-ethernet", "path": "ethernet", "direction": "down"}
    in_force = ("mptcp_throttler_caps_in_force", frozenset(cap.items()))
    found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}

    def shows_cap() -> bool:
        found.clear()
        found.update(metrics(client, console, "-H", header))
        return found.get(in_force) == 1 == found.get(("mptcp_throttler_path_subflows", frozenset({("path", "wifi")})))

    wait_until(shows_cap, "the console shows the cap, and the path without one", 120)
    assert found["mptcp_throttler_up", frozenset()] == 1
    assert found["squid_up", frozenset()] == 1
    ceil = ("mptcp_throttler_cap_ceil_bytes_per_second", frozenset(cap.items()))
    assert found[ceil] == CAP_BITS_PER_SECOND / 8
    assert found["mptcp_ext_mp_join_ack_rx_total", frozenset()] > 0


def check_relay_uses_both_uplinks(site: Site) -> None:
    """Check a plain-TCP client, with plain HTTP and CONNECT: the relay uses Multipath TCP over both uplinks."""
    laptop, relay, proxy = (site.testbed[name] for name in ("laptop", "relay", "proxy"))
    output_format = "%{http_code} %{size_download}"
    curl = [
        "curl",
        "-sS",
        "-m",
        "120",
        "--noproxy",
        "",
        "-o",
        "/dev/null",
        "-w",
        output_format,
        "-x",
        f"http://{LAN}:{PROXY_PORT}",
    ]

    def download(*arguments: str) -> list[str]:
        return laptop.run([*curl, *arguments], check=False, timeout=150).stdout.split()

    wait_until(lambda: accepts(laptop, LAN, PROXY_PORT), "the relay listens")
    # A relay that started before its parent considers the parent dead, and retries a little later.
    wait_until(lambda: download("--head", site.origin.url("relayed"))[:1] == ["200"], "the relay reaches its parent")
    for port, tunnel in ((80, ()), (443, ("-p",))):
        url = site.origin.url("relayed", port=port)
        before, mib, joins = relay.counters(), relay.mib(), proxy.mib()["MPTcpExtMPJoinAckRx"]
        assert download(*tunnel, url) == ["200", str(RELAYED_BYTES)]
        after = relay.counters()
        carried = {each: after[each].received - before[each].received for each in UPLINKS}
        assert min(carried.values()) > RELAYED_BYTES / 10, carried
        assert proxy.mib()["MPTcpExtMPJoinAckRx"] > joins
        # The relay uses Multipath TCP to the parent, and plain TCP to the client.
        assert relay.mib()["MPTcpExtMPCapableSYNTX"] > mib["MPTcpExtMPCapableSYNTX"]
        assert relay.mib()["MPTcpExtMPCapableSYNRX"] == mib["MPTcpExtMPCapableSYNRX"]
    doctor = ["nsenter", f"--net={RELAY_NETWORK}", "mptcp-proxy", "doctor", "--role", "relay", "--json"]
    findings = {each["check"]: each for each in json.loads(site.container.run(doctor, check=False).stdout)}
    for check in ("uplinks", "routes of uplinks", f"parent {site.address}:{PROXY_PORT}", "the running relay"):
        assert findings[check]["status"] == "ok", findings[check]
