# SPDX-License-Identifier: GPL-2.0-or-later
"""The error for an operation that the kernel refused."""

from __future__ import annotations


class KernelError(Exception):
    """The kernel refused an operation. The text names the operation, the object, and the kernel's reason."""

    errno: int | None = None
    """The error number, if the kernel returned one."""
