# SPDX-License-Identifier: GPL-2.0-or-later
"""Collects the warnings and errors that the daemons can log, from their source code.

Each message is a text with :data:`HOLE` in place of each value that is filled in. The text is followed to its source: a
local name, a constant, or an argument of callers in the same file. A call may also log the text of an exception of
:data:`REFUSALS`, or the result of a function in :data:`FOUND_BY`; the texts of these are collected, too.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).resolve().parents[2]
PACKAGES: Final = ("throttler", "console", "gateway", "portal", "proxy", "tunnel", "common")
BY_HAND: Final = {"cli", "commands", "doctor", "views", "replay", "feature_probe", "throttler_trial", "trial"}
"""Directories and files of commands that a person runs.

If a daemon logs something of these at its start, it is the text of an exception.
"""
HOLE: Final = "…"
LEVELS: Final = {"warning", "error", "exception", "critical"}
SAYING: Final = {"journal.say", "say", "self._say"}
"""Functions that take text and priority. ``log.log`` and ``syslog.syslog`` take them in the other order."""
REFUSALS: Final = {
    "AlreadyRunning",
    "InterfaceDownError",
    "KernelError",
    "PlanError",
    "ShimError",
    "Unusable",
}
OTHERS: Final = {"DocumentError", "OSError", "ValueError", "UnicodeError"}
"""Exceptions whose texts come from a file's lines or from the system, or have their own place on the page."""
FOUND_BY: Final = {
    "application.py:__init__": ("address_names.py:refresh",),
    "budgets.py:verify": ("bpf.py:check",),
    "listeners_watch.py:_tell": ("listeners_watch.py:_absent",),
    "pacing.py:verify": ("bpf.py:check",),
    "pacing.py:_set_those_that_differ": (),  # the text of a KernelError
    "observe.py:open": ("sysctl.py:mptcp_missing",),
    "path_manager.py:_verify": ("sysctl.py:check", "path_manager.py:_verify"),
    "reconcile.py:verify": (
        "reconcile.py:_differences",
        "egress.py:read",
        "htb.py:read",
        "nftables.py:check",
        "iptables.py:check",
    ),
    "reported.py:say": (),  # the text comes from its callers
    "daemon.py:_reload": (),  # mistakes in settings and policy, by file and line
    "supervisor.py:run": ("supervisor.py:obstacles",),
}
"""For each place that logs a text from elsewhere: the functions that return the text. Keys match the end of a path."""


Function = ast.FunctionDef | ast.AsyncFunctionDef


class Source:
    """One Python file."""

    def __init__(self, path: Path) -> None:
        self.name = str(path.relative_to(REPOSITORY))
        self.tree = ast.parse(path.read_text())
        self.constants = dict(_constants(self.tree))
        self.functions: dict[ast.AST, Function] = {}
        """Innermost enclosing function of each node."""
        self.calls: list[ast.Call] = []
        self._parts: set[ast.AST] = set()
        self._look(self.tree, None)

    def _look(self, node: ast.AST, function: Function | None) -> None:
        if isinstance(node, Function):
            function = node
        if function is not None:
            self.functions[node] = function
        if isinstance(node, ast.Call):
            self.calls.append(node)
        self._parts.update(_parts(node))
        for each in ast.iter_child_nodes(node):
            self._look(each, function)

    def is_part(self, node: ast.AST) -> bool:
        """Return whether *node* is a piece of a longer text, or a docstring."""
        return node in self._parts

    def place(self, node: ast.AST) -> str:
        function = self.functions.get(node)
        return f"{self.name}:{'' if function is None else function.name}"

    def texts(self, node: ast.expr, seen: tuple[str, ...] = ()) -> set[str]:
        """Return the possible texts of *node*."""
        match node:
            case ast.Constant(str(text)):
                return {text}
            case ast.JoinedStr(parts) | ast.Tuple(parts):
                return {"".join(each) for each in product(*(self.texts(part, seen) for part in parts))}
            case ast.FormattedValue(ast.Name() as value, -1, None):
                return self.texts(value, seen)
            case ast.BinOp(left, ast.Add(), right):
                return {"".join(each) for each in product(self.texts(left, seen), self.texts(right, seen))}
            case ast.IfExp(_, one, other):
                return self.texts(one, seen) | self.texts(other, seen)
            case ast.Name(name) if name not in seen:
                return self._named(node, name, (*seen, name))
            case _:
                return {HOLE}

    def _named(self, node: ast.Name, name: str, seen: tuple[str, ...]) -> set[str]:
        function = self.functions.get(node)
        if function is None or name.isupper():
            return {self.constants.get(name) or constants().get(name, HOLE)}
        values = [
            each.value
            for each in ast.walk(function)
            if isinstance(each, ast.Assign)
            and any(isinstance(target, ast.Name) and target.id == name for target in each.targets)
        ]
        parameters = [each.arg for each in function.args.args if each.arg != "self"]
        if not values and name in parameters:
            position = parameters.index(name)
            values = [
                each.args[position]
                for each in self.calls
                if _callee(each).rpartition(".")[2] == function.name and len(each.args) > position
            ]
        return {text for each in values for text in self.texts(each, seen)} or {HOLE}


def _parts(node: ast.AST) -> Iterable[ast.AST]:
    match node:
        case ast.JoinedStr() | ast.Expr():  # an expression statement is a docstring
            return ast.iter_child_nodes(node)
        # the first argument is the problem; then come the place and the allowed values
        case ast.Call(ast.Name("Problem"), arguments):
            return arguments[1:]
        case ast.BoolOp(_, values):
            return values
    return ()


def _constants(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for each in tree.body:
        match each:
            case ast.Assign([ast.Name(name)], ast.Constant(str(value))):
                yield name, value
            case ast.AnnAssign(ast.Name(name), _, ast.Constant(str(value))):
                yield name, value
            case ast.Assign([ast.Name(name)], ast.JoinedStr(parts)):
                yield name, "".join(str(part.value) if isinstance(part, ast.Constant) else HOLE for part in parts)


@cache
def sources() -> tuple[Source, ...]:
    paths = sorted(path for package in PACKAGES for path in (REPOSITORY / package).rglob("*.py"))
    return tuple(Source(each) for each in paths)


@cache
def constants() -> dict[str, str]:
    return {name: value for source in sources() for name, value in source.constants.items()}


def _callee(call: ast.Call) -> str:
    return ast.unparse(call.func)


def _is_by_hand(source: Source) -> bool:
    return bool(BY_HAND & set(Path(source.name).with_suffix("").parts))


def _is_loud(source: Source, level: ast.expr) -> bool:
    """Return whether *level*, a logging level or a syslog priority, can be a warning or an error."""
    known = {ast.unparse(level)}
    function = source.functions.get(level)
    if isinstance(level, ast.Name) and function is not None:
        known |= {
            ast.unparse(each.value)
            for each in ast.walk(function)
            if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == level.id
        }
        if known == {level.id}:
            return not level.id.isupper() or level.id in {"WARNING", "ERROR"}
    return any(re.search("WARNING|ERR", each) for each in known)


def _logged(source: Source) -> Iterator[ast.expr]:
    """Yield the text argument of each call that logs a warning or an error."""
    for call in source.calls:
        callee, arguments = _callee(call), call.args
        owner, _, name = callee.rpartition(".")
        if owner == "log" and name in LEVELS:
            yield arguments[0]
        elif callee in {"log.log", "syslog.syslog"} and _is_loud(source, arguments[0]):
            yield arguments[1]
        elif callee in SAYING and len(arguments) > 1 and _is_loud(source, arguments[-1]):
            yield arguments[-2]


def _shown(text: str) -> str:
    """Return *text*, a format or a literal, as the page shows it."""
    if text.startswith(";"):  # this follows a text that may be empty; then nothing is logged
        return ""
    text = re.sub(r"%0?[\d.]*[sdgfx]", HOLE, text)
    return re.sub(rf"^(?:(?:mptcp-\w+: )+|{HOLE}: (?=\w))", "", text.partition("\n")[0])


def says_something(text: str) -> bool:
    return len(re.findall(r"[A-Za-z]", text)) > 3


@cache
def messages() -> dict[str, str]:
    """Return the messages, each with the place where it is logged or written.

    :raises AssertionError: a call logs a text from elsewhere, and FOUND_BY does not list it
    """
    found: dict[str, str] = {}
    for source in sources():
        if _is_by_hand(source):
            continue
        for node in _logged(source):
            texts = {_shown(text) for text in source.texts(node)}
            found |= {text: source.place(node) for text in texts if says_something(text)}
            if any(HOLE in text and not says_something(text) for text in texts) or _known(source.place(node)):
                found |= dict(_handed_on(source, node))
        for call in source.calls:
            if _callee(call).rpartition(".")[2] in REFUSALS and call.args:
                texts = {_shown(text) for text in source.texts(call.args[0])}
                found |= {text: source.place(call) for text in texts if says_something(text)}
    return found


def _known(place: str) -> list[tuple[str, ...]]:
    return [functions for end, functions in FOUND_BY.items() if place.endswith(f"/{end}")]


def _handed_on(source: Source, node: ast.expr) -> Iterator[tuple[str, str]]:
    place = source.place(node)
    known = _known(place)
    assert known or _of_an_exception(source, node), (
        f"{place}: which function writes the text that is logged there? See FOUND_BY"
    )
    for wanted in (each for functions in known for each in functions):
        yield from _written_in(wanted)


def _of_an_exception(source: Source, node: ast.expr) -> bool:
    """Return whether the function of *node* catches only known exceptions, and thus logs the text of one of these."""
    function = source.functions.get(node)
    kinds = {
        ast.unparse(kind).rpartition(".")[2]
        for each in ast.walk(function or source.tree)
        if isinstance(each, ast.ExceptHandler) and each.type is not None
        for kind in (each.type.elts if isinstance(each.type, ast.Tuple) else [each.type])
    }
    return bool(kinds) and kinds <= REFUSALS | OTHERS


def _written_in(wanted: str) -> Iterator[tuple[str, str]]:
    end, _, name = wanted.partition(":")
    for source in (each for each in sources() if f"/{each.name}".endswith(f"/{end}")):
        for node, function in source.functions.items():
            if function.name == name and isinstance(node, ast.Constant | ast.JoinedStr) and not source.is_part(node):
                for text in map(_shown, source.texts(node)):
                    if " " in text and says_something(text):
                        yield text, source.place(node)


def main(texts: Iterable[tuple[str, str]]) -> None:
    for text, place in sorted(texts):
        print(f"{text}\t{place}")


if __name__ == "__main__":
    main(messages().items())
