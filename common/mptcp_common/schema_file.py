# SPDX-License-Identifier: GPL-2.0-or-later
"""Files with JSON Schemas, for editors. They are generated from the models, and committed."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def schema_text(schema: Mapping[str, Any]) -> str:
    """Return the text of the file."""
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def write_schemas(module: str, schemas: Mapping[str, Mapping[str, Any]], arguments: Sequence[str]) -> int:
    """Write *schemas*, by file name, into the directory in *arguments*; return the exit status. *module* is for the
    usage line. Raises OSError."""
    if len(arguments) != 1:
        print(f"usage: python -m {module} DIRECTORY", file=sys.stderr)
        return 2
    for name, schema in schemas.items():
        Path(arguments[0], name).write_text(schema_text(schema), encoding="utf-8")
    return 0
