# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the JSON Schema of the status socket: it is complete and agrees with the parser of requests.

`Scene.request` in test_daemon checks the answers in each test that sends a query.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from fake_kernel import FakeKernel
from pydantic import TypeAdapter, ValidationError
from test_daemon import CAPPED, UNCAPPED, running, scenario
from test_status_answers import LTE, WIFI

from mptcp_common import status_client
from mptcp_throttler.views.answers import ANSWERS
from mptcp_throttler.views.requests import QUERIES, RequestError, parse_request, request_schema
from mptcp_throttler.views.schemas import status_schema


def test_every_query_has_a_request_and_an_answer_schema() -> None:
    assert ANSWERS.keys() == QUERIES.keys() == status_schema()["x-queries"].keys()


def test_every_definition_is_referenced_and_refuses_other_keys() -> None:
    schema = status_schema()
    text = json.dumps(schema)
    for name in schema["$defs"]:
        assert f'"#/$defs/{name}"' in text
    objects = [each for each in schema["$defs"].values() if each.get("type") == "object"]
    assert text.count('"additionalProperties": false') == len(objects), "an object accepts undocumented keys"


def test_inherited_keys_have_their_descriptions() -> None:
    assert status_schema()["$defs"]["SubflowDetails"]["properties"]["ceil"]["description"] == "Maximum rate."


def conforms(schema: dict[str, Any], value: Any) -> bool:
    """Return whether *value* conforms to a schema that uses the keywords of the request schemas."""
    kinds = {"string": str, "integer": int, "object": dict, "null": type(None)}
    if "anyOf" in schema:
        return any(conforms(each, value) for each in schema["anyOf"])
    if "type" in schema and (not isinstance(value, kinds[schema["type"]]) or isinstance(value, bool)):
        return False
    if schema.get("type") == "object":
        properties = schema["properties"]
        allowed = all(key in properties and conforms(properties[key], each) for key, each in value.items())
        return allowed and value.keys() >= set(schema["required"])
    return (
        ("const" not in schema or value == schema["const"])
        and ("enum" not in schema or value in schema["enum"])
        and ("pattern" not in schema or re.search(schema["pattern"], value) is not None)
        and ("maxLength" not in schema or len(value) <= schema["maxLength"])
        and ("minimum" not in schema or schema["minimum"] <= value <= schema["maximum"])
    )


_ENDPOINTS = [{"endpoint": "192.0.2.1:40000"}, {"endpoint": "192.0.2.1"}, {"endpoint": 3}, {}]


@pytest.mark.parametrize(
    ("query", "arguments"),
    [
        *[(query, {}) for query in QUERIES if query not in ("explain", "client", "budgets", "what_if")],
        *[("connections", each) for each in ({"limit": 1}, {"limit": 1000}, {"limit": 0}, {"limit": 1001})],
        *[("connections", each) for each in ({"limit": "3"}, {"offset": -1}, {"sort": "rate"}, {"sort": "size"})],
        *[("connections", each) for each in ({"token": "0aF"}, {"token": "x"}, {"token": "123456789"}, {"all": 1})],
        *[("connections", each) for each in ({"path": "p" * 200}, {"path": "p" * 201}, {"path": None}, {"rule": 3})],
        *[("events", each) for each in ({"after": 0}, {"after": -1}, {"limit": 10_000}, {"limit": 10_001})],
        *[("client", each) for each in _ENDPOINTS if each != {"endpoint": "192.0.2.1"}],
        *[
            ("client", {"endpoint": "192.0.2.1:40000"} | each)
            for each in ({"local": "192.0.2.9:3128"}, {"local": 3}, {"local": None}, {"token": "0aF"}, {"token": "x"})
        ],
        *[("budgets", each) for each in ({"client": "192.0.2.1"}, {"client": 3}, {})],
        *[("what_if", each) for each in ({"policy": "version: 1"}, {"policy": 3}, {})],
    ],
)
def test_parser_accepts_exactly_the_requests_that_the_schema_allows(query: str, arguments: dict[str, Any]) -> None:
    request = {"query": query} | arguments
    allowed = conforms(request_schema(query), request)
    try:
        parse_request(json.dumps(request).encode())
        accepted = True
    except RequestError:
        accepted = False
    assert accepted == allowed


@scenario
async def test_answers_of_child_processes_conform_to_the_schema(tmp_path: Path) -> None:
    kernel = FakeKernel()
    kernel.sockets.connect(7, WIFI, LTE)
    required_arguments = {
        "client": {"endpoint": f"{WIFI}:40000"},
        "budgets": {"client": WIFI},
        "explain": {"client": WIFI},
        "what_if": {"policy": UNCAPPED},
    }
    async with running(tmp_path, CAPPED, kernel):
        for query, answer in ANSWERS.items():
            request = {"query": query} | required_arguments.get(query, {})
            received = await status_client.ask_async(tmp_path / "s", request, 60.0)
            validator = TypeAdapter(answer)
            validator.validate_json(json.dumps(received))
            assert "error" not in received
            invalid = received | {"pid": "one"}
            with pytest.raises(ValidationError):
                validator.validate_json(json.dumps(invalid))
