# SPDX-License-Identifier: GPL-2.0-or-later
"""Types of single values in an operator's file: for pydantic, and as JSON Schema for editors.

A parser takes a YAML value and returns the model's value, or raises a ValueError with a message for the operator, which
contains the value, the mistake, and the allowed values.
"""

from __future__ import annotations

import ast
import gc
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from mptcp_common.problems import did_you_mean, shown

MAX_INTERFACE_BYTES: Final = 15
"""IFNAMSIZ of linux/if.h without the final zero."""
INTERFACE_PATTERN: Final = r"^[^\s/:]{1,15}$"
NAME_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,31}$"
_NAME: Final = re.compile(NAME_PATTERN.strip("^$"), re.ASCII)


class Section(BaseModel):
    """The base of all sections: nothing is converted silently, and unknown keys are refused.

    The docstring below a key is its description in the JSON Schema.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Parsed:
    """Annotation for a value that *parse* converts; *schema* is its JSON Schema for editors."""

    def __init__(self, parse: Callable[[object], object], schema: dict[str, Any]) -> None:
        self.parse = parse
        self._schema = schema

    def __get_pydantic_core_schema__(self, source: object, handler: object) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.parse)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return dict(self._schema)


def between(low: int, high: int) -> Parsed:
    """Return the annotation for a whole number from *low* to *high*. true and 1.0 are refused."""

    def parse(value: object) -> int:
        if type(value) is not int:
            raise ValueError(f"{shown(value)} is not a whole number; {low} to {high} is allowed")
        if not low <= value <= high:
            raise ValueError(f"{shown(value)} is out of range; {low} to {high} is allowed")
        return value

    return Parsed(parse, {"type": "integer", "minimum": low, "maximum": high})


Port = Annotated[int, between(1, 65535)]


def seconds(low: float, high: float) -> Parsed:
    """Return the annotation for a number of seconds from *low* to *high*."""

    def parse(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{shown(value)} is not a number of seconds; {low:g} to {high:g} is allowed")
        if not low <= value <= high:
            raise ValueError(f"{shown(value)} is out of range; {low:g} to {high:g} seconds are allowed")
        return float(value)

    return Parsed(parse, {"type": "number", "minimum": low, "maximum": high})


def choice(meanings: Mapping[str, object]) -> Parsed:
    """Return the annotation for a word that is a key of *meanings*; the model gets its value. This value is also
    accepted instead of the word."""
    words = tuple(meanings)

    def parse(value: object) -> object:
        if isinstance(value, str) and value in meanings:
            return meanings[value]
        if not isinstance(value, str) and value in meanings.values():
            return value
        guess = did_you_mean(value, words) if isinstance(value, str) else ""
        raise ValueError(f"{shown(value)} is not allowed{guess}; write {alternatives(words)}")

    return Parsed(parse, {"enum": list(words)})


def one_of(*words: str) -> Parsed:
    """Return the annotation for one of *words*."""
    return choice({word: word for word in words})


def alternatives(words: tuple[str, ...]) -> str:
    """Return ``a, b or c``."""
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def parse_name(value: object) -> str:
    """Return *value*, which must be a name for a path or a rule. Raises ValueError."""
    if not isinstance(value, str):
        raise ValueError(f"{shown(value)} is not text; put it in quotes")
    if not _NAME.fullmatch(value):
        raise ValueError(
            f"{shown(value)} is not a name; write 1 to 32 letters, digits, dots, dashes and underscores, "
            "the first a letter or digit"
        )
    return value


Name = Annotated[str, Parsed(parse_name, {"type": "string", "pattern": NAME_PATTERN})]


def parse_interface(value: object) -> str:
    """Return *value*, which must be a network interface's name by the kernel's rules (``dev_valid_name``). Raises
    ValueError."""
    if not isinstance(value, str):
        raise ValueError(f"{shown(value)} is not text; put it in quotes")
    if len(value.encode(errors="replace")) > MAX_INTERFACE_BYTES:
        raise ValueError(f"{shown(value)} is too long for an interface; Linux allows {MAX_INTERFACE_BYTES} characters")
    has_forbidden = any(character.isspace() or character in "/:" for character in value)
    if value in {"", ".", ".."} or has_forbidden or not value.isprintable():
        raise ValueError(
            f"{shown(value)} is not the name of an interface; names have no spaces, slashes or colons (see: ip link)"
        )
    return value


Interface = Annotated[str, Parsed(parse_interface, {"type": "string", "pattern": INTERFACE_PATTERN})]


class _EditorSchema(GenerateJsonSchema):
    """Schemas that never allow null, because a key may be missing, but not empty."""

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        found = super().model_schema(schema)
        for key, text in _docstrings(schema["cls"]).items():
            if key in found["properties"]:
                found["properties"][key].setdefault("description", text)
        return found


def _docstrings(section: type) -> dict[str, str]:
    """Return the text below each key of *section*, by key."""
    return {
        key.target.id: " ".join(text.value.value.split())
        for each in _tree(section.__module__).body
        if isinstance(each, ast.ClassDef) and each.name == section.__name__
        for key, text in pairwise(each.body)
        if isinstance(key, ast.AnnAssign) and isinstance(key.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
    }


@cache
def _tree(module: str) -> ast.Module:
    source = inspect.getsource(sys.modules[module])
    # Before Python 3.11.5, ast.parse can fail if a garbage collection happens at the same time (gh-106905).
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(source)
    finally:
        if was_enabled:
            gc.enable()


def editor_schema(section: type[Section]) -> dict[str, Any]:
    """Return the JSON Schema of *section* for editors (draft 2020-12)."""
    schema = section.model_json_schema(schema_generator=_EditorSchema, by_alias=True)
    return {"$schema": GenerateJsonSchema.schema_dialect, **_trim(schema)}


def _trim(schema: Any, keys_are_names: bool = False) -> Any:
    """Return *schema* without titles (pydantic generates them from the keys' names) and without defaults of null.
    *keys_are_names*: whether the keys of *schema* are names of settings, which may be ``title``, too."""
    if isinstance(schema, list):
        return [_trim(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: value if key == "examples" else _trim(value, keys_are_names=key in {"properties", "$defs"})
        for key, value in schema.items()
        if keys_are_names or not (key == "title" or (key == "default" and value is None))
    }
