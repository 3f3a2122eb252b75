# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for bench/rpi/multipath: routes and endpoints after ``up``, and the previous state after ``down``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from ssh_hosts import dump, dump_when_links_are_up, plain, wait_until_same

from mptcp_lab.testbed import LiveNode, Testbed
from mptcp_lab.testbed.commands import REPOSITORY

pytestmark = pytest.mark.kernel

SCRIPT = REPOSITORY / "bench" / "rpi" / "multipath"
KILLING_IP = """\
#!/bin/sh
# ip(8), which kills its session before or after one of its changes. $KILL is the moment, such as 3-before.
case " $* " in
*" add "* | *" delete "* | *" set "*)
    echo >>{changes}
    number=$(wc -l <{changes})
    ;;
esac
[ "$number-before" != "$KILL" ] || kill -9 0
/usr/sbin/ip "$@"
code=$?
[ "$number-after" != "$KILL" ] || kill -9 0
exit $code
"""


class Client:
    """The client of a testbed, which is like a new Raspberry Pi, and the script."""

    def __init__(self, testbed: Testbed) -> None:
        self.node: LiveNode = testbed["client"]
        self.directory = testbed.directory
        self.notes = self.directory / "notes" / "multipath"
        self.before = dump_when_links_are_up(self.node)

    def wait_until_same(self, before: str, what: str = "the state is restored") -> None:
        wait_until_same(before, lambda: dump(self.node), what)

    def argv(self, *arguments: str) -> list[str]:
        return ["env", f"MULTIPATH_STATE={self.notes}", "sh", str(SCRIPT), *arguments]

    def multipath(self, *arguments: str, status: int = 0) -> str:
        done = self.node.run(self.argv(*arguments), check=False)
        assert done.returncode == status, done.stderr
        return done.stdout + done.stderr

    def endpoints(self) -> list[str]:
        return [line.strip() for line in self.node.run(["ip", "mptcp", "endpoint", "show"]).stdout.splitlines()]


@pytest.fixture
def client(make_testbed: Callable[..., Testbed], require: Any) -> Client:
    require("nftables")
    return Client(make_testbed(plain()))


def test_each_address_uses_its_own_interface_and_ipv6_survives_a_small_mtu(client: Client) -> None:
    assert client.multipath("up", "eth0", "wlan0") == ""
    for family, target in ((4, "10.77.8.2"), (6, "fd77:8::2")):
        for device in ("eth0", "wlan0"):
            source = client.node.address(device, family)
            found = client.node.run(["ip", f"-{family}", "route", "get", target, "from", source]).stdout
            assert f"dev {device} " in found
    assert len(client.endpoints()) == 4
    before = dump(client.node)
    node = client.node
    with node.set_mtu("eth0", 1000), node.set_mtu("wlan0", 1000), node.set_mtu("wlan0", 1000):
        assert "fd77:1::2" not in client.node.run(["ip", "-6", "address"]).stdout
    client.wait_until_same(before)


def test_settings_of_other_programs_are_unchanged_or_restored(client: Client) -> None:
    """Endpoints such as NetworkManager's are used as they are. Endpoints of another kind are replaced, and restored."""
    for endpoint in ("10.77.1.2 dev eth0 id 5 subflow fullmesh", "10.77.2.2 dev wlan0 id 9 signal"):
        client.node.run(["ip", "mptcp", "endpoint", "add", *endpoint.split()])
    client.node.run(["ip", "rule", "add", "from", "192.0.2.0/24", "lookup", "7101", "priority", "7101"])
    client.node.run(["ip", "route", "add", "198.51.100.0/24", "via", "10.77.1.1", "table", "7102"])
    before = dump(client.node)
    client.multipath("up", "eth0", "wlan0")
    assert "10.77.1.2 id 5 subflow fullmesh dev eth0" in client.endpoints()
    assert "10.77.2.2 id 9 subflow dev wlan0" in client.endpoints()
    assert "7101" in client.multipath("show")
    for _ in range(2):
        assert client.multipath("down") == ""
    client.wait_until_same(before)
    assert not client.notes.parent.exists()


@pytest.mark.nightly
def test_down_restores_the_state_after_up_was_killed_at_any_change(client: Client) -> None:
    """The script is killed at each change that it makes by ip(8), alternately before and after the change."""
    program, changes = client.directory / "bin" / "ip", client.directory / "changes"
    program.parent.mkdir()
    program.write_text(KILLING_IP.format(changes=changes))
    program.chmod(0o755)

    def number_of_changes(kill: str) -> int:
        """Run the script until *kill*. Return the number of changes by ip(8)."""
        changes.write_text("")
        variables = [f"PATH={program.parent}:/usr/bin:/bin", f"KILL={kill}"]
        argv = ["env", *variables, "setsid", "--wait", *client.argv("up", "eth0", "wlan0")]
        client.node.run(argv, check=False)
        return len(changes.read_text())

    total = number_of_changes("never")
    assert total > 10
    client.multipath("down")
    for number in range(1, total + 1):
        kill = f"{number}-{('before', 'after')[number % 2]}"
        assert number_of_changes(kill) == number
        # The script sets sysctls first, so something has changed at each of these moments.
        assert dump(client.node) != client.before
        client.multipath("down")
        client.wait_until_same(client.before, f"the state is restored after {kill}")


def test_mistake_is_one_line_and_changes_nothing(client: Client) -> None:
    client.node.run(["ip", "address", "flush", "dev", "wlan0"])
    before = dump(client.node)
    for device, mistake in (
        ("wlan7", "there is no interface wlan7; see: ip link"),
        ("wlan0", "wlan0 has no address; is it connected? see: ip address"),
    ):
        assert client.multipath("up", "eth0", device, status=1) == f"multipath: {mistake}\n"
    assert client.multipath("sideways", status=2).startswith("multipath up INTERFACE")
    client.wait_until_same(before)
