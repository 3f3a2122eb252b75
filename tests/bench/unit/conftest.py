# SPDX-License-Identifier: GPL-2.0-or-later
"""What takes time and says nothing new each time: who was asked for a commit, and how a figure looks."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest

from mptcp_bench import provenance
from mptcp_bench.paper import chapter


@pytest.fixture(scope="session", autouse=True)
def _git_and_squid_are_asked_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_commit", "_squid"):
            patch.setattr(provenance, name, cache(getattr(provenance, name)))
        yield


@pytest.fixture(scope="module")
def undrawn() -> Iterator[None]:
    """Chapters about results of the paper, whose figures are empty."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chapter, "svg", lambda result: b"<svg/>")
        yield
