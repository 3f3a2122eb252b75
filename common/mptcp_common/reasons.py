"""What an error says to people, without numbers of the C library."""

from __future__ import annotations


def reason(error: BaseException) -> str:
    """Return in words why something failed; the file, too, where the error names one."""
    if isinstance(error, OSError) and error.strerror is not None:
        return f"{error.filename}: {error.strerror}" if error.filename is not None else error.strerror
    return str(error) or type(error).__name__
