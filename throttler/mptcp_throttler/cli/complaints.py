"""What a command says on standard error: complaints, and the warnings of the policy that it reads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mptcp_common import journal

if TYPE_CHECKING:
    from mptcp_throttler.config.settings import Settings
    from mptcp_throttler.policy.model import Policy


def complain(text: object) -> None:
    journal.say(f"mptcp-throttler: {text}", journal.ERROR)


def policy_with_warnings(path: Path, settings: Settings | None) -> Policy:
    from mptcp_throttler.config.files import read_policy

    policy, warnings = read_policy(path, settings)
    for warning in warnings:
        journal.say(warning, journal.WARNING)
    return policy
