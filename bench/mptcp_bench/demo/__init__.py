# SPDX-License-Identifier: GPL-2.0-or-later
"""The demo: three ways to download over Ethernet and Wi-Fi, watched live, then a table and a picture.

1. plain TCP straight to the origin, over Ethernet, then over Wi-Fi;
2. Multipath TCP through the proxy: both links at once;
3. the same while the throttler enforces conf/policy.yaml: as shipped, Ethernet 5 Mbit/s once two subflows are active.

All of it is real: Squid, Apache, wget, the kernel's MPTCP, HTB. Only the links are emulated.

``parts`` says what is downloaded, ``judging`` (pure) whether it went as it should, ``output`` makes table, picture and
files, ``running`` does it all.
"""

from .running import DemoError, run

__all__ = ["DemoError", "run"]
