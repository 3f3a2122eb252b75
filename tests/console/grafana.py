# SPDX-License-Identifier: GPL-2.0-or-later
"""Checks a dashboard against Grafana's own types: its Foundation SDK is generated from Grafana's schemas.

The SDK ignores unknown keys and accepts any values. So compare the document with what the SDK writes again, and each
value with its declared type.
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
_OURS = "grafana_foundation_sdk.models."
_ANY_CLASS = ConfigDict(arbitrary_types_allowed=True)
_UNTYPED = {
    "__inputs",  # in an exported dashboard: what the import asks for
    "__requires",
    "definition",  # of a variable: the query as text, which the editor shows
    "titleFormat",  # of an annotation: only for the Prometheus data source
    "step",
}
"""Keys that Grafana writes itself, but that its schemas do not have."""


def faults(document: dict[str, Any]) -> list[str]:
    """Return the keys and values in *document* that Grafana's types lack or declare otherwise, with their places."""
    plugins.register_default_plugins()
    read = Dashboard.from_json(document)
    written = json.loads(JSONEncoder().encode(read))
    return [*_unknown(document, written, ""), *_mistyped(read, ""), *_strange_units(document, "")]


def _unknown(had: Any, has: Any, place: str) -> Iterator[str]:
    if isinstance(had, dict) and isinstance(has, dict):
        for key, value in had.items():
            if key in has:
                yield from _unknown(value, has[key], f"{place}.{key}")
            elif key not in _UNTYPED:
                yield f"{place}.{key} is unknown"
    elif isinstance(had, list) and isinstance(has, list) and len(had) == len(has):
        for number, (one, other) in enumerate(zip(had, has, strict=True)):
            yield from _unknown(one, other, f"{place}[{number}]")
    elif had != has:
        yield f"{place} was {had!r} and became {has!r}"


def _mistyped(value: Any, place: str) -> Iterator[str]:
    if isinstance(value, list | dict):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _mistyped(each, f"{place}[{key}]")
    elif type(value).__module__.startswith(_OURS) and hasattr(value, "to_json"):
        for name, kind in get_type_hints(type(value)).items():
            each = getattr(value, name)
            try:
                TypeAdapter(kind, config=_ANY_CLASS).validate_python(each)
            except ValidationError as error:
                yield f"{place}.{name} is {each!r}: {error.errors()[0]['msg']}"
            yield from _mistyped(each, f"{place}.{name}")


def _strange_units(value: Any, place: str) -> Iterator[str]:
    if isinstance(value, list | dict):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            if key == "unit" and each not in UNITS:
                yield f"{place}.unit is {each!r}"
            yield from _strange_units(each, f"{place}[{key}]")
