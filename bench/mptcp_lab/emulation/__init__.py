# SPDX-License-Identifier: GPL-2.0-or-later
"""Path emulation on a middle hop: delay, jitter and loss by netem if the kernel has it, otherwise in user space. Pure.

``model`` says how a direction of a path treats packets; ``netem`` turns that into tc(8) arguments, ``userspace`` into
those of our own emulator (``native/``, in C), which ``testbed.hops`` builds and runs if needed. The kernel shapes the
rate (TBF) in both cases.
"""
