# SPDX-License-Identifier: GPL-2.0-or-later
"""The demo: three ways to download over Ethernet and Wi-Fi, shown live, then a table and a picture.

1. plain TCP directly to the origin, over Ethernet, then over Wi-Fi;
2. Multipath TCP through the proxy, over both links at the same time;
3. the same while the throttler enforces conf/policy.yaml: as shipped, it limits Ethernet to 5 Mbit/s once two subflows
   are active.

Squid, Apache, wget, the kernel's MPTCP and HTB are real. Only the links are emulated.
"""

from .running import DemoError, run

__all__ = ["DemoError", "run"]
