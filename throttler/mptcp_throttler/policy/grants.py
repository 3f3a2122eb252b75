"""Grants to a client: no caps until a time, or more volume. Pure.

More volume is subtracted from the used volume (``storage.Ledger``) at once; its grant is only a note.
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
"""Seconds. A permanent exemption belongs in the policy, as a rule."""


class Grant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One grant, as stored. Times are seconds since the epoch."""

    client: str
    """An address or a prefix; empty for a budget that all clients share."""
    since: int
    until: int
    by: str = ""
    why: str = ""
    budget: str = ""
    """The budget that gets more volume; empty: no caps."""
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
    """Return the seconds of ``90m``, ``2h`` or ``1d``. Raises ValueError."""
    found = _LENGTH.fullmatch(text.strip())
    seconds = 0 if found is None else int(found[1]) * _SECONDS[found[2]]
    if not 0 < seconds <= LONGEST:
        raise ValueError(f'"{text}" is neither a time, as in 90m, 2h or 1d (366d at most), nor a volume, as in "+5 GB"')
    return seconds


def parse_more(text: str) -> int:
    """Return the bytes of ``+5 GB``. Raises ValueError."""
    octets = parse_volume(text.strip().removeprefix("+").strip())
    if not octets:
        raise ValueError(f'"{text}" is nothing; write e.g. "+5 GB"')
    return octets
