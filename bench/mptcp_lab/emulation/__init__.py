# SPDX-License-Identifier: GPL-2.0-or-later
"""Path emulation on a middle hop: delay, jitter, loss and middleboxes in user space. Pure.

``model`` describes how one direction of a path treats packets. ``userspace`` converts that to arguments of the emulator
(``native/``, in C), which ``testbed.hops`` builds and runs. The kernel limits the rate (TBF).
"""
