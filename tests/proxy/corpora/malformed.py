# SPDX-License-Identifier: GPL-2.0-or-later
"""Malformed and ambiguous requests, which two servers that a request passes may interpret differently (RFC 9112,
11.2).

Whatever the status, a strict parser (``strict.py``) reads everything that the origin gets: no request may have two
meanings or begin within the body of another request. ``/inner`` is the request that an attacker tries to smuggle.
``/next`` begins where, according to the RFC, the body ends. So it is the same client's next request, and gets the
second answer; another proxy in front of this one may see it as part of the body.
"""

from __future__ import annotations

from .row import CLOSED, ORIGIN, WEB, Row, get, statuses

_URL = f"http://{ORIGIN}:{WEB}/{{id}}"
_INNER = f"GET http://{ORIGIN}:{WEB}/inner HTTP/1.1\r\nHost: {ORIGIN}\r\n\r\n".encode()
_NEXT = _INNER.replace(b"/inner", b"/next")
_MALFORMED = statuses(400, 411, 413, 414, 417, 431, 501, 505, CLOSED)
_BAD_OR_REFUSED = _MALFORMED | {403}
_LENGTH = f"Content-Length: {len(_INNER)}"
_CHUNKED = "Transfer-Encoding: chunked"
_LAST_CHUNK = b"0\r\n\r\n"


def _post(*fields: str, body: bytes = b"", version: str = "HTTP/1.1") -> bytes:
    return get(_URL, *fields, method="POST", body=body, version=version)


def _raw(text: str) -> bytes:
    return text.encode("latin-1")


def _refused_rows(rows: dict[str, bytes]) -> list[Row]:
    return [Row(name, sent, _BAD_OR_REFUSED) for name, sent in rows.items()]


def _refused_or_forwarded_rows(rows: dict[str, bytes]) -> list[Row]:
    """Return rows that a proxy may refuse, forward or repair (RFC 9112). What the origin gets must have only one
    meaning."""
    return [Row(name, sent, _BAD_OR_REFUSED | {200}, reaches=None) for name, sent in rows.items()]


_LENGTHS = {
    "two-lengths": _post("Content-Length: 0", _LENGTH, body=_INNER),
    "two-lengths-reversed": _post(_LENGTH, "Content-Length: 0", body=_INNER),
    "two-lengths-in-one": _post(f"Content-Length: 0, {len(_INNER)}", body=_INNER),
    "length-negative": _post("Content-Length: -1", body=_INNER),
    "length-plus": _post(f"Content-Length: +{len(_INNER)}", body=_INNER),
    "length-hex": _post("Content-Length: 0x10", body=_INNER),
    "length-letters": _post("Content-Length: 1a", body=_INNER),
    "length-words": _post("Content-Length: 1 2", body=_INNER),
    "length-empty": _post("Content-Length: ", body=_INNER),
    "length-semicolon": _post("Content-Length: 0;1", body=_INNER),
    "length-dot": _post("Content-Length: 1.0", body=_INNER),
    "length-exponent": _post("Content-Length: 1e1", body=_INNER),
    "length-underscore": _post("Content-Length: 1_0", body=_INNER),
    "length-quoted": _post('Content-Length: "1"', body=_INNER),
    "length-beyond-64-bits": _post("Content-Length: 18446744073709551617", body=_INNER),
    "length-wraps-63-bits": _post("Content-Length: 9223372036854775808", body=_INNER),
    "length-null": _post("Content-Length: 0\x00", body=_INNER),
    "length-no-break-space": _post(f"Content-Length: \xa0{len(_INNER)}", body=_INNER),
}
_SAME_LENGTHS = {
    "same-length-twice": _post(_LENGTH, _LENGTH, body=_INNER),
    "same-length-in-one": _post(f"{_LENGTH}, {len(_INNER)}", body=_INNER),
    "length-leading-zeros": _post(f"Content-Length: 000{len(_INNER)}", body=_INNER),
    "length-blanks-around": _post(f"Content-Length:  \t {len(_INNER)} \t ", body=_INNER),
}
_CODINGS = {
    "length-and-identity": _post("Transfer-Encoding: identity, chunked", _LENGTH, body=_INNER),
    "coding-unknown": _post("Transfer-Encoding: xchunked", body=_LAST_CHUNK + _INNER),
    "coding-prefix": _post("Transfer-Encoding: chunkedx", body=_LAST_CHUNK + _INNER),
    "coding-gzip": _post("Transfer-Encoding: gzip", _LENGTH, body=_INNER),
    "coding-gzip-chunked": _post("Transfer-Encoding: gzip, chunked", body=_LAST_CHUNK + _INNER),
    "coding-chunked-gzip": _post("Transfer-Encoding: chunked, gzip", body=_LAST_CHUNK + _INNER),
    "coding-chunked-identity": _post("Transfer-Encoding: chunked, identity", body=_LAST_CHUNK + _INNER),
    "coding-twice": _post("Transfer-Encoding: chunked, chunked", body=_LAST_CHUNK + _INNER),
    "coding-two-fields": _post("Transfer-Encoding: x", _CHUNKED, body=_LAST_CHUNK + _INNER),
    "coding-two-fields-reversed": _post(_CHUNKED, "Transfer-Encoding: x", body=_LAST_CHUNK + _INNER),
    "coding-quoted": _post('Transfer-Encoding: "chunked"', body=_LAST_CHUNK + _INNER),
    "coding-parameter": _post("Transfer-Encoding: chunked;a=b", body=_LAST_CHUNK + _INNER),
    "coding-empty": _post("Transfer-Encoding: ", _LENGTH, body=_INNER),
    "coding-comma": _post("Transfer-Encoding: ,", _LENGTH, body=_INNER),
    "coding-null": _post("Transfer-Encoding: chunked\x00", body=_LAST_CHUNK + _INNER),
    "coding-no-break-space": _post("Transfer-Encoding: \xa0chunked", body=_LAST_CHUNK + _INNER),
    "coding-in-a-get": get(_URL, "Transfer-Encoding: x", body=_INNER),
}
_TOLERATED_BODIES = {
    "length-then-chunked": _post("Content-Length: 5", _CHUNKED, body=_LAST_CHUNK + _NEXT),
    "chunked-then-length": _post(_CHUNKED, "Content-Length: 5", body=_LAST_CHUNK + _NEXT),
    # Squid treats these characters as blanks.
    "coding-vertical-tab": _post("Transfer-Encoding: \x0bchunked", body=_LAST_CHUNK + _NEXT),
    "coding-form-feed": _post("Transfer-Encoding:\x0cchunked", body=_LAST_CHUNK + _NEXT),
    "length-vertical-tab": _post(f"Content-Length: \x0b{len(_INNER)}", body=_INNER),
    # Squid treats this value as a missing length.
    "length-comma": _post("Content-Length: ,", body=_NEXT),
    # Squid 5 ignores this coding and overlooks the length (CVE-2026-61642).
    "identity": _post("Transfer-Encoding: identity", f"Content-Length: {len(_NEXT)}", body=_NEXT),
    "chunked-with-long-length": _post(_CHUNKED, "Content-Length: 500", body=_LAST_CHUNK),
    "chunked-with-bad-length": _post(_CHUNKED, "Content-Length: x", body=_LAST_CHUNK),
    "chunked-in-1.0": _post(_CHUNKED, body=_LAST_CHUNK, version="HTTP/1.0"),
    "chunked-and-length-in-1.0": _post(_CHUNKED, "Content-Length: 5", body=_LAST_CHUNK, version="HTTP/1.0"),
    "chunked-upper-case": _post("TRANSFER-ENCODING: CHUNKED", body=_LAST_CHUNK),
    "chunked-tab": _post("Transfer-Encoding:\tchunked", body=_LAST_CHUNK),
    "chunked-blank-after": _post("Transfer-Encoding: chunked ", body=_LAST_CHUNK),
    "chunked-comma-after": _post("Transfer-Encoding: chunked,", body=_LAST_CHUNK),
    "chunked-comma-before": _post("Transfer-Encoding: , chunked", body=_LAST_CHUNK),
    "chunked-blank-in-name": _post("Transfer-Encoding : chunked", body=_LAST_CHUNK),
    "chunked-blank-before-name": _post(" Transfer-Encoding: chunked", body=_LAST_CHUNK),
    "chunked-folded": _post("Transfer-Encoding:\r\n chunked", body=_LAST_CHUNK),
    "chunked-folded-elsewhere": _post("X: y\r\n Transfer-Encoding: chunked", "Content-Length: 5", body=_LAST_CHUNK),
    "chunked-underscore": _post("Transfer_Encoding: chunked", "Content-Length: 5", body=_LAST_CHUNK),
    "chunked-after-bare-newline": _post("X: y\nTransfer-Encoding: chunked", "Content-Length: 5", body=_LAST_CHUNK),
    "chunked-after-bare-return": _post("X: y\rTransfer-Encoding: chunked", "Content-Length: 5", body=_LAST_CHUNK),
    "chunked-after-null": _post("X: y\x00Transfer-Encoding: chunked", "Content-Length: 5", body=_LAST_CHUNK),
    "coding-named-in-connection": _post("Connection: Transfer-Encoding", _CHUNKED, body=_LAST_CHUNK),
    "length-named-in-connection": _post("Connection: Content-Length", "Content-Length: 5", body=b"hello"),
    "expect": _post("Expect: 100-continue", "Content-Length: 5", body=b"hello"),
    "expect-unknown": _post("Expect: 200-maybe", "Content-Length: 5", body=b"hello"),
    "get-with-a-request-in-its-body": get(_URL, _LENGTH, body=_INNER),
    "head-with-a-request-in-its-body": get(_URL, _LENGTH, method="HEAD", body=_INNER),
}
_CHUNKS = {
    "chunk-size-minus": b"-5\r\nhello\r\n" + _LAST_CHUNK,
    "chunk-size-letter": b"g\r\nhello\r\n" + _LAST_CHUNK,
    "chunk-size-0x": b"0x5\r\nhello\r\n" + _LAST_CHUNK,
    "chunk-size-plus": b"+5\r\nhello\r\n" + _LAST_CHUNK,
    "chunk-size-empty": b"\r\nhello\r\n" + _LAST_CHUNK,
    "chunk-size-beyond-64-bits": b"10000000000000005\r\nhello\r\n" + _LAST_CHUNK,
    "chunk-size-64-bits": b"ffffffffffffffff\r\nhello\r\n" + _LAST_CHUNK,
    "chunk-size-underscore": b"0_5\r\nhello\r\n" + _LAST_CHUNK,
    "chunk-longer-than-announced": b"4\r\nhello\r\n" + _LAST_CHUNK,
    "chunk-without-end": b"5\r\nhello5\r\nhello\r\n" + _LAST_CHUNK,
    "chunk-ends-with-other-bytes": b"5\r\nhelloXX0\r\n\r\n",
    "chunk-size-after-blank": b" 5\r\nhello\r\n" + _LAST_CHUNK,
}
_TOLERATED_CHUNKS = {
    "chunk-newline-without-return": b"5\nhello\n0\n\n",
    "chunk-newline-without-return-after-size": b"5\nhello\r\n" + _LAST_CHUNK,
    "chunk-return-without-newline": b"5\rhello\r0\r\r",
    "chunk-size-before-blank": b"5 \r\nhello\r\n" + _LAST_CHUNK,
    "chunk-size-leading-zeros": b"00000005\r\nhello\r\n" + _LAST_CHUNK,
    "chunk-extension": b"5;a=b\r\nhello\r\n" + _LAST_CHUNK,
    "chunk-extension-quoted": b'5;a="b;c\\"d"\r\nhello\r\n' + _LAST_CHUNK,
    "chunk-extension-bare-newline": b"5;a\nX\r\nhello\r\n" + _LAST_CHUNK,
    "chunk-extension-bare-return": b"5;a\rX\r\nhello\r\n" + _LAST_CHUNK,
    "chunk-extension-quoted-newline": b'5;a="\r\nhello\r\n' + _LAST_CHUNK,
    "chunk-extension-long": b"5;" + b"a" * 20_000 + b"\r\nhello\r\n" + _LAST_CHUNK,
    "chunk-extension-null": b"5;\x00\r\nhello\r\n" + _LAST_CHUNK,
    "chunk-last-extension": b"5\r\nhello\r\n0;a=b\r\n\r\n",
    "trailer": b"5\r\nhello\r\n0\r\nX: y\r\n\r\n",
    "trailer-length": b"5\r\nhello\r\n0\r\nContent-Length: 50\r\n\r\n",
    "trailer-host": b"5\r\nhello\r\n0\r\nHost: 127.0.0.1\r\n\r\n",
    "trailer-malformed": b"5\r\nhello\r\n0\r\nno field\r\n\r\n",
    "trailer-with-a-request": b"0\r\n" + _INNER,
    "request-after-the-last-chunk": _LAST_CHUNK + b"X",
}
_LINES = {
    "name-blank-before-colon": _post("Content-Length : 5", body=b"hello"),
    "name-tab-before-colon": _post("Content-Length\t: 5", body=b"hello"),
    "name-empty": get(_URL, ": x"),
    "name-without-colon": get(_URL, "nothing"),
    "name-null": get(_URL, "X\x00Y: z"),
    "name-bare-return": get(_URL, "X\rY: z"),
    "name-control": get(_URL, "X\x01: z"),
    "name-8-bit": get(_URL, "X\xff: z"),
    "name-brackets": get(_URL, "X(y): z"),
    "name-at-sign": get(_URL, "X@y: z"),
    "name-quoted": get(_URL, '"X": z'),
    "name-slash": get(_URL, "X/y: z"),
    "value-null": get(_URL, "X: a\x00b"),
    "value-bare-return": get(_URL, "X: a\rb"),
    "value-bare-newline": get(_URL, "X: a\nY: b"),
    "value-control": get(_URL, "X: a\x01b"),
    "value-delete": get(_URL, "X: a\x7fb"),
    "value-escape": get(_URL, "X: \x1b[2J"),
    "value-8-bit": get(_URL, "X: caf\xe9"),
    "fold": get(_URL, "X: a\r\n b"),
    "fold-tab": get(_URL, "X: a\r\n\tb"),
    "fold-first": _raw(f"GET {_URL} HTTP/1.1\r\n X: y\r\nHost: {ORIGIN}\r\n\r\n"),
    "fold-host": _raw(f"GET {_URL} HTTP/1.1\r\nHost:\r\n {ORIGIN}\r\n\r\n"),
    "newlines-without-return": _raw(f"GET {_URL} HTTP/1.1\nHost: {ORIGIN}\n\n"),
    "newline-without-return-at-the-end": _raw(f"GET {_URL} HTTP/1.1\r\nHost: {ORIGIN}\r\n\n"),
    "returns-without-newline": _raw(f"GET {_URL} HTTP/1.1\rHost: {ORIGIN}\r\r"),
    "double-returns": _raw(f"GET {_URL} HTTP/1.1\r\r\nHost: {ORIGIN}\r\r\n\r\r\n"),
    "newlines-before": b"\r\n\r\n" + get(_URL),
    "blank-before": b" " + get(_URL),
    "no-host": _raw(f"GET {_URL} HTTP/1.1\r\n\r\n"),
    "two-hosts": _raw(f"GET {_URL} HTTP/1.1\r\nHost: {ORIGIN}\r\nHost: other.example\r\n\r\n"),
    "host-empty": _raw(f"GET {_URL} HTTP/1.1\r\nHost: \r\n\r\n"),
    "host-of-two-words": _raw(f"GET {_URL} HTTP/1.1\r\nHost: a b\r\n\r\n"),
    "host-with-path": _raw(f"GET {_URL} HTTP/1.1\r\nHost: a/b\r\n\r\n"),
}
_FIRST_LINES = {
    "line-two-blanks": f"GET  {_URL} HTTP/1.1",
    "line-tabs": f"GET\t{_URL}\tHTTP/1.1",
    "line-blanks-after": f"GET {_URL} HTTP/1.1 ",
    "line-with-return": f"GET {_URL}\rX HTTP/1.1",
    "line-with-null": f"GET {_URL}\x00 HTTP/1.1",
    "line-blank-in-url": f"GET {_URL} x HTTP/1.1",
    "line-no-url": "GET  HTTP/1.1",
    "line-no-version": f"GET {_URL}",
    "line-version-0.9": f"GET {_URL} HTTP/0.9",
    "line-version-1.2": f"GET {_URL} HTTP/1.2",
    "line-version-1.10": f"GET {_URL} HTTP/1.10",
    "line-version-2": f"GET {_URL} HTTP/2.0",
    "line-version-3": f"GET {_URL} HTTP/3",
    "line-version-lower-case": f"GET {_URL} http/1.1",
    "line-version-letters": f"GET {_URL} HTTP/a.b",
    "line-version-long": f"GET {_URL} HTTP/1.11111111111111111111",
    "line-version-other": f"GET {_URL} ICAP/1.0",
    "line-method-blank": f" {_URL} HTTP/1.1",
    "line-method-parenthesis": f"GE(T {_URL} HTTP/1.1",
    "line-method-control": f"G\x01T {_URL} HTTP/1.1",
    "line-method-colon": f"GET: {_URL} HTTP/1.1",
    "line-url-8-bit": f"GET {_URL}/\xff HTTP/1.1",
    "line-url-control": f"GET {_URL}/\x01 HTTP/1.1",
    "line-url-escape-of-newline": f"GET {_URL}/%0d%0aX:%20y HTTP/1.1",
    "line-nonsense": "nonsense",
    "line-http2-preface": "PRI * HTTP/2.0\r\n\r\nSM\r\n",
    "line-tls": "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "line-proxy-protocol": f"PROXY TCP4 192.0.2.1 10.77.8.2 1 2\r\nGET {_URL} HTTP/1.1",
}
_SIZES = {
    "size-header": get(_URL, "X: " + "a" * 200_000),
    "size-name": get(_URL, "X" * 100_000 + ": y"),
    "size-many-fields": get(_URL, *(f"X{n}: y" for n in range(20_000))),
    "size-url": get(_URL + "/" + "a" * 100_000),
    "size-method": get(_URL, method="A" * 100_000),
    "size-fields-of-commas": get(_URL, "Connection: " + "," * 100_000),
    "size-ranges": get(_URL, "Range: bytes=" + "0-0," * 30_000),
}
ROWS = (
    Row("well-formed", get(_URL), statuses(200), reaches=1),
    Row(
        "well-formed-pipelined",
        get(_URL) + get(_URL) + get(_URL),
        statuses(200),
        reaches=3,
        answers=3,
    ),
    Row("body-without-length", _post(body=_NEXT), statuses(200), reaches=1, answers=2),
    *_refused_rows(_LENGTHS),
    *_refused_rows(_CODINGS),
    *_refused_rows({name: _post(_CHUNKED, body=body) for name, body in _CHUNKS.items()}),
    *_refused_rows(_SIZES),
    *_refused_or_forwarded_rows(_SAME_LENGTHS),
    *_refused_or_forwarded_rows(_TOLERATED_BODIES),
    *_refused_or_forwarded_rows({name: _post(_CHUNKED, body=body) for name, body in _TOLERATED_CHUNKS.items()}),
    *_refused_or_forwarded_rows(_LINES),
    *_refused_or_forwarded_rows(
        {name: _raw(f"{line}\r\nHost: {ORIGIN}\r\n\r\n") for name, line in _FIRST_LINES.items()}
    ),
)
