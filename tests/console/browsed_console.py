# SPDX-License-Identifier: GPL-2.0-or-later
"""A console in a real Chromium, beside a throttler that is not real and whose world the test makes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from browser import Browser, browser
from console_site import Console, console
from fake_throttler import FakeThrottler, World
from reserved_port import reserved_port


class Browsed(NamedTuple):
    """What runs: the world that the throttler tells of, the throttler, the console, and who looks at it."""

    world: World
    throttler: FakeThrottler
    console: Console
    browser: Browser


@contextmanager
def browsed(directory: Path, world: World | None = None) -> Iterator[Browsed]:
    """Start all of it, with *directory*, which is empty, for their files. *world*: another than the usual one."""
    world = world or World()
    with (
        FakeThrottler(directory / "status.sock", world) as throttler,
        console(directory, throttler.path, reserved_port()) as running,
        browser(directory) as chromium,
    ):
        yield Browsed(world, throttler, running, chromium)
