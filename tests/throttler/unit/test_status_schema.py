"""The JSON Schema of the status socket: the one that is committed, whole, and of one mind with what is accepted.

That answers are what it says is held in every test that asks: ``Scene.ask`` of test_daemon.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fake_kernel import FakeKernel
from pydantic import BaseModel, ValidationError
from test_daemon import CAPPED, UNCAPPED, running, scenario
from test_status_answers import LTE, WIFI

from mptcp_common import status_client
from mptcp_throttler.views.requests import QUERIES, RequestError, parse_request
from mptcp_throttler.views.status_schema import ANSWERS, ARGUMENTS, FILE, main, requests, schema_text, status_schema

CONF = Path(__file__).parents[3] / "conf"


def test_the_committed_schema_is_the_generated_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    committed = (CONF / FILE).read_text(encoding="utf-8")
    assert committed == schema_text(), "run: python -m mptcp_throttler.views.status_schema conf"
    assert main([str(tmp_path)]) == 0
    assert (tmp_path / FILE).read_text(encoding="utf-8") == committed
    assert main([]) == 2
    assert "usage" in capsys.readouterr().err


def test_every_query_has_a_request_and_an_answer() -> None:
    assert ANSWERS.keys() == ARGUMENTS.keys() == QUERIES.keys() == status_schema()["x-queries"].keys()
    for query, arguments in QUERIES.items():
        assert ARGUMENTS[query].keys() == arguments.keys()


def test_every_reference_is_there() -> None:
    text = schema_text()
    found = json.loads(text)
    for name in found["$defs"]:
        assert f'"#/$defs/{name}"' in text
    assert text.count('"additionalProperties": false') == len(found["$defs"]), "a key that is not documented"


@pytest.fixture(scope="module")
def models() -> dict[str, type[BaseModel]]:
    return dict(requests())


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
def test_what_the_schema_allows_is_accepted_and_nothing_else(
    models: dict[str, type[BaseModel]], query: str, arguments: dict[str, Any]
) -> None:
    text = json.dumps({"query": query} | arguments)
    try:
        models[query].model_validate_json(text)
        allowed = True
    except ValidationError:
        allowed = False
    try:
        parse_request(text.encode())
        accepted = True
    except RequestError:
        accepted = False
    assert accepted == allowed


@scenario
async def test_what_children_answer_is_what_the_schema_says(tmp_path: Path) -> None:
    kernel = FakeKernel()
    kernel.sockets.connect(7, WIFI, LTE)
    needed = {
        "client": {"endpoint": f"{WIFI}:40000"},
        "budgets": {"client": WIFI},
        "explain": {"client": WIFI},
        "what_if": {"policy": UNCAPPED},
    }
    async with running(tmp_path, CAPPED, kernel):
        for query, answer in ANSWERS.items():
            request = {"query": query} | needed.get(query, {})
            found = await status_client.ask_async(tmp_path / "s", request, 60.0)
            answer.model_validate_json(json.dumps(found))
            assert "error" not in found
            spoilt = found | {"pid": "one"}
            with pytest.raises(ValidationError):
                answer.model_validate_json(json.dumps(spoilt))
