# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that docs/contract.md agrees with the code of proxy and throttler, and with the shipped configuration."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mptcp_common.endpoints import PROXY_PORT
from mptcp_common.exit_status import CONFIGURATION
from mptcp_common.library_counters import FILES
from mptcp_common.netlink import OUR_PORTS
from mptcp_common.trust import THROTTLER_USER
from mptcp_console.settings import DEFAULT_SQUID
from mptcp_portal.settings import CHECK_NAME, ProxySection, read_settings
from mptcp_portal.squid_socket import HEADER, SQUID_CONF_LINE
from mptcp_proxy.error_pages import CHECK_PAGE
from mptcp_proxy.places import Places, Role
from mptcp_throttler.config.settings import load_settings
from mptcp_throttler.kernel import bpf
from mptcp_throttler.kernel.mptcp_pm import family, keeper_client
from mptcp_throttler.kernel.sysctl import NOTE
from mptcp_throttler.shaping import model
from mptcp_throttler.shaping.model import Ownership
from mptcp_tunnel.settings import TunnelsSection

ROOT = Path(__file__).parents[3]
SETTINGS = load_settings((ROOT / "conf/throttler.yaml").read_text(), "conf/throttler.yaml")
PORTAL = read_settings(ROOT / "conf/portal.yaml")


def contract() -> dict[str, str]:
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|", (ROOT / "docs/contract.md").read_text(), re.MULTILINE)
    return dict(rows)


def squid_ports() -> list[int]:
    text = (ROOT / "conf/squid.conf").read_text()
    return [int(port) for port in re.findall(r"^http_port\s+(?:\S*:)?(\d+)", text, re.MULTILINE)]


def squid_peer() -> tuple[str, str]:
    found = re.search(r"^cache_peer (\S+) parent (\d+) ", (ROOT / "conf/squid.conf").read_text(), re.MULTILINE)
    assert found
    return found[1], found[2]


def squid_header() -> str:
    """Return the header that Squid removes from all requests, and adds to requests for the check page."""
    text = (ROOT / "conf/squid.conf").read_text()
    (added,) = re.findall(r'^request_header_add (\S+) "%>a %>p %>la %>lp" check_page$', text, re.MULTILINE)
    assert f"\nrequest_header_access {added} deny all\n" in text
    assert added.lower().encode() == HEADER
    assert f"\n{SQUID_CONF_LINE}\n" in text
    assert re.search(rf"^acl check_name dstdomain -n {re.escape(CHECK_NAME)}$", text, re.MULTILINE)
    return str(added)


OWNERSHIP = Ownership()
HANDLE = f"{OWNERSHIP.htb_major:x}:"


@pytest.mark.parametrize(
    ("row", "value"),
    [
        ("proxy's listening port", ", ".join(str(port) for port in squid_ports())),
        ("proxy's listening port", ", ".join(str(port) for port in SETTINGS.ownership.listen_ports)),
        ("proxy's listening port", str(PROXY_PORT)),
        ("proxy's listening port", DEFAULT_SQUID.rpartition(":")[2]),
        ("proxy's listening port", str(ProxySection.model_fields["port"].default)),
        ("bits of the packet mark", f"0x{OWNERSHIP.mark_mask:08x}"),
        ("root qdisc's handle", HANDLE),
        ("inner class for the whole link", f"{HANDLE}{model.LINK_MINOR:x}"),
        ("class of everything not capped", f"{HANDLE}{model.DEFAULT_MINOR:x}"),
        ("classes of caps", f"{HANDLE}{model.FIRST_MINOR:x} to {HANDLE}{model.LAST_MINOR:x}"),
        ("ipset names", f"{model.SET_PREFIX}-4-PORT, {model.SET_PREFIX}-6-PORT"),
        ("iptables rule", f"mangle POSTROUTING, comment {model.RULE_COMMENT}"),
        (
            "packets without data, in no class of a cap",
            f"at most {model.SMALL_PACKET[4]} bytes (IPv4), {model.SMALL_PACKET[6]} (IPv6)",
        ),
        ("nftables table", f"inet {model.NFT_TABLE}"),
        ("nftables table for uploads", f"netdev {model.NFT_TABLE}"),
        ("nftables table for plain TCP", f"inet {model.PLAIN_TCP_TABLE}"),
        ("IFB device for uploads", model.UPLOAD_DEVICE),
        ("BPF program and its map", bpf.LIMITS),
        ("usage of budgets", str(SETTINGS.ledger)),
        ("BPF program and map of closed sockets", bpf.METER),
        ("status socket", str(SETTINGS.status_socket)),
        ("tunnels' socket", str(SETTINGS.tunnel_socket)),
        ("tunnels' socket", str(TunnelsSection.model_fields["status_socket"].default)),
        ("keeper of the path manager", f"{SETTINGS.state_directory}/{keeper_client.NAME}"),
        ("record that backup flags are set", f"{SETTINGS.state_directory}/{family.FLAGS_NOTE}"),
        ("original values of the sysctls", f"{SETTINGS.state_directory}/{NOTE}"),
        ("port ids of the throttler's netlink sockets", f"{OUR_PORTS:#x} to {OUR_PORTS | 0xFFFF:#x}"),
        ("replaced qdiscs and limits", f"{SETTINGS.state_directory}/replaced.json"),
        ("user and group of the throttler", THROTTLER_USER),
        ("exit status for mistakes in files", str(CONFIGURATION)),
        ("name of the check page", CHECK_NAME),
        ("name of the check page", CHECK_PAGE.split("/")[2]),
        ("portal's address for Squid", str(PORTAL.check)),
        ("portal's address for Squid", "{}:{}".format(*squid_peer())),
        (
            "both ends of the connection that requests the check page",
            f"{squid_header()}: ADDRESS PORT ADDRESS PORT",
        ),
        ("page if the portal does not answer", str(Places().check_page_missing)),
        ("Squid's error pages", str(Places().error_pages)),
        ("outcome of the proxy's last reload, its ports", str(Places().reloads)),
        ("counters of the preload libraries", str(Places().counters)),
        ("counters of the preload libraries", str(FILES[Places().service_name])),
        ("copies of lists that squid.conf names", str(Places().lists)),
        ("a relay's service name", Role.RELAY.service_name),
        ("addresses of a relay's parents", str(Places(Role.RELAY.service_name).parents)),
    ],
)
def test_contract_page_has_the_values_of_the_code(row: str, value: str) -> None:
    assert contract()[row] == value


def test_shipped_settings_equal_the_contract() -> None:
    assert SETTINGS.ownership == OWNERSHIP


def test_contract_has_the_squid_service_name_of_the_proxy() -> None:
    assert contract()["Squid's service name"] == Role.PROXY.service_name
