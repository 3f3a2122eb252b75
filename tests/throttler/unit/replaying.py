# SPDX-License-Identifier: GPL-2.0-or-later
"""Types and helpers for tests that replay a capture. The fixture ``replay`` is a ``Run``."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

POLICY = """
version: 1
paths: {first: {clients: [10.77.0.0/24, "fd77:0:0::/64"]}, second: {interfaces: [v1]}}
rules:
  - {name: spare, paths: [first], throttle: {rate: 5 Mbit/s}}
"""
Run = Callable[..., tuple[int, str, str]]


def entries(printed: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in printed.splitlines()]
