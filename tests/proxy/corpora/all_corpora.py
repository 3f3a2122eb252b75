# SPDX-License-Identifier: GPL-2.0-or-later
"""All corpora, by name."""

from __future__ import annotations

from . import conformance, malformed, open_proxy
from .row import Row

CORPORA: dict[str, tuple[Row, ...]] = {
    "open proxy": open_proxy.ROWS,
    "malformed": malformed.ROWS,
    "conformance": conformance.ROWS,
}
