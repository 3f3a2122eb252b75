# SPDX-License-Identifier: GPL-2.0-or-later
"""What the tunnel has in the kernel: programs, a device, routes, and packets of its own."""
