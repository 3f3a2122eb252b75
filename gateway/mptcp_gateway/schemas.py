"""Writes the JSON Schema that editors use: ``python -m mptcp_gateway.schemas conf``. Made from the model."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from mptcp_gateway.settings import settings_schema

NAME = "gateway.schema.json"


def schema_text() -> str:
    """Return the text of the schema."""
    return json.dumps(settings_schema(), indent=2, ensure_ascii=False) + "\n"


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("usage: python -m mptcp_gateway.schemas DIRECTORY", file=sys.stderr)
        return 2
    Path(arguments[0], NAME).write_text(schema_text(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
