# SPDX-License-Identifier: GPL-2.0-or-later
"""Collects the warnings and errors that the daemons can log, from their source code.

Each message is a text with :data:`HOLE` in place of each inserted value. The program traces the text to its source: a
local name, a constant, or an argument of callers in the same file. A call may also log the text of an exception of
:data:`REFUSALS`, or the result of a function in :data:`TEXT_SOURCES`; the program also collects these texts.
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
COMMAND_MODULES: Final = {"cli", "commands", "doctor", "views", "replay", "feature_probe", "throttler_trial", "trial"}
"""Directories and modules of commands that users run. A daemon logs their texts only as texts of exceptions."""
HOLE: Final = "…"
LEVELS: Final = {"warning", "error", "exception", "critical"}
LOG_FUNCTIONS: Final = {"journal.say", "say", "self._say"}
"""Functions with the parameters text and priority. ``log.log`` and ``syslog.syslog`` have the reverse order."""
REFUSALS: Final = {
    "AlreadyRunning",
    "InterfaceDownError",
    "KernelError",
    "PlanError",
    "ShimError",
    "Unusable",
}
OTHER_EXCEPTIONS: Final = {"DocumentError", "OSError", "ValueError", "UnicodeError"}
"""Exceptions whose texts come from a file's lines or from the system, or are in a section of their own on the page."""
TEXT_SOURCES: Final = {
    "application.py:__init__": ("address_names.py:refresh",),
    "budgets.py:verify": ("bpf.py:check",),
    "listeners_watch.py:_log_changes": ("listeners_watch.py:_missing_listeners",),
    "pacing.py:verify": ("bpf.py:check",),
    "pacing.py:_write_outdated": (),  # the text of a KernelError
    "pacing.py:set_clients": (),  # the same
    "observe.py:open": ("sysctl.py:mptcp_missing",),
    "path_manager.py:_verify": ("sysctl.py:check", "path_manager.py:_verify"),
    "reconcile.py:verify": (
        "reconcile.py:_differences",
        "egress.py:read",
        "htb.py:read",
        "nftables.py:check",
        "iptables.py:check",
    ),
    "reporter.py:say": (),  # the text comes from its callers
    "daemon.py:_reload": (),  # mistakes in settings and policy, by file and line
    "supervisor.py:run": ("supervisor.py:start_problems",),
}
"""For each place that logs the text of another function, the functions that return it. Keys match the end of a path."""


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
        self._index(self.tree, None)

    def _index(self, node: ast.AST, function: Function | None) -> None:
        if isinstance(node, Function):
            function = node
        if function is not None:
            self.functions[node] = function
        if isinstance(node, ast.Call):
            self.calls.append(node)
        self._parts.update(_parts(node))
        for each in ast.iter_child_nodes(node):
            self._index(each, function)

    def is_part(self, node: ast.AST) -> bool:
        """Return whether *node* is a part of a longer text, or a docstring."""
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
            case ast.IfExp(_, first, second):
                return self.texts(first, seen) | self.texts(second, seen)
            case ast.Name(name) if name not in seen:
                return self._texts_of_name(node, name, (*seen, name))
            case _:
                return {HOLE}

    def _texts_of_name(self, node: ast.Name, name: str, seen: tuple[str, ...]) -> set[str]:
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
        case ast.JoinedStr() | ast.Expr():  # an expression statement may be a docstring
            return ast.iter_child_nodes(node)
        # The first argument is the problem; the other arguments are its position and the allowed values.
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


def _belongs_to_command(source: Source) -> bool:
    return bool(COMMAND_MODULES & set(Path(source.name).with_suffix("").parts))


def _is_warning(source: Source, level: ast.expr) -> bool:
    """Return whether *level*, a logging level or a syslog priority, can be a warning or an error."""
    levels = {ast.unparse(level)}
    function = source.functions.get(level)
    if isinstance(level, ast.Name) and function is not None:
        levels |= {
            ast.unparse(each.value)
            for each in ast.walk(function)
            if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == level.id
        }
        if levels == {level.id}:
            return not level.id.isupper() or level.id in {"WARNING", "ERROR"}
    return any(re.search("WARNING|ERR", each) for each in levels)


def _logged_texts(source: Source) -> Iterator[ast.expr]:
    """Yield the text argument of each call that logs a warning or an error."""
    for call in source.calls:
        callee, arguments = _callee(call), call.args
        receiver, _, name = callee.rpartition(".")
        if receiver == "log" and name in LEVELS:
            yield arguments[0]
        elif callee in {"log.log", "syslog.syslog"} and _is_warning(source, arguments[0]):
            yield arguments[1]
        elif callee in LOG_FUNCTIONS and len(arguments) > 1 and _is_warning(source, arguments[-1]):
            yield arguments[-2]


def _page_form(text: str) -> str:
    """Return *text*, a format or a literal, as the page shows it."""
    if text.startswith(";"):  # the text continues another one; if that is empty, nothing is logged
        return ""
    text = re.sub(r"%0?[\d.]*[sdgfx]", HOLE, text)
    return re.sub(rf"^(?:(?:mptcp-\w+: )+|{HOLE}: (?=\w))", "", text.partition("\n")[0])


def has_words(text: str) -> bool:
    return len(re.findall(r"[A-Za-z]", text)) > 3


@cache
def messages() -> dict[str, str]:
    """Return the messages, each with the place where it is logged or written.

    :raises AssertionError: a call logs the text of another function, and TEXT_SOURCES does not list that function
    """
    found: dict[str, str] = {}
    for source in sources():
        if _belongs_to_command(source):
            continue
        for node in _logged_texts(source):
            texts = {_page_form(text) for text in source.texts(node)}
            found |= {text: source.place(node) for text in texts if has_words(text)}
            if any(HOLE in text and not has_words(text) for text in texts) or _text_sources(source.place(node)):
                found |= dict(_texts_of_sources(source, node))
        for call in source.calls:
            if _callee(call).rpartition(".")[2] in REFUSALS and call.args:
                texts = {_page_form(text) for text in source.texts(call.args[0])}
                found |= {text: source.place(call) for text in texts if has_words(text)}
    return found


def _text_sources(place: str) -> list[tuple[str, ...]]:
    return [functions for end, functions in TEXT_SOURCES.items() if place.endswith(f"/{end}")]


def _texts_of_sources(source: Source, node: ast.expr) -> Iterator[tuple[str, str]]:
    place = source.place(node)
    listed = _text_sources(place)
    assert listed or _logs_an_exception(source, node), (
        f"{place}: add the function that returns the logged text to TEXT_SOURCES"
    )
    for function in (each for functions in listed for each in functions):
        yield from _texts_of_function(function)


def _logs_an_exception(source: Source, node: ast.expr) -> bool:
    """Return whether the function of *node* catches only known exceptions, and thus logs the text of one of these."""
    function = source.functions.get(node)
    kinds = {
        ast.unparse(kind).rpartition(".")[2]
        for each in ast.walk(function or source.tree)
        if isinstance(each, ast.ExceptHandler) and each.type is not None
        for kind in (each.type.elts if isinstance(each.type, ast.Tuple) else [each.type])
    }
    return bool(kinds) and kinds <= REFUSALS | OTHER_EXCEPTIONS


def _texts_of_function(place: str) -> Iterator[tuple[str, str]]:
    end, _, name = place.partition(":")
    for source in (each for each in sources() if f"/{each.name}".endswith(f"/{end}")):
        for node, function in source.functions.items():
            if function.name == name and isinstance(node, ast.Constant | ast.JoinedStr) and not source.is_part(node):
                for text in map(_page_form, source.texts(node)):
                    if " " in text and has_words(text):
                        yield text, source.place(node)


def main(texts: Iterable[tuple[str, str]]) -> None:
    for text, place in sorted(texts):
        print(f"{text}\t{place}")


if __name__ == "__main__":
    main(messages().items())
