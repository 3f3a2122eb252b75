# SPDX-License-Identifier: GPL-2.0-or-later
"""A strict parser for the data that an origin gets (RFC 9110, RFC 9112): it refuses ambiguous requests."""

from __future__ import annotations

import re
from dataclasses import dataclass

_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_REQUEST_LINE = re.compile(rb"(" + _TOKEN + rb") ([\x21-\x7e\x80-\xff]+) HTTP/1\.1")
# Only these three control characters are dangerous (RFC 9110, 5.5).
_FIELD = re.compile(rb"(" + _TOKEN + rb"):[ \t]*([^\r\n\0]*?)[ \t]*")
_CHUNK_SIZE = re.compile(rb"([0-9a-fA-F]{1,15})\r\n")


class Ambiguous(Exception):
    """Raised if two servers may read the data differently."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request that all servers read in the same way."""

    method: bytes
    target: bytes
    fields: tuple[tuple[bytes, bytes], ...]
    body: bytes
    raw: bytes

    def all(self, name: bytes) -> list[bytes]:
        return [value for each, value in self.fields if each.lower() == name]


def requests(data: bytes) -> list[Request]:
    """Return the requests of one connection; the last body may be incomplete.

    :raises Ambiguous: two servers may read the data differently
    """
    found = []
    while data:
        head, end, rest = data.partition(b"\r\n\r\n")
        if not end:
            raise Ambiguous(f"an incomplete header: {head[:200]!r}")
        first, *lines = head.split(b"\r\n")
        match = _REQUEST_LINE.fullmatch(first)
        if match is None:
            raise Ambiguous(f"a malformed first line: {first[:200]!r}")
        fields = tuple(_parse_field(line) for line in lines)
        request = Request(match[1], match[2], fields, b"", head + end)
        body, unread = _split_body(request, rest)
        found.append(Request(request.method, request.target, fields, body, data[: len(data) - len(unread)]))
        data = unread
    return found


def _parse_field(line: bytes) -> tuple[bytes, bytes]:
    match = _FIELD.fullmatch(line)
    if match is None:
        raise Ambiguous(f"a malformed field: {line[:200]!r}")
    return match[1], match[2]


def _split_body(request: Request, rest: bytes) -> tuple[bytes, bytes]:
    """Return the body of *request*, and the data after it."""
    lengths, codings = request.all(b"content-length"), request.all(b"transfer-encoding")
    if len(request.all(b"host")) != 1:
        raise Ambiguous(f"not exactly one Host: {request.raw[:300]!r}")
    if len(lengths) + len(codings) > 1:
        raise Ambiguous(f"several lengths: {lengths} {codings}")
    if codings:
        if codings[0].lower() != b"chunked":
            raise Ambiguous(f"an unknown coding: {codings}")
        return _split_chunks(rest)
    if not lengths:
        return b"", rest
    if not re.fullmatch(rb"[0-9]{1,18}", lengths[0]):
        raise Ambiguous(f"a malformed length: {lengths}")
    size = int(lengths[0])
    return rest[:size], rest[size:]


def _split_chunks(data: bytes) -> tuple[bytes, bytes]:
    body = b""
    while match := _CHUNK_SIZE.match(data):
        size, data = int(match[1], 16), data[match.end() :]
        if size == 0:
            if not data.startswith(b"\r\n"):
                raise Ambiguous(f"a trailer section: {data[:200]!r}")
            return body, data[2:]
        body += data[:size]
        if len(data) <= size:
            return body, b""  # the client has not sent more
        if data[size : size + 2] != b"\r\n":
            raise Ambiguous(f"a chunk without its end: {data[size:][:50]!r}")
        data = data[size + 2 :]
    if data:
        raise Ambiguous(f"a malformed chunk size: {data[:200]!r}")
    return body, b""
