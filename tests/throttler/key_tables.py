# SPDX-License-Identifier: GPL-2.0-or-later
"""Writes the tables of keys in docs/policy.md and docs/status.md from the published schemas.

Run ``python tests/throttler/key_tables.py`` to write the tables into the pages.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, get_args

from typing_extensions import is_typeddict

from mptcp_common.fields import INTERFACE_PATTERN, NAME_PATTERN
from mptcp_common.units import RATE_PATTERN, SIZE_PATTERN
from mptcp_throttler.policy.values import VOLUME_PATTERN
from mptcp_throttler.views import answers
from mptcp_throttler.views.requests import QUERIES
from mptcp_throttler.views.schemas import schemas

DOCS: Final = Path(__file__).resolve().parents[2] / "docs"
PAGES: Final = (DOCS / "policy.md", DOCS / "status.md")
WIDTH: Final = 130
_TABLE: Final = re.compile(r"<!-- keys: (\w+)(?:\.(\w+))? -->\n(?:(?!<!-- ).)*<!-- end -->", re.DOTALL)
_SCHEMAS: Final = {name.partition(".")[0]: schema for name, schema in schemas().items()}
_DEFAULT: Final = re.compile(r" ?Default: ([^.]+)\.$")
_UNITS: Final = {RATE_PATTERN: "rate", SIZE_PATTERN: "size", VOLUME_PATTERN: "size"}
_PATTERNS: Final = {
    **_UNITS,
    NAME_PATTERN: "name",
    INTERFACE_PATTERN: "interface",
    "^/": "path",
    "^0[xX][0-9a-fA-F]{1,8}$": "hexadecimal",
}
_INLINED_SECTIONS: Final = {"steps": "BudgetStep"}
"""Sections without a separate table, by the key whose value is a list of such sections."""
_TYPE_DESCRIPTIONS: Final = {
    get_args(each)[1].description for each in vars(answers).values() if len(get_args(each)) == 2
}
"""Descriptions of types. They are not repeated for each key of such a type."""


def update_tables(page: str) -> str:
    """Return *page* with current tables."""
    return _TABLE.sub(lambda match: match[0].partition("\n")[0] + "\n\n" + _table(match) + "\n<!-- end -->", page)


def sections() -> list[str]:
    """Return the names of the sections of both configuration files."""
    files = ("policy", "throttler")
    names = [(name, section) for name in files for section in _SCHEMAS[name].get("$defs", ())]
    return [*files, *(f"{name}.{section}" for name, section in names if section not in _INLINED_SECTIONS.values())]


def _table(match: re.Match[str]) -> str:
    schema, section = match.groups()
    if schema == "queries":
        return "\n".join(["| query | arguments | answer |", "|---|---|---|", *map(_query, QUERIES)]) + "\n"
    if schema == "answers":
        return "\n".join(["```text", *_answers(), "```"]) + "\n"
    rows = _rows(schema, _SCHEMAS[schema]["$defs"][section] if section else _SCHEMAS[schema])
    return "\n".join(["| key | values | default | meaning |", "|---|---|---|---|", *rows]) + "\n"


def _rows(schema: str, part: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the rows of *part*, and of sections in its lists."""
    for key, each in part["properties"].items():
        text = each["description"]
        default = "required" if key in part.get("required", ()) else _code(each["default"]) if "default" in each else ""
        if stated_default := _DEFAULT.search(text):
            default, text = stated_default[1], text[: stated_default.start()]
        yield f"| `{prefix}{key}` | {_values(each)} | {default} | {text} |"
        if inlined := _INLINED_SECTIONS.get(key):
            yield from _rows(schema, _SCHEMAS[schema]["$defs"][inlined], f"{key}[].")


def _code(value: object) -> str:
    value = f"{value:g}" if type(value) is float else value
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


def _values(schema: dict[str, Any]) -> str:
    """Return a description of the values that *schema* accepts."""
    if "anyOf" in schema:
        choices = [each for each in schema["anyOf"] if each.get("type") != "null"]
        # A value with a unit may also be a number without a unit.
        with_unit = any(each.get("pattern") in _PATTERNS for each in choices)
        return " or ".join(_values(each) for each in choices if not (with_unit and each.get("type") == "integer"))
    if "const" in schema:
        return _code(schema["const"])
    if "enum" in schema:
        return ", ".join(map(_code, schema["enum"]))
    if "minimum" in schema:
        return f"{schema['minimum']} to {schema['maximum']}" if schema["maximum"] < 1 << 31 else "number"
    if schema.get("type") == "array":
        items = _values(schema["items"])
        return f"list of {items}" if items[0].isdigit() else "list"
    if schema.get("type") == "boolean":
        return "true, false"
    if schema.get("type", "object") == "object":
        inner: dict[str, Any] = next(iter(schema.get("patternProperties", {}).values()), {})
        return f"mapping to {_values(inner)}" if "minimum" in inner else "mapping"
    return _PATTERNS.get(schema.get("pattern", ""), "text")


def _query(query: str) -> str:
    arguments = []
    for name, each in QUERIES[query].items():
        values = _values(dict(each.schema))
        default = "" if each.default is None else f"; default {_code(each.default)}"
        note = "" if values == "text" else f" ({values}{default})"
        arguments.append(f"`{name}`{', required' if each.required else ''}{note}")
    answer = _SCHEMAS["status"]["$defs"][answers.ANSWERS[query].__name__]
    return f"| `{query}` | {'; '.join(arguments)} | {answer.get('description', '')} |"


def _answers() -> Iterator[str]:
    """Yield the lines about the keys of all answers. Each part is described at its first use."""
    described = {"Answer": ""}
    order = {"head": answers.HeadAnswer} | answers.ANSWERS
    for query, answer in order.items():
        yield f"{query}{_reference(answer, described)}"
        yield from _part(answer, query, described, "  ")


def _reference(part: Any, described: dict[str, str]) -> str:
    """Return where the base types of *part*, a TypedDict of an answer or of an object in it, are described."""
    locations = [
        described[base.__name__] for base in getattr(part, "__orig_bases__", ()) if described.get(base.__name__)
    ]
    return f" (as in {', '.join(locations)}, and:)" if locations else ""


def _part(part: Any, location: str, described: dict[str, str], indent: str) -> Iterator[str]:
    """Yield the lines about the keys of *part*. *described* maps each described part to its location."""
    inherited_keys = {key for base in part.__orig_bases__ if base.__name__ in described for key in _keys(base)}
    # A reference to a base with a single key would be longer than the key.
    for each in (part, *(base for base in part.__orig_bases__ if len(_keys(base)) > 1)):
        described.setdefault(each.__name__, location)
    plain: list[str] = []
    definition = _SCHEMAS["status"]["$defs"][part.__name__]
    for key, schema in definition["properties"].items():
        if key in inherited_keys:
            continue
        mark, inner, values = _type(schema)
        # An asterisk: the key may be absent.
        mark += "" if key in definition["required"] else "*"
        text = schema.get("description", "")
        text = "; ".join(filter(None, ("" if text in _TYPE_DESCRIPTIONS else text.rstrip("."), values)))
        nested = getattr(answers, inner, None)
        if not is_typeddict(nested):
            nested = None
        if not text and nested is None:
            plain.append(key + mark)
            continue
        yield from _wrap(", ".join(plain), indent)
        plain = []
        described_at = described.get(inner)
        reference = f" (as in {described_at})" if described_at else _reference(nested, described)
        yield from _wrap(f"{key}{mark}{reference}{f': {text}' if text else ''}", indent)
        if nested is not None and not described_at:
            yield from _part(nested, f"{location}.{key}", described, indent + "  ")
    yield from _wrap(", ".join(plain), indent)


def _keys(part: Any) -> set[str]:
    return set(getattr(part, "__annotations__", ()))


def _type(schema: dict[str, Any]) -> tuple[str, str, str]:
    """Return the marks for a key ([] for a list, ? for null), the name of the part that it contains, and its values."""
    choices = [each for each in schema.get("anyOf", [schema]) if each.get("type") != "null"]
    mark = "?" if len(choices) < len(schema.get("anyOf", ())) else ""
    (choice,) = choices
    if choice.get("type") == "array":
        mark, choice = "[]" + mark, choice["items"]
    inner = choice.get("$ref", "").rpartition("/")[2]
    values = choice.get("enum") or _SCHEMAS["status"]["$defs"].get(inner, {}).get("enum", [])
    # The directions are clear without a list.
    return mark, inner, ", ".join(values) if set(values) != {"down", "up"} else ""


def _wrap(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent + "    ") if text else []


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(update_tables(page.read_text(encoding="utf-8")), encoding="utf-8")
