# SPDX-License-Identifier: GPL-2.0-or-later
"""Path emulation on a middle hop: delay, jitter, loss and middleboxes in user space. The kernel limits the rate."""
