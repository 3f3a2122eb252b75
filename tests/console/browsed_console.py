# SPDX-License-Identifier: GPL-2.0-or-later
"""A console in real Chromium, with a fake throttler whose simulated world the test controls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from browser import Browser, browser
from console_site import Console, console
from fake_throttler import FakeThrottler, World
from reserved_port import reserved_port


class Parts(NamedTuple):
    """The running parts: the throttler's world, the throttler, the console, and the browser."""

    world: World
    throttler: FakeThrottler
    console: Console
    browser: Browser


@contextmanager
def console_in_browser(directory: Path, world: World | None = None) -> Iterator[Parts]:
    """Start all parts, with the empty *directory* for their files; *world* replaces the default world."""
    world = world or World()
    with (
        FakeThrottler(directory / "status.sock", world) as throttler,
        console(directory, throttler.path, reserved_port()) as running,
        browser(directory) as chromium,
    ):
        yield Parts(world, throttler, running, chromium)
