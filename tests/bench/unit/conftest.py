# SPDX-License-Identifier: GPL-2.0-or-later
"""A fixture that makes two slow queries only once: git for the commit, and Squid for its version."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest

from mptcp_bench import provenance


@pytest.fixture(scope="session", autouse=True)
def _git_and_squid_are_asked_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_commit", "_squid_version"):
            patch.setattr(provenance, name, cache(getattr(provenance, name)))
        yield
