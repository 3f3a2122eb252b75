# SPDX-License-Identifier: GPL-2.0-or-later
"""Texts for errors, without errno numbers."""

from __future__ import annotations


def reason(error: BaseException) -> str:
    """Return why something failed, with the file if the error names one."""
    if isinstance(error, OSError) and error.strerror is not None:
        return f"{error.filename}: {error.strerror}" if error.filename is not None else error.strerror
    return str(error) or type(error).__name__
