# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the published JSON Schemas: they are generated from the models, and agree with the policy's checks."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mptcp_common.fields import INTERFACE_PATTERN, NAME_PATTERN
from mptcp_common.schema_file import schema_text, write_schemas
from mptcp_common.units import RATE_PATTERN, SIZE_PATTERN
from mptcp_throttler.config.settings import load_settings
from mptcp_throttler.policy.load import check_policy
from mptcp_throttler.policy.schedule import DAYS_PATTERN, HOURS_PATTERN
from mptcp_throttler.views.schemas import schemas

CONF = Path(__file__).parents[3] / "conf"
RULE: dict[str, object] = {"name": "a", "throttle": {"rate": "5 Mbit/s"}}


@pytest.mark.parametrize("name", ["policy.schema.json", "throttler.schema.json"])
def test_committed_schema_equals_the_generated_schema(name: str) -> None:
    committed = (CONF / name).read_text(encoding="utf-8")
    assert committed == schema_text(schemas()[name]), "run: python -m mptcp_throttler.views.schemas conf"


def test_command_writes_the_schemas(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = "mptcp_throttler.views.schemas"
    assert write_schemas(module, schemas(), [str(tmp_path)]) == 0
    written = {path.name: json.loads(path.read_text(encoding="utf-8")) for path in tmp_path.iterdir()}
    assert written == schemas()
    assert write_schemas(module, schemas(), []) == 2
    assert capsys.readouterr().err == "usage: python -m mptcp_throttler.views.schemas DIRECTORY\n"


def objects(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every section of *schema* with its name, which is empty for the document."""
    yield "", schema
    yield from schema.get("$defs", {}).items()


@pytest.mark.parametrize("name", ["policy.schema.json", "throttler.schema.json"])
def test_no_section_accepts_unknown_keys_or_null(name: str) -> None:
    text = schema_text(schemas()[name])
    for _, schema in objects(json.loads(text)):
        assert schema["additionalProperties"] is False
    assert "null" not in text


def test_examples_in_the_policy_schema_are_accepted() -> None:
    schema = schemas()["policy.schema.json"]

    def check(path: dict[str, Any], rule: dict[str, Any], **top: Any) -> None:
        document = {"version": 1, "paths": dict.fromkeys(("ethernet", "wifi", "lte"), path), "rules": [rule]} | top
        checked = check_policy(json.dumps(document), "policy.json")  # JSON is YAML
        assert not checked.problems, [str(problem) for problem in checked.problems]

    sections = schema["$defs"]
    for key, value in sections["PathMatch"]["properties"].items():
        for example in value["examples"]:
            check({key: example}, RULE)
    for key, value in sections["When"]["properties"].items():
        for example in value["examples"]:
            check({"backup": True}, RULE | {"when": {key: example}})
    for key, value in sections["Throttle"]["properties"].items():
        for example in value["examples"]:
            check({"backup": True}, RULE | {"throttle": {"rate": "5 Mbit/s", key: example}})
    for key, value in sections["Rule"]["properties"].items():
        for example in value["examples"]:
            check({"backup": True}, ({"name": "a"} if key in ("steer", "budget") else RULE) | {key: example})
    for key, value in schema["properties"].items():
        for example in value["examples"]:
            budget_key = {"budget": next(iter(example))} if key == "budgets" else {}
            check({"backup": True}, RULE | budget_key, **{key: example})


def test_examples_in_the_settings_schema_are_accepted() -> None:
    for key, value in schemas()["throttler.schema.json"]["properties"].items():
        for example in value["examples"]:
            load_settings(
                json.dumps({"interfaces": ["wan0"], "policy": "policy.yaml"} | {key: example}), "throttler.json"
            )


TEXTS = [
    *("5 Mbit/s", "5mbit", "512 KBIT/S", "5 Mbps", "5", "5.5 gbit", "mbit", "0x5 bit", "5 Mbit/h"),
    *("15 KB", "15 kB", "15kb", "1.5 MiB", "15 k", "2000 B", "2 GB"),
    *("mon", "Mon", "MON-fri", "monday", "mon-", "mon-tue-wed", "sun-sat"),
    *("08:00-18:00", "8:00-18:00", "08:00-24:00", "24:00-08:00", "08:60-18:00", "23:59-00:00", "8-18"),
    *("eth0", "wan0.100", "a b", "a/b", "0123456789abcdef", "br-lan", "a:b", ""),
    *("spare-ethernet", "-a", ".a", "a.b_c", "x" * 32, "x" * 33, "ä"),
]
RULES_WITH: dict[str, Callable[[str], dict[str, object]]] = {
    RATE_PATTERN: lambda text: RULE | {"throttle": {"rate": text}},
    SIZE_PATTERN: lambda text: RULE | {"throttle": {"rate": "1 Gbit/s", "burst": text}},
    DAYS_PATTERN: lambda text: RULE | {"when": {"days": [text]}},
    HOURS_PATTERN: lambda text: RULE | {"when": {"hours": [text]}},
    NAME_PATTERN: lambda text: RULE | {"name": text},
}


@pytest.mark.parametrize("text", TEXTS)
def test_schema_patterns_accept_the_same_texts_as_the_policy(text: str) -> None:
    for pattern, rule in RULES_WITH.items():
        document = json.dumps({"version": 1, "rules": [rule(text)]})
        accepted = check_policy(document, "policy.json").policy is not None
        assert bool(re.search(pattern, text)) is accepted, (pattern, text)
    document = json.dumps({"version": 1, "paths": {"p": {"interfaces": [text]}}, "rules": []})
    accepted = check_policy(document, "policy.json").policy is not None
    assert bool(re.search(INTERFACE_PATTERN, text)) is accepted, text
