"""Writes the JSON Schema of the status socket: ``python -m mptcp_throttler.views.status_schema conf``.

Requests and answers are in one file: ``$defs`` has each, ``x-queries`` says which belong together.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field, create_model
from pydantic.json_schema import models_json_schema

from mptcp_throttler.views import answer_models as models
from mptcp_throttler.views.requests import LONGEST_NAME, SCHEMA, SORTS
from mptcp_throttler.views.summary_models import SummaryAnswer

FILE: Final = "status.schema.json"
_NAME = (str | None, Field(None, max_length=LONGEST_NAME))
_ADDRESS = (str | None, Field(None, description="An address: `192.0.2.1`, `2001:db8::1`."))
_TOKEN = (str | None, Field(None, pattern="^[0-9a-fA-F]{1,8}$"))
_ENDPOINT = (str | None, Field(None, description="The client's end of any subflow: `ADDR:PORT`, `[ADDR]:PORT`."))

ANSWERS: Final[dict[str, type[models.Answer]]] = {
    "status": models.StatusAnswer,
    "head": models.HeadAnswer,
    "summary": SummaryAnswer,
    "connections": models.ConnectionsAnswer,
    "explain": models.ExplainAnswer,
    "events": models.EventsAnswer,
    "client": models.ClientAnswer,
    "budgets": models.BudgetsAnswer,
    "policy": models.PolicyAnswer,
    "what_if": models.WhatIfAnswer,
}
ARGUMENTS: Final[dict[str, dict[str, Any]]] = {
    "status": {},
    "head": {},
    "summary": {},
    "connections": {
        "client": _ADDRESS,
        "path": _NAME,
        "rule": _NAME,
        "token": _TOKEN,
        "sort": (Literal[SORTS] | None, "age"),
        "limit": (int | None, Field(50, ge=1, le=1000)),
        "offset": (int | None, Field(0, ge=0, le=1 << 31)),
    },
    "explain": {"client": _ADDRESS, "token": _TOKEN, "endpoint": _ENDPOINT},
    "events": {
        "after": (
            int | None,
            Field(None, ge=0, le=1 << 62, description="Those after this number, the first of them; else the latest."),
        ),
        "client": _ADDRESS,
        "token": _TOKEN,
        "rule": _NAME,
        "limit": (int | None, Field(1000, ge=1, le=10_000)),
    },
    "client": {
        "endpoint": (str, Field(description="The client's end of any subflow: `ADDR:PORT`, `[ADDR]:PORT`.")),
        "local": (str | None, Field(None, description="The proxy's end of that subflow.")),
        "token": _TOKEN,
    },
    "budgets": {"client": (str, Field(description="An address: `192.0.2.1`, `2001:db8::1`."))},
    "policy": {},
    "what_if": {"policy": (str, Field(description="The text of a policy file."))},
}


def requests() -> dict[str, type[models.Part]]:
    """Return the model of each request."""
    found = {}
    for query, arguments in ARGUMENTS.items():
        name = f"{query.replace('_', ' ').title().replace(' ', '')}Request"
        fields: dict[str, Any] = {"query": (Literal[query], ...), **arguments}
        found[query] = create_model(name, __base__=models.Part, **fields)
    return found


def status_schema() -> dict[str, Any]:
    """Return the schema of every answer, and of every request below ``$defs``."""
    asked = requests()
    wanted: list[type[models.Part]] = [*ANSWERS.values(), models.ErrorAnswer, *asked.values()]
    refs, found = models_json_schema([(each, "serialization") for each in wanted], ref_template="#/$defs/{model}")
    ref: dict[Any, str] = {model: value["$ref"] for (model, _), value in refs.items()}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Answers of mptcp-throttler's status socket, version {SCHEMA}",
        "anyOf": [{"$ref": ref[each]} for each in (*ANSWERS.values(), models.ErrorAnswer)],
        "x-queries": {
            query: {"request": {"$ref": ref[asked[query]]}, "answer": {"$ref": ref[answer]}}
            for query, answer in ANSWERS.items()
        },
        "$defs": found["$defs"],
    }


def schema_text() -> str:
    return json.dumps(status_schema(), indent=2, ensure_ascii=False) + "\n"


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("usage: python -m mptcp_throttler.views.status_schema DIRECTORY", file=sys.stderr)
        return 2
    Path(arguments[0], FILE).write_text(schema_text(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
