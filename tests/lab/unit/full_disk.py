# SPDX-License-Identifier: GPL-2.0-or-later
"""A disk that takes no more, whoever runs the tests."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def full_at(size: int) -> Iterator[None]:
    """Have every file that would become larger than *size* bytes refuse it (setrlimit(2))."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
