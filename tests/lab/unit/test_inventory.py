# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the inventory: the shipped example, all mistakes reported together with their lines, and options of ssh."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mptcp_lab.remote.connection import Login, packed_agent, ssh_command
from mptcp_lab.remote.inventory import InventoryError, load_inventory, read_inventory
from mptcp_lab.remote.ssh import parse_devices
from mptcp_lab.testbed.installed import REPOSITORY

EXAMPLE = REPOSITORY / "bench" / "rpi" / "inventory.yaml"


def problems(text: str) -> list[str]:
    with pytest.raises(InventoryError) as refused:
        load_inventory(text, "hosts.yaml")
    return str(refused.value).splitlines()


def test_shipped_inventory_is_read() -> None:
    inventory = read_inventory(EXAMPLE)
    assert [(path.name, path.device) for path in inventory.paths] == [("ethernet", "eth0"), ("wifi", "wlan0")]
    assert inventory.proxy.devices == ("eth0",)
    assert inventory.proxy.commands == Path("/opt/mptcp-steering-proxy/.venv/bin")
    assert inventory.origin.login.directory == "/var/tmp"


def test_all_mistakes_are_reported_at_once_with_their_lines() -> None:
    text = """\
client:
  ssh: -oProxyCommand=x
  paths: {ethernet: eth0, wi-fi: eth0}
proxy:
  ssh: root@proxy
  interfaces: []
  adress: 192.0.2.1
  address6: 192.0.2.1
  commands: bin
  options: {BatchMode: no, Port: [1]}
origin:
  interface: a/b
"""
    assert problems(text) == [
        'hosts.yaml:2: client.ssh: "-oProxyCommand=x" is not a destination; write user@host, or a Host of your ssh '
        "configuration",
        "hosts.yaml:3: client.paths: the path wifi is missing; the scenarios use ethernet and wifi",
        "hosts.yaml:6: proxy.interfaces: the list is empty; write at least one item",
        'hosts.yaml:7: proxy.adress: unknown key (did you mean "address"?); allowed here: ssh, options, directory, '
        "address, address6, interfaces, commands",
        'hosts.yaml:8: proxy.address6: "192.0.2.1" is not an IPv6 address; write one such as "2001:db8::7"',
        'hosts.yaml:9: proxy.commands: "bin" is not a directory of that host; write an absolute path',
        "hosts.yaml:10: proxy.options.Port: a list is not a setting; write text, a number, true or false",
        "hosts.yaml:11: origin.ssh: is required",
        'hosts.yaml:12: origin.interface: "a/b" is not the name of an interface; no spaces, slashes or colons '
        "(see: ip link)",
    ]


def test_missing_inventory_is_named() -> None:
    with pytest.raises(InventoryError, match=r"^/no/such\.yaml: cannot be read: No such file or directory$"):
        read_inventory(Path("/no/such.yaml"))


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_login_shell_passes_code_and_arguments_on_unchanged(tmp_path: Path, shell: str) -> None:
    odd = "/tmp/a b'c$HOME\\"
    for name, script in (("python3", 'printf "<%s>" "$@"'), ("id", "echo 0")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    remote = ssh_command(Login("host", directory=odd))[-1]
    done = subprocess.run(
        [shell, "-c", remote],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("<-I><-c><import sys\n")
    assert done.stdout.endswith(f"<{odd}>")


def test_agent_needs_only_its_own_folder(tmp_path: Path) -> None:
    """The code that is sent to a host imports only itself and the standard library."""
    (tmp_path / "agent.zip").write_bytes(packed_agent())
    for module in ("server", "files", "answers", "transfer", "counters", "processes"):
        argv = [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, 'agent.zip'); import agent.{module}"]
        done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


def test_addresses_that_others_cannot_use_are_left_out() -> None:
    shown = [
        {},
        {
            "ifname": "wlan0",
            "flags": ["BROADCAST", "UP", "LOWER_UP"],
            "addr_info": [
                {"family": "inet", "local": "169.254.1.1", "scope": "link"},
                {"family": "inet", "local": "192.0.2.7", "scope": "global"},
                {"family": "inet6", "local": "2001:db8::1", "scope": "global", "temporary": True},
                {"family": "inet6", "local": "2001:db8::2", "scope": "global", "deprecated": True},
                {"family": "inet6", "local": "2001:db8::3", "scope": "global"},
                {"family": "inet6", "local": "fe80::1", "scope": "link"},
            ],
        },
        {"ifname": "eth0", "flags": ["NO-CARRIER", "BROADCAST", "UP"]},
        {"ifname": "eth1", "flags": ["BROADCAST"], "addr_info": []},
    ]
    devices = parse_devices(json.dumps(shown))
    assert devices["wlan0"].addresses == ((4, "192.0.2.7"), (6, "2001:db8::3"))
    assert {name: each.up for name, each in devices.items()} == {"wlan0": True, "eth0": False, "eth1": False}
    assert devices["eth1"].address(4) is None
