"""The output of ``plan``: verdicts with reasons, then the kernel objects that they need, as commands. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from mptcp_throttler.config.settings import Settings
from mptcp_throttler.mptcp.model import Connection, FourTuple
from mptcp_throttler.policy.budget import Account
from mptcp_throttler.policy.evaluate import evaluate
from mptcp_throttler.policy.model import Direction, Policy
from mptcp_throttler.policy.verdict import Verdict, joined
from mptcp_throttler.shaping import commands
from mptcp_throttler.shaping.cap import PlanError
from mptcp_throttler.shaping.model import Ownership, Target, gso_limit
from mptcp_throttler.shaping.plan import Planner, plain_tcp_caps
from mptcp_throttler.stages.budget import BudgetStage
from mptcp_throttler.views.words import address_text

EntryCommands = Callable[[Mapping[FourTuple, Target], Ownership], Iterator[str]]
"""Yields the commands by which a netfilter backend makes its rules and these entries."""


def preview(
    settings: Settings,
    policy: Policy,
    connections: Iterable[Connection],
    now: float,
    entry_commands: EntryCommands,
    used: Mapping[str, int] | None = None,
) -> Iterator[str]:
    """Yield the lines: comments start with '#', the others are shell commands.

    *used*: bytes used of each budget in the present period, by each client or by all together.
    """
    planner, upload = (Planner(settings.ownership, direction) for direction in Direction)
    budgets = BudgetStage()
    budgets.set_policy(policy)
    budgets.advance(now, 0.0)
    for each in (planner, upload):
        each.set_policy(policy)
    for connection in connections:
        verdicts = evaluate(policy, connection, now)
        if used:
            budgets.accounts.set_used(budgets.accounts.periods, _accounts(budgets, policy, connection, used))
            verdicts = budgets.apply(connection, verdicts, now)
        yield f"# connection {connection.token:08x}"
        for each in (planner, upload):
            try:
                each.set_verdicts(connection.token, verdicts, now)
            except PlanError as error:
                yield f"#   lacks a cap ({each.direction.value}): {error}"
        for verdict in verdicts:
            reason = steered_reason(verdict, verdict.reason) if used else whole_reason(verdict)
            yield f"#   {verdict.four_tuple}  path {verdict.path or 'none'}: {reason}"
    for each in (planner, upload):
        try:
            each.prepare_path_classes(now)
        except PlanError as error:
            yield f"# {error}"
    if policy.dry_run:
        yield "# dry run: nothing would be done to the kernel"
        return
    classes, entries, ownership = planner.classes.desired, planner.entries.desired, settings.ownership
    if settings.gso_max_size != "keep":
        wanted = settings.gso_max_size
        size = gso_limit(policy, 65536) if wanted == "auto" else int(wanted)
        for interface in settings.interfaces:
            yield f"ip link set dev {interface} gso_max_size {size}"
    yield from commands.traffic_control(settings.interfaces, classes, ownership)
    yield from entry_commands(entries, ownership)
    for command in commands.plain_tcp_table(list(plain_tcp_caps(policy, planner)), ownership):
        yield f"nft '{command}'"
    if policy.acts_on_upload:
        yield from commands.upload_device(upload.classes.desired, ownership)
        yield from commands.nftables(upload.entries.desired, commands.NftTable.upload(ownership, settings.interfaces))


def _accounts(
    budgets: BudgetStage, policy: Policy, connection: Connection, used: Mapping[str, int]
) -> dict[Account, int]:
    clients = {address_text(each.four_tuple.remote) or "" for each in connection.subflows}
    return {
        Account(name, client, start): used.get(name, 0)
        for name, start in budgets.accounts.periods
        for client in (clients if policy.budgets[name].per_client else {""})
    }


def whole_reason(verdict: Verdict) -> str:
    """Return the reason of the cap, with the budget and steering known without samples."""
    reason, budget = verdict.reason, verdict.budget
    if budget is not None and budget.budget is not None:
        reason = joined(reason, f"metered by the {budget.budget.title}", verdict.direction)
    return steered_reason(verdict, reason)


def steered_reason(verdict: Verdict, reason: str) -> str:
    """Return *reason* with the steering known without samples."""
    steer = verdict.steer
    if steer is not None and steer.steer is not None:
        reason = joined(reason, f"steered {steer.steer.mode} by rule {steer.name}", verdict.direction)
    return reason
