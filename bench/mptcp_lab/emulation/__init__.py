# SPDX-License-Identifier: GPL-2.0-or-later
"""Path emulation on a middle hop: delay, jitter and loss by netem if the kernel has it, otherwise in user space. Pure.

``model`` describes how one direction of a path treats packets. ``netem`` converts that to arguments of tc(8),
``userspace`` to arguments of our own emulator (``native/``, in C), which ``testbed.hops`` builds and runs if it is
needed. In both cases the kernel limits the rate (TBF).
"""
