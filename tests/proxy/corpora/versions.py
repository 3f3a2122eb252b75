# SPDX-License-Identifier: GPL-2.0-or-later
"""All rows of the corpora to which Debian 12's Squid 5.7 and Debian 13's 6.13 respond differently."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_BAD_LENGTHS: Final = """
two-lengths two-lengths-reversed two-lengths-in-one length-negative length-plus length-hex length-letters
length-words length-empty length-semicolon length-dot length-exponent length-underscore length-quoted
length-beyond-64-bits length-wraps-63-bits length-no-break-space
""".split()  # noqa: SIM905
_ODD_FIRST_LINES: Final = """
line-blanks-after line-no-version line-version-0.9 line-version-3 line-version-lower-case line-version-letters
line-version-other
""".split()  # noqa: SIM905
DIFFERENT: Final[dict[str, tuple[int, int]]] = {
    **dict.fromkeys(_BAD_LENGTHS, (411, 400)),
    **dict.fromkeys(_ODD_FIRST_LINES, (200, 400)),
    "identity": (200, 501),
}
"""For each row: the first final status of 5.7 and of 6.13. Both refuse the request or forward it with one meaning."""
RELEASES: Final = ("bookworm", "trixie")


def unexpected_statuses(release: str, statuses: Mapping[str, int]) -> dict[str, int]:
    """Return the *statuses* that differ from the value of :data:`DIFFERENT` for *release*."""
    column = RELEASES.index(release)
    return {row: statuses[row] for row in DIFFERENT.keys() & statuses.keys() if statuses[row] != DIFFERENT[row][column]}
