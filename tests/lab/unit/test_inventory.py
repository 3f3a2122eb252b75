# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the inventory, the code that is sent to a host, and the usable addresses of a host."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from mptcp_lab.remote.connection import packed_agent
from mptcp_lab.remote.inventory import InventoryError, read_inventory
from mptcp_lab.remote.ssh import parse_devices
from mptcp_lab.testbed.installed import REPOSITORY

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


def test_agent_needs_only_its_own_folder(tmp_path: Path) -> None:
    """The code that is sent to a host imports only itself and the standard library."""
    (tmp_path / "agent.zip").write_bytes(packed_agent())
    code = "import sys; sys.path.insert(0, 'agent.zip')\nfrom agent import fetch, files, server, sink, transfer"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], cwd=tmp_path, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_addresses_that_other_hosts_cannot_use_are_ignored() -> None:
    def address(text: str, **flags: object) -> dict[str, object]:
        return {"local": text, "scope": "global", **flags}

    usable = [
        address("169.254.1.1", scope="link"),
        address("192.0.2.7"),
        address("2001:db8::1", temporary=True),
        address("2001:db8::2", deprecated=True),
        address("2001:db8::3"),
    ]
    listing = [
        {},
        {"ifname": "wlan0", "flags": ["UP", "LOWER_UP"], "addr_info": usable},
        {"ifname": "eth0", "flags": ["NO-CARRIER", "UP"]},
    ]
    devices = parse_devices(json.dumps(listing))
    assert devices == {"wlan0": (True, {4: "192.0.2.7", 6: "2001:db8::3"}), "eth0": (False, {})}
