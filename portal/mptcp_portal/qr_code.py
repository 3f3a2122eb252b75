# SPDX-License-Identifier: GPL-2.0-or-later
"""A web address as a QR code (ISO/IEC 18004), as SVG."""

from __future__ import annotations

import io

import segno


def qr_svg(address: str) -> bytes:
    """Return *address* as a picture: black on white in any colour scheme, because scanners need that."""
    out = io.BytesIO()
    segno.make(address, error="m", micro=False).save(
        out, kind="svg", scale=4, border=4, dark="#000", light="#fff", nl=False
    )
    return out.getvalue()
