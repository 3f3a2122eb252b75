# SPDX-License-Identifier: GPL-2.0-or-later
"""Simulates a file or directory that nobody can remove, whoever runs the tests."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


@contextmanager
def immutable(monkeypatch: pytest.MonkeyPatch, name: str) -> Iterator[None]:
    """Make the removal of files named *name* fail like that of an immutable file, see chattr(1)."""

    def refusing(remove: Callable[..., None]) -> Callable[..., None]:
        def refuse(path: Any, **options: Any) -> None:
            if Path(path).name == name:
                raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), os.fspath(path))
            remove(path, **options)

        return refuse

    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", refusing(os.unlink))
        patched.setattr(os, "rmdir", refusing(os.rmdir))
        yield
