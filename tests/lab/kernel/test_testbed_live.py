# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for testbeds: the host is unchanged, and nothing of a failed or killed run remains."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from mptcp_lab.testbed import TWO_PATHS, End, Testbed, TestbedError, congestion, ownership
from mptcp_lab.testbed.services import program

pytestmark = pytest.mark.kernel


def test_namespace_uses_cubic_and_the_host_is_unchanged(make_testbed: Callable[..., Testbed]) -> None:
    # Another run may allow another algorithm for a moment. It then holds this lock.
    with ownership.registry():
        before = congestion.ALLOWED.read_text()
    testbed = make_testbed()
    if "cubic" in before.split():
        assert testbed["proxy"].run(["sysctl", "-n", "net.ipv4.tcp_congestion_control"]).stdout == "cubic\n"
    with ownership.registry():
        assert congestion.ALLOWED.read_text() == before


def test_failed_build_names_the_step_and_leaves_nothing() -> None:
    link = replace(TWO_PATHS.links[3], a=End("origin", "eth0", ("10.77.9.2/24",) * 2))
    testbed = Testbed(replace(TWO_PATHS, name="broken", links=(*TWO_PATHS.links[:3], link)))
    with pytest.raises(TestbedError, match=r"(?s)build broken: \[origin\] ip address add 10\.77\.9\.2/24"):
        testbed.__enter__()
    assert not testbed.claimed.namespaces
    assert testbed.claimed.id not in {run.id for run in ownership.runs()}


DRIVER = """
from pathlib import Path
from mptcp_lab.testbed import *
from mptcp_lab.testbed.services import wait_until
with Testbed(paths([1000000])) as t:
    p = t['core'].popen(['sleep', '600'])
    # Before that, the process is ip(8), which enters the namespace.
    wait_until(lambda: Path(f'/proc/{p.pid}/cmdline').read_bytes().startswith(b'sleep'), 'the program runs')
    print(t.claimed.id, p.pid, t.directory, flush=True)
    input()
"""


@pytest.mark.usefixtures("dead_runs")
def test_cleanup_removes_only_killed_runs_and_reports_what_it_cannot_delete() -> None:
    def dead() -> list[tuple[str, ...]]:
        """Return the namespaces of the run, if it is dead."""
        return [run.namespaces for run in ownership.runs() if run.id == identifier and not run.alive]

    with subprocess.Popen([sys.executable, "-c", DRIVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        identifier, orphan, directory = child.stdout.readline().decode().split()
        cleaned = ownership.remove_stale()
        assert identifier not in "\n".join((*cleaned.done, *cleaned.failures))
        assert len(list(ownership.NAMESPACES.glob(f"mpx-{identifier}-*"))) == 4
        child.kill()
    # Make the next deletion of a namespace fail: ip-netns(8) removes one mount and finds another one below it.
    core = f"mpx-{identifier}-core"
    target = str(ownership.NAMESPACES / core)
    subprocess.run(["mount", "--bind", target, target], check=True)
    argv, name = [program("mptcp-bench"), "cleanup"], f"testbed {identifier} of process {child.pid}"
    failed = subprocess.run(argv, check=False, capture_output=True, text=True)
    assert failed.returncode == 1
    assert f"mptcp-bench cleanup: {name}: delete namespace {core}: " in failed.stderr
    assert identifier not in failed.stdout
    assert dead() == [(core,)]
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    assert f"removed {name}\n" in done.stdout
    assert identifier not in done.stderr
    assert dead() == []
    assert not list(ownership.NAMESPACES.glob(f"mpx-{identifier}-*"))
    assert not Path(directory).exists()
    assert not Path(f"/proc/{orphan}/cmdline").exists() or not Path(f"/proc/{orphan}/cmdline").read_bytes()
