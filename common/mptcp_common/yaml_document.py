# SPDX-License-Identifier: GPL-2.0-or-later
"""Converts YAML 1.2 text to plain dicts, lists and scalars, and records the position of each.

ruamel.yaml parses the text into nodes. This module converts the nodes, because only they have line numbers, and because
every repeated key must be reported, not only the first. Rules:

- YAML 1.2, core schema: ``on`` and ``12:30`` are text, ``010`` is ten. A ``%YAML 1.1`` line is refused.
- Anchors, aliases and merge keys (``<<``) work. Their expansion is bounded, like size and depth.
- A key without a value is :data:`~.problems.NOTHING`, so that it differs from a missing key.
- Keys are always text: a path may have the name ``on`` or ``5``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, StringMark, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError

from mptcp_common.problems import NOTHING, DocumentError, KeyPath, Nothing, Problem, key_text, shown

MAX_TEXT: Final = 128 * 1024
"""Maximum number of characters. A hundred rules with comments take about 30,000."""
_MAX_VALUES: Final = 50_000
_MAX_DEPTH: Final = 32
_MAX_INTEGER_DIGITS: Final = 40

_TAG: Final = "tag:yaml.org,2002:"
_TEXT_TAGS: Final = {_TAG + "str", _TAG + "timestamp", _TAG + "value"}
_OTHER_VERSION = re.compile(r"^%YAML[ \t]+(?!1\.2\b)(\S+)", re.MULTILINE)

_PLAIN_MESSAGES: Final = (
    (r"found character '\\t' that cannot start any token", "a tab cannot indent a line; use spaces"),
    (
        r"found character '(.)' that cannot start any token",
        r'text that starts with "\1" must be in quotes',
    ),
    (r"mapping values are not allowed here", 'a second ": " on the line, or a line with wrong indentation'),
    (r"found undefined alias '(.*)'", r'"*\1" refers to an anchor "&\1" that is not defined above it'),
    (r"but found another document", 'only one document is allowed; remove the second "---"'),
    (r"found unexpected end of stream", "the text ends in the middle of a value; is a quote left open?"),
    (
        r"expected ',' or '([\]}])', but got .*",
        r'a list or mapping in brackets is not closed; a "," or "\1" is missing',
    ),
    (r"expected <block end>, but found .*", "the indentation differs from that of the lines it belongs to"),
    (r"could not find expected ':'", 'a ":" is missing after the key'),
)
"""Patterns of ruamel.yaml's messages, and replacements that can be understood without the YAML specification."""


def text_of(path: Path) -> str:
    """Return the text of the file *path*; raise DocumentError if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        reason = f"cannot be read: {error.strerror or error}"
        raise DocumentError([Problem(str(path), 0, 0, "", None, reason)]) from error
    except UnicodeDecodeError as error:
        reason = f"is not UTF-8 text: byte {error.start} cannot be decoded"
        raise DocumentError([Problem(str(path), 0, 0, "", None, reason)]) from error


@dataclass(frozen=True, slots=True)
class Position:
    """Line and column, both counted from 1."""

    line: int
    column: int


START: Final = Position(1, 1)


@dataclass(frozen=True, slots=True)
class Document:
    """The data of a text, with the positions of keys and values. ``data`` is None if the whole text is unreadable."""

    source: str
    data: dict[str, object] | None
    problems: tuple[Problem, ...] = ()
    keys: Mapping[KeyPath, Position] = field(default_factory=dict)
    """Position of each key; for an item of a list, the position of the item."""
    values: Mapping[KeyPath, Position] = field(default_factory=dict)
    unread: frozenset[KeyPath] = frozenset()
    """Paths of values that could not be read; ``problems`` has the reasons, and ``data`` has NOTHING there."""

    def value_position(self, path: KeyPath) -> Position:
        """Return the start of the value at *path*, or of the nearest enclosing value."""
        while path and path not in self.values:
            path = path[:-1]
        return self.values.get(path, START)

    def key_position(self, path: KeyPath) -> Position:
        """Return the start of the key at *path*, or of the nearest enclosing value."""
        return self.keys.get(path) or self.value_position(path)


def parse_document(text: str, source: str) -> Document:
    """Return the mapping in *text*, with all problems found. *source*: name of the file, for messages."""
    try:
        node = _compose(text)
    except _Unreadable as reason:
        position = reason.position
        return Document(source, None, (Problem(source, position.line, position.column, "", None, reason.message),))
    converter = _Converter(source)
    data = converter.root(node)
    return Document(
        source, data, tuple(converter.problems), converter.keys, converter.values, frozenset(converter.unread)
    )


class _Unreadable(Exception):
    """The text is not one YAML mapping."""

    def __init__(self, message: str, position: Position = START) -> None:
        super().__init__(message)
        self.message = message
        self.position = position


def _compose(text: str) -> MappingNode:
    """Return the root node of *text*, or raise :class:`_Unreadable`."""
    if len(text) > MAX_TEXT:
        raise _Unreadable(f"{len(text)} characters are too many; at most {MAX_TEXT} are read")
    if version_line := _OTHER_VERSION.search(text):
        line = text.count("\n", 0, version_line.start()) + 1
        advice = "remove this line (YAML 1.2 is used)"
        raise _Unreadable(f"YAML {version_line[1]} is not supported; {advice}", Position(line, 1))
    yaml = YAML(typ="safe", pure=True)
    yaml.composer.warn_double_anchors = False  # YAML allows it (1.2.2, 3.2.2.2): the nearest anchor above counts
    try:
        node = yaml.compose(text)
    except MarkedYAMLError as error:
        position = _position(error.problem_mark or error.context_mark)
        raise _Unreadable(f"not valid YAML: {_plain_words(error)}", position) from None
    except ReaderError as error:
        before = text[: error.position]
        position = Position(before.count("\n") + 1, error.position - before.rfind("\n"))
        name = f"U+{ord(text[error.position]):04X}"
        raise _Unreadable(f"not valid YAML: a control character ({name})", position) from None
    except OverflowError:
        raise _Unreadable('not valid YAML: a "\\U" in quotes names no character; 0010FFFF is the highest') from None
    except (YAMLError, ValueError) as error:
        raise _Unreadable(f"not valid YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise _Unreadable(f"not valid YAML: nested too deeply; at most {_MAX_DEPTH} levels are read") from None
    if node is None:
        raise _Unreadable("the file is empty")
    if not isinstance(node, MappingNode):
        message = 'not a mapping; the file must consist of "key: value" lines'
        raise _Unreadable(message, _position(node.start_mark))
    return node


def _position(mark: StringMark | None) -> Position:
    return START if mark is None else Position(mark.line + 1, mark.column + 1)


def _plain_words(error: MarkedYAMLError) -> str:
    problem = error.problem or error.context or "it cannot be read"
    for pattern, words in _PLAIN_MESSAGES:
        if found := re.fullmatch(pattern, problem):
            return found.expand(words)
    return " ".join(problem.split())


class _TooManyValues(Exception):
    """Aliases expand to more values than the limit."""


class _Converter:
    """Converts nodes to plain values, and records positions and problems."""

    def __init__(self, source: str) -> None:
        self.problems: list[Problem] = []
        self.keys: dict[KeyPath, Position] = {}
        self.values: dict[KeyPath, Position] = {}
        self.unread: set[KeyPath] = set()
        self._source = source
        self._value_count = 0
        self._enclosing: list[int] = []

    def root(self, node: MappingNode) -> dict[str, object] | None:
        """Return the root mapping, or None if it exceeds the limit."""
        self.values[()] = _position(node.start_mark)
        try:
            return self._mapping(node, ())
        except _TooManyValues:
            limit = f"at most {_MAX_VALUES} are read"
            self.problems.clear()
            self._report(node, (), None, f"too many values with all aliases expanded; {limit}")
            return None

    def _report(self, node: Node, path: KeyPath, value: str | None, message: str) -> None:
        position = _position(node.start_mark)
        self.problems.append(Problem(self._source, position.line, position.column, key_text(path), value, message))

    def _count(self) -> None:
        self._value_count += 1
        if self._value_count > _MAX_VALUES:
            raise _TooManyValues

    def _value(self, node: Node, path: KeyPath, key_position: Position) -> object:
        self._count()
        self.keys[path] = key_position
        # An empty value has the position of the token after it.
        empty = isinstance(node, ScalarNode) and node.value == "" and node.style is None
        self.values[path] = key_position if empty else _position(node.start_mark)
        if isinstance(node, ScalarNode):
            return self._scalar(node, path)
        if id(node) in self._enclosing:
            return self._refuse(node, path, None, "an alias refers to a value that it is itself part of")
        if len(self._enclosing) >= _MAX_DEPTH:
            return self._refuse(node, path, None, f"nested too deeply; at most {_MAX_DEPTH} levels are read")
        if isinstance(node, SequenceNode) and node.tag == _TAG + "seq":
            self._enclosing.append(id(node))
            items = [
                self._value(item, (*path, index), _position(item.start_mark)) for index, item in enumerate(node.value)
            ]
            self._enclosing.pop()
            return items
        if isinstance(node, MappingNode) and node.tag == _TAG + "map":
            return self._mapping(node, path)
        return self._refuse_tag(node, path)

    def _mapping(self, node: MappingNode, path: KeyPath) -> dict[str, object]:
        self._enclosing.append(id(node))
        result: dict[str, object] = {}
        for key, value in self._pairs(node, path):
            if key.value not in result:
                result[key.value] = self._value(value, (*path, key.value), _position(key.start_mark))
        self._enclosing.pop()
        return result

    def _pairs(self, node: MappingNode, path: KeyPath) -> Iterator[tuple[ScalarNode, Node]]:
        """Yield the keys of *node*, then the keys merged into it; of a repeated key, the first counts."""
        own_lines: dict[str, int] = {}
        merged: list[Node] = []
        for key, value in node.value:
            self._count()
            if not isinstance(key, ScalarNode):
                self._report(key, path, None, "a key must be plain text")
            elif key.tag == _TAG + "merge":
                merged += value.value if isinstance(value, SequenceNode) else [value]
            elif key.value in own_lines:
                self._report(
                    key,
                    (*path, key.value),
                    None,
                    f"given twice; the first is on line {own_lines[key.value]}, keep one",
                )
            else:
                own_lines[key.value] = key.start_mark.line + 1
                yield key, value
        for source in merged:
            if not isinstance(source, MappingNode):
                self._report(source, path, None, '"<<" takes an alias of a mapping, or a list of such aliases')
            elif id(source) in self._enclosing:
                self._report(source, path, None, "an alias refers to a value that it is itself part of")
            elif len(self._enclosing) >= _MAX_DEPTH:
                self._report(source, path, None, f"nested too deeply; at most {_MAX_DEPTH} levels are read")
            else:
                self._enclosing.append(id(source))
                yield from self._pairs(source, path)
                self._enclosing.pop()

    def _scalar(self, node: ScalarNode, path: KeyPath) -> object:
        if node.tag in _TEXT_TAGS:
            return node.value
        if node.tag == _TAG + "null":
            return NOTHING
        reader = _READERS.get(str(node.tag))
        if reader is None:
            return self._refuse_tag(node, path)
        try:
            return reader(node.value)
        except ValueError:
            return node.value  # a number that is too long, "!!int x" or "!!bool yes": no key accepts this text

    def _refuse(self, node: Node, path: KeyPath, value: str | None, message: str) -> Nothing:
        self._report(node, path, value, message)
        self.unread.add(path)
        return NOTHING

    def _refuse_tag(self, node: Node, path: KeyPath) -> Nothing:
        tag = shown(str(node.tag).replace(_TAG, "!!"))
        return self._refuse(node, path, tag, f"the YAML tag {tag} is not supported; remove it")


def _integer(text: str) -> int:
    digits = text.replace("_", "").lower()
    if len(digits) > _MAX_INTEGER_DIGITS:
        raise ValueError("no key accepts such a number")
    for prefix, base in (("0x", 16), ("0o", 8), ("0b", 2)):
        if digits.lstrip("+-").startswith(prefix):
            return int(digits.replace(prefix, "", 1), base)
    return int(digits)


def _number(text: str) -> float:
    return float(text.replace("_", "").lower().replace(".inf", "inf").replace(".nan", "nan"))


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("not a boolean of YAML 1.2")  # "!!bool yes"
    return text.lower() == "true"


_READERS: Final[Mapping[str, Callable[[str], object]]] = {
    _TAG + "int": _integer,
    _TAG + "float": _number,
    _TAG + "bool": _boolean,
}
