# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for docs/policy.md: its policies load, and its error messages equal those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mptcp_throttler.policy.load import check_policy

PAGE = (Path(__file__).parents[3] / "docs" / "policy.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(yaml|text)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def policies_and_outputs() -> list[tuple[str, str]]:
    """Return each policy on the page with its output there, which is empty for a valid policy."""
    found = []
    for (kind, text), (next_kind, next_text) in zip(BLOCKS, [*BLOCKS[1:], ("", "")], strict=True):
        if kind == "yaml":
            found.append((text, next_text if next_kind == "text" else ""))
    return found


@pytest.mark.parametrize(("text", "output"), policies_and_outputs())
def test_policy_on_the_page_has_the_output_on_the_page(text: str, output: str) -> None:
    assert "".join(f"{problem}\n" for problem in check_policy(text, "policy.yaml").problems) == output
