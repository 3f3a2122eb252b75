# SPDX-License-Identifier: GPL-2.0-or-later
"""Changes and queries the kernel: the protocols in ``ports``, and the adapters that implement them."""
