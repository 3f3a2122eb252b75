# SPDX-License-Identifier: GPL-2.0-or-later
"""Checks a document against a pydantic model: returns the section, or readable messages for all problems.

pydantic gives the path and kind of an error; the document gives its line, and the model gives the allowed keys.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, TypeVar, Union, get_args, get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from mptcp_common.fields import Section
from mptcp_common.problems import (
    NOTHING,
    DocumentError,
    KeyPath,
    Problem,
    did_you_mean,
    in_order,
    key_text,
    nearest,
    shown,
)
from mptcp_common.yaml_document import Document, Position, parse_document

S = TypeVar("S", bound=Section)

_SENTENCES = {
    "model_type": '{} is not a mapping; write "key: value" lines',
    "dict_type": '{} is not a mapping; write "key: value" lines',
    "list_type": "{0} is not a list; write [{0}]",
    "bool_type": "{} is not allowed; write true or false",
}
"""Messages for operators, by pydantic's kinds of error. A ValueError brings its own message."""


def load(
    model: type[S], text: str, source: str, *checks: Callable[[Document], Iterable[Problem]]
) -> tuple[S, Document]:
    """Return an instance of *model* from *text*, and the document. Raises DocumentError with all problems, also those
    that *checks* find. *source*: name of the file, for messages."""
    document = parse_document(text, source)
    section, found = validate(model, document)
    problems = [*found, *(problem for check in checks for problem in check(document))]
    if section is None or problems:
        raise DocumentError(problems)
    return section, document


def validate(model: type[S], document: Document) -> tuple[S | None, tuple[Problem, ...]]:
    """Return an instance of *model* and no problems; or None and all problems, including those of the document itself.

    A readable document with its own problems (for example a repeated key) is still checked completely.
    """
    if document.data is None:
        return None, document.problems
    try:
        section = model.model_validate(document.data)
    except ValidationError as failure:
        errors = failure.errors(include_url=False)
        intended = {_intended_key(model, error) for error in errors}
        found = (_problem(model, document, error) for error in errors if not _is_explained_by_typo(error, intended))
        return None, in_order([*document.problems, *(problem for problem in found if problem is not None)])
    return (None if document.problems else section), document.problems


def problem_at(
    document: Document, path: KeyPath, value: object, message: str, position: Position | None = None
) -> Problem:
    """Return an error about the value at *path*."""
    position = position or document.value_position(path)
    value_text = None if value is None else shown(value)
    return Problem(document.source, position.line, position.column, key_text(path), value_text, message)


def _problem(model: type[Section], document: Document, error: ErrorDetails) -> Problem | None:
    path: KeyPath = tuple(error["loc"])
    kind = error["type"]
    value: object = error["input"]
    position = None
    if path and path[-1] == "[key]":
        path = path[:-1]
        position = document.key_position(path)
    if kind == "missing":
        message = f"is required{_example(model, path)}"
        return problem_at(document, path, None, message, document.key_position(path[:-1]))
    if kind == "extra_forbidden":
        return problem_at(document, path, None, _unknown_key(model, path), document.key_position(path))
    if path in document.unread or kind == "default_factory_not_called":  # another key has an error
        return None
    if kind == "value_error" and isinstance(value, dict):
        # A validator of the whole section failed: the problem is shown at the section's key.
        value = None
        position = document.key_position(path)
    return problem_at(document, path, value, _message(error, _alternative(model, path)), position)


def _example(model: type[Section], path: KeyPath) -> str:
    """Return ``, as in "period: month"``, from the first example of the key at *path*; "" if it has no example."""
    field = _section_at(model, path[:-1]).model_fields.get(str(path[-1]))
    return f', as in "{path[-1]}: {_flow(field.examples[0])}"' if field is not None and field.examples else ""


def _flow(value: object) -> str:
    """Return *value* as one line of YAML."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_flow(each)}' for key, each in value.items())}}}"
    return f"[{', '.join(map(_flow, value))}]" if isinstance(value, list) else str(value)


def _alternative(model: type[Section], path: KeyPath) -> str:
    """Return what the operator can do instead of writing a value for the key at *path*; "" if the key is required."""
    section = _section_at(model, path[:-1])
    if path and path[-1] in section.model_fields:
        return "" if section.model_fields[str(path[-1])].is_required() else ", or leave the key out"
    return ", or remove the line"


def _message(error: ErrorDetails, alternative: str) -> str:
    value = error["input"]
    kind = error["type"]
    if value is NOTHING:
        return f"has no value; write one{alternative}"
    if kind == "too_short":
        return f"the list is empty; write at least one item{alternative}"
    if kind == "value_error":
        return str(error["ctx"]["error"])
    if kind == "list_type" and isinstance(value, dict):
        return 'a mapping is not a list; start each item with "- "'
    return _SENTENCES.get(kind, "{} is not allowed: " + error["msg"]).format(shown(value))


def _unknown_key(model: type[Section], path: KeyPath) -> str:
    word = str(path[-1])
    allowed = list(_section_at(model, path[:-1]).model_fields)
    parents = sorted({name for name, other in _subsections(model) if word in other.model_fields})
    guess = f"; it belongs under {' or '.join(parents)}" if parents else did_you_mean(word, allowed)
    return f"unknown key{guess}; allowed here: {', '.join(allowed)}"


def _intended_key(model: type[Section], error: ErrorDetails) -> KeyPath:
    """Return the path of the key that the operator probably meant, if *error* is an unknown key; otherwise ()."""
    path: KeyPath = tuple(error["loc"])
    if error["type"] != "extra_forbidden":
        return ()
    key = nearest(str(path[-1]), _section_at(model, path[:-1]).model_fields)
    return () if key is None else (*path[:-1], key)


def _is_explained_by_typo(error: ErrorDetails, intended: set[KeyPath]) -> bool:
    """Return whether *error* is a missing key that the operator wrote, but misspelt."""
    return error["type"] == "missing" and tuple(error["loc"]) in intended


def _section_at(model: type[Section], path: KeyPath) -> type[Section]:
    """Return the section at *path*. Dict keys and list indices in *path* are skipped."""
    for part in path:
        if isinstance(part, str) and part in model.model_fields:
            model = next(_sections_in(model.model_fields[part].annotation), model)
    return model


def _subsections(model: type[Section]) -> Iterator[tuple[str, type[Section]]]:
    for name, field in model.model_fields.items():
        for section in _sections_in(field.annotation):
            yield name, section
            yield from _subsections(section)


def _sections_in(annotation: object) -> Iterator[type[Section]]:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation
    elif get_origin(annotation) in {dict, list, Union, types.UnionType, Annotated}:
        for argument in get_args(annotation):
            yield from _sections_in(argument)
