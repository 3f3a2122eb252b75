"""The steering modes of 3GPP ATSSS (TS 23.501, 5.32.8), each by the lightest means that works; ``MODES`` lists them."""

from __future__ import annotations

from typing import Final

from mptcp_throttler.steering.mode import Mode
from mptcp_throttler.steering.modes.active_standby import ActiveStandby
from mptcp_throttler.steering.modes.load_balancing import LoadBalancing
from mptcp_throttler.steering.modes.smallest_delay import SmallestDelay
from mptcp_throttler.steering.modes.waterfall import Waterfall

MODES: Final[tuple[type[Mode], ...]] = (ActiveStandby, Waterfall, LoadBalancing, SmallestDelay)
BY_NAME: Final = {mode.names[0]: mode for mode in MODES} | {name: mode for mode in MODES for name in mode.names[1:]}
"""By 3GPP's names first, then by other names."""
