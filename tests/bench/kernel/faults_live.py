# SPDX-License-Identifier: GPL-2.0-or-later
"""Helpers for faults in experiments on real packets, and for checking that their aims notice them.

With a fault, every rate is far from its bound, so one run is judged. A sound setup may miss a rate on a busy machine,
so its run is repeated. A void run is always repeated.
"""

from __future__ import annotations

from collections.abc import Callable

from void_runs import valid

TRIES = 3
"""Maximum number of attempts for a sound setup."""
SOUND, DEAD, WRONG, NEVER, UNUSED = "sound", "throttler dead", "wrong path", "cap never comes", "second path unused"


def misses(measured: Callable[[], set[str]], fault: str, expected: set[str]) -> None:
    """Assert that *measured* misses at least the aims *expected*, or no aim if none is expected."""
    for _ in range(TRIES if fault == SOUND else 1):
        missed = valid(measured)
        if missed >= expected and bool(missed) is bool(expected):
            return
    raise AssertionError(f"{fault}: misses {missed or 'nothing'}")


def broken_policy(policy: str, fault: str) -> str:
    """Return the text of *policy*, which caps Ethernet, with *fault*."""
    if fault == NEVER:
        return f"{policy}dry_run: true\n"
    if fault == WRONG:
        assert policy.count("paths: [ethernet]") == 1
        return policy.replace("paths: [ethernet]", "paths: [wifi]")
    return policy
