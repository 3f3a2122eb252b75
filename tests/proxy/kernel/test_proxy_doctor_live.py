# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that the doctor reports a fault in its network namespace, and that its remedies correct the fault."""

from __future__ import annotations

import json
import shlex
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from proxying import curl_command, fetch, skip_in_private_checkout

from mptcp_lab.testbed import TWO_PATHS_TWO_INTERFACES, LiveNode, Testbed
from mptcp_lab.testbed.services import (
    program,
    start_origin,
    start_proxy,
    start_throttler,
    throttler_mounts,
    wait_until,
    write_throttler_config,
)
from mptcp_proxy import shim

pytestmark = pytest.mark.kernel
CONFIG = Path(__file__).parents[3] / "conf/squid.conf"
Findings = dict[str, dict[str, str]]


@pytest.fixture(autouse=True)
def _needs(require: Callable[..., None]) -> None:
    require("squid", "gcc")
    for name in (shim.LISTEN, shim.TURNS):
        shim.library(name)


def run_doctor(node: LiveNode) -> tuple[int, Findings]:
    process = node.popen([program("mptcp-proxy"), "doctor", "--json", "--config", str(CONFIG)], name="doctor")
    code = process.wait(120)
    return code, {finding["check"]: finding for finding in json.loads(process.output())}


def apply_remedy(node: LiveNode, finding: dict[str, str]) -> None:
    """Run the finding's remedy, without the part that makes it permanent."""
    for command in finding["remedy"].split("#")[0].split("&&"):
        if ">>" not in command:
            node.run(["sh", "-c", command])


def test_doctor_finds_no_fault_on_a_sound_host(
    make_testbed: Callable[..., Testbed], require: Callable[..., None]
) -> None:
    require("htb")
    node = make_testbed(TWO_PATHS_TWO_INTERFACES)["proxy"]
    code, findings = run_doctor(node)
    assert [name for name, finding in findings.items() if finding["status"] == "fail"] == []
    assert code == 0
    assert findings["kernel MPTCP"]["status"] == "ok"
    assert findings["preload library"]["status"] == "ok"
    assert findings["tc HTB"]["status"] == "ok"
    assert findings["port 3128"]["text"] == "free"


def test_doctor_imports_nothing_from_the_working_directory(
    make_testbed: Callable[..., Testbed], tmp_path: Path
) -> None:
    """Root may run the doctor in a directory of any user."""
    for module in ("json", "socket", "ctypes", "pyroute2"):
        (tmp_path / f"{module}.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w')\nraise SystemExit(9)\n")
    node = make_testbed(TWO_PATHS_TWO_INTERFACES)["proxy"]
    argv = [program("mptcp-proxy"), "doctor", "--json", "--config", str(CONFIG)]
    answer = node.run(["sh", "-c", 'cd "$0" && exec "$@"', str(tmp_path), *argv], check=False, timeout=120)
    findings = {finding["check"]: finding["status"] for finding in json.loads(answer.stdout)}
    assert findings["tc HTB"] == "ok", "the doctor could not test HTB in a namespace"
    assert findings["preload library"] == "ok"
    assert not (tmp_path / "imported").exists()


@pytest.mark.nightly(except_for=("reverse path",))
@pytest.mark.parametrize(
    ("fault", "check", "status"),
    [
        (["sysctl", "-qw", "net.mptcp.enabled=0"], "kernel MPTCP", "fail"),
        (["sysctl", "-qw", "net.mptcp.allow_join_initial_addr_port=0"], "sysctl join address", "fail"),
        (["sysctl", "-qw", "net.mptcp.checksum_enabled=1"], "sysctl checksum", "warn"),
        (["sysctl", "-qw", "net.mptcp.pm_type=1"], "sysctl path manager", "warn"),
        (["ip", "mptcp", "limits", "set", "subflows", "0"], "path manager", "fail"),
        (["sysctl", "-qw", "net.ipv4.conf.wan1.rp_filter=1"], "rp_filter", "warn"),
    ],
    ids=["MPTCP off", "initial address", "checksums", "user-space path manager", "no subflows", "reverse path"],
)
def test_remedy_corrects_the_fault(
    make_testbed: Callable[..., Testbed], fault: list[str], check: str, status: str
) -> None:
    node = make_testbed(TWO_PATHS_TWO_INTERFACES)["proxy"]
    node.run(fault)
    code, findings = run_doctor(node)
    assert findings[check]["status"] == status
    assert findings[check]["why"]
    assert code == (1 if status == "fail" else 0)
    apply_remedy(node, findings[check])
    code, findings = run_doctor(node)
    assert findings[check]["status"] == "ok"
    assert code == 0


@pytest.mark.nightly
def test_doctor_warns_of_the_memory_that_one_client_may_take(testbed: Testbed, require: Callable[..., None]) -> None:
    require("nftables")
    node = testbed["proxy"]
    with node.sysctl("net.ipv4.tcp_rmem", f"4096 131072 {1 << 30}"):
        code, findings = run_doctor(node)
        assert findings["memory for one client"]["status"] == "warn"
        assert "net.ipv4.tcp_rmem=4096 131072 2097152" in findings["memory for one client"]["remedy"]
    with node.sysctl("net.ipv4.tcp_rmem", "4096 8192 16384"):
        assert run_doctor(node)[1]["memory for one client"]["status"] == "ok"
    assert code == 0
    assert findings["new connections"]["status"] == "warn"
    assert "is not loaded" in findings["new connections"]["text"]
    apply_remedy(node, findings["new connections"])
    assert run_doctor(node)[1]["new connections"]["text"].startswith("limited")


@pytest.mark.nightly
def test_subflow_limit_of_0_prevents_joins_as_the_doctor_reports(
    testbed: Testbed, require: Callable[..., None]
) -> None:
    require("apache2", "curl", "mptcpize")
    node = testbed["proxy"]
    origin = start_origin(testbed["origin"], {"file.bin": 1_000_000})
    node.run(["ip", "mptcp", "limits", "set", "subflows", "0"])
    proxy = start_proxy(node)

    def count_joins() -> int:
        before = node.mib()["MPTcpExtMPJoinAckRx"]
        # The download takes ten seconds, because on a busy machine the second subflow joins late.
        limit = ["--limit-rate", "100K"]
        assert fetch(testbed["client"], origin.url("file.bin"), proxy.url(), mptcp=True, options=limit).status == 200
        return node.mib()["MPTcpExtMPJoinAckRx"] - before

    assert count_joins() == 0
    apply_remedy(node, run_doctor(node)[1]["path manager"])
    assert count_joins() >= 1


@pytest.mark.nightly
def test_doctor_distinguishes_another_programs_port_from_the_proxys_own(testbed: Testbed) -> None:
    node = testbed["proxy"]
    with node.entered():
        import socket

        other = socket.create_server(("", 3128))
    code, findings = run_doctor(node)
    assert code == 1
    assert findings["port 3128"]["status"] == "fail"
    assert "listens on it" in findings["port 3128"]["text"]
    other.close()

    proxy = start_proxy(node, arguments=("--without", "may-write"))
    answer = node.popen(
        [program("mptcp-proxy"), "doctor", "--json", "--config", str(CONFIG)],
        mounts={"/run/mptcpproxy": proxy.state},
    )
    assert answer.wait(120) == 0
    findings = {finding["check"]: finding for finding in json.loads(answer.output())}
    assert findings["port 3128"]["text"] == "the running proxy listens on it over Multipath TCP"
    assert "fair-turns" in findings["library features"]["text"]
    assert "off: may-write" in findings["library features"]["text"]


def test_doctor_changes_nothing_on_the_host(testbed: Testbed) -> None:
    node = testbed["proxy"]
    # Omit link states and link-local IPv6 addresses, because the kernel changes them after the links came up.
    addresses = ("ip -o -4 addr", "ip -o -6 addr show scope global")
    commands = (*addresses, "ip route show table all", "tc qdisc", "nft list ruleset", "ipset list", "ip mptcp limits")

    def state() -> list[str]:
        return [node.run(command.split(), check=False).stdout for command in commands]

    before = state()
    assert "wan0" in before[0]
    run_doctor(node)
    assert state() == before


@pytest.mark.parametrize(("before", "after"), [(0, 8), (1, 1), (4, 4)])
def test_unit_raises_only_a_subflow_limit_of_0(testbed: Testbed, before: int, after: int) -> None:
    node = testbed["proxy"]
    node.run(["ip", "mptcp", "limits", "set", "subflows", str(before)])
    answer = node.run(start_pre_command())
    assert f"subflows {after}" in node.run(["ip", "mptcp", "limits", "show"]).stdout
    assert answer.stderr == ""


def test_unit_reports_a_limit_that_it_cannot_raise(testbed: Testbed, require: Callable[..., None]) -> None:
    require("root")
    node = testbed["proxy"]
    node.run(["ip", "mptcp", "limits", "set", "subflows", "0"])
    answer = node.run(["setpriv", "--bounding-set=-all", "--inh-caps=-all", *start_pre_command()], check=False)
    assert "clients stay on one path" in answer.stderr


def start_pre_command() -> list[str]:
    """Return the command of the unit's ExecStartPre."""
    unit = (CONFIG.parents[1] / "systemd/mptcp-proxy.service").read_text()
    (line,) = [line for line in unit.splitlines() if line.startswith("ExecStartPre=")]
    command = line.removeprefix("ExecStartPre=")
    # "-": a failure does not prevent the start. systemd would replace "$" and "%".
    assert command.startswith("-/")
    assert not {"$", "%"} & set(command)
    return shlex.split(command.removeprefix("-"))


STEERING_POLICY = """\
version: 1
paths:
  ethernet: {clients: [10.77.1.0/24]}
  wifi: {clients: [10.77.2.0/24]}
rules:
  - {name: order, steer: {mode: active-standby, active: wifi, standby: ethernet}}
"""


@pytest.mark.nightly
def test_doctor_examines_the_throttler(testbed: Testbed, require: Callable[..., None]) -> None:
    require("htb", "nftables")
    node = testbed["proxy"]
    policy = testbed.directory / "policy.yaml"
    policy.write_text(STEERING_POLICY)
    config = write_throttler_config(node, policy, settings={"netfilter": "nftables"})
    mounts = throttler_mounts(node)

    def examine() -> Findings:
        argv = [program("mptcp-proxy"), "doctor", "--json", "--config", str(CONFIG), "--throttler-config", str(config)]
        process = node.popen(argv, name="doctor", mounts=mounts)
        process.wait(120)
        return {finding["check"]: finding for finding in json.loads(process.output())}

    findings = examine()
    assert findings["throttler"]["status"] == "warn"
    assert "no daemon answers" in findings["throttler"]["text"]

    throttler = start_throttler(node, config)
    findings = examine()
    assert findings["throttler"]["text"] == "it runs, with 1 rule on wan0 (nftables)"
    assert findings["throttler settings"]["status"] == "ok"
    assert findings["throttled ports"]["status"] == "ok"
    assert node.run(["sysctl", "-n", "net.mptcp.pm_type"]).stdout.strip() == "1"
    assert findings["sysctl path manager"]["status"] == "ok"
    assert findings["BPF"]["status"] == "ok"

    policy.write_text(STEERING_POLICY.replace("standby: ethernet", "standby: lte"))
    throttler.process.signal(signal.SIGHUP)
    wait_until(
        lambda: "policy not reloaded" in throttler.process.output(), "the reload is refused", process=throttler.process
    )
    findings = examine()
    assert (findings["throttler"]["status"], findings["throttler settings"]["status"]) == ("warn", "fail")
    assert f"it refused its last reload: {policy}:6: " in findings["throttler"]["text"]
    assert f"{policy}:6: " in findings["throttler settings"]["text"]
    throttler.process.signal(signal.SIGTERM)
    assert throttler.process.wait(60) == 0


NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
NEEDS_ROOT = {"kernel features", "throttler", "sysctl path manager", "last reload", "port 3128", "new connections"}


def test_doctor_without_root_lists_checks_that_need_root(testbed: Testbed, require: Callable[..., None]) -> None:
    """Defect: without root, the doctor reported that another process has the port and that nothing is capped."""
    require("htb", "nftables")
    skip_in_private_checkout()
    node = testbed["proxy"]
    policy = testbed.directory / "policy.yaml"
    policy.write_text(STEERING_POLICY)
    settings = write_throttler_config(node, policy, settings={"netfilter": "nftables"})
    proxy = start_proxy(node)
    start_throttler(node, settings)
    mounts = {"/run/mptcpproxy": str(proxy.state), **throttler_mounts(node)}

    def statuses(user: list[str], config: Path) -> tuple[int, dict[str, str]]:
        argv = [
            program("mptcp-proxy"),
            "doctor",
            "--json",
            "--config",
            str(config),
            "--throttler-config",
            str(settings),
        ]
        process = node.popen([*user, *argv], name="doctor", mounts=mounts)
        code = process.wait(120)
        return code, {finding["check"]: finding["status"] for finding in json.loads(process.output())}

    code, root_statuses = statuses([], CONFIG)
    assert (code, [name for name, status in root_statuses.items() if status == "unseen"]) == (0, [])
    assert root_statuses["clients of the paths"] == "ok"
    code, found = statuses(NOBODY, CONFIG)
    assert {name for name, status in found.items() if status == "unseen"} - {"AppArmor"} == NEEDS_ROOT
    assert {name: status for name, status in found.items() if status not in ("unseen", root_statuses.get(name))} == {}
    assert code == 0

    hidden = node.write("hidden.conf", CONFIG.read_text())
    hidden.chmod(0o600)
    settings.chmod(0o600)
    code, found = statuses(NOBODY, hidden)
    assert (code, found["configuration"], found["throttler settings"]) == (0, "unseen", "unseen")
    assert "port 3128" not in found


def test_doctor_finds_a_path_that_drops_full_sized_packets(testbed: Testbed, require: Callable[..., None]) -> None:
    require("apache2", "curl", "mptcpize", "nftables")
    node, core = testbed["proxy"], testbed["core"]
    origin, proxy = start_origin(testbed["origin"], {"file.bin": 200_000_000}), start_proxy(node)
    core.run(["nft", "add table inet hole"])
    core.run(["nft", "add chain inet hole way { type filter hook forward priority 0; }"])
    core.run(["nft", "add rule inet hole way ip daddr 10.77.2.0/24 meta length > 1300 drop"])
    limit = ["-o", "/dev/null", "--limit-rate", "500K"]
    download = testbed["client"].popen(
        curl_command(origin.url("file.bin"), proxy.url(), mptcp=True, tunnel=False, options=limit)
    )

    def finding() -> dict[str, str]:
        return run_doctor(node)[1]["path-MTU black holes"]

    wait_until(lambda: finding()["status"] == "warn", "the doctor reports the black hole", process=download)
    found = finding()
    assert "1 subflow to 10.77.2.2 never" in found["text"]
    apply_remedy(node, found)
    assert finding()["status"] == "ok"
