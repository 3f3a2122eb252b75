"""The testbed itself: it carries traffic over the declared paths, fills them, and leaves nothing behind."""

from __future__ import annotations

import fcntl
import hashlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from listening_socket import serving

from mptcp_lab.testbed import (
    TMPFS,
    TWO_PATHS,
    TWO_PATHS_TWO_INTERFACES,
    End,
    Testbed,
    TestbedError,
    congestion,
    lab_of,
    ownership,
    paths,
)
from mptcp_lab.testbed.protocol import Protocol
from mptcp_lab.testbed.services import (
    REPOSITORY,
    mptcp_command,
    program,
    start_origin,
    start_proxy,
    start_throttler,
    wait_until,
    write_throttler_config,
)
from mptcp_lab.testbed.transfer import Added, download, wget

pytestmark = pytest.mark.kernel
Require = Callable[..., None]
MIB = 1 << 20
POLICY = REPOSITORY / "conf" / "policy.yaml"


@contextmanager
def mptcp_server(testbed: Testbed, payload: bytes) -> Iterator[int]:
    """Send *payload* to whoever connects to the proxy node by MPTCP; yield the port."""
    with testbed["proxy"].entered():
        listener = socket.socket(socket.AF_INET6, socket.SOCK_STREAM, socket.IPPROTO_MPTCP)
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(("::", 0))
        listener.listen()

    with serving(listener, lambda connection: connection.sendall(payload)):
        yield listener.getsockname()[1]


def receive(testbed: Testbed, address: str, port: int) -> tuple[str, float]:
    """Read all from *address* with an MPTCP socket on the client; return SHA-256 and seconds."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with testbed["client"].entered():
        client = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_MPTCP)
    digest = hashlib.sha256()
    started = time.monotonic()
    with client:
        client.settimeout(60)
        client.connect((address, port))
        while data := client.recv(1 << 16):
            digest.update(data)
    return digest.hexdigest(), time.monotonic() - started


@pytest.mark.parametrize("family", [4, 6])
def test_mptcp_uses_both_links_and_neither_beyond_its_rate(testbed: Testbed, family: int) -> None:
    payload = os.urandom(MIB) * 24
    with mptcp_server(testbed, payload) as port:
        digest, seconds = receive(testbed, testbed["proxy"].address("wan0", family), port)
    assert digest == hashlib.sha256(payload).hexdigest()
    received = {d: c.received * 8 for d, c in testbed["client"].counters().items()}
    # How full the links get is for the experiments to measure: a busy machine fills them less.
    assert min(received["eth0"], received["wlan0"]) > 8 * MIB
    assert received["eth0"] / seconds <= 1.03 * 100e6
    assert received["wlan0"] / seconds <= 1.03 * 30e6


def test_plain_tcp_takes_the_path_of_its_source_address(testbed: Testbed) -> None:
    client, size = testbed["client"], 2 * MIB
    origin = start_origin(testbed["origin"], {"file": size})
    for device, other in (("eth0", "wlan0"), ("wlan0", "eth0")):
        for family in (4, 6):
            before = client.counters()
            target = testbed.directory / "got"
            source = ["--bind-address", client.address(device, family)]
            client.run(["wget", "-q", "-O", str(target), *source, origin.url("file", family=family)])
            assert hashlib.sha256(target.read_bytes()).hexdigest() == origin.digests["file"]
            after = client.counters()
            assert after[device].received - before[device].received > size
            assert after[other].received - before[other].received < 0.01 * size


def test_upload_is_shaped_too(testbed: Testbed, require: Require) -> None:
    require("curl")
    data = testbed.directory / "upload"
    data.write_bytes(b"\0" * 2 * MIB)
    with testbed["origin"].entered():
        listener = socket.create_server(("0.0.0.0", 80))
    listener.settimeout(60)
    received = 0

    def take() -> None:
        nonlocal received
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(60)
            while chunk := connection.recv(1 << 16):
                received += len(chunk)

    thread = threading.Thread(target=take)
    thread.start()
    with testbed["client"].entered():
        sender = socket.create_connection(("10.77.9.2", 80), source_address=("10.77.2.2", 0))
    started = time.monotonic()
    with sender:
        sender.sendall(data.read_bytes())
    thread.join(60)
    seconds = time.monotonic() - started
    listener.close()
    assert received == 2 * MIB
    # Without its headers, and over slow start too: never above the link.
    assert received * 8 / seconds <= 1.05 * 30e6


def test_each_path_has_its_own_interface_on_a_multi_homed_proxy(make_testbed: Callable[..., Testbed]) -> None:
    testbed = make_testbed(TWO_PATHS_TWO_INTERFACES)
    payload = os.urandom(MIB) * 8
    with mptcp_server(testbed, payload) as port:
        for family in (4, 6):
            before = testbed["proxy"].counters()
            digest, _ = receive(testbed, testbed["proxy"].address("wan0", family), port)
            assert digest == hashlib.sha256(payload).hexdigest()
            after = testbed["proxy"].counters()
            for device in ("wan0", "wan1"):
                assert after[device].sent - before[device].sent > MIB // 4
                assert after[device].received > before[device].received


def test_three_paths_join(make_testbed: Callable[..., Testbed]) -> None:
    testbed = make_testbed(paths([20_000_000] * 3))
    payload = b"x" * 12 * MIB
    with mptcp_server(testbed, payload) as port:
        receive(testbed, testbed["proxy"].address("wan0"), port)
    counters = testbed["client"].counters()
    assert all(counters[device].received > MIB // 4 for device in ("eth0", "wlan0", "path3"))


def test_client_program_speaks_mptcp_and_apache_does_not(testbed: Testbed, require: Require) -> None:
    require("mptcpize", "curl")
    origin = start_origin(testbed["origin"], {"file": 1000})

    def counter(name: str) -> int:
        answer = testbed["client"].run(["nstat", "-asz", name]).stdout.split()
        return int(answer[answer.index(name) + 1])

    testbed["client"].run(mptcp_command(["curl", "-sf", "-o", "/dev/null", origin.url("file")]))
    assert counter("MPTcpExtMPCapableSYNTX") == 1
    assert counter("MPTcpExtMPCapableFallbackSYNACK") == 1


def test_mptcp_from_the_proxy_to_an_origin_of_plain_tcp_is_reported(testbed: Testbed, require: Require) -> None:
    require("mptcpize", "curl")
    origin = start_origin(testbed["origin"], {"file": 1000})
    added = Added(testbed["client"], testbed["proxy"])
    command = ["curl", "-sf", "-o", "/dev/null", origin.url("file")]
    testbed["proxy"].run(command)
    assert Protocol.of(*added.read()).complaint(multipath=False) is None
    testbed["proxy"].run(mptcp_command(command))
    complaint = Protocol.of(*added.read()).complaint(multipath=False)
    assert complaint is not None
    assert "the proxy sent 1 SYNs with MP_CAPABLE" in complaint


def test_services_start_and_a_download_through_them_is_multipath(testbed: Testbed, require: Require) -> None:
    require("squid", "apache2", "wget", "mptcpize", "htb")
    origin = start_origin(testbed["origin"], {"file": 4 * MIB})
    proxy = start_proxy(testbed["proxy"])
    throttler = start_throttler(testbed["proxy"], write_throttler_config(testbed["proxy"], POLICY))
    argv = wget(origin.url("file"), proxy=proxy, multipath=True)
    seen = download(lab_of(testbed), argv, timeout=60)
    assert (seen.octets, seen.sha256) == (4 * MIB, origin.digests["file"])
    assert seen.protocol.complaint(multipath=True) is None
    assert throttler.process.stop(grace=60) == 0
    assert seen.protocol.complaint(multipath=False) is not None
    with pytest.raises(TestbedError, match=r"(?s)download by wget: it ended with 8: .*404"):
        download(lab_of(testbed), wget(origin.url("nothing")), timeout=60)


def test_cubic_is_selected_inside_and_the_host_is_as_before(
    make_testbed: Callable[..., Testbed],
) -> None:
    host = Path("/proc/sys/net/ipv4")
    names = ("tcp_allowed_congestion_control", "tcp_congestion_control")

    def as_they_are() -> list[str]:
        # Another run may have one more allowed for a moment, under this lock.
        with ownership.registry():
            return [(host / name).read_text() for name in names]

    before = as_they_are()
    try:
        congestion.ALLOWED.open("r+").close()
    except PermissionError:
        pytest.skip("NOT TESTED: in a container the list of allowed congestion controls cannot be changed")
    testbed = make_testbed()
    inside = testbed["proxy"].run(["sysctl", "-n", "net.ipv4.tcp_congestion_control"]).stdout.strip()
    if "cubic" in congestion.AVAILABLE.read_text().split():
        assert inside == "cubic"
    assert as_they_are() == before


def test_private_mounts_are_seen_by_the_program_alone(testbed: Testbed) -> None:
    shown = testbed.directory / "shown"
    shown.mkdir()
    process = testbed["proxy"].popen(
        ["sh", "-c", "echo here > /run/no-such-directory/x/file; ls /dev/shm; echo done"],
        name="mounts",
        mounts={"/run/no-such-directory/x": shown, "/dev/shm": TMPFS},
    )
    assert process.wait(60) == 0
    assert process.output() == "done\n"
    assert (shown / "file").read_text() == "here\n"
    assert not Path("/run/no-such-directory").exists()


def test_a_program_that_ignores_term_is_killed(testbed: Testbed) -> None:
    process = testbed["core"].popen(["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.1; done"])
    wait_until(lambda: "ready" in process.output(), "the program starts", process=process)
    assert process.stop(grace=0.2) == -signal.SIGKILL


def test_scoped_changes_are_undone(testbed: Testbed) -> None:
    client = testbed["client"]

    def state() -> str:
        words = "sysctl net.mptcp.enabled; ip -4 route show table all; ip -6 route show table all | sort"
        return client.run(["sh", "-c", words]).stdout

    before = state()
    with client.sysctl("net.mptcp.enabled", "0"):
        assert state() != before
    with client.link_down("wlan0"):
        assert "dev wlan0" not in client.run(["ip", "-4", "route"]).stdout
    assert state() == before


def test_failed_build_names_the_step_and_leaves_nothing() -> None:
    link = replace(TWO_PATHS.links[3], a=End("origin", "eth0", ("10.77.9.2/24",) * 2))
    broken = replace(TWO_PATHS, name="broken", links=(*TWO_PATHS.links[:3], link))
    testbed = Testbed(broken)
    with pytest.raises(TestbedError, match=r"(?s)build broken: \[origin\] ip address add 10\.77\.9\.2/24"):
        testbed.__enter__()
    assert not testbed.claimed.namespaces
    assert testbed.claimed.id not in {run.id for run in ownership.runs()}


DRIVER = """
from mptcp_lab.testbed import *
with Testbed(paths([1000000])) as t:
    p = t['core'].popen(['sleep', '600'])
    print(t.claimed.id, p.pid, t.directory, flush=True)
    input()
"""


@pytest.mark.usefixtures("dead_runs")
def test_what_a_killed_run_left_is_found_and_removed() -> None:
    with subprocess.Popen([sys.executable, "-c", DRIVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        identifier, orphan, directory = child.stdout.readline().decode().split()
        assert any(run.id == identifier and run.alive for run in ownership.runs())
        cleaned = ownership.remove_stale()
        assert identifier not in "\n".join((*cleaned.done, *cleaned.left))
        assert len(list(ownership.NAMESPACES.glob(f"mpx-{identifier}-*"))) == 4
        child.kill()
    assert f"removed testbed {identifier} of process {child.pid}" in ownership.remove_stale().done
    assert list(ownership.NAMESPACES.glob(f"mpx-{identifier}-*")) == []
    assert not Path(directory).exists()
    assert not Path(f"/proc/{orphan}/cmdline").exists() or not Path(f"/proc/{orphan}/cmdline").read_bytes()


def stick(namespace: str) -> None:
    """Have the next deletion of *namespace* fail: ip-netns(8) takes one mount away, and finds another below it."""
    target = str(ownership.NAMESPACES / namespace)
    subprocess.run(["mount", "--bind", target, target], check=True)


def owned(identifier: str) -> list[tuple[str, ...]]:
    """Return the namespaces of the dead run *identifier*."""
    return [run.namespaces for run in ownership.runs() if run.id == identifier and not run.alive]


@pytest.mark.usefixtures("dead_runs")
def test_a_namespace_whose_deletion_failed_stays_owned() -> None:
    testbed = Testbed(paths([1_000_000]))
    testbed.__enter__()
    identifier, core = testbed.claimed.id, testbed["core"].namespace
    stick(core)
    with pytest.raises(TestbedError, match=f"delete namespace {core}: exit code"):
        testbed.__exit__(None, None, None)
    assert owned(identifier) == [(core,)]
    cleaned = ownership.remove_stale()
    assert f"removed testbed {identifier} of process {os.getpid()}" in cleaned.done
    assert identifier not in "\n".join(cleaned.left)
    assert owned(identifier) == []
    assert not testbed.directory.exists()


@pytest.mark.usefixtures("dead_runs")
def test_cleanup_names_what_it_could_not_delete_and_tries_again() -> None:
    with subprocess.Popen([sys.executable, "-c", DRIVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        identifier = child.stdout.readline().decode().split()[0]
        child.kill()
    core = f"mpx-{identifier}-core"
    stick(core)
    argv = [program("mptcp-bench"), "cleanup"]
    failed = subprocess.run(argv, check=False, capture_output=True, text=True)
    assert failed.returncode == 1
    assert (
        f"mptcp-bench cleanup: testbed {identifier} of process {child.pid}: delete namespace {core}: " in failed.stderr
    )
    assert identifier not in failed.stdout
    assert owned(identifier) == [(core,)]
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    assert f"removed testbed {identifier} of process {child.pid}\n" in done.stdout
    assert identifier not in done.stderr
    assert owned(identifier) == []
    assert not (ownership.NAMESPACES / core).exists()


def test_iptables_waits_for_no_other_suite(testbed: Testbed, require: Require) -> None:
    """While another one holds its lock iptables(8) waits or fails; it is one for the machine, unless told otherwise."""
    require("iptables-legacy")
    command = ["iptables-legacy", "-t", "mangle", "-A", "POSTROUTING", "-j", "ACCEPT"]
    lock = Path(os.environ["XTABLES_LOCKFILE"])
    assert lock != Path("/run/xtables.lock")
    lock.touch()
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(TestbedError, match=r"no end after 1 s|holding the xtables lock"):
            testbed["proxy"].run(command, timeout=1)
    testbed["proxy"].run(command)
