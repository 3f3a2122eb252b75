# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for ``run``: even if it is interrupted, it enables no service and removes its policy-rc.d."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from debian_host import ENABLED_BY_PACKAGES, RUN, TIMEOUT, TIMERS, Host


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_first_run_enables_nothing_and_second_run_installs_nothing(host: Host) -> None:
    code, _, errors = host.wait_for_end(host.start("demo", "--output", "x y"))
    assert code == 0, errors
    assert (host.root / "ran").read_text() == "demo --output x y\n"
    host.assert_unchanged()
    # Timers stay enabled, including those of dependencies.
    assert all(host.has(timer) for timer in TIMERS)
    code, _, errors = host.wait_for_end(host.start("demo"))
    assert (code, errors) == (0, "")
    host.assert_unchanged()


@pytest.mark.nightly(except_for=("[config-files amd64", r"[installed amd64\ninstalled i386"))
@pytest.mark.parametrize(
    ("package_states", "requested"),
    [
        ("installed amd64\ninstalled i386\n", False),
        ("installed i386\ninstalled amd64\n", False),
        ("config-files amd64\ninstalled i386\n", True),
        ("not-installed amd64\n", True),
        ("half-installed all\n", True),
        ("installed i386\n", True),
        ("installed amd64\n", False),
    ],
)
def test_package_of_another_architecture_counts_as_missing(host: Host, package_states: str, requested: bool) -> None:
    """Defect: if libc6-dev was also installed for a second architecture, each run requested it from the network."""
    host.touch("installed")
    (host.root / "package-libc6-dev").write_text(package_states)
    host.wait_for_end(host.start("demo"))
    assert host.has("requested") == requested
    assert not requested or (host.root / "requested").read_text().split()[-1] == "libc6-dev"


@pytest.mark.nightly(except_for=("[test -k x]",))
@pytest.mark.parametrize("command", [("test", "-k", "x"), ("deb", "--test")], ids=" ".join)
def test_tests_install_git(host: Host, command: tuple[str, ...]) -> None:
    """Defect: without git, as on a machine that unpacked the project from an archive, the tests failed."""
    host.write_program(host.root / "checkout/.venv/bin/pytest", "exit 0")
    assert host.wait_for_end(host.start(*command))[0] == 0
    assert "git" in (host.root / "requested").read_text().split()


def test_failed_installation_is_undone_and_its_output_shown(host: Host) -> None:
    host.touch("fail")
    code, _, errors = host.wait_for_end(host.start("demo"))
    assert code == 1
    assert "E: no space" in errors
    assert "apt-get could not install: squid" in errors
    assert not host.has("ran")
    host.assert_unchanged()


def test_missing_network_is_reported(host: Host) -> None:
    """Defect: without the network a new machine showed only "Unable to locate package"."""
    host.touch("offline")
    code, _, errors = host.wait_for_end(host.start("demo"))
    assert code == 1
    assert "W: Temporary failure resolving the archive\nE: Unable to locate package squid\n" in errors
    host.assert_unchanged(disabled=False)


def signal_all(process: subprocess.Popen[str], number: int) -> None:
    os.killpg(process.pid, number)


def signal_script(process: subprocess.Popen[str], number: int) -> None:
    os.kill(process.pid, number)


@pytest.mark.nightly(except_for=("[INT-signal_all]", "[TERM-signal_script]"))
@pytest.mark.parametrize("send", [signal_all, signal_script])
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGHUP, 129), (signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["HUP", "INT", "TERM"]
)
def test_signal_during_an_installation_waits_for_dpkg(
    host: Host, send: Callable[[subprocess.Popen[str], int], None], number: int, code: int
) -> None:
    host.touch("hold")
    process = host.start("demo")
    host.wait_for("waiting")
    assert host.has("sbin/policy-rc.d")
    send(process, number)
    assert host.has("sbin/policy-rc.d")
    host.touch("go")
    assert host.wait_for_end(process)[0] == code
    assert host.has("installed")
    assert not host.has("ran")
    host.assert_unchanged()


def test_run_waits_for_the_installation_of_another_checkout(host: Host) -> None:
    shutil.copytree(host.root / "checkout", host.root / "other")
    host.stamp(host.root / "other")
    host.touch("hold")
    first = host.start("demo")
    host.wait_for("waiting")
    second = host.start("demo", checkout="other")
    assert second.stderr is not None
    assert second.stderr.readline() == "run: waiting for another run to finish its set-up\n"
    assert host.has("sbin/policy-rc.d")
    host.touch("go")
    assert [host.wait_for_end(each)[0] for each in (first, second)] == [0, 0]
    host.assert_unchanged()


def test_next_run_removes_leftovers_of_a_killed_run(host: Host) -> None:
    host.touch("hold")
    process = host.start("demo")
    host.wait_for("waiting")
    signal_script(process, signal.SIGKILL)
    host.touch("go")
    host.wait_for_end(process)
    assert host.has("sbin/policy-rc.d")
    assert all(host.has(name) for name in ENABLED_BY_PACKAGES)
    code, _, errors = host.wait_for_end(host.start("demo"))
    assert code == 0
    assert "an earlier run was killed" in errors
    host.assert_unchanged()


def test_policy_rc_d_of_a_killed_run_is_removed(host: Host) -> None:
    mark = next(line for line in RUN.read_text().splitlines() if line.startswith("GUARD_MARK="))
    (host.root / "sbin/policy-rc.d").write_text(f"#!/bin/sh\n# {mark.split(chr(39))[1]}\nexit 101\n")
    host.touch("installed")
    code, _, errors = host.wait_for_end(host.start("demo"))
    assert code == 0
    assert "an earlier run was killed" in errors
    host.assert_unchanged(disabled=False)


def test_policy_rc_d_of_the_operator_stays(host: Host) -> None:
    guard = host.root / "sbin/policy-rc.d"
    Host.write_program(guard, "exit 101")
    before = guard.read_text()
    code, _, errors = host.wait_for_end(host.start("demo"))
    assert code == 0, errors
    assert guard.read_text() == before
    guard.unlink()
    host.assert_unchanged()


def test_links_are_removed_if_the_disabling_tools_fail(host: Host) -> None:
    for name in ("systemctl", "update-rc.d"):
        Host.write_program(host.root / "bin" / name, "exit 1")
    assert host.wait_for_end(host.start("demo"))[0] == 0
    host.assert_unchanged(disabled=False)


@pytest.mark.parametrize(
    ("arguments", "code"), [(("--help",), 0), ((), 2), (("nothing",), 2)], ids=["help", "no-command", "unknown"]
)
def test_usage_lists_the_commands_and_changes_nothing(host: Host, arguments: tuple[str, ...], code: int) -> None:
    status, output, errors = host.wait_for_end(host.start(*arguments))
    assert status == code
    usage, other_output = (output, errors) if code == 0 else (errors, output)
    assert "sudo ./run demo" in usage
    assert "sudo ./run test" in usage
    assert "For packagers: [sudo] ./run deb" in usage
    assert other_output == ""
    assert not host.has("installed")


def test_run_without_root_is_refused(host: Host) -> None:
    Host.write_program(host.root / "bin/id", "echo 1000")
    code, _, errors = host.wait_for_end(host.start("test"))
    assert (code, errors) == (1, "run: root is needed (namespaces, packet capture): sudo ./run test\n")
    assert not host.has("installed")


def test_path_includes_the_administrators_programs(host: Host) -> None:
    Host.write_program(host.root / "checkout/.venv/bin/mptcp-bench", 'echo "$PATH" >"$ROOT/ran"')
    assert host.wait_for_end(host.start("demo"))[0] == 0
    assert (host.root / "ran").read_text().strip().endswith(":/usr/local/sbin:/usr/sbin:/sbin")


def test_deb_needs_root_only_to_install_build_tools(host: Host) -> None:
    Host.write_program(host.root / "bin/id", "echo 1000")
    (host.root / "checkout/debian").mkdir()
    Host.write_program(host.root / "checkout/debian/package", 'echo built >"$ROOT/ran"', shebang="")
    code, _, errors = host.wait_for_end(host.start("deb"))
    assert code == 1
    assert errors.startswith("run: root is needed (to install build-essential debhelper")
    host.touch("installed")
    assert host.wait_for_end(host.start("deb"))[0] == 0
    assert (host.root / "ran").read_text() == "built\n"
    code, _, errors = host.wait_for_end(host.start("deb", "--tset"))
    assert (code, errors) == (1, "run: deb: only --test is known, not: --tset\n")


SHEBANGS_OF_PIP = {
    "short": "#!{python}\n# -*- coding: utf-8 -*-\n",
    "long or with a space": "#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n",
}


@pytest.mark.parametrize("lines", SHEBANGS_OF_PIP.values(), ids=list(SHEBANGS_OF_PIP))
def test_commands_ignore_working_directory_and_environment(tmp_path: Path, lines: str) -> None:
    """The test writes the command files as pip does, and changes them as ``run`` does after creating the
    environment."""
    commands, trap = tmp_path / ".venv/bin", tmp_path / "trap"
    commands.mkdir(parents=True)
    trap.mkdir()
    for name in ("re", "json", "sitecustomize"):
        (trap / f"{name}.py").write_text("print('caught')\n")
    (commands / "python3").symlink_to(shutil.which("python3") or "")
    Host.write_program(
        commands / "mptcp-command",
        "import re, json, sys\nprint('isolated' if sys.flags.isolated else 'not', *sys.argv[1:])",
        shebang=lines.format(python=commands / "python3"),
    )
    options: dict[str, Any] = {"cwd": trap, "env": {**os.environ, "PYTHONPATH": str(trap)}, "text": True}
    assert "caught" in subprocess.check_output([commands / "mptcp-command", "x"], **options)
    function = re.search(r"^isolate_commands\(\) \{.*?^\}$", RUN.read_text(), re.DOTALL | re.MULTILINE)
    assert function is not None
    subprocess.run(["sh", "-euc", f"{function[0]}\ndie() {{ exit 1; }}\nisolate_commands"], cwd=tmp_path, check=True)
    assert subprocess.check_output([commands / "mptcp-command", "x"], **options) == "isolated x\n"


def test_moved_checkout_or_new_python_gets_a_new_environment(host: Host) -> None:
    """Defect: in a moved checkout commands were "not found", and commands of a copy ran the first checkout's code.

    After an upgrade of Debian no command found its modules.
    """
    host.touch("installed")
    elsewhere = host.root / "else where"
    (host.root / "checkout").rename(elsewhere)
    assert host.wait_for_end(host.start("demo", checkout="else where"))[::2] == (
        0,
        "run: creating the virtual environment .venv\n",
    )
    assert (host.root / "ran").read_text() == "-I .venv/bin/mptcp-bench demo\n"
    assert host.wait_for_end(host.start("demo", checkout="else where"))[::2] == (0, "")
    (host.root / "bin/python3.11").rename(host.root / "bin/python3.13")
    (host.root / "bin/python3").unlink()
    (host.root / "bin/python3").symlink_to("python3.13")
    assert host.wait_for_end(host.start("demo", checkout="else where"))[::2] == (
        0,
        "run: creating the virtual environment .venv\n",
    )


def test_run_isolates_commands_before_it_starts_one() -> None:
    """``run`` isolates the commands of each new virtual environment before it starts one of them."""
    function = RUN.read_text().partition("install_python() {")[2].partition("\n}")[0]
    assert function.index("pip install --quiet --disable-pip-version-check --editable") < function.index(
        "isolate_commands"
    )
    assert function.index("isolate_commands") < function.index(".venv/bin/mptcp-proxy")


def test_started_command_gets_no_python_variables(host: Host) -> None:
    Host.write_program(host.root / "checkout/.venv/bin/mptcp-bench", 'env | grep ^PYTHON >"$ROOT/ran" || true')
    subprocess.run(
        ["sh", "checkout/run", "demo"],
        cwd=host.root,
        env={
            "PATH": f"{host.root / 'bin'}:/usr/bin:/bin",
            "ROOT": str(host.root),
            "PYTHONPATH": "/tmp",
            "PYTHONSTARTUP": "x y",
        },
        timeout=TIMEOUT,
        check=True,
    )
    assert (host.root / "ran").read_text() == ""
