# SPDX-License-Identifier: GPL-2.0-or-later
"""Chooses which accounts of budgets to show if there are too many. The throttler and the console use this one rule.
Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

Account = TypeVar("Account", bound=Mapping[str, Any])


def fullest(accounts: Sequence[Account], limit: int) -> list[Account]:
    """Return *limit* accounts, in the order of *accounts*, which are sorted by usage, highest first.

    The fullest account of each budget (``name``) is always included, even if these are more than *limit*; then follow
    the fullest of the other accounts.
    """
    firsts = {account["name"]: place for place, account in reversed(list(enumerate(accounts)))}
    shown = set(firsts.values())
    for place in range(len(accounts)):
        if len(shown) >= limit:
            break
        shown.add(place)
    return [accounts[place] for place in sorted(shown)]
