"""The steering modes of 3GPP ATSSS (TS 23.501, 5.32.8), each by the lightest means that works. Pure.

They spread a connection's data over its paths. A mode defines its keys under ``steer``; ``stages.steering`` gives it
samples and carries out its actions.
"""

from __future__ import annotations

from typing import Final

from mptcp_throttler.steering.in_order import ActiveStandby, Waterfall
from mptcp_throttler.steering.load_balancing import LoadBalancing
from mptcp_throttler.steering.mode import Mode, SmallestDelay

MODES: Final[tuple[type[Mode], ...]] = (ActiveStandby, Waterfall, LoadBalancing, SmallestDelay)
BY_NAME: Final = {mode.names[0]: mode for mode in MODES} | {name: mode for mode in MODES for name in mode.names[1:]}
"""By 3GPP's names first, then by other names."""
