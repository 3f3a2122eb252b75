"""Subflows of a port that is none of the listening ones: no rule acts on them. Pure: no clock, no kernel.

A client joins at such a port where the proxy announced it (ADD_ADDR with a port, RFC 8684, 3.4.1); and a proxy may open
a subflow to its client from any port. The tracker knows them by the kernel's events, and they count as active subflows
of their connection. But sets, rules, BPF programs and dumps of sockets are for the listening ports alone.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from mptcp_throttler.policy.model import BEFORE, Verdict


def without_other_ports(verdicts: tuple[Verdict, ...], listen_ports: Collection[int]) -> tuple[Verdict, ...]:
    """Return *verdicts* with neither cap, budget nor steering where the local port is none of *listen_ports*."""
    if all(each.four_tuple.local_port in listen_ports for each in verdicts):
        return verdicts
    return tuple([each if each.four_tuple.local_port in listen_ports else _left_alone(each) for each in verdicts])


def _left_alone(verdict: Verdict) -> Verdict:
    port = verdict.four_tuple.local_port
    reason = f"{BEFORE[verdict.direction]}its local port {port} is not among listen_ports"
    return replace(
        verdict,
        rule=None,
        scope=None,
        throttle=None,
        reason=reason,
        budget=None,
        steer=None,
        steer_path=None,
        beside=None,
    )
