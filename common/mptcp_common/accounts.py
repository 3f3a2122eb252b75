# SPDX-License-Identifier: GPL-2.0-or-later
"""Chooses the accounts of budgets to show if there are too many, by one rule for throttler and console. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

Account = TypeVar("Account", bound=Mapping[str, Any])


def fullest(accounts: Sequence[Account], most: int) -> list[Account]:
    """Return *most* of *accounts*, which are sorted fullest first: the fullest of each budget (``name``), even if these
    are more, then the fullest others. The order stays."""
    firsts = {account["name"]: place for place, account in reversed(list(enumerate(accounts)))}
    shown = set(firsts.values())
    for place in range(len(accounts)):
        if len(shown) >= most:
            break
        shown.add(place)
    return [accounts[place] for place in sorted(shown)]
