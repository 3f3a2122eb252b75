# SPDX-License-Identifier: GPL-2.0-or-later
"""What the gateway reads from the kernel, and sets there."""
