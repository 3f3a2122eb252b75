# SPDX-License-Identifier: GPL-2.0-or-later
"""The testbed and the experiments: real Squid, Apache and wget on real kernels, in network namespaces."""
