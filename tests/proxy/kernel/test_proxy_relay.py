# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for a relay at home that accepts plain TCP, and uses Multipath TCP to its parents over two uplinks."""

from __future__ import annotations

import hashlib
import signal
from collections.abc import Callable
from contextlib import ExitStack

import pytest
from proxying import (
    MPTCP_OPTION,
    captured_syns,
    curl_command,
    fetch,
    mptcp_listeners,
    skip_in_private_checkout,
    tcp_listeners,
)
from relaying import (
    FILES,
    MAX_DOWNLOAD_SECONDS,
    PEER,
    UPLINKS,
    Chain,
    Download,
    peer_statement,
    start_chain,
    start_name_server,
    write_configuration,
)

from mptcp_common.exit_status import CONFIGURATION
from mptcp_lab.testbed import RELAY, Testbed
from mptcp_lab.testbed.home import silent_link
from mptcp_lab.testbed.services import program, python_command, start_proxy, wait_until
from mptcp_proxy.process import pid_in

pytestmark = pytest.mark.kernel
IDLE_TUNNEL = """
import socket, sys, time
s = socket.create_connection((sys.argv[1], 3128))
s.sendall(b"CONNECT 10.77.9.2:443 HTTP/1.1\\r\\nHost: 10.77.9.2:443\\r\\n\\r\\n")
print(s.recv(99), flush=True)
time.sleep(600)
"""
COMPLETE = (200, True)
"""Result of :func:`get` for a complete download."""
DEAD_PARENTS_STATUS = 500
"""Squid's status for CONNECT if it knows that all parents are dead. Before it knows, the status is 503."""
HASHING_SINK = """
import hashlib, http.server
class Sink(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_PUT(self):
        remaining, digest = int(self.headers["Content-Length"]), hashlib.sha256()
        while remaining > 0 and (chunk := self.rfile.read1(min(remaining, 65536))):
            remaining -= len(chunk); digest.update(chunk)
        answer = digest.hexdigest().encode()
        self.send_response(200); self.send_header("Content-Length", str(len(answer))); self.end_headers()
        self.wfile.write(answer)
http.server.ThreadingHTTPServer(("", 8081), Sink).serve_forever()
"""


@pytest.fixture(autouse=True)
def _needs(require: Callable[..., None]) -> None:
    require("squid", "apache2", "curl", "gcc", "openssl", "nftables")


@pytest.fixture(scope="module")
def chain(make_module_testbed: Callable[..., Testbed], require: Callable[..., None]) -> Chain:
    require("squid", "apache2", "curl", "gcc", "openssl")
    return start_chain(make_module_testbed(RELAY))


def url_of(chain: Chain, name: str, *, https: bool) -> str:
    return chain.origin.url(name, port=443).replace("http://", "https://") if https else chain.origin.url(name)


def get(chain: Chain, name: str = "small.bin", *, https: bool = False) -> tuple[int, bool]:
    """Return the status of a client's download, and whether the file is complete."""
    url, proxy = url_of(chain, name, https=https), chain.relay.url()
    download = fetch(chain.client, url, proxy, tunnel=https, options=["-k"], timeout=MAX_DOWNLOAD_SECONDS)
    return download.status, download.sha256 == chain.origin.digests[name]


def start_download(chain: Chain, https: bool) -> Download:
    file = chain.client.directory / "begun"
    command = curl_command(
        url_of(chain, "large.bin", https=https),
        chain.relay.url(),
        mptcp=False,
        tunnel=https,
        options=["-k", "-m", str(MAX_DOWNLOAD_SECONDS), "-o", str(file)],
    )
    return Download(chain.client.popen(command), file)


def assert_uses_both_uplinks(chain: Chain, *, https: bool = False) -> None:
    """Repeat a download until one uses both uplinks: on a busy machine it may end before the second subflow joins."""

    def uses_both_uplinks() -> bool:
        with chain.count_uplink_bytes() as sizes:
            assert get(chain, "large.bin", https=https) == COMPLETE
        return min(sizes.values()) > FILES["large.bin"] / 10

    wait_until(uses_both_uplinks, "a download uses both uplinks", timeout=MAX_DOWNLOAD_SECONDS)


@pytest.mark.parametrize("https", [False, True], ids=["HTTP", "HTTPS"])
def test_download_of_a_plain_tcp_client_uses_both_uplinks(chain: Chain, https: bool) -> None:
    before = chain.testbed["proxy"].mib()
    assert_uses_both_uplinks(chain, https=https)
    assert chain.testbed["proxy"].mib()["MPTcpExtMPJoinAckRx"] > before["MPTcpExtMPJoinAckRx"]
    # The client's own connection does not use Multipath TCP.
    assert mptcp_listeners(chain.node) == set()


def test_large_upload_uses_both_uplinks(chain: Chain) -> None:
    """The upload has 16 MB, which is more than all buffers on the path can hold."""
    origin, client = chain.testbed["origin"], chain.client
    sink = origin.popen(python_command(HASHING_SINK), name="hashing-sink")
    wait_until(
        lambda: bool(origin.run(["ss", "-Htln", "sport", "=", ":8081"]).stdout), "the origin listens", process=sink
    )
    body = client.directory / "body"
    body.write_bytes(bytes(range(256)) * 62_500)
    options = ["-m", str(MAX_DOWNLOAD_SECONDS), "-H", "Expect:", "-T", str(body)]
    command = curl_command("http://10.77.9.2:8081/x", chain.relay.url(), mptcp=False, tunnel=False, options=options)

    def uses_both_uplinks() -> bool:
        with chain.count_uplink_bytes(sent=True) as sizes:
            answer = client.run(command, timeout=MAX_DOWNLOAD_SECONDS + 10)
        assert answer.stdout == hashlib.sha256(body.read_bytes()).hexdigest()
        return min(sizes.values()) > 1_600_000

    wait_until(uses_both_uplinks, "an upload uses both uplinks", timeout=MAX_DOWNLOAD_SECONDS)


@pytest.mark.nightly(except_for=("HTTP-eth0-silent", "HTTPS-wlan0-down"))
@pytest.mark.parametrize("is_silent", [False, True], ids=["down", "silent"])
@pytest.mark.parametrize("device", UPLINKS)
@pytest.mark.parametrize("https", [False, True], ids=["HTTP", "HTTPS"])
def test_download_survives_the_loss_of_an_uplink(chain: Chain, https: bool, device: str, is_silent: bool) -> None:
    # In an earlier test, Squid may have lost the parent with an uplink. It finds the parent again within seconds.
    wait_until(lambda: get(chain) == COMPLETE, "the parent is alive", timeout=120)
    before = chain.uplink_bytes()
    download = start_download(chain, https)

    def uses_both_uplinks() -> bool:
        nonlocal before, download
        if not download.process.running:
            # On a busy machine the download may have ended before the second subflow had joined.
            before = chain.uplink_bytes()
            download = start_download(chain, https)
        return all(sizes - before[uplink] > 500_000 for uplink, sizes in chain.uplink_bytes().items())

    wait_until(uses_both_uplinks, "both uplinks carry the download", timeout=60)
    with silent_link(chain.testbed["core"], device) if is_silent else chain.node.link_down(device):
        assert hashlib.sha256(download.wait_for_content()).hexdigest() == chain.origin.digests["large.bin"]
    chain.client.run(["rm", str(download.file)])


@pytest.mark.parametrize("device", UPLINKS)
def test_new_connections_work_while_an_uplink_is_down(chain: Chain, device: str) -> None:
    """Connections normally begin on the first of the two uplinks."""
    wait_until(lambda: get(chain) == COMPLETE, "the parent is alive", timeout=120)
    with chain.node.link_down(device), chain.count_uplink_bytes() as sizes:
        # The relay has one parent: if the first connection had failed, the answer would be 503.
        assert get(chain) == COMPLETE
        assert get(chain, https=True) == COMPLETE
        assert get(chain, "large.bin") == COMPLETE
    assert sizes.pop(device) < FILES["small.bin"]
    assert sizes.popitem()[1] > FILES["large.bin"]


def test_only_connections_to_parents_use_multipath_tcp(make_testbed: Callable[..., Testbed]) -> None:
    """The operator has exempted a destination: the relay connects to it directly, with plain TCP."""
    exemption = ("acl near dst -n 10.77.9.2/32", "acl small urlpath_regex small", "always_direct allow near small")
    chain = start_chain(make_testbed(RELAY), statements=exemption)
    with ExitStack() as captures:
        # eth0: SYN and SYN/ACK to the exempted destination and to the parent. wlan0: SYN and SYN/ACK of the join.
        found = [captures.enter_context(captured_syns(chain.node, *each)) for each in zip(UPLINKS, (4, 2), strict=True)]
        assert get(chain, "small.bin") == COMPLETE
        assert get(chain, "large.bin") == COMPLETE
    syns = [syn for each in found for syn in each]
    assert {port for port, _ in syns} == {80, 3128}
    assert all((MPTCP_OPTION in kinds) == (port == 3128) for port, kinds in syns)


@pytest.mark.nightly(except_for=("[6]",))
@pytest.mark.parametrize("family", [4, 6])
def test_relay_reaches_a_parent_over_each_ip_version(make_testbed: Callable[..., Testbed], family: int) -> None:
    testbed = make_testbed(RELAY)
    chain = start_chain(testbed, peers=[peer_statement(testbed["proxy"], family)])
    assert_uses_both_uplinks(chain)
    assert chain.doctor()["the running relay"]["status"] == "ok"


def test_doctor_without_root_lists_checks_of_a_relay_that_need_root(chain: Chain) -> None:
    """Defect: without root, the doctor reported that connections to parents use plain TCP, and that no parent
    exists."""
    skip_in_private_checkout()
    as_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    root_statuses, found = (
        {name: finding["status"] for name, finding in chain.doctor(user).items()} for user in ([], as_nobody)
    )
    assert "unseen" not in root_statuses.values()
    assert found["the running relay"] == "unseen"
    assert {name for name, status in found.items() if status not in ("unseen", root_statuses.get(name))} <= {
        "kernel features"
    }
    chain.config.chmod(0o600)
    try:
        found = {name: finding["status"] for name, finding in chain.doctor(as_nobody).items()}
    finally:
        chain.config.chmod(0o644)
    assert (found["configuration"], found["parents"]) == ("unseen", "unseen")
    assert "fail" not in found.values()


def test_dead_parent_is_skipped_and_used_again_when_it_returns(
    make_testbed: Callable[..., Testbed],
) -> None:
    testbed = make_testbed(RELAY)
    chain = start_chain(testbed, ("proxy", "proxy2"))
    origin = testbed["origin"]
    assert get(chain) == COMPLETE
    chain.wait_for_requests(1, 0)

    chain.parents[0].process.kill_tree()
    # A parent that is dying can break a request, which Squid rightly answers with 502.
    wait_until(lambda: not tcp_listeners(testbed["proxy"]), "no process listens", timeout=60)
    assert [get(chain, https=https) for https in (False, True)] == [COMPLETE] * 2
    chain.wait_for_requests(1, 2)

    chain.parents[1].process.kill_tree()
    wait_until(lambda: not tcp_listeners(testbed["proxy2"]), "no process listens", timeout=60)
    before = origin.mib()["TcpPassiveOpens"]
    for https in (False, True) * 3:
        assert get(chain, https=https)[0] in ({503, DEAD_PARENTS_STATUS} if https else {503})
    assert origin.mib()["TcpPassiveOpens"] == before, "a request bypassed the parents"

    wait_until(lambda: not tcp_listeners(testbed["proxy"]), "the parent's port is free", timeout=60)
    wait_until(
        lambda: pid_in(chain.parents[0].state / "squid.pid", "squid") is None, "the parent has ended", timeout=60
    )
    start_proxy(testbed["proxy"])
    # A request or Squid's own probe finds the parent again; test_proxy_relay_parents.py tests the order.
    wait_until(lambda: get(chain) == COMPLETE, "the parent is used again", timeout=120)


@pytest.mark.nightly
def test_silent_parents_delay_requests_only_until_they_count_as_dead(make_testbed: Callable[..., Testbed]) -> None:
    """Requests wait once for each parent's connect-timeout. Then both parents count as dead, and no request waits."""
    testbed = make_testbed(RELAY)
    chain = start_chain(testbed, ("proxy", "proxy2"))
    assert get(chain) == COMPLETE
    with silent_link(testbed["core"], "proxy"):
        assert get(chain) == COMPLETE
        chain.wait_for_requests(1, 1)
        with silent_link(testbed["core"], "proxy2"):
            statuses = [get(chain, https=https)[0] for https in (False, True) * 2]
            assert {*statuses[::2]} == {503}
            assert {*statuses[1::2]} <= {503, DEAD_PARENTS_STATUS}


@pytest.mark.nightly
def test_requests_use_the_other_uplink_while_the_first_is_silent(make_testbed: Callable[..., Testbed]) -> None:
    """The relay has the parent once for each uplink, as docs/relay.md advises; the uplink carries the first subflow."""
    testbed = make_testbed(RELAY)
    address, uplinks = testbed["proxy"].service_address(), {"eth0": "10.77.1.2", "wlan0": "10.77.2.2"}
    statements = [
        line
        for device, source in uplinks.items()
        for line in (f"acl by_{device} peername {device}", f"tcp_outgoing_address {source} by_{device}")
    ]
    chain = start_chain(
        testbed, peers=[PEER.format(address=address, limit=1, name=each) for each in uplinks], statements=statements
    )
    assert get(chain) == COMPLETE
    assert_uses_both_uplinks(chain)
    with silent_link(testbed["core"], "eth0"), chain.count_uplink_bytes() as sizes:
        assert get(chain, "large.bin") == COMPLETE
        assert get(chain, https=True) == COMPLETE
    assert sizes["wlan0"] > FILES["large.bin"]
    with silent_link(testbed["core"], "wlan0"):
        # Squid detects within seconds, or when a request is refused, that the first uplink works again.
        wait_until(lambda: get(chain) == COMPLETE, "the other uplink is used again", timeout=120)


def test_relay_follows_the_addresses_of_a_parents_name(make_testbed: Callable[..., Testbed]) -> None:
    testbed = make_testbed(RELAY)
    first, second = testbed["proxy"], testbed["proxy2"]
    # Use a name that no hosts file contains, because the machine itself may have the name "proxy".
    name = "parents.example.net"
    addresses = [first.service_address(family) for family in (4, 6)]
    data_file, mounts = start_name_server(testbed["core"], "10.77.1.1", {name: addresses})
    # Squid caches an answer for at least a minute, whatever its TTL; negative_dns_ttl reduces this minimum.
    chain = start_chain(
        testbed,
        ("proxy", "proxy2"),
        peers=[PEER.format(address=name, limit=2, name="first")],
        appended="negative_dns_ttl 1 second\n",
        mounts=mounts,
    )
    list_file = chain.relay.state / "parents"
    assert list_file.read_text().split() == ["10.77.8.2:3128", "[fd77:8::2]:3128"]
    before = [parent.mib() for parent in (first, second)]
    assert get(chain) == COMPLETE

    data_file.write_text(f'{{"{name}": ["{second.service_address()}"]}}')
    chain.relay.process.signal(signal.SIGHUP)
    wait_until(lambda: "10.77.11.2:3128" in list_file.read_text(), "the new address is listed")
    # Addresses that Squid may still have in its cache stay listed.
    assert list_file.read_text().split()[1:] == ["10.77.8.2:3128", "[fd77:8::2]:3128"]
    wait_until(lambda: get(chain) == COMPLETE and chain.logged_requests(1) > 0, "the new address is used", timeout=120)

    def total_increase(*names: str) -> int:
        """Return the increase of these counters, added for both parents."""
        pairs = zip((first, second), before, strict=True)
        return sum(parent.mib()[name] - old[name] for parent, old in pairs for name in names)

    # Each connection from the relay to a parent was a Multipath TCP connection or a subflow. The kernel also counts
    # joins that it rejects because their connection had ended. On a busy machine it counts some ACKs twice.
    accepted = ("MPTcpExtMPCapableACKRX", "MPTcpExtMPJoinAckRx")
    rejected = ("MPTcpExtMPJoinRejected", "MPTcpExtMPJoinAckHMacFailure")
    wait_until(
        lambda: 0 < total_increase("TcpPassiveOpens") <= total_increase(*accepted, *rejected),
        "all connections of the relay use Multipath TCP",
    )


@pytest.mark.parametrize(("shared", "connections"), [(False, 2), (True, 1)], ids=["shipped", "shared"])
def test_requests_do_not_share_a_connection_to_the_parent(
    make_testbed: Callable[..., Testbed], shared: bool, connections: int
) -> None:
    """On a shared connection, Squid 5 reads a body after "Transfer-Encoding: identity" as another request."""
    chain = start_chain(make_testbed(RELAY), appended="server_persistent_connections on\n" if shared else "")
    urls = [chain.origin.url("small.bin")] * 2
    before = chain.node.mib()["MPTcpExtMPCapableSYNTX"]
    command = ["curl", "-sS", "-x", chain.relay.url(), "-m", str(MAX_DOWNLOAD_SECONDS)]
    for url in urls:
        command += ["-o", "/dev/null", url]
    chain.client.run(command, timeout=MAX_DOWNLOAD_SECONDS + 10)
    assert chain.node.mib()["MPTcpExtMPCapableSYNTX"] - before == connections


@pytest.mark.nightly(except_for=("no library",))
@pytest.mark.parametrize("state", ["right", "no library", "no list"])
def test_broken_library_or_list_causes_plain_tcp_and_is_reported(
    make_testbed: Callable[..., Testbed], state: str
) -> None:
    testbed = make_testbed(RELAY)
    broken, _ = (testbed["relay"].write(name, "no library") for name in ("mptcp_listen.so", "squid_turns.so"))
    chain = start_chain(testbed, env={"MPTCP_LISTEN_SHIM": str(broken)} if state == "no library" else None)
    if state == "no list":
        (chain.relay.state / "parents").write_text("")
    before = testbed["proxy"].mib()["MPTcpExtMPCapableSYNRX"]
    assert get(chain, "large.bin") == COMPLETE
    mptcp_count = testbed["proxy"].mib()["MPTcpExtMPCapableSYNRX"] - before
    assert bool(mptcp_count) == (state == "right")
    found = chain.doctor()["the running relay"]
    assert found["status"] == ("ok" if state == "right" else "fail")
    texts = {
        "right": "none over plain TCP",
        "no library": "Squid runs without the preload library",
        "no list": "its list of parents lacks 10.77.8.2:3128",
    }
    assert texts[state] in found["text"]


def test_doctor_counts_plain_tcp_connections_to_parents(make_testbed: Callable[..., Testbed]) -> None:
    """In this test, the parent's kernel has no Multipath TCP."""
    testbed = make_testbed(RELAY)
    with testbed["proxy"].sysctl("net.mptcp.enabled", "0"):
        chain = start_chain(testbed)
        tunnel = chain.client.popen(python_command(IDLE_TUNNEL, chain.node.service_address()), name="tunnel")
        wait_until(lambda: "200" in tunnel.output(), "the tunnel is open", process=tunnel, timeout=60)
        found = chain.doctor()
        assert (found["the running relay"]["status"], found["the running relay"]["text"]) == (
            "fail",
            "1 of 1 connection to parents over plain TCP",
        )
        assert found["parent 10.77.8.2:3128"]["text"] == "10.77.8.2:3128: plain TCP"


def test_relay_without_parents_does_not_start(testbed: Testbed) -> None:
    node = testbed["proxy"]
    config = write_configuration(node)
    answer = node.run([program("mptcp-proxy"), "run", "--role", "relay", "--config", str(config)], check=False)
    assert answer.returncode == CONFIGURATION
    assert "no cache_peer: a relay needs a parent" in answer.stderr


FAULTS = {
    "uplinks": (["ip", "mptcp", "endpoint", "delete", "id", "4"], ["ip", "mptcp", "endpoint", "delete", "id", "5"]),
    "path manager": (["ip", "mptcp", "limits", "set", "subflows", "0"],),
    # An endpoint that names its interface needs no rule, see test_proxy_doctor_uplinks.py.
    "routes of uplinks": (
        ["ip", "-4", "rule", "delete", "from", "10.77.2.2"],
        ["ip", "mptcp", "endpoint", "delete", "id", "4"],
        ["ip", "mptcp", "endpoint", "add", "10.77.2.2", "id", "4", "subflow"],
    ),
    "kernel MPTCP": (["sysctl", "-qw", "net.mptcp.enabled=0"],),
}


@pytest.mark.nightly(except_for=("routes of uplinks",))
@pytest.mark.parametrize("check", FAULTS)
def test_remedy_corrects_the_fault_of_a_relay(make_testbed: Callable[..., Testbed], check: str) -> None:
    testbed = make_testbed(RELAY)
    chain = start_chain(testbed)
    for command in FAULTS[check]:
        chain.node.run(command)
    found = chain.doctor()
    assert found[check]["status"] == "fail"
    # On these emulated paths, no provider drops packets with the source address of the other uplink.
    has_one_path = check != "routes of uplinks"
    assert found["parent 10.77.8.2:3128"]["status"] == ("fail" if has_one_path else "ok")
    for remedy in found[check]["remedy"].split("#")[0].split("&&"):
        if ">>" not in remedy:
            chain.node.run(["sh", "-c", remedy])
    found = chain.doctor()
    assert found[check]["status"] == "ok"
    assert found["parent 10.77.8.2:3128"]["text"] == "10.77.8.2:3128: Multipath TCP with 2 subflows"
    assert [name for name, each in found.items() if each["status"] == "fail"] == []


CONNECT = """
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)
s.settimeout(60)
s.connect((sys.argv[1], 3128))
"""


@pytest.mark.nightly
def test_doctor_detects_that_the_kernel_gave_up_multipath_tcp(
    make_testbed: Callable[..., Testbed],
) -> None:
    """For a few seconds, the network drops packets with the MPTCP option (30). An uplink that is silent has the same
    effect."""
    chain = start_chain(make_testbed(RELAY))
    core, node = chain.testbed["core"], chain.node
    if not node.run(["sysctl", "-n", "net.mptcp.blackhole_timeout"], check=False).stdout:
        pytest.skip("NOT TESTED, the kernel is older than 6.12 and never gives up")
    node.run(["sysctl", "-qw", "net.mptcp.blackhole_timeout=3600"])
    assert chain.doctor()["sysctl blackhole"]["status"] == "warn"
    core.run(["nft", "add table inet hole"])
    core.run(["nft", "add chain inet hole way { type filter hook prerouting priority 0; }"])
    core.run(["nft", "add rule inet hole way tcp option 30 exists drop"])
    node.run(python_command(CONNECT, "10.77.8.2"), timeout=90)
    core.run(["nft", "delete table inet hole"])
    found = chain.doctor()
    assert found["sysctl blackhole"]["status"] == found["parent 10.77.8.2:3128"]["status"] == "fail"
    assert "MPTcpExtBlackhole 1" in found["sysctl blackhole"]["text"]
    assert "sysctl blackhole" in found["parent 10.77.8.2:3128"]["why"]
    chain.relay.process.signal(signal.SIGHUP)
    wait_until(
        lambda: "given up" in chain.relay.process.output(),
        "the relay reports that the kernel gave up Multipath TCP",
        timeout=90,
    )
    node.run(["sysctl", "-qw", "net.mptcp.blackhole_timeout=0"])
    found = chain.doctor()
    assert found["sysctl blackhole"]["status"] == found["parent 10.77.8.2:3128"]["status"] == "ok"


def test_reload_uses_new_parents(make_testbed: Callable[..., Testbed]) -> None:
    testbed = make_testbed(RELAY)
    chain = start_chain(testbed, ("proxy", "proxy2"), peers=[peer_statement(testbed["proxy"])])
    write_configuration(chain.node, peer_statement(testbed["proxy2"]))
    chain.relay.process.signal(signal.SIGHUP)
    wait_until(
        lambda: get(chain) == COMPLETE and chain.logged_requests(1) > 0,
        "the relay uses the new parent",
        timeout=120,
    )
    assert "reload accepted" in chain.relay.process.output()
    before = testbed["proxy2"].mib()["MPTcpExtMPJoinAckRx"]

    def has_joined() -> bool:
        assert get(chain, "large.bin") == COMPLETE
        return testbed["proxy2"].mib()["MPTcpExtMPJoinAckRx"] > before

    wait_until(has_joined, "a download has two subflows", timeout=MAX_DOWNLOAD_SECONDS)
