# SPDX-License-Identifier: GPL-2.0-or-later
"""The tunnel's access to the kernel: BPF programs, a device, routes, and packets with messages."""
