# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests of the form of the patches to Debian's Squid; only ``./run squid`` shows whether they apply."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PATCHES = Path(__file__).parents[2] / "proxy/squid"
SERIES = sorted(PATCHES.glob("*/series"))
ALL_PATCHES = [series.parent / name for series in SERIES for name in series.read_text().split()]


INCLUDED_IN_SQUID_6 = "reused-connection.patch"


def test_each_release_has_its_patches_in_the_same_order() -> None:
    bookworm, trixie = (series.read_text().split() for series in SERIES)
    assert [series.parent.name for series in SERIES] == ["bookworm", "trixie"]
    assert trixie == [name for name in bookworm if name != INCLUDED_IN_SQUID_6]
    assert sorted(ALL_PATCHES) == sorted(PATCHES.glob("*/*.patch"))


@pytest.mark.parametrize("patch", ALL_PATCHES, ids=lambda patch: f"{patch.parent.name}, {patch.stem}")
def test_patch_has_a_header_and_complete_hunks(patch: Path) -> None:
    """Check the DEP-3 header, and the line counts of each hunk, which manual edits often break."""
    header, _, body = patch.read_text().partition("\n---\n")
    for field in ("Description", "Author", "Forwarded", "Last-Update"):
        assert re.search(rf"^{field}: \S", header, re.MULTILINE), field
    hunks = re.split(r"^(@@ -\d+(?:,\d+)? \+\d+(?:,\d+)? @@).*\n", body, flags=re.MULTILINE)[1:]
    assert hunks
    for head, text in zip(hunks[::2], hunks[1::2], strict=True):
        old, new = (int(count or 1) for count in re.findall(r"[-+]\d+(?:,(\d+))?", head))
        lines = re.split(r"^--- a/", text, flags=re.MULTILINE)[0].splitlines()
        assert sum(not line.startswith("+") for line in lines) == old
        assert sum(not line.startswith("-") for line in lines) == new
