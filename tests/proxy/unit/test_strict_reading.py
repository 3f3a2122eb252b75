# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that the strict parser of the corpora refuses ambiguous input, and splits other input into requests."""

from __future__ import annotations

import pytest
from corpora import malformed
from corpora.strict import Ambiguous, requests

_INNER = b"GET /inner HTTP/1.1\r\nHost: a\r\n\r\n"


def _get(*lines: bytes, request_line: bytes = b"GET /x HTTP/1.1") -> bytes:
    return b"\r\n".join([request_line, b"Host: a", *lines, b"", b""])


def _post(*lines: bytes, body: bytes = b"") -> bytes:
    return _get(*lines, request_line=b"POST /x HTTP/1.1") + body


def _chunked_post(body: bytes) -> bytes:
    return _post(b"Transfer-Encoding: chunked", body=body)


AMBIGUOUS = {
    # The end of the body is ambiguous (RFC 9112, 6.3).
    "a length and a coding": _post(b"Content-Length: 4", b"Transfer-Encoding: chunked", body=b"0\r\n\r\n" + _INNER),
    "a coding and a length": _post(b"Transfer-Encoding: chunked", b"Content-Length: 4", body=b"0\r\n\r\n" + _INNER),
    "two lengths": _post(b"Content-Length: 0", b"Content-Length: 31", body=_INNER),
    "the same length twice": _post(b"Content-Length: 2", b"Content-Length: 2", body=b"ab"),
    "two lengths in one field": _post(b"Content-Length: 2, 2", body=b"ab"),
    "two codings": _post(b"Transfer-Encoding: chunked", b"Transfer-Encoding: x", body=b"0\r\n\r\n"),
    "an unknown coding": _post(b"Transfer-Encoding: xchunked", body=_INNER),
    "a coding before the chunks": _post(b"Transfer-Encoding: gzip, chunked", body=b"0\r\n\r\n"),
    "a vertical tab before the coding": _post(b"Transfer-Encoding: \x0bchunked", body=b"0\r\n\r\n"),
    "a length with a sign": _post(b"Content-Length: +2", body=b"ab"),
    "a length in hexadecimal": _post(b"Content-Length: 0x2", body=b"ab"),
    "an empty length": _post(b"Content-Length:", body=b"ab"),
    "a length of more than 64 bits": _post(b"Content-Length: 18446744073709551618", body=b"ab"),
    # A chunk is malformed (RFC 9112, 7.1).
    "a chunk's size with a sign": _chunked_post(b"+2\r\nab\r\n0\r\n\r\n"),
    "a chunk's size as 0x2": _chunked_post(b"0x2\r\nab\r\n0\r\n\r\n"),
    "a chunk's size of more than 60 bits": _chunked_post(b"1000000000000000\r\nab\r\n0\r\n\r\n"),
    "a chunk's size before a lone newline": _chunked_post(b"2\nab\r\n0\r\n\r\n"),
    "an extension of a chunk": _chunked_post(b"2;a=b\r\nab\r\n0\r\n\r\n"),
    "a chunk longer than its size": _chunked_post(b"2\r\nabc\r\n0\r\n\r\n"),
    "a chunk that ends with other bytes": _chunked_post(b"2\r\nabXX0\r\n\r\n"),
    "a trailer": _chunked_post(b"0\r\nContent-Length: 32\r\n\r\n" + _INNER),
    "a trailer that resembles a request": _chunked_post(b"0\r\nX:" + _INNER),
    # A line is malformed (RFC 9112, 2.2, 3 and 5).
    "lone newlines": b"GET /x HTTP/1.1\nHost: a\n\n",
    "a lone newline in a value": _get(b"X: a\nTransfer-Encoding: chunked"),
    "a lone carriage return in a value": _get(b"X: a\rTransfer-Encoding: chunked"),
    "a null in a value": _get(b"X: a\0b"),
    "a field that continues in the next line": _get(b"X: a", b" Transfer-Encoding: chunked"),
    "a blank before the colon": _get(b"Transfer-Encoding : chunked"),
    "a field without a colon": _get(b"nothing"),
    "a field without a name": _get(b": x"),
    "a request line of two words": _get(request_line=b"GET /x"),
    "two blanks in the request line": _get(request_line=b"GET  /x HTTP/1.1"),
    "an older version of HTTP": _get(request_line=b"GET /x HTTP/1.0"),
    "a blank line before the request": b"\r\n" + _get(),
    # The Host field is missing or repeated (RFC 9112, 3.2).
    "no Host": b"GET /x HTTP/1.1\r\n\r\n",
    "two Hosts": _get(b"Host: b"),
    # Data follow a request.
    "data after the last chunk": _chunked_post(b"0\r\n\r\nX"),
    "data after a body": _post(b"Content-Length: 1", body=b"ab"),
    "an incomplete header": _get()[:-4],
    "a second request that is ambiguous": _get() + b"GET /y HTTP/1.1\r\n\r\n",
}
UNAMBIGUOUS: dict[str, tuple[bytes, list[tuple[bytes, bytes]]]] = {
    "no data": (b"", []),
    "one request": (_get(), [(b"/x", b"")]),
    "two requests on one connection": (_get() + _INNER, [(b"/x", b""), (b"/inner", b"")]),
    "a length": (_post(b"Content-Length: 2", body=b"ab") + _INNER, [(b"/x", b"ab"), (b"/inner", b"")]),
    "a request in a body": (_post(b"Content-Length: 32", body=_INNER), [(b"/x", _INNER)]),
    "chunks": (
        _chunked_post(b"2\r\nab\r\nA\r\n0123456789\r\n0\r\n\r\n") + _INNER,
        [(b"/x", b"ab0123456789"), (b"/inner", b"")],
    ),
    "a request in a chunk": (_chunked_post(b"20\r\n" + _INNER + b"\r\n0\r\n\r\n"), [(b"/x", _INNER)]),
    "names and codings in capitals": (
        _post(b"TRANSFER-ENCODING: CHUNKED", body=b"0\r\n\r\n") + _INNER,
        [(b"/x", b""), (b"/inner", b"")],
    ),
    "blanks around a value": (_post(b"Content-Length: \t 2 \t", body=b"ab"), [(b"/x", b"ab")]),
    "an unfinished body": (_post(b"Content-Length: 20", body=b"ab"), [(b"/x", b"ab")]),
    "unfinished chunks": (_chunked_post(b"5\r\nab"), [(b"/x", b"ab")]),
    "controls in a value, and 8 bits": (_get(b"X: \x01\x1b\x7f\xe9"), [(b"/x", b"")]),
    "a name that resembles another": (_get(b"Transfer_Encoding: chunked", b"X-Content-Length: 5"), [(b"/x", b"")]),
}


@pytest.mark.parametrize("name", AMBIGUOUS)
def test_ambiguous_request_is_recognized(name: str) -> None:
    with pytest.raises(Ambiguous):
        requests(AMBIGUOUS[name])


@pytest.mark.parametrize("name", UNAMBIGUOUS)
def test_unambiguous_requests_are_split(name: str) -> None:
    data, expected = UNAMBIGUOUS[name]
    found = requests(data)
    assert [(each.target, each.body) for each in found] == expected
    assert b"".join(each.raw for each in found) == data


def test_values_of_a_field_are_found_by_name_in_any_case() -> None:
    (request,) = requests(_get(b"X: a", b"x:b"))
    assert request.all(b"x") == [b"a", b"b"]
    assert request.all(b"host") == [b"a"]


def test_most_requests_of_the_corpus_are_ambiguous() -> None:
    """Otherwise, even a proxy that forwards all bytes unchanged would pass the tests."""
    found = []
    for row in malformed.ROWS:
        try:
            requests(row.data)
        except Ambiguous:
            found.append(row.id)
    assert len(found) >= 0.75 * len(malformed.ROWS)
    assert not {"well-formed", "well-formed-pipelined", "body-without-length"} & set(found)
