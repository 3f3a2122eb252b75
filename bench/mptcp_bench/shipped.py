# SPDX-License-Identifier: GPL-2.0-or-later
"""The cap on Ethernet in conf/policy.yaml, which demo and experiments expect even if an operator has changed it."""

from __future__ import annotations

from pathlib import Path

from mptcp_common.problems import DocumentError
from mptcp_lab.testbed.commands import TestbedError
from mptcp_lab.testbed.services import REPOSITORY
from mptcp_throttler.policy.load import load_policy

POLICY = REPOSITORY / "conf" / "policy.yaml"


def ethernet_cap(policy: Path = POLICY) -> int:
    """Return the cap (ceil) in bits/s of the first rule of *policy* that throttles Ethernet. Raises TestbedError."""
    try:
        rules = load_policy(policy.read_text(), str(policy)).rules
    except (OSError, DocumentError) as error:
        raise TestbedError(f"read the policy: {error}") from error
    for rule in rules:
        if rule.throttle is not None and (rule.paths is None or "ethernet" in rule.paths):
            return rule.throttle.ceil
    raise TestbedError(f"{policy}: no rule throttles the path 'ethernet', so that no cap can be shown")
