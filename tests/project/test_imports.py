# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that other tests do not import the experiments, and that the laboratory loads no daemon's modules.

Import contracts check only import statements of the product. This module checks the import statements of the
tests, and the module names in strings that contain program text.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
LABORATORY = TESTS.parent / "bench" / "mptcp_lab"
WITHOUT_EXPERIMENTS = sorted({each.relative_to(TESTS).parts[0] for each in TESTS.glob("*/**/*.py")} - {"bench"})
"""All directories with tests, except bench. New directories are included automatically."""
DAEMONS = re.compile(r"\bmptcp_(?:console|portal|proxy|throttler)\b")
"""Names of Python packages; the commands have hyphens instead."""


def imported_packages(source: str) -> set[str]:
    """Return the top-level packages that *source* imports anywhere."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(node.module or "")
    return {name.partition(".")[0] for name in found}


@pytest.mark.parametrize("component", WITHOUT_EXPERIMENTS)
def test_component_tests_do_not_import_the_experiments(component: str) -> None:
    # Files directly in tests/ are shared by all components.
    files = [*(TESTS / component).rglob("*.py"), *TESTS.glob("*.py")]
    assert len(files) > len(list(TESTS.glob("*.py")))
    texts = {str(file): file.read_text() for file in files}
    # A file without the word need not be parsed.
    assert [
        name for name, text in texts.items() if "mptcp_bench" in text and "mptcp_bench" in imported_packages(text)
    ] == []


def module_names_in_strings(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line number and the text of each string in *source* that contains the name of a daemon's package."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and DAEMONS.search(node.value):
            yield node.lineno, node.value


def test_laboratory_names_no_module_of_a_daemon() -> None:
    files = sorted(LABORATORY.rglob("*.py"))
    assert files
    assert [(file.name, *string) for file in files for string in module_names_in_strings(file.read_text())] == []


def test_import_contract_lists_all_judging_modules() -> None:
    contracts = tomllib.loads((TESTS.parent / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (contract,) = (each for each in contracts if each["name"] == "Judging modules neither measure nor draw")
    experiments = TESTS.parent / "bench" / "mptcp_bench" / "experiments"
    judging = {f"mptcp_bench.experiments.{file.stem}" for file in experiments.glob("*_judging.py")}
    assert judging - set(contract["source_modules"]) == set()
