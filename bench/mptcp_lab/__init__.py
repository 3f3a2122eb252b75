# SPDX-License-Identifier: GPL-2.0-or-later
"""The lab: hosts in network namespaces or by ssh, paths with delay and loss, Squid, Apache, the throttler."""
