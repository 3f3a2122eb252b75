# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that the fake throttler's answers match the models that the real throttler's answers must match."""

from __future__ import annotations

import json

import pytest
from fake_throttler import World
from pydantic import TypeAdapter

from mptcp_throttler.views.answers import ANSWERS

POLICY = "version: 1\nrules: []\n"


@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize("capped", [True, False])
@pytest.mark.parametrize(
    "request_",
    [
        {"query": "summary"},
        {"query": "connections", "sort": "rate", "limit": 2},
        {"query": "clients", "sort": "budget", "limit": 2},
        {"query": "explain", "token": "4f037d87"},
        {"query": "events", "after": 0},
        {"query": "policy"},
        {"query": "what_if", "policy": POLICY},
        {"query": "what_if", "policy": "version: 1\n"},
    ],
    ids=lambda request: str(request["query"]),
)
def test_answers_match_the_models_of_the_protocol(request_: dict[str, object], capped: bool, dry_run: bool) -> None:
    world = World(capped=capped, dry_run=dry_run, over_budget=True, plain_tcp={"10.77.1.9": 2})
    world.add_event("applied", "a cap", token="4f037d87", client="10.77.1.2", rule="spare-ethernet")
    answer = world.answer(request_)
    TypeAdapter(ANSWERS[str(request_["query"])]).validate_json(json.dumps(answer))
