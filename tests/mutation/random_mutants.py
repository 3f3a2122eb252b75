# SPDX-License-Identifier: GPL-2.0-or-later
"""Selects random mutants of the product's pure Python code with a fixed seed, and determines which tests kill them.

    .venv/bin/python tests/mutation/random_mutants.py [--number 100] [--seed 46]

The modules are those of the import contract "The pure core does no I/O". cosmic-ray creates the mutants. The program
runs each mutant in a copy of the checkout, with the tests that cover the mutant's line: first with tests of the gate,
and then, if the mutant survived, with tests of ``--all``. It prints a line for each mutant, and at the end a JSON
object with the number of mutants that each set of tests killed, and with the mutants that survived.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from queue import Queue
from threading import Lock
from typing import Any

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names
from coverage import CoverageData

CHECKOUT = Path(__file__).parents[2]
COMPONENTS = ("common", "console", "portal", "proxy", "throttler")
TEST_DIRECTORIES = tuple(f"tests/{component}/unit" for component in COMPONENTS)
PURE = "The pure core does no I/O"
OPERATORS_WITH_NAMES = {"core/VariableInserter", "core/VariableReplacer"}
"""Operators that need names of variables."""
PARSING = Lock()
"""A thread holds this lock while it parses code. In Python 3.11, all threads share the recursion counter of ast."""
MAX_SECONDS = 900
"""Time limit in seconds for the tests of a mutant. After it, the mutant counts as killed."""


@dataclass(frozen=True)
class Mutant:
    module: str
    line: int
    operator: str
    occurrence: int


def pure_modules() -> list[Path]:
    """Return the files of the pure core, as the contract in pyproject.toml lists them."""
    tools = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["tool"]
    (contract,) = (each for each in tools["importlinter"]["contracts"] if each["name"] == PURE)
    impure = {line.partition(" -> ")[0] for line in contract["ignore_imports"]}
    found = []
    for name in contract["source_modules"]:
        location = CHECKOUT / name.split("_")[1].split(".")[0] / name.replace(".", "/")
        files = sorted(location.rglob("*.py")) if location.is_dir() else [location.with_suffix(".py")]
        found += [file for file in files if module_name(file) not in impure]
    return found


def module_name(file: Path) -> str:
    return ".".join(file.relative_to(CHECKOUT).with_suffix("").parts[1:])


def without_annotations(source: str) -> str:
    """Return the syntax tree of *source* as text, without annotations, which are never evaluated."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        for name in ("annotation", "returns"):
            if isinstance(getattr(node, name, None), ast.expr):
                setattr(node, name, ast.Constant(None))
    return ast.dump(tree)


def mutants_of(file: Path, covered: set[int]) -> Iterator[Mutant]:
    """Yield the mutants of *file* in lines that are *covered*."""
    nodes = list(ast_nodes(get_ast(file.read_text())))
    for name in sorted(set(operator_names()) - OPERATORS_WITH_NAMES):
        operator = get_operator(name)()
        places = [location for node in nodes for location in operator.mutation_positions(node)]
        for occurrence, ((line, _), _) in enumerate(places):
            if line in covered:
                yield Mutant(str(file.relative_to(CHECKOUT)), line, name, occurrence)


def mutated_source(mutant: Mutant, source: str) -> str | None:
    """Return *source* with *mutant* applied, or None if the result behaves like *source* or is not valid Python."""
    with PARSING:
        text: str | None = mutate_code(source, get_operator(mutant.operator)(), mutant.occurrence)
        try:
            return None if text is None or without_annotations(text) == without_annotations(source) else text
        except SyntaxError:
            return None


def change_text(mutant: Mutant) -> str:
    """Return the line of *mutant* before and after the change."""
    source = (CHECKOUT / mutant.module).read_text()
    before, after = (
        text.splitlines()[mutant.line - 1].strip() for text in (source, mutated_source(mutant, source) or source)
    )
    return f"{before} -> {after}"


def select_mutants(found: list[Mutant], number: int, seed: int) -> list[Mutant]:
    """Return *number* random mutants of *found* that change the behaviour."""
    order = random.Random(seed).sample(found, len(found))
    effective_mutants = (
        each for each in order if mutated_source(each, (CHECKOUT / each.module).read_text()) is not None
    )
    return list(islice(effective_mutants, number))


def copy_checkout(directory: Path) -> Path:
    """Copy the files of the checkout that git does not ignore, with uncommitted changes. Return the copy."""
    completed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=CHECKOUT, capture_output=True, check=True
    )
    for name in completed.stdout.decode().splitlines():
        if (CHECKOUT / name).is_file():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(CHECKOUT / name, directory / name)
    return directory


def pytest(copy: Path, *arguments: str, timeout: float | None = None) -> int:
    """Run pytest in *copy* with the sources of *copy*. Return the exit status."""
    path = os.pathsep.join(str(copy / each) for each in (*COMPONENTS, "bench"))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    with (copy / "pytest.log").open("w") as log:
        return subprocess.run(
            command, cwd=copy, env=environment, stdout=log, stderr=log, check=False, timeout=timeout
        ).returncode


def tests_by_line(copy: Path) -> dict[str, dict[int, set[str]]]:
    """Return the tests, including the nightly ones, that run each line of each file."""
    sources = (f"--cov={copy / component}" for component in COMPONENTS)
    # Run all tests, with the gate's number of examples. Tests of memory use may fail, because coverage uses memory.
    chosen = ("-m", "nightly or not nightly", "-n", str(os.cpu_count()))
    pytest(copy, *chosen, *sources, "--cov-context=test", "--cov-report=", *TEST_DIRECTORIES)
    data = CoverageData(str(copy / ".coverage"))
    data.read()
    return {
        str(Path(file).relative_to(copy)): {
            line: {each.partition("|")[0] for each in contexts if each}
            for line, contexts in data.contexts_by_lineno(file).items()
        }
        for file in data.measured_files()
    }


def gate_tests(copy: Path) -> set[str]:
    """Return the tests of the gate. Raise RuntimeError if one fails without a mutant."""
    if pytest(copy, "-n", str(os.cpu_count()), *TEST_DIRECTORIES) != 0:
        raise RuntimeError(f"tests fail without a mutant:\n{(copy / 'pytest.log').read_text()[-4000:]}")
    pytest(copy, "--collect-only", *TEST_DIRECTORIES)
    return {line for line in (copy / "pytest.log").read_text().splitlines() if "::" in line}


def is_killed(copy: Path, mutant: Mutant, tests: list[str], *options: str) -> bool:
    """Apply *mutant* in *copy*, and run *tests* in this order. Return whether a test fails."""
    if not tests:
        return False
    file = copy / mutant.module
    source = file.read_text()
    try:
        file.write_text(mutated_source(mutant, source) or source)
        return pytest(copy, "-x", *options, *tests, timeout=MAX_SECONDS) != 0
    except subprocess.TimeoutExpired:
        return True
    finally:
        file.write_text(source)


def run_mutants(number: int, seed: int) -> dict[str, Any]:
    """Test *number* mutants. Return how many of them the gate and all tests killed, and which mutants survived."""
    with tempfile.TemporaryDirectory() as parent:
        copies: Queue[Path] = Queue()
        for each in range(os.cpu_count() or 1):
            copies.put(copy_checkout(Path(parent) / str(each)))
        first = copies.queue[0]
        tests, gate = tests_by_line(first), gate_tests(first)
        found = [
            mutant
            for file in pure_modules()
            for mutant in mutants_of(file, set(tests.get(str(file.relative_to(CHECKOUT)), ())))
        ]
        chosen = select_mutants(found, number, seed)
        line_counts = Counter(test for of_lines in tests.values() for of_line in of_lines.values() for test in of_line)

        def killing_set(mutant: Mutant) -> str:
            """Return the name of the smallest set of tests that kills *mutant*."""
            copy, of_lines = copies.get(), tests[mutant.module]
            # A line that runs at import counts as covered by all tests of its module. Tests that run few other lines
            # are run first.
            candidates = sorted(of_lines[mutant.line] or set().union(*of_lines.values()))
            candidates.sort(key=line_counts.__getitem__)
            try:
                if is_killed(copy, mutant, [test for test in candidates if test in gate]):
                    return "gate"
                return "all" if is_killed(copy, mutant, candidates, "--all") else "none"
            finally:
                copies.put(copy)

        by_set: dict[str, list[Mutant]] = defaultdict(list)
        with ThreadPoolExecutor(copies.qsize()) as pool:
            for mutant, killed in zip(chosen, pool.map(killing_set, chosen), strict=True):
                by_set[killed].append(mutant)
                print(f"{killed:5} {mutant.module}:{mutant.line} {mutant.operator} {change_text(mutant)}", flush=True)
    return {
        "mutants": number,
        "of": len(found),
        "seed": seed,
        "gate": len(by_set["gate"]),
        "all": len(by_set["gate"]) + len(by_set["all"]),
        "survivors of the gate": [
            {**asdict(each), "change": change_text(each)} for each in (*by_set["all"], *by_set["none"])
        ],
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--number", type=int, default=100)
    parser.add_argument("--seed", type=int, default=46)
    options = parser.parse_args(arguments)
    print(json.dumps(run_mutants(options.number, options.seed), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
