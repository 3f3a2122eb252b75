# SPDX-License-Identifier: GPL-2.0-or-later
"""Reads QR codes from a browser's picture with zbar (Debian's libzbar0)."""

from __future__ import annotations

import ctypes

import pytest

from mptcp_lab.testbed.features import fails_when_missing

LIBRARY = "libzbar.so.0"
_GREY = int.from_bytes(b"Y800", "little")


def qr_texts(pixels: bytes, width: int) -> list[str]:
    """Return the texts of the QR codes in a grey picture with one byte per pixel."""
    try:
        zbar = ctypes.CDLL(LIBRARY)
    except OSError as error:
        if fails_when_missing():
            pytest.fail(f"needs {LIBRARY}, and CI may not skip: {error}", pytrace=False)
        pytest.skip(f"NOT TESTED, needs {LIBRARY}: apt install libzbar0")
    pointer = ctypes.c_void_p
    for name in ("zbar_image_create", "zbar_image_scanner_create", "zbar_image_first_symbol", "zbar_symbol_next"):
        getattr(zbar, name).restype = pointer
    zbar.zbar_symbol_get_data.restype = ctypes.c_char_p
    scanner, image = pointer(zbar.zbar_image_scanner_create()), pointer(zbar.zbar_image_create())
    try:
        zbar.zbar_image_set_format(image, ctypes.c_ulong(_GREY))
        zbar.zbar_image_set_size(image, width, len(pixels) // width)
        zbar.zbar_image_set_data(image, pixels, ctypes.c_ulong(len(pixels)), None)
        assert zbar.zbar_scan_image(scanner, image) >= 0
        found, symbol = [], zbar.zbar_image_first_symbol(image)
        while symbol:
            found.append(zbar.zbar_symbol_get_data(pointer(symbol)).decode())
            symbol = zbar.zbar_symbol_next(pointer(symbol))
        return found
    finally:
        zbar.zbar_image_destroy(image)
        zbar.zbar_image_scanner_destroy(scanner)
