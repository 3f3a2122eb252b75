# SPDX-License-Identifier: GPL-2.0-or-later
"""Finds the largest packet that a path carries in both directions. Probes are padded, and an answer has the size of its
probe. Pure.

Times are nanoseconds of the monotonic clock; sizes are bytes of IP packets.
"""

from __future__ import annotations

from typing import Final

SIZES: Final = (1280, 1400, 1420, 1440, 1452, 1472, 1492, 1500)
"""Sizes to try: the minimum MTU of IPv6, common sizes of tunnels and PPPoE, and the MTU of Ethernet."""
TRIES: Final = 3
"""Number of probes of each size; several, because packets can also be lost for reasons other than their size."""
PROBE_INTERVAL: Final = 200_000_000
"""Pause between two probes."""
ANSWER_TIMEOUT: Final = 3_000_000_000
"""How long to wait for an answer to the last probe."""
SEARCH_INTERVAL: Final = 600_000_000_000
"""Pause between two searches."""
RETRY_INTERVAL: Final = 10_000_000_000
"""Pause after a search without any answer: the path was probably down."""


class SizeSearch:
    """The search on one path."""

    def __init__(self) -> None:
        self.largest: int | None = None
        """The largest size that passed in the last search."""
        self._largest_answered = 0
        self._sizes_left: list[int] = []
        self._sent: dict[int, int] = {}
        """Sizes of the probes of this search, by the time at which they were sent."""
        self._next_time = 0

    def next_size(self, now: int) -> int | None:
        """Return the size of the packet to send *now*; None if no probe is due."""
        if now < self._next_time:
            return None
        if not self._sizes_left:
            if self._sent:  # the search is over
                self.largest = self._largest_answered or self.largest
                self._next_time = now + (SEARCH_INTERVAL if self._largest_answered else RETRY_INTERVAL)
                self._sent.clear()
                return None
            self._largest_answered, self._sizes_left = 0, list(SIZES * TRIES)
        size = self._sent[now] = self._sizes_left.pop()
        self._next_time = now + (PROBE_INTERVAL if self._sizes_left else ANSWER_TIMEOUT)
        return size

    def process_answer(self, sent: int) -> bool:
        """Process the answer to the probe that was sent at the time *sent*; return whether this search sent the
        probe."""
        size = self._sent.get(sent)
        if size is None:
            return False
        self._largest_answered = max(self._largest_answered, size)
        return True
