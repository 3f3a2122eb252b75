# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for hosts that are reached by ssh: the inventory, usable addresses, and the agent, which runs there as root."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import subprocess
import tempfile
import zipfile
from pathlib import Path

import pytest
from examples import examples

from mptcp_lab.agent.files import parent_directory
from mptcp_lab.agent.processes import MountError, kill_tree, mount_script
from mptcp_lab.agent.processors import Reading, parse, usage
from mptcp_lab.remote.connection import HostRole, agent_command, packed_agent, ssh_command
from mptcp_lab.remote.inventory import InventoryError, read_inventory
from mptcp_lab.remote.ssh import parse_devices
from mptcp_lab.testbed.commands import REPOSITORY

EXAMPLE = REPOSITORY / "bench" / "rpi" / "inventory.yaml"


def test_shipped_inventory_is_read() -> None:
    inventory = read_inventory(EXAMPLE)
    assert [(path.name, path.device) for path in inventory.paths] == [("ethernet", "eth0"), ("wifi", "wlan0")]
    assert inventory.proxy.devices == ("eth0",)
    assert inventory.proxy.commands == "/opt/mptcp-steering-proxy/.venv/bin"
    assert inventory.origin.directory == "/var/tmp"


def test_all_mistakes_are_reported_at_once_with_their_lines(tmp_path: Path) -> None:
    text = """\
client:
  ssh: -oProxyCommand=x
  paths: {ethernet: eth0, wi-fi: eth0}
proxy:
  ssh: root@proxy
  interfaces: [eth0]
  adress: 192.0.2.1
  address6: 2001:db8
  commands: bin
  options: {BatchMode: no, Port: [1]}
origin:
  interface: eth0
"""
    (tmp_path / "hosts.yaml").write_text(text)
    with contextlib.chdir(tmp_path), pytest.raises(InventoryError) as error:
        read_inventory(Path("hosts.yaml"))
    assert [problem.partition(";")[0] for problem in str(error.value).splitlines()] == [
        'hosts.yaml:2: client.ssh: "-oProxyCommand=x" is not a destination',
        'hosts.yaml:3: client.paths.wi-fi: unknown key (did you mean "wifi"?)',
        'hosts.yaml:7: proxy.adress: unknown key (did you mean "address"?)',
        'hosts.yaml:8: proxy.address6: "2001:db8" is not an IP address',
        'hosts.yaml:9: proxy.commands: "bin" is not a directory of that host',
        "hosts.yaml:10: proxy.options.Port: a list is not a setting",
        "hosts.yaml:11: origin.ssh: is required",
    ]


IMPORTED = ("json", "base64", "sitecustomize", "zipfile", "runpy", "agent", "http", "socket")
"""Modules that the agent imports."""


@pytest.fixture
def agent_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory for the agent. The working directory, which PYTHONPATH names, too, has modules that fail."""
    for name in IMPORTED:
        (tmp_path / f"{name}.py").write_text("import os\nos.write(2, b'caught')\nos._exit(99)\n")
    # For a user other than root, the agent is started by sudo(8), which may keep the environment.
    (tmp_path / "sudo").write_text('#!/bin/sh\nshift\nexec "$@"\n')
    (tmp_path / "sudo").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    # Special characters in the name must reach the agent unchanged.
    directory = tmp_path / "a b'c$HOME\\"
    directory.mkdir()
    return directory


def test_agent_imports_nothing_from_its_working_directory(agent_directory: Path) -> None:
    remote = ssh_command(HostRole("client", "host", directory=str(agent_directory)))[-1]
    sent = base64.b64encode(packed_agent()) + b"\n"
    done = subprocess.run(["sh", "-c", remote], input=sent, check=False, capture_output=True, timeout=60)
    assert done.stderr == b""
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert any(Path(answer["ready"]).parent == agent_directory for answer in answers if "ready" in answer), answers


def test_programs_of_the_agent_need_only_its_directory_and_the_standard_library(agent_directory: Path) -> None:
    zipfile.ZipFile(io.BytesIO(packed_agent())).extractall(agent_directory)
    imports = "from agent import fetch, files, server, sink, transfer"
    code = f"import sys; sys.path.insert(0, {str(agent_directory)!r})\n{imports}"
    for argv in (agent_command(agent_directory, "files", "htdocs", "file=3"), ["python3", "-I", "-S", "-c", code]):
        done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")
    assert Path("htdocs/file").stat().st_size == 3


def test_addresses_that_other_hosts_cannot_use_are_ignored() -> None:
    addresses: dict[str, dict[str, object]] = {
        "169.254.1.1": {"scope": "link"},
        "192.0.2.7": {},
        "2001:db8::1": {"temporary": True},
        "2001:db8::2": {"deprecated": True},
        "2001:db8::3": {},
    }
    addresses_listed = [{"local": address, "scope": "global", **flags} for address, flags in addresses.items()]
    listing = [
        {},
        {"ifname": "wlan0", "flags": ["UP", "LOWER_UP"], "addr_info": addresses_listed},
        {"ifname": "eth0", "flags": ["NO-CARRIER", "UP"]},
    ]
    devices = parse_devices(json.dumps(listing))
    assert devices == {"wlan0": (True, {4: "192.0.2.7", 6: "2001:db8::3"}), "eth0": (False, {})}


TICK = os.sysconf("SC_CLK_TCK")
PRESSURE = "some avg10=49.07 avg60=54.26 avg300=50.15 total={}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=77\n"


def reading(seconds: float, *cpus: tuple[int, ...], waited: int = 0, own: float | None = None) -> Reading:
    """Return a reading with the user, system, idle, disk and stolen ticks of each processor."""
    totals = tuple(map(sum, zip(*cpus, strict=True)))
    lines = (
        f"{name} {user} 0 {system} {idle} {disk} 0 0 {stolen} {user} 0"
        for name, (user, system, idle, disk, stolen) in zip(["cpu ", "cpu0", "cpu1"], [totals, *cpus], strict=False)
    )
    return parse(seconds, "\n".join([*lines, "intr 5"]), PRESSURE.format(waited), own)


def test_usage_is_the_share_of_time_between_two_readings() -> None:
    before = reading(10.0, (100, 100, 100, 100, 100), (0, 0, 0, 0, 0), waited=5_000_000, own=7.0)
    after = reading(20.0, (140, 110, 130, 110, 110), (0, 0, 100, 0, 0), waited=9_000_000, own=7.0 + 30 / TICK)
    found = usage(before, after)
    # The user time already contains the guest time.
    assert (found.stolen, found.idle, found.waiting, found.least_idle) == (0.05, 0.7, 0.4, 0.4)
    assert found.others == pytest.approx(0.1)
    # Interrupts and idle time belong to no program, and a process's time may exceed the counted ticks.
    idle = reading(20.0, (110, 100, 190, 100, 100), (0, 0, 100, 0, 0), own=7.0 + 20 / TICK)
    assert usage(before, idle).others == 0


def test_nothing_is_mounted_over_the_root() -> None:
    with pytest.raises(MountError, match="none of its parent directories exists"):
        mount_script({"/no-such-directory/x": "/source"})


def test_parent_directory_is_tmp_if_others_cannot_enter_tmpdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect: Apache and Squid could not use the files of a testbed below the TMPDIR of root."""
    tmp_path.chmod(0o700)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert parent_directory() == "/tmp"
    monkeypatch.setattr(tempfile, "tempdir", "/usr/..")
    assert parent_directory() == "/"


RESPAWNING = """
import os, time
def child():
    while True:
        time.sleep(1)
for _ in range(60):
    if os.fork() == 0:
        child()
print("ready", flush=True)
while True:
    os.wait()
    if os.fork() == 0:
        child()
"""


@pytest.mark.parametrize("number", range(examples(5)))
def test_children_are_killed_even_when_their_parent_replaces_them(number: int) -> None:
    """nginx and Apache replace children. A remaining child would continue to listen without its parent."""
    argv = ["python3", "-I", "-c", RESPAWNING]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, start_new_session=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        kill_tree(parent.pid)
        # Reading ends when all children have ended, because then the pipe is closed.
        assert parent.stdout.read() == ""
