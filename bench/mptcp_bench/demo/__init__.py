# SPDX-License-Identifier: GPL-2.0-or-later
"""The demo: three ways to download over Ethernet and Wi-Fi, shown live, then a table and a picture.

1. plain TCP directly to the origin, over Ethernet, then over Wi-Fi;
2. Multipath TCP through the proxy, over both links at the same time;
3. the same while the throttler enforces conf/policy.yaml: as shipped, it limits Ethernet to 5 Mbit/s once two subflows
   are active.

Squid, Apache, wget, the kernel's MPTCP and HTB are real. Only the links are emulated.
"""

from ..experiments import Experiment

DEMO = Experiment("demo", "Downloads over Ethernet of 100 Mbit/s and Wi-Fi of 30 Mbit/s", "running", package=__name__)
