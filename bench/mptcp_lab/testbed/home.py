# SPDX-License-Identifier: GPL-2.0-or-later
"""Set up a home behind a relay: a site with public addresses, a parent that opens any tunnel, and the relay's daemons.

::

    client ──lan0── relay ──eth0──┐
    (device)              ──wlan0─┴── core ── proxy (parent), origin (site)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Final

from .build import Testbed
from .node import LiveNode
from .process import Process
from .services import SQUID_CONFIG, Proxy, accepts, program, start_proxy, wait_until

SITE: Final = "203.0.113.9"
SITE6: Final = "2001:db8:9::9"
UPLINKS: Final = ("eth0", "wlan0")
DIRECTORY: Final = "gateway"


def add_site_addresses(testbed: Testbed) -> None:
    """Add addresses outside of any home's networks to the origin."""
    for address, version, family in ((f"{SITE}/32", "-4", 4), (f"{SITE6}/128", "-6", 6)):
        testbed["origin"].run(["ip", version, "addr", "add", address, "dev", "lo"])
        gateway = testbed["origin"].service_address(family)
        testbed["core"].run(["ip", version, "route", "add", address, "via", gateway])


def start_parent(host: LiveNode) -> Proxy:
    """Start a proxy that opens tunnels to any port for clients in homes, as in docs/home.md."""
    homes = "10.77.0.0/16 fd77::/32"
    changes = {
        "http_access deny !web_ports\n": f"acl homes src {homes}\nacl clients src {homes}\n"
        "acl home_tunnels all-of CONNECT homes\nhttp_access deny !web_ports !home_tunnels\n",
        "http_access deny CONNECT !tunnel_ports\n": "http_access deny CONNECT !tunnel_ports !homes\n",
    }
    text = SQUID_CONFIG.read_text()
    for before, after in changes.items():
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    return start_proxy(host, host.write("parent.conf", text))


def write_settings(
    relay: LiveNode, parent: str, more: str = "", uplinks: Sequence[str] = UPLINKS, home: str = "lan0"
) -> Path:
    """Write the gateway's settings. *more* is added to the section lan; *home* is the interface towards the home."""
    names = ", ".join(f"{device}: {device}" for device in uplinks)
    text = f"uplinks: {{{names}}}\nparents: ['{parent}:3128']\nlan: {{devices: [{home}]{more}}}\n"
    return relay.write("gateway.yaml", text)


def command(relay: LiveNode, name: str, settings: Path) -> list[str]:
    """Return the command ``mptcp-gateway`` *name* with *settings* and the relay's directory."""
    directory = str(relay.directory / DIRECTORY)
    return [program("mptcp-gateway"), name, "--config", str(settings), "--directory", directory]


def gateway(relay: LiveNode, settings: Path, prefix: Sequence[str] = ()) -> AbstractContextManager[Process]:
    """Run the gateway during the scope, which begins when both uplinks are good. *prefix* precedes the command."""
    argv = [*prefix, *command(relay, "run", settings)]
    return _running(relay, argv, "status.json", lambda: verdicts(relay) == ["good", "good"])


def forwarder(relay: LiveNode, settings: Path, prefix: Sequence[str] = ()) -> AbstractContextManager[Process]:
    """Run the forwarder during the scope. *prefix* precedes the command."""
    argv = [*prefix, *command(relay, "forward", settings)]
    return _running(relay, argv, "forwarder.json", lambda: bool(forwarder_status(relay)))


@contextmanager
def _running(relay: LiveNode, argv: Sequence[str], status: str, ready: Callable[[], bool]) -> Iterator[Process]:
    # A killed daemon may have left its status.
    (relay.directory / DIRECTORY / status).unlink(missing_ok=True)
    with relay.running(argv, name="gateway") as process:
        wait_until(ready, f"the daemon has written {status}", process=process)
        yield process
        process.stop()


def verdicts(relay: LiveNode) -> list[str]:
    """Return the gateway's verdicts on its uplinks for IPv4, in order."""
    return [each["verdict"] for each in _status(relay, "status.json").get("ways", ()) if each["version"] == 4]


def forwarder_status(relay: LiveNode) -> dict[str, Any]:
    """Return the status that the forwarder wrote at most a second ago."""
    return _status(relay, "forwarder.json")


def _status(relay: LiveNode, name: str) -> dict[str, Any]:
    try:
        return dict(json.loads((relay.directory / DIRECTORY / name).read_text()))
    except FileNotFoundError:
        return {}


def wait_for_site(testbed: Testbed) -> None:
    """Wait until the parent can reach the site by IPv4 and IPv6."""
    for address in (SITE, SITE6):
        wait_until(lambda address=address: accepts(testbed["proxy"], address, 80), f"{address} answers")  # type: ignore[misc]


@contextmanager
def silent_link(core: LiveNode, device: str) -> Iterator[None]:
    """Let *core* drop all packets of its link to *device*, without any error to the sender."""
    core.run(["nft", f"add table inet {device}"])
    for hook, device_kind in (("prerouting", "iifname"), ("postrouting", "oifname")):
        core.run(["nft", f"add chain inet {device} {hook} {{ type filter hook {hook} priority 0; }}"])
        core.run(["nft", f"add rule inet {device} {hook} {device_kind} to-{device} drop"])
    try:
        yield
    finally:
        core.run(["nft", f"delete table inet {device}"])
