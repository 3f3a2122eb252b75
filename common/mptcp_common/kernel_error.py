# SPDX-License-Identifier: GPL-2.0-or-later
"""The error for an operation that the kernel refused."""

from __future__ import annotations


class KernelError(Exception):
    """The kernel refused an operation. The text says which object, which operation, and the errno."""

    errno: int | None = None
    """The kernel's, if it returned one."""
