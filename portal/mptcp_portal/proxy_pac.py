# SPDX-License-Identifier: GPL-2.0-or-later
"""proxy.pac and wpad.dat: for which addresses a browser uses the proxy. Pure.

The format is Netscape's (FindProxyForURL). The script uses no function that resolves names: those delay the browser,
and reveal every page to a name server. Local addresses go directly: names without a dot, names that public name servers
do not know, and private addresses (RFC 1918, RFC 3927, RFC 4193, RFC 4291, RFC 6598). The check page always goes to the
proxy, because it exists only there.
"""

from __future__ import annotations

import json
from ipaddress import IPv4Network, IPv6Network, ip_network

from mptcp_portal.settings import CHECK_NAME, Onboarding

LOCAL_DOMAINS = ("localhost", "local", "internal", "home.arpa", "lan", "test")
"""RFC 6761 (localhost, test), RFC 6762 (local), ICANN's .internal, RFC 8375 (home.arpa); many routers use "lan"."""
LOCAL_NETWORKS = tuple(
    ip_network(each)
    for each in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16",
        "::1/128", "fc00::/7", "fe80::/10",
    )
)  # fmt: skip
MEDIA_TYPE = "application/x-ns-proxy-autoconfig"

_SCRIPT = """\
// Which addresses are asked of the proxy, and which directly. Made by mptcp-portal.
var PROXY = @proxy@;
var CHECK_PAGE = @check@;
var DOMAINS = @domains@;
var NETWORKS4 = @networks4@; // [address, mask]
var NETWORKS6 = @networks6@; // [groups of 16 bits, length of the prefix]

function inDomain(host, domain) {
  var from = host.length - domain.length;
  return host === domain || (from > 0 && host.substring(from - 1) === "." + domain);
}

function number4(host) {
  var parts = /^(\\d{1,3})\\.(\\d{1,3})\\.(\\d{1,3})\\.(\\d{1,3})$/.exec(host);
  if (!parts) { return null; }
  var number = 0;
  for (var i = 1; i <= 4; i++) {
    if (Number(parts[i]) > 255) { return null; }
    number = number * 256 + Number(parts[i]);
  }
  return number;
}

function groups6(host) {
  if (host.indexOf(":") < 0) { return null; }
  var halves = host.split("%")[0].split("::");
  function read(text) {
    var groups = [], parts = text === "" ? [] : text.split(":");
    for (var i = 0; i < parts.length; i++) {
      var four = number4(parts[i]);
      if (four !== null) { groups.push(Math.floor(four / 65536), four % 65536); }
      else { groups.push(parseInt(parts[i], 16)); }
    }
    return groups;
  }
  var before = read(halves[0]), after = halves.length > 1 ? read(halves[1]) : [];
  while (before.length + after.length < 8) { before.push(0); }
  return before.concat(after);
}

function isLocal4(number) {
  for (var i = 0; i < NETWORKS4.length; i++) {
    var size = Math.pow(2, 32 - NETWORKS4[i][1]);
    if (Math.floor(number / size) === Math.floor(NETWORKS4[i][0] / size)) { return true; }
  }
  return false;
}

function isLocal6(groups) {
  // ::ffff:a.b.c.d is the IPv4 address.
  if (groups.slice(0, 6).join() === "0,0,0,0,0,65535") { return isLocal4(groups[6] * 65536 + groups[7]); }
  for (var i = 0; i < NETWORKS6.length; i++) {
    var left = NETWORKS6[i][1], same = true;
    for (var g = 0; g < 8 && left > 0; g++, left -= 16) {
      var shift = Math.max(0, 16 - left);
      if (groups[g] >> shift !== NETWORKS6[i][0][g] >> shift) { same = false; }
    }
    if (same) { return true; }
  }
  return false;
}

function FindProxyForURL(url, host) {
  host = host.toLowerCase().replace(/^\\[|\\]$/g, "").replace(/\\.$/, "");
  if (host === CHECK_PAGE) { return PROXY; }
  var number = number4(host), groups = groups6(host);
  if (number !== null) { if (isLocal4(number)) { return "DIRECT"; } }
  else if (groups !== null) { if (isLocal6(groups)) { return "DIRECT"; } }
  else if (host.indexOf(".") < 0) { return "DIRECT"; }
  for (var i = 0; i < DOMAINS.length; i++) {
    if (inDomain(host, DOMAINS[i])) { return "DIRECT"; }
  }
  return PROXY@fallback@;
}
"""


def proxy_pac(onboarding: Onboarding) -> str:
    """Return the script for the clients of *onboarding*."""
    networks = [*LOCAL_NETWORKS, *(each for each in onboarding.direct if not isinstance(each, str))]
    domains = [*LOCAL_DOMAINS, *(each for each in onboarding.direct if isinstance(each, str))]
    values = {
        "proxy": json.dumps(f"PROXY {onboarding.proxy}"),
        "check": json.dumps(CHECK_NAME),
        "domains": json.dumps(domains),
        "networks4": json.dumps([_four(each) for each in networks if isinstance(each, IPv4Network)]),
        "networks6": json.dumps([_six(each) for each in networks if isinstance(each, IPv6Network)]),
        "fallback": ' + "; DIRECT"' if onboarding.direct_fallback else "",
    }
    text = _SCRIPT
    for key, value in values.items():
        text = text.replace(f"@{key}@", value)
    return text


def _four(network: IPv4Network) -> list[int]:
    return [int(network.network_address), network.prefixlen]


def _six(network: IPv6Network) -> list[object]:
    packed = network.network_address.packed
    return [[int.from_bytes(packed[at : at + 2], "big") for at in range(0, 16, 2)], network.prefixlen]
