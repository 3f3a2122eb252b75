# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the inventory, for the agent, which runs on a host as root, and for the usable addresses of a host."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import subprocess
import zipfile
from pathlib import Path

import pytest

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


SHADOWED = ("json", "base64", "sitecustomize", "zipfile", "runpy", "agent", "http", "socket")


@pytest.fixture
def trapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a directory of failing modules that PYTHONPATH also names. Return another directory."""
    for name in SHADOWED:
        (tmp_path / f"{name}.py").write_text("import os\nos.write(2, b'caught')\nos._exit(99)\n")
    # This also covers a user other than root: a sudo(8) that keeps the environment.
    (tmp_path / "sudo").write_text('#!/bin/sh\nshift\nexec "$@"\n')
    (tmp_path / "sudo").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    # The characters of the directory reach the agent unchanged.
    directory = tmp_path / "a b'c$HOME\\"
    directory.mkdir()
    return directory


def test_agent_imports_nothing_from_its_working_directory(trapped: Path) -> None:
    remote = ssh_command(HostRole("client", "host", directory=str(trapped)))[-1]
    sent = base64.b64encode(packed_agent()) + b"\n"
    done = subprocess.run(["sh", "-c", remote], input=sent, check=False, capture_output=True, timeout=60)
    assert done.stderr == b""
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert any(Path(answer["ready"]).parent == trapped for answer in answers if "ready" in answer), answers


def test_programs_of_the_agent_need_only_its_folder_and_the_standard_library(trapped: Path) -> None:
    zipfile.ZipFile(io.BytesIO(packed_agent())).extractall(trapped)
    code = f"import sys; sys.path.insert(0, {str(trapped)!r})\nfrom agent import fetch, files, server, sink, transfer"
    for argv in (agent_command(trapped, "files", "htdocs", "file=3"), ["python3", "-I", "-S", "-c", code]):
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
    shown = [{"local": address, "scope": "global", **flags} for address, flags in addresses.items()]
    listing = [
        {},
        {"ifname": "wlan0", "flags": ["UP", "LOWER_UP"], "addr_info": shown},
        {"ifname": "eth0", "flags": ["NO-CARRIER", "UP"]},
    ]
    devices = parse_devices(json.dumps(listing))
    assert devices == {"wlan0": (True, {4: "192.0.2.7", 6: "2001:db8::3"}), "eth0": (False, {})}
