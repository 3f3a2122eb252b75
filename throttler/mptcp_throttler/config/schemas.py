"""Writes the JSON Schemas that editors use: ``python -m mptcp_throttler.config.schemas conf``.

They are made from the models that check the files, and committed beside the files that name them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from mptcp_throttler.config.settings import settings_schema
from mptcp_throttler.policy.model import policy_schema


def schema_texts() -> dict[str, str]:
    """Return the text of each schema by its file name."""
    schemas = {"policy.schema.json": policy_schema(), "throttler.schema.json": settings_schema()}
    return {name: json.dumps(schema, indent=2, ensure_ascii=False) + "\n" for name, schema in schemas.items()}


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("usage: python -m mptcp_throttler.config.schemas DIRECTORY", file=sys.stderr)
        return 2
    for name, text in schema_texts().items():
        Path(arguments[0], name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
