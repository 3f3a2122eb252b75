# SPDX-License-Identifier: GPL-2.0-or-later
"""Requests that try to reach forbidden targets through a proxy: its own host, neighbours, other services.

No request may reach the proxy host's own services (``INNER``), or ports of the origin that are not allowed.
"""

from __future__ import annotations

from .row import INNER, ORIGIN, PROXY, PROXY6, TUNNEL, WEB, Row, get, head, statuses

_REFUSED = statuses(400, 403)
_UNRESOLVED = statuses(400, 403, 503)
"""Allowed if Squid may take the host for a name, which cannot be resolved (503)."""

_LOOPBACK = """
127.0.0.1 127.1 127.0.1 127.255.255.254 0177.0.0.1 0177.1 0x7f.0.0.1 0x7f.1 0x7F000001 2130706433 017700000001
0 0.0.0.0 0.1.2.3 00000000 127.0.0.1. localhost LOCALHOST LocalHost localhost.
[::] [::1] [0:0:0:0:0:0:0:1] [0000:0000:0000:0000:0000:0000:0000:0001] [::0001] [0::1]
[::ffff:127.0.0.1] [::FFFF:127.0.0.1] [::ffff:7f00:1] [0:0:0:0:0:ffff:127.0.0.1] [::ffff:0.0.0.0] [::ffff:0:0]
""".split()  # noqa: SIM905
_METADATA = """
169.254.169.254 169.254.1.1 2852039166 0xa9fea9fe 0251.0376.0251.0376 169.254.43518 [::ffff:169.254.169.254]
[::ffff:a9fe:a9fe] [fe80::1] [fe80::a9fe:a9fe] [febf::1] [fd00:ec2::254] [fd20:ce::254] 100.100.100.200
1684301000 [::ffff:100.100.100.200]
168.63.129.16 2822734096 0xa83f8110 [::ffff:168.63.129.16] [::ffff:a83f:8110]
192.0.0.192 3221225664 [::ffff:192.0.0.192]
100.96.0.96 100.80.80.80 [fd00:ec2::23] [fd00:c1::a9fe:a9fe] [fd00:a9fe:a9fe::1] [fd00:42::42] [fd00:100::100:200]
""".split()  # noqa: SIM905
# IPv6 addresses that contain a forbidden IPv4 address.
_EMBEDDED = """
[64:ff9b::7f00:1] [64:ff9b::127.0.0.1] [0064:FF9B:0:0:0:0:7F00:0001] [64:ff9b::] [64:ff9b::1] [64:ff9b::7fff:fffe]
[64:ff9b::a9fe:a9fe] [64:ff9b::169.254.169.254] [64:ff9b::6464:64c8] [64:ff9b:1::7f00:1] [64:ff9b:1:fffe::a9fe:a9fe]
[2002:7f00:1::] [2002:7f00:1::1] [2002::1] [2002:a9fe:a9fe::1] [2002:6464:64c8::1] [2001::1] [2001:0:7f00:1::80ff:fffe]
[::127.0.0.1] [::7f00:1] [::a9fe:a9fe] [::ffff:0:127.0.0.1] [::ffff:0:a9fe:a9fe]
[64:ff9b::a83f:8110] [64:ff9b::168.63.129.16] [64:ff9b::c000:c0] [64:ff9b::6460:60] [64:ff9b::6450:5050]
[2002:a83f:8110::1] [2002:c000:c0::1] [2002:6460:60::1] [2002:6450:5050::1] [64:ff9b:1::a83f:8110] [::a83f:8110]
""".split()  # noqa: SIM905
_PUBLIC_EMBEDDED = ["[64:ff9b::c633:6401]", "[64:ff9b::198.51.100.1]", "[64:ff9b::8000:1]", "[2002:c633:6401::1]"]
"""Addresses that a translator near the host would map to a public address.

The testbed has no translator and no route.
"""
_PROXY_ADDRESSES = [
    PROXY,
    "172820482",
    "0xa4d0802",
    "012.0115.010.02",
    "10.77.2050",
    f"[{PROXY6}]",
    f"[::ffff:{PROXY}]",
    "[FD77:8::2]",
    "[64:ff9b::a4d:802]",
    f"[64:ff9b::{PROXY}]",
    "[2002:a4d:802::1]",
]
NAMES: dict[str, list[list[str]]] = {
    "public.example": [[ORIGIN]],
    "loop.example": [["127.0.0.1"]],
    "loop6.example": [["::1"]],
    "mapped.example": [["::ffff:127.0.0.1"]],
    "zero.example": [["0.0.0.0"]],
    "own.example": [[PROXY]],
    "own6.example": [[PROXY6]],
    "metadata.example": [["169.254.169.254"]],
    "metadata6.example": [["fd00:ec2::254"]],
    "metadata-azure.example": [["168.63.129.16"]],
    "metadata-oracle.example": [["192.0.0.192"]],
    "nat64-loop.example": [["64:ff9b::7f00:1"]],
    "nat64-metadata.example": [["64:ff9b::a9fe:a9fe"]],
    "nat64-own.example": [["64:ff9b::a4d:802"]],
    "both.example": [[ORIGIN, "127.0.0.1"]],
    "both-reversed.example": [["127.0.0.1", ORIGIN]],
    "both6.example": [[ORIGIN, "::1"]],
    "many.example": [[ORIGIN, *(f"10.77.9.{n}" for n in range(100, 110)), PROXY]],
    # The answer for these names changes: Squid's rules use the first answer, and the connection would use a later one.
    # Each row has its own name, because the workers do not share the answers that they got.
    "rebind-get.example": [[ORIGIN], ["127.0.0.1"]],
    "rebind-get-port.example": [[ORIGIN], ["127.0.0.1"]],
    "rebind-own.example": [[ORIGIN], [PROXY]],
    "rebind-connect.example": [[ORIGIN], ["127.0.0.1"]],
    "rebind-six.example": [[ORIGIN], ["::1"]],
    "rebind-back.example": [["127.0.0.1"], [ORIGIN]],
    "rebind-none.example": [[], ["127.0.0.1"]],
}
"""Lists of addresses for each name: each query gets the next list, and all later queries the last. The TTL is 0."""


def _get_and_connect(group: str, hosts: list[str]) -> list[Row]:
    """Return rows that request each host by GET and by CONNECT."""
    return [
        row
        for number, host in enumerate(hosts, 1)
        for row in (
            Row(f"{group}-{number:02d}-get", get(f"http://{host}:{INNER}/{{id}}"), _REFUSED),
            Row(
                f"{group}-{number:02d}-connect",
                head(f"CONNECT {host}:{TUNNEL} HTTP/1.1", f"Host: {host}:{TUNNEL}"),
                _REFUSED,
            ),
        )
    ]


def _name_rows() -> list[Row]:
    rows = []
    for name in NAMES:
        if name == "public.example" or name.startswith("rebind"):
            continue
        # Without the rules, these requests would fail with 503, because there is no route. So require 403.
        refused = statuses(403) if name.startswith(("nat64", "metadata")) else _UNRESOLVED
        rows.append(Row(f"name-{name}", get(f"http://{name}:{INNER}/{{id}}"), refused))
    return rows


_REBOUND = [
    # For the second request, Squid may look up the name again, but the rules must check the address that it uses.
    Row("rebind-get", get(f"http://rebind-get.example:{WEB}/{{id}}") * 2, statuses(200), reaches=2, answers=2),
    Row("rebind-get-port", get(f"http://rebind-get-port.example:{INNER}/{{id}}"), statuses(403, 503)),
    Row("rebind-own", get(f"http://rebind-own.example:{WEB}/{{id}}") * 2, statuses(200), reaches=2, answers=2),
    Row("rebind-six", get(f"http://rebind-six.example:{WEB}/{{id}}") * 2, statuses(200), reaches=2, answers=2),
    Row("rebind-back", get(f"http://rebind-back.example:{WEB}/{{id}}"), statuses(403)),
    Row("rebind-none", get(f"http://rebind-none.example:{INNER}/{{id}}"), statuses(403, 503)),
    Row(
        "rebind-connect",
        head(f"CONNECT rebind-connect.example:{TUNNEL} HTTP/1.1", "Host: rebind-connect.example"),
        statuses(200),
        reaches=None,
    ),
]
_ALLOWED = [
    # If the proxy refused these requests too, the refusals below would prove nothing.
    Row("allowed-get", get(), statuses(200), reaches=1),
    Row("allowed-name", get(f"http://public.example:{WEB}/{{id}}"), statuses(200), reaches=1),
    Row("allowed-connect", head(f"CONNECT {ORIGIN}:{TUNNEL} HTTP/1.1"), statuses(200), reaches=None),
]
_PORTS = [
    *(
        Row(f"port-{port}", get(f"http://{ORIGIN}:{port}/{{id}}"), _REFUSED)
        for port in (
            "21",
            "22",
            "23",
            "25",
            "110",
            "139",
            "445",
            "1024",
            "0",
            "65536",
            "99999999999",
            "-1",
            "22abc",
            "0x16",
        )
    ),
    *(
        Row(f"tunnel-{port or 'none'}", head(f"CONNECT {ORIGIN}:{port} HTTP/1.1"), _REFUSED)
        for port in ("22", "25", "80", "444", "8080", "3128", "0", "65535", "65979", "-443")
    ),
    # Squid ignores text that it does not understand and uses port 443: it may open a tunnel only to that port.
    *(
        Row(f"tunnel-odd-{name}", head(f"CONNECT {target} HTTP/1.1"), _UNRESOLVED | {200}, reaches=None)
        for name, target in {
            "letters": f"{ORIGIN}:443abc",
            "two-ports": f"{ORIGIN}:443:22",
            "no-port": f"{ORIGIN}:",
            "no-colon": ORIGIN,
            "userinfo": f"{ORIGIN}:443@{ORIGIN}:22",
        }.items()
    ),
    Row("tunnel-absolute", head(f"CONNECT http://{ORIGIN}:22/ HTTP/1.1"), _UNRESOLVED),
    Row("tunnel-absolute-https", head(f"CONNECT https://{ORIGIN}/ HTTP/1.1"), _UNRESOLVED),
    Row("tunnel-path", head(f"CONNECT {ORIGIN}:22/ HTTP/1.1"), _REFUSED),
    Row("tunnel-userinfo-loopback", head(f"CONNECT {ORIGIN}@127.0.0.1:443 HTTP/1.1"), _UNRESOLVED),
    Row("tunnel-host-says-otherwise", head("CONNECT 127.0.0.1:443 HTTP/1.1", f"Host: {ORIGIN}:443"), _REFUSED),
    Row("tunnel-lower-case", head(f"connect {ORIGIN}:22 HTTP/1.1"), statuses(400, 403, 405, 501)),
    Row("tunnel-1.0", head(f"CONNECT {ORIGIN}:22 HTTP/1.0"), _REFUSED),
    Row("tunnel-asterisk", head("CONNECT *:443 HTTP/1.1"), _UNRESOLVED),
    Row("tunnel-blank", head("CONNECT  HTTP/1.1"), _UNRESOLVED),
]
_URLS = [
    Row("userinfo", get(f"http://{ORIGIN}@127.0.0.1:{INNER}/{{id}}"), _REFUSED),
    Row("userinfo-port", get(f"http://{ORIGIN}:{WEB}@127.0.0.1:{INNER}/{{id}}"), _REFUSED),
    Row("userinfo-password", get(f"http://a:b@[::1]:{INNER}/{{id}}"), _REFUSED),
    Row("userinfo-two", get(f"http://a@{ORIGIN}@127.0.0.1:{INNER}/{{id}}"), _REFUSED),
    Row("userinfo-encoded", get(f"http://{ORIGIN}%40127.0.0.1:{INNER}/{{id}}"), _UNRESOLVED),
    # Text before "@" is not the host, although a browser would treat the backslash as a slash.
    Row("backslash", get(f"http://127.0.0.1:{INNER}\\@{ORIGIN}:{WEB}/{{id}}"), _UNRESOLVED | {200}, reaches=None),
    Row("backslash-first", get(f"http:\\\\127.0.0.1:{INNER}/{{id}}"), _UNRESOLVED),
    Row("fragment", get(f"http://127.0.0.1:{INNER}#@{ORIGIN}:{WEB}/{{id}}"), _UNRESOLVED),
    Row("query", get(f"http://127.0.0.1:{INNER}?@{ORIGIN}:{WEB}/{{id}}"), _UNRESOLVED),
    Row("encoded-host", get(f"http://%31%32%37.0.0.1:{INNER}/{{id}}"), _UNRESOLVED),
    Row("encoded-null", get(f"http://127.0.0.1%00.example:{INNER}/{{id}}"), _UNRESOLVED),
    Row("encoded-newline", get(f"http://127.0.0.1%0d%0aX:{INNER}/{{id}}"), _UNRESOLVED),
    Row("full-width-dots", get("http://127\u3002".encode().decode("latin-1") + f"0.0.1:{INNER}/{{id}}"), _UNRESOLVED),
    Row("zone", get(f"http://[::1%25lo]:{INNER}/{{id}}"), _UNRESOLVED),
    Row("zone-plain", get(f"http://[fe80::1%wan0]:{INNER}/{{id}}"), _UNRESOLVED),
    Row("brackets-missing", get(f"http://::1:{INNER}/{{id}}"), _UNRESOLVED),
    Row("brackets-around-ipv4", get(f"http://[127.0.0.1]:{INNER}/{{id}}"), _UNRESOLVED),
    Row("blank-in-host", get(f"http://127.0.0.1 .example:{INNER}/{{id}}"), _UNRESOLVED),
    Row("tab-in-host", get(f"http://127.0.0.1\t:{INNER}/{{id}}"), _UNRESOLVED),
    Row("slashes", get(f"http:////127.0.0.1:{INNER}/{{id}}"), _UNRESOLVED),
    Row("no-host", get("http:///{id}"), _UNRESOLVED),
    Row("no-slashes", get(f"http:127.0.0.1:{INNER}/{{id}}"), _UNRESOLVED),
    Row("name-of-the-hosts-file", get(f"http://ip6-localhost:{INNER}/{{id}}"), _UNRESOLVED),
    Row("only-scheme", get("http://"), _UNRESOLVED),
    Row("upper-case-scheme", get(f"HTTP://127.0.0.1:{INNER}/{{id}}"), _REFUSED),
    Row("https-to-the-host", get(f"https://127.0.0.1:{TUNNEL}/{{id}}"), statuses(400, 403, 503)),
]
_FORMS = [
    Row("origin-form", head("GET /{id} HTTP/1.1", f"Host: 127.0.0.1:{INNER}"), _UNRESOLVED),
    Row("origin-form-outside", head("GET /{id} HTTP/1.1", f"Host: {ORIGIN}:{WEB}"), _UNRESOLVED),
    Row("authority-form", head(f"GET 127.0.0.1:{INNER} HTTP/1.1", f"Host: {ORIGIN}"), _UNRESOLVED),
    Row("no-scheme", head(f"GET //127.0.0.1:{INNER}/{{id}} HTTP/1.1", f"Host: {ORIGIN}"), _UNRESOLVED),
    Row("asterisk", head("GET * HTTP/1.1", f"Host: 127.0.0.1:{INNER}"), _UNRESOLVED),
    Row("asterisk-options", head("OPTIONS * HTTP/1.1", f"Host: 127.0.0.1:{INNER}"), statuses(200, 400, 403, 501, 503)),
    Row(
        "host-says-loopback",
        head(f"GET http://{ORIGIN}:{WEB}/{{id}} HTTP/1.1", f"Host: 127.0.0.1:{INNER}"),
        statuses(200),
        reaches=1,
        origin_has=f"Host: {ORIGIN}:{WEB}".encode(),
        origin_lacks=b"127.0.0.1",
    ),
    Row("url-says-loopback", head(f"GET http://127.0.0.1:{INNER}/{{id}} HTTP/1.1", f"Host: {ORIGIN}:{WEB}"), _REFUSED),
    Row("two-hosts", get("http://127.0.0.1:2000/{id}", f"Host: {ORIGIN}"), _REFUSED),
    Row("forwarded-host", get("http://127.0.0.1:2000/{id}", f"X-Forwarded-Host: {ORIGIN}"), _REFUSED),
    Row("claims-to-be-local", get("http://127.0.0.1:2000/{id}", "X-Forwarded-For: 127.0.0.1"), _REFUSED),
    Row(
        "claims-reach-no-origin",
        get(f"http://{ORIGIN}:{WEB}/{{id}}", "X-Forwarded-For: 192.0.2.7", "Forwarded: for=192.0.2.7"),
        statuses(200),
        reaches=1,
        origin_lacks=b"192.0.2.7",
    ),
    Row(
        "clients-address-reaches-no-origin",
        get(),
        statuses(200),
        reaches=1,
        origin_lacks=b"10.77.1.2",
    ),
]
_OTHER_SERVICES = [
    Row(f"service-{name}", get(url), statuses(400, 403, 404, 501, 503))
    for name, url in {
        "manager": f"http://{PROXY}:3128/squid-internal-mgr/info",
        "manager-loopback": "http://127.0.0.1:3128/squid-internal-mgr/menu",
        "manager-by-name": "http://mptcpproxy:3128/squid-internal-mgr/info",
        "manager-elsewhere": f"http://{ORIGIN}:{WEB}/squid-internal-mgr/info",
        "cache-object": "cache_object://127.0.0.1/info",
        "cache-object-name": "cache_object://mptcpproxy/shutdown",
        "icons": f"http://{PROXY}:3128/squid-internal-static/icons/SN.png",
        "netdb": f"http://{PROXY}:3128/squid-internal-dynamic/netdb",
        "digest": f"http://{PROXY}:3128/squid-internal-periodic/store_digest",
        "itself": f"http://{PROXY}:3128/{{id}}",
        "file": "file:///etc/passwd",
        "ftp": f"ftp://{ORIGIN}:{WEB}/{{id}}",
        "ftp-injection": f"ftp://{ORIGIN}:{WEB}/a%0d%0aDELE%20{{id}}",
        "whois": f"whois://{ORIGIN}:{WEB}/{{id}}",
        "gopher": f"gopher://{ORIGIN}:{WEB}/1{{id}}",
        "wais": f"wais://{ORIGIN}:{WEB}/{{id}}",
        "urn": "urn:x-test:{id}",
        "coap": f"coap://{ORIGIN}:{WEB}/{{id}}",
        "magnet": "magnet:?xt={id}",
        "javascript": "javascript:alert(1)",
        "unknown": f"zzz://{ORIGIN}:{WEB}/{{id}}",
    }.items()
] + [
    Row(
        "service-manager-by-origin-form",
        head("GET /squid-internal-mgr/info HTTP/1.1", "Host: mptcpproxy"),
        statuses(400, 403),
    ),
    Row(
        "service-icons-by-origin-form",
        head("GET /squid-internal-static/icons/SN.png HTTP/1.1", "Host: mptcpproxy"),
        statuses(400, 403, 404, 503),
    ),
    Row(
        "service-netdb-by-origin-form",
        head("GET /squid-internal-dynamic/netdb HTTP/1.1", "Host: mptcpproxy"),
        statuses(400, 403, 404, 503),
    ),
    Row("method-trace", get(method="TRACE"), statuses(403, 405, 501)),
    Row("method-purge", get(method="PURGE"), statuses(400, 403, 405, 501)),
]
ROWS = (
    *_ALLOWED,
    *_get_and_connect("loopback", _LOOPBACK),
    *_get_and_connect("metadata", _METADATA),
    *_get_and_connect("embedded", _EMBEDDED),
    *_get_and_connect("own", _PROXY_ADDRESSES),
    *(
        Row(f"embedded-public-{number}", get(f"http://{host}:{WEB}/{{id}}"), statuses(503))
        for number, host in enumerate(_PUBLIC_EMBEDDED, 1)
    ),
    *_name_rows(),
    *_REBOUND,
    *_PORTS,
    *_URLS,
    *_FORMS,
    *_OTHER_SERVICES,
)
