"""What an operator grants a client for a while: no caps until a time. Pure.

More volume needs no grant that lasts: it is taken off what was used (``storage.budget_ledger``), and only noted here.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from mptcp_common.units import approximate_size
from mptcp_throttler.policy.values import Network, parse_prefix, parse_volume

_LENGTH: Final = re.compile(r"([0-9]+) *([mhd])", re.ASCII)
_SECONDS: Final = {"m": 60, "h": 3600, "d": 86_400}
LONGEST: Final = 366 * 86_400
"""Seconds: a lift that is to stay is a rule of the policy."""


class Grant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One grant, as it is kept. Times are seconds since the epoch."""

    client: str
    """An address or a prefix; empty for what all clients share."""
    since: int
    until: int
    by: str = ""
    """Who asked for it."""
    why: str = ""
    budget: str = ""
    """Of which more may be used; empty: no caps."""
    octets: int = 0

    @property
    def network(self) -> Network:
        return parse_prefix(self.client)

    def words(self) -> str:
        """Return ``no caps, by alice (a release party)``."""
        what = f"{approximate_size(self.octets)} more of {self.budget}" if self.budget else "no caps"
        by = f", by {self.by}" if self.by else ""
        return f"{what}{by}{f' ({self.why})' if self.why else ''}"


def parse_length(text: str) -> int:
    """Return seconds of ``90m``, ``2h`` or ``1d``. Raises ValueError."""
    found = _LENGTH.fullmatch(text.strip())
    seconds = 0 if found is None else int(found[1]) * _SECONDS[found[2]]
    if not 0 < seconds <= LONGEST:
        raise ValueError(f'"{text}" is neither a time, as in 90m, 2h or 1d (366d at most), nor a volume, as in "+5 GB"')
    return seconds


def parse_more(text: str) -> int:
    """Return the bytes of ``+5 GB``. Raises ValueError."""
    return parse_volume(text.strip().removeprefix("+").strip())
