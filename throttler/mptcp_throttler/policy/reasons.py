"""How the sentences on cap, budget and steering become one reason, for people. Pure."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from mptcp_throttler.policy.model import Direction

BEFORE: Final = {Direction.DOWN: "", Direction.UP: "upload: "}
"""What a reason begins with. One on download is as it was before there were directions."""
NO_RULE: Final = "no rule matches"


@lru_cache(4096)
def joined(reason: str, sentence: str, direction: Direction = Direction.DOWN) -> str:
    """Return *reason* with *sentence* added; one that says that there is no rule gives way.

    The same few come for thousands of subflows, which share the text.
    """
    before = BEFORE[direction]
    return before + sentence if reason == before + NO_RULE else f"{reason}; {sentence}"
