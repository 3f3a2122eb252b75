# SPDX-License-Identifier: GPL-2.0-or-later
"""The gateway's access to the kernel: addresses, routes, rules, endpoints, sysctls, firewall."""
