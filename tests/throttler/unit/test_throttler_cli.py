# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for commands that change nothing, such as check and plan, and for messages about wrong input."""

from __future__ import annotations

import grp
import json
import re
import socket
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest

from mptcp_common import tcp_table, throttler_needs
from mptcp_common.exit_status import CONFIGURATION, FAILED
from mptcp_common.kernel_error import KernelError
from mptcp_throttler.cli import main
from mptcp_throttler.kernel import feature_probe
from mptcp_throttler.kernel.netfilter import backends
from mptcp_throttler.kernel.tc import link
from mptcp_throttler.policy.budget import Account, Usage, period
from mptcp_throttler.policy.load import load_policy
from mptcp_throttler.shaping import cap as cap_module
from mptcp_throttler.shaping.model import FIRST_MINOR
from mptcp_throttler.storage import Ledger

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests/throttler/golden"
NOON = "2026-11-20T12:00+00:00"


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    """A settings file beside a copy of the shipped policy."""
    (tmp_path / "policy.yaml").write_text((ROOT / "conf/policy.yaml").read_text())
    path = tmp_path / "throttler.yaml"
    path.write_text("interfaces: [wan0]\npolicy: policy.yaml\n")
    return path


@pytest.fixture
def host_interfaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the host's interfaces. All features of the kernel and all libraries are present, and the proxy runs."""
    names = ["lo", "wan0", "wan1"]
    monkeypatch.setattr("socket.if_nameindex", lambda: list(enumerate(names)))
    (tmp_path / "tcp6").write_text(tcp_table_of())
    monkeypatch.setattr(tcp_table, "TABLES", (tmp_path / "tcp6",))
    monkeypatch.setattr(throttler_needs, "loads", lambda name: True)
    monkeypatch.setattr(throttler_needs, "missing_bpf", lambda *_: None)
    monkeypatch.setattr(link, "read_lower_interfaces", dict)
    monkeypatch.setattr(link, "networks", list)
    monkeypatch.setattr(feature_probe, "try_features", lambda features: (dict.fromkeys(features), ""))
    return names


@pytest.mark.parametrize("backend", throttler_needs.BACKENDS)
def test_plan_prints_the_kernel_state_as_commands(
    settings: Path, capsys: pytest.CaptureFixture[str], backend: str
) -> None:
    settings.write_text(settings.read_text() + f"netfilter: {backend}\n")
    code = main(["plan", "--config", str(settings), "--subflows", str(GOLDEN / "subflows.yaml"), "--at", NOON])
    assert capsys.readouterr().out == (GOLDEN / f"plan-{backend}.txt").read_text()
    assert code == 0


@pytest.mark.parametrize(("legacy", "backend"), [(True, "iptables"), (False, "nftables")])
def test_plan_prints_commands_of_the_backend_that_auto_chooses(
    settings: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    legacy: bool,
    backend: str,
) -> None:
    """Defect: under ``netfilter: auto``, plan printed the commands for iptables on every host."""
    available = throttler_needs.BACKENDS if legacy else ("nftables",)
    monkeypatch.setattr(backends, "backends_without_modules", lambda: available)
    assert main(["plan", "--config", str(settings), "--subflows", str(GOLDEN / "subflows.yaml"), "--at", NOON]) == 0
    assert capsys.readouterr().out == (GOLDEN / f"plan-{backend}.txt").read_text()


def test_plan_accepts_ipv4_addresses_in_ipv6_form(
    settings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Defect: no prefix of the policy contained such an address, so that the plan had no cap."""
    text = (GOLDEN / "subflows.yaml").read_text()
    mapped = tmp_path / "subflows.yaml"
    mapped.write_text(re.sub(r'"([0-9.]+):([0-9]+)"', r'"[::ffff:\1]:\2"', text))
    assert mapped.read_text() != text
    settings.write_text(settings.read_text() + "netfilter: iptables\n")
    assert main(["plan", "--config", str(settings), "--subflows", str(mapped), "--at", NOON]) == 0
    assert capsys.readouterr().out == (GOLDEN / "plan-iptables.txt").read_text()


@pytest.mark.parametrize("at", ["0001-01-01T00:00", "1969-12-30", "9999-12-31T23:00", "noon"])
def test_plan_refuses_an_invalid_time(settings: Path, capsys: pytest.CaptureFixture[str], at: str) -> None:
    """Defect: plan raised an exception for a time in the last days of the year 9999."""
    policy = settings.parent / "policy.yaml"
    policy.write_text('version: 1\nrules: [{name: a, when: {hours: ["08:00-10:00"]}, throttle: {rate: 5mbit}}]\n')
    assert main(["plan", "--config", str(settings), "--subflows", str(GOLDEN / "subflows.yaml"), "--at", at]) == 1
    assert capsys.readouterr().err.startswith(f'--at: "{at}" is not a time; write e.g. ')


def test_plan_reads_times_in_the_policys_time_zone_and_accepts_used_volumes(
    settings: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Defect: the time was read in the host's time zone, and no option stated the used volume of a budget."""
    (settings.parent / "policy.yaml").write_text(
        "version: 1\ntime_zone: Europe/Athens\npaths: {ethernet: {clients: [10.77.1.0/24]}}\nrules:\n"
        '  - {name: a, paths: [ethernet], when: {hours: ["08:00-10:00"]}, throttle: {rate: 5 Mbit/s}}\n'
        "  - {name: v, paths: [ethernet], budget: {period: day, steps: [{after: 1 GB, throttle: {rate: 1 Mbit/s}}]}}\n"
    )
    plan = ["plan", "--config", str(settings), "--subflows", str(GOLDEN / "subflows.yaml")]

    def has_cap(*options: str) -> bool:
        assert main([*plan, *options]) == 0
        return "htb rate 1000000bit" in capsys.readouterr().out

    assert main([*plan, "--at", "2026-11-20T09:30"]) == 0
    assert "rule a caps path ethernet" in capsys.readouterr().out
    assert main([*plan, "--at", "2026-11-20T09:30+00:00"]) == 0
    assert "rule a does not apply" in capsys.readouterr().out
    assert not has_cap()
    assert not has_cap("--used", "v=999 MB")
    assert has_cap("--used", "v=1 GB")
    for argument in ("w=1 GB", "v=1 gb", "v"):
        assert main([*plan, "--used", argument]) == FAILED
        assert capsys.readouterr().err.startswith("--used: ")


def tcp_table_of(*clients: str) -> str:
    """Return the text of /proc/net/tcp6 with a connection of each of *clients* to port 3128."""
    addresses = (ip_address(f"::ffff:{each}" if "." in each else each).packed for each in clients)
    printed = ("".join(address[i : i + 4][::-1].hex() for i in range(0, 16, 4)).upper() for address in addresses)
    rows = [f"   0: {'0' * 32}:0C38 {each}:9C40 01 00000000:00000000" for each in printed]
    return "\n".join(["  sl  local_address remote_address st", *rows, f"   1: {'0' * 32}:0C38 {'0' * 32}:0000 0A 0"])


@pytest.mark.usefixtures("host_interfaces")
@pytest.mark.parametrize(
    ("network", "clients", "severity"),
    [
        ("10.77.0.0/16", (), ""),
        ("fd77:2::/64", (), ""),
        ("192.0.2.0/24", (), "note"),
        ("192.0.2.0/24", ("192.0.2.7", "10.77.1.9"), ""),
        ("10.77.0.0/16", ("192.0.2.7", "2001:db8::1"), "warning"),
    ],
)
def test_check_reports_paths_without_clients(
    settings: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    network: str,
    clients: tuple[str, ...],
    severity: str,
) -> None:
    (settings.parent / "tcp6").write_text(tcp_table_of(*clients))
    monkeypatch.setattr(link, "networks", lambda: [ip_network(network)])
    assert main(["check", "--config", str(settings)]) == 0
    assert [each.split(": ")[1] for each in capsys.readouterr().err.splitlines()] == ([severity] if severity else [])


def fill_ledger(settings: Path, client: str) -> None:
    """Record that *client* has used 7 bytes of a budget."""
    directory = settings.parent
    settings.write_text(settings.read_text() + f"ledger: {directory}/ledger.sqlite\n")
    step = "{after: 1 GB, throttle: {rate: 1 Mbit/s}}"
    text = f"version: 1\nrules: [{{name: a, budget: {{period: day, steps: [{step}]}}}}]\n"
    (directory / "policy.yaml").write_text(text)
    policy = load_policy(text, "policy.yaml")
    account = Account("a", client, period(policy.budgets["a"], policy.time_zone, time.time())[0])
    ledger = Ledger(directory / "ledger.sqlite")
    ledger.write("boot", Usage({account: 7}, {}, frozenset()))
    ledger.close()


def test_quota_accepts_an_ipv4_address_in_ipv6_form(settings: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill_ledger(settings, "10.1.0.1")
    assert main(["quota", "show", "--config", str(settings), "--client", "::ffff:10.1.0.1", "--json"]) == 0
    assert [each["used"] for each in json.loads(capsys.readouterr().out)] == [7]


def test_quota_prints_ipv6_addresses_correctly(settings: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Defect: ":a:" and ":b:" in an IPv6 address became emojis."""
    fill_ledger(settings, "fd77:a::b:1")
    assert main(["quota", "show", "--config", str(settings)]) == 0
    assert " fd77:a::b:1 " in capsys.readouterr().out


def test_plan_reports_connections_without_a_class(
    settings: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect: plan ended with a traceback if no further class was available."""
    monkeypatch.setattr(cap_module, "LAST_MINOR", FIRST_MINOR)
    cap = "throttle: {rate: 5 Mbit/s, share: connection}, when: {min_subflows: 2}"
    rules = f"rules: [{{name: each, {cap}}}, {{name: all, paths: [any], throttle: {{rate: 1 Mbit/s}}}}]"
    (settings.parent / "policy.yaml").write_text(f"version: 1\npaths: {{any: {{subflow: initial}}}}\n{rules}\n")
    assert main(["plan", "--config", str(settings), "--subflows", str(GOLDEN / "subflows.yaml"), "--at", NOON]) == 0
    lines = capsys.readouterr().out.splitlines()
    message = "no HTB class is left: 1 caps are in use; share caps by path or by client"
    assert lines[3:5] == ["# connection 00000002", f"#   cannot be capped (down): {message}"]
    assert f"# {message}" in lines
    assert len([line for line in lines if line.startswith("tc class")]) == 3, (
        "the plan does not have exactly the link's class, the default class, and one cap"
    )


def test_plan_of_a_dry_run_prints_only_comments(settings: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy = settings.parent / "policy.yaml"
    policy.write_text(policy.read_text() + "\ndry_run: true\n")
    assert main(["plan", "--config", str(settings), "--subflows", str(GOLDEN / "subflows.yaml")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "# dry run: the kernel would not be changed"
    assert all(line.startswith("#") for line in lines)


@pytest.mark.usefixtures("host_interfaces")
def test_check_without_errors_prints_a_summary(settings: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--config", str(settings)]) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines() == [
        f"{settings}: no errors",
        f"{settings.parent}/policy.yaml: 2 paths, 1 rule, no errors",
    ]
    assert captured.err == ""


@pytest.mark.usefixtures("host_interfaces")
def test_check_warns_of_a_port_without_a_listener(settings: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings.write_text(settings.read_text() + "listen_ports: [3128, 3129]\n")
    assert main(["check", "--config", str(settings)]) == 0
    message = "no program listens on port 3129 now; is mptcp-proxy running, and with this port?"
    assert capsys.readouterr().err == f"{settings}:3: warning: listen_ports: {message}\n"


@pytest.mark.usefixtures("host_interfaces")
def test_check_warns_of_an_interface_that_is_stacked_on_another(
    settings: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect: there was no warning. Packets that passed both interfaces had half the rate of their upload cap."""
    settings.write_text("interfaces: [wan0, wan1]\npolicy: policy.yaml\n")
    monkeypatch.setattr(link, "read_lower_interfaces", lambda: {"wan0": {"lo"}, "wan1": {"bond0"}, "bond0": {"wan0"}})
    assert main(["check", "--config", str(settings)]) == 0
    message = "warning: interfaces: wan1 is stacked on wan0, and packets of wan1 pass both"
    (warning,) = (each for each in capsys.readouterr().err.splitlines() if "is stacked on" in each)
    assert warning.startswith(f"{settings}:1: {message}")
    assert warning.endswith("; list only wan1 or wan0")


@pytest.mark.usefixtures("host_interfaces")
def test_check_reports_missing_libraries_of_the_daemon(
    settings: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect: check found no errors on a host without libpcap, on which the daemon did not start."""
    monkeypatch.setattr(throttler_needs, "loads", lambda name: "nftables" not in name)
    assert main(["check", "--config", str(settings)]) == 0
    assert capsys.readouterr().err.startswith(f"{settings}: warning: netfilter: libnftables cannot be loaded: ")
    monkeypatch.setattr(throttler_needs, "loads", lambda name: "pcap" not in name)
    assert main(["check", "--config", str(settings)]) == FAILED
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert captured.err.startswith(f"{settings}: libpcap cannot be loaded: ")
    assert captured.err.endswith("; apt install libpcap0.8\n")


@pytest.mark.usefixtures("host_interfaces")
def test_check_reports_missing_kernel_features_of_the_daemon(
    settings: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect: check found no errors on a kernel without HTB, or IFB for uploads, and the daemon did not start."""
    monkeypatch.setattr(feature_probe, "try_features", lambda features: ({"htb": "No such file or directory"}, ""))
    assert main(["check", "--config", str(settings)]) == FAILED
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert captured.err.startswith(
        f"{settings}: HTB does not work (No such file or directory); it needs the kernel option CONFIG_NET_SCH_HTB: "
    )
    monkeypatch.setattr(
        feature_probe, "try_features", lambda features: ({}, "only root may create a network namespace")
    )
    assert main(["check", "--config", str(settings)]) == 0
    message = "note: the kernel's features were not tested: only root may create a network namespace"
    assert capsys.readouterr().err == f"{settings}: {message}\n"


@pytest.mark.usefixtures("host_interfaces")
def test_check_reports_that_a_cap_applies_to_each_interface(settings: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings.write_text(settings.read_text().replace("[wan0]", "[wan0, wan1]"))
    assert main(["check", "--config", str(settings)]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{settings.parent}/policy.yaml:")
    assert 'note: rules[0]: the cap of rule "spare-ethernet" applies to each interface separately' in line
    assert main(["check", "--policy", str(settings.parent / "policy.yaml")]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("connections: 3\n", ":1: connections: 3 is not a list; write [3]"),
        ("connections:\n- subflows: []\n", ":2: connections[0].subflows: "),
        (
            'connections:\n- subflows:\n  - {local: "10.0.0.1", remote: "10.0.0.2:1"}\n',
            ':3: connections[0].subflows[0].local: "10.0.0.1" is not an address and port; '
            'write "10.0.0.1:3128" or "[fd00::1]:3128"',
        ),
        ("connectoins: []\n", ":1: "),
        (
            'connections:\n- subflows:\n  - {local: "10.0.0.1:9999", remote: "10.0.0.2:1"}\n',
            ":3: connections[0].subflows[0].local: port 9999 is not one of listen_ports (3128)",
        ),
        (
            'connections:\n- subflows:\n  - {local: "10.0.0.1:3128", remote: "[fd00::2]:1"}\n',
            ":3: connections[0].subflows[0].local: local and remote are addresses of different families",
        ),
    ],
)
def test_invalid_list_of_subflows_is_reported_with_its_line(
    settings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    invalid = tmp_path / "subflows.yaml"
    invalid.write_text(text)
    assert main(["plan", "--config", str(settings), "--subflows", str(invalid)]) == 1
    printed = capsys.readouterr()
    assert not printed.out
    assert f"{invalid}{message}" in printed.err


@pytest.mark.parametrize("command", ["run", "check", "plan --live", "status", "cleanup", "quota show"])
def test_every_command_reports_missing_settings(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    status = CONFIGURATION if command == "run" else FAILED
    assert main([*command.split(), "--config", "/nowhere/throttler.yaml"]) == status
    assert capsys.readouterr().err == "/nowhere/throttler.yaml: cannot be read: No such file or directory\n"


def test_policy_that_is_not_text_is_reported_in_one_line(settings: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (settings.parent / "policy.yaml").write_bytes(b"version: \xff\n")
    assert main(["check", "--config", str(settings)]) == 1
    assert capsys.readouterr().err == f"{settings.parent}/policy.yaml: is not UTF-8 text: byte 9 cannot be decoded\n"


def test_too_narrow_mark_mask_is_an_error_of_both_files(settings: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings.write_text(settings.read_text() + "mark_mask: 0x00010000\n")
    policy = settings.parent / "policy.yaml"
    policy.write_text(policy.read_text() + "  - {name: more, throttle: none}\n")
    assert main(["check", "--config", str(settings)]) == 1
    assert f"{settings}:3: mark_mask: 0x00010000 is enough for 1 rule, but the policy has 2" in capsys.readouterr().err


def test_status_without_a_daemon_is_an_error(
    settings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", "--config", str(settings), "--socket", str(tmp_path / "status.sock")]) == 1
    assert "is it running?" in capsys.readouterr().err


@pytest.mark.parametrize(("command", "status"), [("run", CONFIGURATION), ("check", FAILED)])
def test_missing_interface_is_an_error_of_the_settings(
    settings: Path, host_interfaces: list[str], capsys: pytest.CaptureFixture[str], command: str, status: int
) -> None:
    host_interfaces[:] = ["lo", "eth0"]
    assert main([command, "--config", str(settings)]) == status
    captured = capsys.readouterr()
    assert captured.err == f"{settings}:1: interfaces: there is no interface wan0 on this host; there are: eth0, lo\n"
    assert not captured.out


@pytest.mark.usefixtures("host_interfaces")
@pytest.mark.parametrize("command", ["run", "check"])
def test_missing_group_is_an_error_of_the_settings(
    settings: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    settings.write_text(settings.read_text() + "status_group: nobody-is-in-this\n")
    assert main([command, "--config", str(settings)]) in (CONFIGURATION, FAILED)
    assert f"{settings}:3: status_group: there is no group nobody-is-in-this" in capsys.readouterr().err


def test_version_equals_the_version_in_pyproject(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    with (ROOT / "pyproject.toml").open("rb") as file:
        version = tomllib.load(file)["project"]["version"]
    assert capsys.readouterr().out == f"mptcp-throttler {version}\n"


@pytest.mark.parametrize("command", ["status", "reload"])
def test_message_for_a_user_without_permission_names_the_group(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
) -> None:
    path = tmp_path / "s"
    settings = tmp_path / "throttler.yaml"
    settings.write_text(f"interfaces: [wan0]\npolicy: policy.yaml\nstatus_socket: {path}\n")

    def refuse(*_: object) -> bytes:
        raise PermissionError(13, "Permission denied")

    path.touch()
    monkeypatch.setattr("mptcp_common.status_client.ask_text", refuse)
    assert main([command, "--config", str(settings)]) == FAILED
    group = grp.getgrgid(path.stat().st_gid).gr_name
    assert (
        capsys.readouterr().err
        == f"mptcp-throttler: permission denied: {path} accepts only root and the group {group}\n"
    )


QUERY_PROGRAM = """
import sys
from dataclasses import replace
from pathlib import Path
from mptcp_throttler.cli import main
code = main(["status", "--json", "--socket", sys.argv[1]])
sys.stdout.flush()
heavy = {"asyncio", "decimal", "difflib", "logging", "pydantic", "ruamel.yaml"}
heavy |= {"mptcp_throttler.kernel.ports", "mptcp_throttler.policy.model"}
print(code, sorted(heavy & sys.modules.keys()))
"""


@contextmanager
def daemon_that_answers(path: Path, *parts: bytes) -> Iterator[threading.Event]:
    """Run a daemon that sends one answer: its first part immediately, its other parts when the event is set."""
    may_continue = threading.Event()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            client, _ = listener.accept()
            with client:
                client.makefile("rb").readline()
                client.sendall(parts[0])
                assert may_continue.wait(60)
                for part in parts[1:]:
                    client.sendall(part)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield may_continue
        finally:
            may_continue.set()
            thread.join(60)


def test_status_is_printed_without_loading_heavy_modules(tmp_path: Path) -> None:
    text = b'{"connections": [' + b" " * 200_000 + b"]}\n"
    with daemon_that_answers(tmp_path / "s", text[:150_000], text[150_000:]) as may_continue:
        command = [sys.executable, "-c", QUERY_PROGRAM, str(tmp_path / "s")]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            may_continue.set()
            printed, _ = process.communicate()
    assert printed == text + b"0 []\n"


@pytest.mark.parametrize(
    "parts",
    [[b'{"connections": [', b"{"], [b'{"connections": [{"token": "1"', b"}"], [b"", b""]],
    ids=["cut after a brace", "without the last brackets", "empty"],
)
def test_incomplete_status_answer_is_an_error(tmp_path: Path, parts: list[bytes]) -> None:
    with daemon_that_answers(tmp_path / "s", *parts) as may_continue:
        may_continue.set()
        command = [sys.executable, "-c", QUERY_PROGRAM, str(tmp_path / "s")]
        completed = subprocess.run(command, capture_output=True, check=True)
    assert completed.stdout.endswith(b"1 []\n")
    message = "the answer ended too early, or the daemon is older than this command; then restart it"
    assert completed.stderr.decode() == f"mptcp-throttler: query {tmp_path / 's'}: {message}\n"


def test_kernel_error_is_printed_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def raise_kernel_error(_: object) -> int:
        raise KernelError("list TCP sockets: no")

    monkeypatch.setattr("mptcp_throttler.cli.top.top", raise_kernel_error)
    assert main(["top"]) == FAILED
    assert capsys.readouterr().err == "mptcp-throttler: list TCP sockets: no\n"
