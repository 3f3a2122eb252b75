# SPDX-License-Identifier: GPL-2.0-or-later
"""The largest packet of a path, in both directions: probes are padded, and an answer is as long as its probe. Pure.

Times are nanoseconds of the monotonic clock; sizes are bytes of IP packets.
"""

from __future__ import annotations

from typing import Final

SIZES: Final = (1280, 1400, 1420, 1440, 1452, 1472, 1492, 1500)
"""The least of IPv6, what tunnels and PPPoE leave, Ethernet's."""
TRIES: Final = 3
"""Of each size, because packets are also lost for other reasons."""
PACE: Final = 200_000_000
"""Between two probes."""
ANSWERED: Final = 3_000_000_000
"""How long to wait for an answer to the last one."""
AGAIN: Final = 600_000_000_000
"""Between two searches."""
SOON: Final = 10_000_000_000
"""After a search that found nothing: the path was not there."""


class SizeSearch:
    """The search on one path."""

    def __init__(self) -> None:
        self.largest: int | None = None
        """The largest that passed in the last search."""
        self._found = 0
        self._left: list[int] = []
        self._sent: dict[int, int] = {}
        """Sizes of this search, by when they were sent."""
        self._due = 0

    def next(self, now: int) -> int | None:
        """Return the size of the packet to send *now*, None for none."""
        if now < self._due:
            return None
        if not self._left:
            if self._sent:  # the search is over
                self.largest = self._found or self.largest
                self._due = now + (AGAIN if self._found else SOON)
                self._sent.clear()
                return None
            self._found, self._left = 0, list(SIZES * TRIES)
        size = self._sent[now] = self._left.pop()
        self._due = now + (PACE if self._left else ANSWERED)
        return size

    def answered(self, sent: int) -> bool:
        """Take an answer to the probe *sent* then; tell whether it was of this search."""
        size = self._sent.get(sent)
        if size is None:
            return False
        self._found = max(self._found, size)
        return True
