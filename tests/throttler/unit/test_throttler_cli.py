"""The commands that touch nothing: check and plan; and how a user's mistakes are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from mptcp_throttler.cli import main

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests/throttler/golden"
NOON = "2026-11-20T12:00+00:00"


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    """Settings beside a copy of the shipped policy."""
    (tmp_path / "policy.yaml").write_text((ROOT / "conf/policy.yaml").read_text())
    path = tmp_path / "throttler.yaml"
    path.write_text("interfaces: [wan0]\npolicy: policy.yaml\n")
    return path


@pytest.mark.parametrize("backend", ["iptables", "nftables"])
def test_plan_prints_the_kernel_state_as_commands(
    settings: Path, capsys: pytest.CaptureFixture[str], backend: str
) -> None:
    settings.write_text(settings.read_text() + f"netfilter: {backend}\n")
    code = main(["plan", "--config", str(settings), "--subflows", str(GOLDEN / "subflows.yaml"), "--at", NOON])
    assert capsys.readouterr().out == (GOLDEN / f"plan-{backend}.txt").read_text()
    assert code == 0


def test_plan_of_a_dry_run_does_nothing(settings: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy = settings.parent / "policy.yaml"
    policy.write_text(policy.read_text() + "\ndry_run: true\n")
    assert main(["plan", "--config", str(settings), "--subflows", str(GOLDEN / "subflows.yaml")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "# dry run: nothing would be done to the kernel"
    assert all(line.startswith("#") for line in lines)


def test_check_says_what_is_well(settings: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--config", str(settings)]) == 0
    said = capsys.readouterr()
    assert said.out.splitlines() == [
        f"{settings}: no errors",
        f"{settings.parent}/policy.yaml: 2 paths, 1 rule, no errors",
    ]
    assert said.err == ""


def test_check_notes_that_a_cap_holds_for_each_interface_apart(
    settings: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings.write_text(settings.read_text().replace("[wan0]", "[wan0, wan1]"))
    assert main(["check", "--config", str(settings)]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{settings.parent}/policy.yaml:")
    assert 'note: rules[0]: the cap of rule "spare-ethernet" holds for each interface apart' in line
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
def test_a_broken_list_of_subflows_is_told_by_line(
    settings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    broken = tmp_path / "subflows.yaml"
    broken.write_text(text)
    assert main(["plan", "--config", str(settings), "--subflows", str(broken)]) == 1
    printed = capsys.readouterr()
    assert not printed.out
    assert f"{broken}{message}" in printed.err


@pytest.mark.parametrize("command", ["run", "check", "plan --live", "status", "cleanup"])
def test_every_command_names_settings_that_are_not_there(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command.split(), "--config", "/nowhere/throttler.yaml"]) == 1
    assert capsys.readouterr().err == "/nowhere/throttler.yaml: cannot be read: No such file or directory\n"


def test_a_policy_that_is_not_text_is_told_in_one_line(settings: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (settings.parent / "policy.yaml").write_bytes(b"version: \xff\n")
    assert main(["check", "--config", str(settings)]) == 1
    assert capsys.readouterr().err == f"{settings.parent}/policy.yaml: is not UTF-8 text: byte 9 cannot be decoded\n"


def test_more_rules_than_mark_values_is_an_error_of_both_files(
    settings: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings.write_text(settings.read_text() + "mark_mask: 0x00010000\n")
    policy = settings.parent / "policy.yaml"
    policy.write_text(policy.read_text() + "  - {name: more, throttle: none}\n")
    assert main(["check", "--config", str(settings)]) == 1
    assert f"{settings}:3: mark_mask: 0x00010000 numbers 1 rule, but the policy has 2" in capsys.readouterr().err


def test_status_without_a_daemon_says_so(settings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--config", str(settings), "--socket", str(tmp_path / "status.sock")]) == 1
    assert "is it running?" in capsys.readouterr().err


def test_a_time_that_is_none_is_told(settings: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--config", str(settings), "--subflows", str(GOLDEN / "subflows.yaml"), "--at", "noon"]) == 1
    assert '"noon" is not a time' in capsys.readouterr().err
