# SPDX-License-Identifier: GPL-2.0-or-later
"""Requests that show which fields and bodies a proxy forwards, removes and adds (RFC 9110, RFC 9112), and malformed
answers of an origin."""

from __future__ import annotations

from .row import CLOSED, ORIGIN, ORIGIN6, WEB, Row, get, head, statuses

_URL = f"http://{ORIGIN}:{WEB}/{{id}}"
_CHUNKED = "Transfer-Encoding: chunked"
_TOO_LONG = _URL.replace("{id}", "too-long-url?").ljust(8200, "a")


def _forwarded_row(
    name: str, sent: bytes, *, origin_has: bytes = b"", origin_lacks: bytes = b"", has: bytes = b"", status: int = 200
) -> Row:
    """Return a row whose request arrives at the origin once.

    The request there must contain *origin_has* and not *origin_lacks*; the client's answer must contain *has*.
    """
    return Row(name, sent, statuses(status), reaches=1, origin_has=origin_has, origin_lacks=origin_lacks, has=has)


def _answer(text: str, *, status: str = "200 OK", body: bytes = b"ok") -> bytes:
    return f"HTTP/1.1 {status}\r\n{text}\r\n\r\n".encode("latin-1") + body


_METHODS = [
    *(
        _forwarded_row(f"method-{name.lower()}", get(_URL, method=name))
        for name in ("GET", "HEAD", "DELETE", "OPTIONS")
    ),
    *(
        _forwarded_row(
            f"method-{name.lower()}", get(_URL, "Content-Length: 2", method=name, body=b"ab"), origin_has=b"ab"
        )
        for name in ("POST", "PUT", "PATCH", "PROPFIND", "REPORT", "LOCK", "X-OWN")
    ),
    _forwarded_row(
        "method-post-without-body", get(_URL, "Content-Length: 0", method="POST"), origin_has=b"Content-Length: 0"
    ),
    _forwarded_row("get-with-body", get(_URL, "Content-Length: 2", body=b"ab"), origin_has=b"ab"),
    _forwarded_row("delete-with-body", get(_URL, "Content-Length: 2", method="DELETE", body=b"ab"), origin_has=b"ab"),
]
_HOP_BY_HOP = {
    "named-in-connection": ("Connection: X-Hop\r\nX-Hop: y", b"X-Hop"),
    "named-beside-close": ("Connection: X-Hop , close\r\nX-Hop: y", b"X-Hop"),
    "named-in-lower-case": ("connection: x-hop\r\nX-HOP: y", b"X-HOP"),
    "keep-alive": ("Keep-Alive: timeout=5", b"timeout=5"),
    "te": ("Connection: TE\r\nTE: trailers", b"trailers"),
    "upgrade-h2c": ("Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA", b"Upgrade"),
    "proxy-authorization": ("Proxy-Authorization: Basic eDp5", b"eDp5"),
    "proxy-connection": ("Proxy-Connection: keep-alive", b"Proxy-Connection"),
    "forwarded": ("Forwarded: for=192.0.2.1", b"192.0.2.1"),
    "x-forwarded-for": ("X-Forwarded-For: 192.0.2.1", b"192.0.2.1"),
}
_END_TO_END = {
    "accept": "Accept: text/html;q=0.5, */*",
    "authorization": "Authorization: Bearer abc",
    "cookie": "Cookie: a=b; c=d",
    "range": "Range: bytes=0-1",
    "if-none-match": 'If-None-Match: "abc"',
    "if-modified-since": "If-Modified-Since: Sun, 06 Nov 1994 08:49:37 GMT",
    "user-agent": "User-Agent: x/1 (y)",
    "accept-encoding": "Accept-Encoding: gzip, br",
    "unknown-field": "X-Own: some thing",
    "unicode": "X-Own: caf\xe9",
    "empty-field": "X-Own:",
    "long-field": "X-Own: " + "a" * 8000,
    "cache-control": "Cache-Control: no-store",
    "origin-field": "Origin: https://a.example",
}
_FIELDS = [
    *(
        _forwarded_row(f"removes-{name}", get(_URL, text), origin_lacks=lacks)
        for name, (text, lacks) in _HOP_BY_HOP.items()
    ),
    *(
        _forwarded_row(f"forwards-{name}", get(_URL, text), origin_has=text.split(":", 1)[1].strip().encode("latin-1"))
        for name, text in _END_TO_END.items()
    ),
    _forwarded_row("via-is-added", get(_URL), origin_has=b"Via: 1.1 mptcpproxy"),
    _forwarded_row("via-is-kept", get(_URL, "Via: 1.0 before"), origin_has=b"1.0 before, 1.1 mptcpproxy"),
    _forwarded_row(
        "upgrade-websocket", get(_URL, "Connection: Upgrade", "Upgrade: websocket"), origin_has=b"websocket"
    ),
    _forwarded_row(
        "host-is-that-of-the-url",
        head(f"GET {_URL} HTTP/1.1", "Host: other.example"),
        origin_has=f"Host: {ORIGIN}:{WEB}".encode(),
        origin_lacks=b"other.example",
    ),
    _forwarded_row("without-host-in-1.0", head(f"GET {_URL} HTTP/1.0"), origin_has=f"Host: {ORIGIN}:{WEB}".encode()),
    _forwarded_row("version-becomes-1.1", head(f"GET {_URL} HTTP/1.0"), origin_has=b" HTTP/1.1\r\n"),
    _forwarded_row("query", get(_URL + "?a=b&c=%20d"), origin_has=b"?a=b&c=%20d"),
    _forwarded_row("escapes-stay", get(_URL + "/%2e%2e/%2F%41"), origin_has=b"/%2e%2e/%2F%41"),
    _forwarded_row("dots-stay", get(_URL + "/../x/./y"), origin_has=b"/../x/./y"),
    _forwarded_row("query-without-value", get(_URL + "?q")),
    _forwarded_row("no-path", get(f"http://{ORIGIN}:{WEB}?{{id}}"), origin_has=b"?{id}"),
    _forwarded_row("long-url", get(_URL + "?" + "a" * 6000), origin_has=b"a" * 6000),
    # Squid limits a URL to 8,192 bytes.
    Row("too-long-url", get(_TOO_LONG), statuses(400, 414)),
    # Browsers request a tunnel, or send http:// with an upgrade (RFC 6455, 4.1).
    Row(
        "websocket-url",
        get(_URL.replace("http:", "ws:"), "Connection: Upgrade", "Upgrade: websocket"),
        statuses(426, 501),
    ),
    _forwarded_row("ipv6", get(f"http://[{ORIGIN6}]:{WEB}/{{id}}"), origin_has=f"Host: [{ORIGIN6}]:{WEB}".encode()),
    _forwarded_row(
        "name", get(f"http://public.example:{WEB}/{{id}}"), origin_has=f"Host: public.example:{WEB}".encode()
    ),
    _forwarded_row("name-upper-case", get(f"http://PUBLIC.Example:{WEB}/{{id}}")),
    _forwarded_row("scheme-upper-case", get(f"HTTP://{ORIGIN}:{WEB}/{{id}}")),
]
_BODIES = [
    _forwarded_row(
        "chunked", get(_URL, _CHUNKED, method="POST", body=b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"), origin_has=b"abc"
    ),
    _forwarded_row("chunked-empty", get(_URL, _CHUNKED, method="POST", body=b"0\r\n\r\n")),
    _forwarded_row(
        "chunked-upper-case-size",
        get(_URL, _CHUNKED, method="POST", body=b"A\r\n0123456789\r\n0\r\n\r\n"),
        origin_has=b"0123456789",
    ),
    _forwarded_row(
        "expect-continue",
        get(_URL, "Expect: 100-continue", "Content-Length: 2", method="PUT", body=b"ab"),
        origin_has=b"ab",
    ),
    Row("max-forwards-0", get(_URL, "Max-Forwards: 0", method="OPTIONS"), statuses(200, 403, 501), reaches=None),
    Row("pipelined", get(_URL) * 4, statuses(200), reaches=4, answers=4),
    Row(
        "kept-alive-after-404",
        get(f"http://{ORIGIN}:{WEB}/answer-404-to-keep") + get(_URL),
        statuses(404),
        reaches=1,
        answers=2,
    ),
    Row("closed-on-request", get(_URL, "Connection: close") + get(_URL), statuses(200), reaches=1),
    Row("closed-in-1.0", head(f"GET {_URL} HTTP/1.0") + get(_URL), statuses(200), reaches=1),
    # Squid treats this as the end of the client (half_closed_clients off). With "on", a client can crash Squid.
    Row("half-closed", get(_URL), statuses(200, CLOSED), reaches=None, ends=True),
    Row("connect", head(f"CONNECT {ORIGIN}:443 HTTP/1.1", f"Host: {ORIGIN}:443"), statuses(200), reaches=None),
    Row(
        "connect-ipv6", head(f"CONNECT [{ORIGIN6}]:443 HTTP/1.1", f"Host: [{ORIGIN6}]:443"), statuses(200), reaches=None
    ),
    Row("connect-1.0", head(f"CONNECT {ORIGIN}:443 HTTP/1.0"), statuses(200), reaches=None),
    Row(
        "connect-and-data-at-once",
        head(f"CONNECT {ORIGIN}:443 HTTP/1.1") + b"hello",
        statuses(200),
        reaches=None,
        has=b"hello",
    ),
    Row("unreachable", get("http://10.77.9.77/{id}"), statuses(503, 504)),
    Row("closed-port", get(f"http://{ORIGIN}:8099/{{id}}"), statuses(503)),
    Row("no-such-name", get("http://nowhere.example/{id}"), statuses(503)),
    Row("no-such-name-tunnel", head("CONNECT nowhere.example:443 HTTP/1.1"), statuses(503)),
]
_VALID_ANSWERS = {
    "200-length-0": (200, _answer("Content-Length: 0", body=b"")),
    "200-until-close": (200, _answer("X: y", body=b"until the end")),
    "200-chunked": (200, _answer(_CHUNKED, body=b"2\r\nok\r\n0\r\n\r\n")),
    "200-chunk-extension": (200, _answer(_CHUNKED, body=b"2;a=b\r\nok\r\n0\r\n\r\n")),
    "200-trailer": (200, _answer(_CHUNKED, body=b"2\r\nok\r\n0\r\nX: y\r\n\r\n")),
    "200-no-reason": (200, b"HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nok"),
    "200-in-1.0": (200, b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok"),
    "200-same-length-twice": (200, _answer("Content-Length: 2\r\nContent-Length: 2")),
    "200-two-cookies": (200, _answer("Set-Cookie: a=b\r\nSet-Cookie: c=d\r\nContent-Length: 2")),
    "200-long-field": (200, _answer("X: " + "a" * 20_000 + "\r\nContent-Length: 2")),
    "201": (201, _answer("Content-Length: 2", status="201 Created")),
    "204": (204, _answer("X: y", status="204 No Content", body=b"")),
    "206": (206, _answer("Content-Range: bytes 0-1/9\r\nContent-Length: 2", status="206 Partial Content")),
    "301": (301, _answer("Location: /x\r\nContent-Length: 2", status="301 Moved Permanently")),
    "304": (304, _answer('ETag: "a"', status="304 Not Modified", body=b"")),
    "401": (401, _answer("WWW-Authenticate: Basic realm=x\r\nContent-Length: 2", status="401 Unauthorized")),
    "404": (404, _answer("Content-Length: 2", status="404 Not Found")),
    "416": (416, _answer("Content-Length: 2", status="416 Range Not Satisfiable")),
    "418": (418, _answer("Content-Length: 2", status="418 I'm a teapot")),
    "500": (500, _answer("Content-Length: 2", status="500 Internal Server Error")),
    "503": (503, _answer("Retry-After: 1\r\nContent-Length: 2", status="503 Service Unavailable")),
    "599": (599, _answer("Content-Length: 2", status="599 Odd")),
    "103-first": (200, b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + _answer("Content-Length: 2")),
    "100-first": (200, b"HTTP/1.1 100 Continue\r\n\r\n" + _answer("Content-Length: 2")),
}
_MALFORMED_ANSWERS = {
    "two-lengths": _answer("Content-Length: 2\r\nContent-Length: 3"),
    "length-minus": _answer("Content-Length: -1"),
    "length-letters": _answer("Content-Length: 2x"),
    "length-and-chunked": _answer(f"Content-Length: 50\r\n{_CHUNKED}", body=b"2\r\nok\r\n0\r\n\r\n"),
    "chunk-size": _answer(_CHUNKED, body=b"zz\r\nok\r\n0\r\n\r\n"),
    "coding-unknown": _answer("Transfer-Encoding: x\r\nContent-Length: 2"),
    "shorter-than-announced": _answer("Content-Length: 20"),
    "nothing": b"",
    "garbage": b"\x00\x01\x02garbage\r\n\r\n",
    "greeting": b"220 mail.example ESMTP\r\n",
    "version-2": b"HTTP/2.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
    "status-99": b"HTTP/1.1 99 Low\r\nContent-Length: 2\r\n\r\nok",
    "status-letters": b"HTTP/1.1 2OO OK\r\nContent-Length: 2\r\n\r\nok",
    "status-1000": b"HTTP/1.1 1000 High\r\nContent-Length: 2\r\n\r\nok",
    "header-null": _answer("X: a\x00b\r\nContent-Length: 2"),
    "header-fold": _answer("X: a\r\n b\r\nContent-Length: 2"),
    "header-without-colon": _answer("nothing\r\nContent-Length: 2"),
    "header-blank-before-colon": _answer("Content-Length : 2"),
    "newlines-without-return": b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok",
    "head-of-300-kb": _answer("X: " + "a" * 300_000 + "\r\nContent-Length: 2"),
    "101-without-upgrade": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\nraw",
    "100-repeated": b"HTTP/1.1 100 Continue\r\n\r\n" * 100,
}
ANSWERS: dict[str, bytes] = {
    **{f"answer-{name}": answer for name, (_, answer) in _VALID_ANSWERS.items()},
    **{f"malformed-{name}": answer for name, answer in _MALFORMED_ANSWERS.items()},
}
"""The origin's answers by name. The path of the request begins with the name, and the origin closes the connection
after the answer."""
_ANSWER_ROWS = [
    *(_forwarded_row(f"answer-{name}", get(_URL), status=status) for name, (status, _) in _VALID_ANSWERS.items()),
    Row("answer-200-chunked-to-1.0", head(f"GET {_URL} HTTP/1.0"), statuses(200), reaches=1, lacks=b"chunked"),
    Row("answer-200-chunked-to-head", get(_URL, method="HEAD"), statuses(200), reaches=1, lacks=b"\r\n\r\n2"),
    Row("answer-204-announces-close", get(_URL), statuses(204), reaches=1, has=b"Connection: close"),
    Row("answer-304-announces-close", get(_URL), statuses(304), reaches=1, has=b"Connection: close"),
    *(
        Row(f"malformed-{name}", get(_URL), statuses(200, 403, 502, 503, CLOSED), reaches=None, lacks=b"ESMTP")
        for name in _MALFORMED_ANSWERS
    ),
]
ROWS = (*_METHODS, *_FIELDS, *_BODIES, *_ANSWER_ROWS)
