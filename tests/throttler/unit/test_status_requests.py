# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for requests to the status socket: valid requests, and the errors for invalid ones."""

from __future__ import annotations

import json
from contextlib import suppress
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptcp_throttler.views.requests import MAX_REQUEST, QUERIES, Arguments, RequestError, parse_request


def parse(**request: object) -> tuple[str, Arguments]:
    return parse_request(json.dumps(request).encode())


@pytest.mark.parametrize("line", [b"", b"  ", b"\r"])
def test_empty_request_means_the_status_query(line: bytes) -> None:
    assert parse_request(line) == ("status", {})


def test_arguments_are_converted() -> None:
    parsed = parse(query="connections", client="::ffff:192.0.2.1", token="0000AB01", sort="rate", limit=3, path=None)
    expected = {"client": ip_address("192.0.2.1").packed, "token": 0xAB01, "sort": "rate", "limit": 3}
    assert parsed == ("connections", {"offset": 0} | expected)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"status", "not one line of JSON"),
        (b"\xff\xfe", "not one line of JSON"),
        (b"[" * 50_000, "not one line of JSON"),
        (b"[]", 'not a JSON object; write {"query": "summary"}'),
        (b"{}", 'the request has no "query"; the queries are status, head'),
        (b'{"query": null}', '"query": null is not a query; the queries are'),
        (
            b'{"query": "sumary"}',
            '"query": "sumary" is not a query (did you mean "summary"?); the queries are status, head',
        ),
        (b'{"query": ["status"]}', '"query": the value is not a query; the queries are'),
        (b'{"query": "head", "limit": 3}', '"limit" is not an argument of head, which has no arguments'),
        (
            b'{"query": "connections", "clients": 3}',
            '"clients" is not an argument of connections; its arguments are client,',
        ),
        (b'{"query": "connections", "client": "10.1"}', '"client": "10.1" is not an address, such as 192.0.2.1'),
        (b'{"query": "connections", "client": 3}', '"client": 3 is not an address'),
        (b'{"query": "connections", "token": "0x12"}', '"token": "0x12" is not a token: at most 9 hexadecimal digits'),
        (b'{"query": "connections", "token": "1234567890"}', "is not a token"),
        (b'{"query": "connections", "limit": 0}', '"limit": 0 is not a whole number from 1 to 1000'),
        (b'{"query": "connections", "limit": true}', '"limit": true is not a whole number'),
        (b'{"query": "connections", "limit": 2.0}', '"limit": 2.0 is not a whole number'),
        (b'{"query": "connections", "sort": "size"}', '"sort": "size" is none of rate, bytes, age, client'),
        (b'{"query": "connections", "path": 3}', '"path": 3 is not text of at most 200 characters'),
        (b'{"query": "' + b"x" * MAX_REQUEST + b'"}', "longer than 65536 bytes"),
    ],
)
def test_invalid_request_is_refused_with_a_short_message(line: bytes, message: str) -> None:
    with pytest.raises(RequestError) as refused:
        parse_request(line)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 400


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
_keys = st.sampled_from(sorted({key for keys in QUERIES.values() for key in keys})) | st.text()


@given(st.binary() | st.builds(json.dumps, _json).map(str.encode))
def test_any_bytes_are_accepted_or_refused(line: bytes) -> None:
    with suppress(RequestError):
        assert parse_request(line)[0] in QUERIES


@given(st.sampled_from(sorted(QUERIES)), st.dictionaries(_keys, _json, max_size=3))
def test_any_arguments_are_checked_or_refused(query: str, arguments: dict[str, object]) -> None:
    with suppress(RequestError):
        _, parsed = parse_request(json.dumps(arguments | {"query": query}).encode())
        assert parsed.keys() <= QUERIES[query].keys()
