# SPDX-License-Identifier: GPL-2.0-or-later
"""Writes the JSON Schemas of policy, settings and status socket: ``python -m mptcp_throttler.views.schemas conf``.

The sources are the models that check files and requests, and the definitions of answers. The schemas are committed.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

from pydantic import TypeAdapter

from mptcp_common.fields import editor_schema
from mptcp_common.schema_file import write_schemas
from mptcp_throttler.config.settings import Settings
from mptcp_throttler.policy.model import Policy
from mptcp_throttler.views import answers
from mptcp_throttler.views.requests import QUERIES, request_schema


@cache
def status_schema() -> dict[str, Any]:
    """Return the schema of every answer, and of every request below ``$defs``; ``x-queries`` pairs them."""
    request_names = {query: f"{query.replace('_', ' ').title().replace(' ', '')}Request" for query in QUERIES}
    answers_by_query = {**answers.ANSWERS, "error": answers.ErrorAnswer}
    adapters = [(query, "serialization", TypeAdapter(answer)) for query, answer in answers_by_query.items()]
    references, definitions = TypeAdapter.json_schemas(adapters)  # type: ignore[arg-type]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Answers of mptcp-throttler's status socket, version {answers.SCHEMA}",
        "anyOf": list(references.values()),
        "x-queries": {
            query: {"request": {"$ref": f"#/$defs/{request_names[query]}"}, "answer": reference}
            for (query, _), reference in references.items()
            if query in request_names
        },
        "$defs": definitions["$defs"] | {name: request_schema(query) for query, name in request_names.items()},
    }


@cache
def schemas() -> dict[str, dict[str, Any]]:
    """Return each schema by file name."""
    return {
        "policy.schema.json": editor_schema(Policy),
        "throttler.schema.json": editor_schema(Settings),
        "status.schema.json": status_schema(),
    }


if __name__ == "__main__":
    sys.exit(write_schemas("mptcp_throttler.views.schemas", schemas(), sys.argv[1:]))
