# SPDX-License-Identifier: GPL-2.0-or-later
"""Writes the JSON Schema that editors use: ``python -m mptcp_tunnel.schemas conf``. Generated from the model."""

from __future__ import annotations

import sys
from typing import Final

from mptcp_common.schema_file import write_schemas
from mptcp_tunnel.settings import settings_schema

NAME: Final = "tunnel.schema.json"

if __name__ == "__main__":
    sys.exit(write_schemas("mptcp_tunnel.schemas", {NAME: settings_schema()}, sys.argv[1:]))
