# SPDX-License-Identifier: GPL-2.0-or-later
"""Fixtures that avoid slow steps without new information: asking git for the commit, and drawing figures."""

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
    """Let chapters about results of the paper have empty figures."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chapter, "svg", lambda result: b"<svg/>")
        yield
