# SPDX-License-Identifier: GPL-2.0-or-later
"""What Grafana's own types say of a dashboard: its Foundation SDK is generated from the schemas that Grafana has.

It reads what it knows, and takes any value for it. So what was read is compared with what it writes again, and each
value with the type that it is declared to have.
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
    "__inputs",  # of a dashboard that is exported for others: what the import asks for
    "__requires",
    "definition",  # of a variable: the query as text, which the editor shows
    "titleFormat",  # of an annotation: the Prometheus data source's own
    "step",
}
"""Keys that Grafana writes itself, and for which its schemas have no type."""


def faults(document: dict[str, Any]) -> list[str]:
    """Return what in *document* Grafana's types do not have, or have otherwise; each with its place."""
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
