# SPDX-License-Identifier: GPL-2.0-or-later
"""Checks of the running units' confinement: users, capabilities, and systemd's exposure figures."""

from __future__ import annotations

from typing import Final

from containers import Container
from unit_capabilities import NUMBERS
from unit_exposure import MAX_EXPOSURE, exposure

_SQUID_CAPABILITIES: Final = ("chown", "dac_override", "kill", "setgid", "setuid", "net_bind_service", "net_admin")
NEEDED_CAPABILITIES: Final = {
    "mptcp-proxy": _SQUID_CAPABILITIES,
    "mptcp-relay": _SQUID_CAPABILITIES,
    "mptcp-throttler": ("net_admin", "net_raw", "sys_nice", "perfmon", "bpf"),
    "mptcp-tunnel": ("chown", "net_admin", "net_raw", "perfmon", "bpf"),
    "mptcp-gateway": ("net_admin", "net_raw"),
    "mptcp-forwarder": ("net_admin",),
}
"""Capabilities of a unit's processes; units that are not listed have none."""


def exposures(container: Container) -> dict[str, float]:
    """Return the exposure that this release's systemd-analyze reports for each running unit; it must be low."""
    found = {
        unit: exposure(container.sh(f"systemd-analyze security --no-pager {unit}.service")) for unit in MAX_EXPOSURE
    }
    assert {unit: figure for unit, figure in found.items() if figure > MAX_EXPOSURE[unit]} == {}
    return found


def assert_units_have_only_needed_privileges(container: Container) -> None:
    group = container.sh("getent group mptcp-throttler").split(":")[2]
    for unit in MAX_EXPOSURE:
        pid = container.sh(f"systemctl show --value -p MainPID {unit}").strip()
        lines = container.sh(f"cat /proc/{pid}/status").splitlines()
        status = {key: value.split() for key, _, value in (line.partition(":") for line in lines)}
        assert status["NoNewPrivs"] == ["1"], unit
        assert status["Seccomp"] == ["2"], unit
        (bounding,) = status["CapBnd"]
        assert int(bounding, 16) == sum(1 << NUMBERS[name] for name in NEEDED_CAPABILITIES.get(unit, ())), unit
        if unit in ("mptcp-console", "mptcp-portal"):
            # The range of DynamicUser= in systemd.exec(5).
            assert all(61184 <= int(uid) <= 65519 for uid in status["Uid"]), unit
            assert group in status["Groups"], unit
        if unit == "mptcp-throttler":
            assert "0" not in status["Uid"]
    # Squid, which communicates with clients, runs as a separate user.
    for name in ("mptcpproxy", "mptcprelay"):
        users = container.sh(f"ps -eo euser:32=,args= | grep '[s]quid.*{name}'").splitlines()
        assert [line for line in users if line.split()[0] == "proxy"], users
