# SPDX-License-Identifier: GPL-2.0-or-later
"""Settings that the portal's tests share."""

from __future__ import annotations

from mptcp_portal.settings import Onboarding, load_settings

ONBOARDING = """\
proxy: {address: 192.168.1.10, name: Proxy at home}
onboarding:
  listen: 192.168.1.10:3181
"""


def onboarding(*lines: str, base: str = ONBOARDING) -> Onboarding:
    """Return the onboarding settings of *base*, with *lines* added below ``onboarding``."""
    found = load_settings(base + "".join(f"  {line}\n" for line in lines), "portal.yaml").onboarding
    assert found is not None
    return found
