# SPDX-License-Identifier: GPL-2.0-or-later
"""The tunnel's part in the kernel: BPF programs, a device, routes, and the messages as packets."""
