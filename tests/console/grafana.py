# SPDX-License-Identifier: GPL-2.0-or-later
"""Checks a dashboard against Grafana's own types: the Foundation SDK is generated from Grafana's schemas.

The SDK ignores unknown keys and accepts any values. Therefore ``faults`` compares the document with the
document that the SDK writes after reading it, and each value with its declared type.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, get_type_hints

from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import units
from grafana_foundation_sdk.models.dashboard import Dashboard
from pydantic import ConfigDict, TypeAdapter, ValidationError

UNITS = {value for name, value in vars(units).items() if name[0].isupper() and isinstance(value, str)}
_SDK_MODULES = "grafana_foundation_sdk.models."
_ANY_CLASS = ConfigDict(arbitrary_types_allowed=True)
_UNTYPED = {
    "__inputs",  # in an exported dashboard: the values that the user enters at an import
    "__requires",
    "definition",  # of a variable: the query as text, which the editor shows
    "titleFormat",  # of an annotation: only for the Prometheus data source
    "step",
}
"""Keys that Grafana itself writes, but that its schemas lack."""


def faults(document: dict[str, Any]) -> list[str]:
    """Return the keys in *document* that Grafana's types lack, and the values of another type, with their paths."""
    plugins.register_default_plugins()
    parsed = Dashboard.from_json(document)
    written = json.loads(JSONEncoder().encode(parsed))
    return [*_unknown_keys(document, written, ""), *_mistyped_values(parsed, ""), *_unknown_units(document, "")]


def _unknown_keys(before: Any, after: Any, path: str) -> Iterator[str]:
    if isinstance(before, dict) and isinstance(after, dict):
        for key, value in before.items():
            if key in after:
                yield from _unknown_keys(value, after[key], f"{path}.{key}")
            elif key not in _UNTYPED:
                yield f"{path}.{key} is unknown"
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, (first, second) in enumerate(zip(before, after, strict=True)):
            yield from _unknown_keys(first, second, f"{path}[{number}]")
    elif before != after:
        yield f"{path} was {before!r} and became {after!r}"


def _mistyped_values(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, list | dict):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _mistyped_values(each, f"{path}[{key}]")
    elif type(value).__module__.startswith(_SDK_MODULES) and hasattr(value, "to_json"):
        for name, kind in get_type_hints(type(value)).items():
            each = getattr(value, name)
            try:
                TypeAdapter(kind, config=_ANY_CLASS).validate_python(each)
            except ValidationError as error:
                yield f"{path}.{name} is {each!r}: {error.errors()[0]['msg']}"
            yield from _mistyped_values(each, f"{path}.{name}")


def _unknown_units(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, list | dict):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            if key == "unit" and each not in UNITS:
                yield f"{path}.unit is {each!r}"
            yield from _unknown_units(each, f"{path}[{key}]")
