"""Tests of the product and of the laboratory know nothing of the experiments."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
WITHOUT_EXPERIMENTS = sorted({each.relative_to(TESTS).parts[0] for each in TESTS.glob("*/**/*.py")} - {"bench"})
"""What has tests: what is added later is among them."""


def imported(source: str) -> set[str]:
    """Return the top-level packages that *source* imports, wherever it does."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(node.module or "")
    return {name.partition(".")[0] for name in found}


def test_imports_are_found_wherever_they_are() -> None:
    assert imported("import a.b as c, d\nfrom e.f import g\nfrom . import h\ndef i():\n    from j import k\n") == {
        "a", "d", "e", "j",
    }  # fmt: skip


@pytest.mark.parametrize("component", WITHOUT_EXPERIMENTS)
def test_no_test_of_this_component_imports_the_experiments(component: str) -> None:
    # What lies in tests/ itself is shared, and imported by these.
    files = [*(TESTS / component).rglob("*.py"), *TESTS.glob("*.py")]
    assert len(files) > len(list(TESTS.glob("*.py")))
    assert [str(file) for file in files if "mptcp_bench" in imported(file.read_text())] == []
