"""docs/policy.md says what the code does: its policies load, its error lines are real, no key is missing."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from mptcp_throttler.config.schemas import schema_texts
from mptcp_throttler.policy.load import check_policy

PAGE = (Path(__file__).parents[3] / "docs" / "policy.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(yaml|text)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def pairs() -> list[tuple[str, str]]:
    """Return each policy of the page with the output that the page shows for it: none for a good one."""
    found = []
    for (kind, text), (next_kind, next_text) in zip(BLOCKS, [*BLOCKS[1:], ("", "")], strict=True):
        if kind == "yaml":
            found.append((text, next_text if next_kind == "text" else ""))
    return found


def test_the_page_has_good_policies_and_bad_ones() -> None:
    assert sorted(bool(output) for _, output in pairs()) == [False] * 6 + [True] * 3


@pytest.mark.parametrize(("text", "output"), pairs())
def test_a_policy_of_the_page_gives_the_output_of_the_page(text: str, output: str) -> None:
    assert "".join(f"{problem}\n" for problem in check_policy(text, "policy.yaml").problems) == output


def sections(schema: dict[str, Any]) -> list[dict[str, Any]]:
    return [schema, *schema.get("$defs", {}).values()]


@pytest.mark.parametrize("name", sorted(schema_texts()))
def test_every_key_has_a_row(name: str) -> None:
    rows = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)
    for section in sections(json.loads(schema_texts()[name])):
        for key in section["properties"]:
            assert key in rows


def test_every_row_is_a_key() -> None:
    known = {
        key
        for text in schema_texts().values()
        for section in sections(json.loads(text))
        for key in section["properties"]
    }
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)) == known
