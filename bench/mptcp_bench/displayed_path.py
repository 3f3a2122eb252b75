# SPDX-License-Identifier: GPL-2.0-or-later
"""A network path as the demo shows it in the terminal and in its picture. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DisplayedPath:
    """Device, label, colour and link rate of one path."""

    device: str
    label: str
    color: str
    rate: int
    """Rate of its link in bits per second."""
