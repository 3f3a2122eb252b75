# SPDX-License-Identifier: GPL-2.0-or-later
"""Chooses which accounts of budgets to show if there are too many, for the throttler and the console. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

Account = TypeVar("Account", bound=Mapping[str, Any])


def fullest(accounts: Sequence[Account], limit: int) -> list[Account]:
    """Return *limit* of *accounts* in their order, which is by usage, highest first.

    The fullest account of each budget (``name``) is always included, even if there are more budgets than *limit*. The
    remaining places are for the fullest of the other accounts.
    """
    first_places = {account["name"]: place for place, account in reversed(list(enumerate(accounts)))}
    chosen = set(first_places.values())
    for place in range(len(accounts)):
        if len(chosen) >= limit:
            break
        chosen.add(place)
    return [accounts[place] for place in sorted(chosen)]
