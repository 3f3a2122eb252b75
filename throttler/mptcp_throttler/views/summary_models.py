"""What the status socket answers to ``summary``, as models: for the JSON Schema and for tests."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from mptcp_throttler.views.answer_models import (
    Answer,
    Bytes,
    Class,
    Count,
    DirectionName,
    Moment,
    Part,
    Rate,
    Reloads,
    Seconds,
    Sequence,
)


class SubflowCounts(Part):
    active: Count
    syn: Count
    syn_ack: Annotated[Count, Field(alias="syn-ack")]
    unproven: Count
    closing: Count
    pending: Count
    """Caps that wait for the end of their transition; of subflows that are active."""


class PathTotals(Part):
    path: str | None
    """Null for subflows on no path of the policy."""
    interface: str | None
    subflows: Count
    """Active ones, now."""
    bytes_sent: Bytes
    """Since the daemon's start, to the client; only grows."""
    bytes_received: Bytes


class RuleTotals(Part):
    policy: str
    """Name of the policy's file without its ending."""
    rule: str
    path: str | None
    direction: DirectionName
    capped: Count
    """Subflows that have its cap, or are about to."""
    landing: Count
    """Those of them that wait for the end of their transition."""
    rate: Rate | None
    """The least that one of its classes guarantees. Null where the policy in force has no such cap; so with the next
    two."""
    lowest_ceil: Rate | None
    """The least that one of its classes lets through. Steps of a budget, and load-balancing, give each its own."""
    ceil: Rate | None
    """The most that one of its classes lets through."""
    total_ceil: Annotated[int, Field(ge=0)]
    """What all its classes let through together, bits/s; 0 while there are none."""
    classes: Count
    """HTB classes that its subflows are in: one for all, or one for each client or connection, and for each step of a
    budget that some have reached. On each interface a class is one of its own."""
    shared_classes: Count
    """Those of them that have subflows on other paths as well, and let through so much for all of these together."""
    bytes: Bytes
    """Under this cap, since the daemon's start; only grows."""
    share: Literal["path", "client", "connection"] | None
    """Among whom one class is shared; of several kinds, that of most classes."""


class ClassTotals(Class):
    rule: str | None
    """Whose cap it is."""
    bytes: Bytes | None
    """As tc counts, headers included, since the class was made; null where the kernel does not say."""
    packets: Count | None
    drops: Count | None


class ClassCounts(Part):
    down: Count
    up: Count


class BudgetTotals(Part):
    """All accounts of one budget together."""

    name: str
    per: Literal["client", "path"]
    """Who has an account: each client address, or all together."""
    accounts: Count
    """Those of which anything was used; one at the least where all have one together."""
    used_up: Count
    """Those that have used their whole volume."""
    used: Bytes
    """Of all of them, as is the volume."""
    volume: Bytes
    first_volume: Bytes
    """The volume of one account."""
    until: Moment
    """When it begins anew."""


class Budget(Part):
    """One account."""

    name: str
    rule: str
    """The first that feeds it."""
    client: str | None
    """Null for all clients together."""
    used: Bytes
    volume: Bytes
    """What may be used until the first step."""
    left: Bytes
    """Of the volume; 0 from the first step on."""
    step: Bytes | None
    """After how much the step begins that holds; null before the first."""
    next_step: Bytes | None
    """After how much the next one begins; null where none comes."""
    until: Moment
    """When it begins anew."""


class GuardTotals(Part):
    relaxed: Count
    """Connections whose caps are relaxed now."""
    interventions: Count
    """Since the daemon's start."""


class Loop(Part):
    longest: Seconds
    """For which the event loop answered nothing, since the start."""
    recent: Seconds
    """The same in the last 10 s."""
    late: Count
    """How often above 50 ms."""


class Histogram(Part):
    le: list[float]
    """Upper ends of the buckets, seconds."""
    count: list[Count]
    """How many took at most so long; cumulative, one for each of `le`."""
    total: Count
    """How many there were: what Prometheus calls the bucket `+Inf`."""
    sum: Seconds


class RuleWords(Part):
    """One rule for people: what it is for, and what it does."""

    rule: str
    conditions: list[str]
    """All of them hold where the rule does; none: every subflow."""
    does: list[str]
    """Its cap, its budget, its steering, and from what it exempts."""


class PathWords(Part):
    """One path for people."""

    path: str
    conditions: list[str]
    """All of them hold for a subflow on it; none: every subflow."""


class SummaryPolicy(Part):
    file: str
    since: Moment
    """When it was taken."""
    dry_run: bool
    rules: list[str]
    paths_in_words: list[PathWords]
    """In the policy's order."""
    rules_in_words: list[RuleWords]
    """In the same order."""


class Effects(Part):
    """From the decision about a cap to its full effect, transitions included."""

    down: Histogram
    up: Histogram


class BpfPrograms(Part):
    pacing: bool
    """Caps begin softly, by limits on sockets."""
    counting: bool
    """What a subflow carries after its last sample is counted."""


class SummaryAnswer(Answer):
    started: Moment
    """Since when the daemon runs."""
    connections: Count
    subflows: SubflowCounts
    clients: Count
    """Addresses from which connections were opened."""
    counted: Moment
    """When the bytes of all subflows were last counted: a rate is a difference over that time."""
    paths: list[PathTotals]
    rules: list[RuleTotals]
    classes: list[ClassTotals]
    """Those first that passed most; at most 256."""
    class_counts: ClassCounts
    """How many classes of caps there are, listed or not."""
    budget_totals: list[BudgetTotals]
    """Every budget of the policy, in its order."""
    budgets: list[Budget]
    """Accounts, the fullest first; at most 100, the fullest of every budget among them."""
    guard: GuardTotals
    counters: dict[str, Any]
    """As in `status`."""
    loop: Loop
    reaction: Histogram
    """From the last packet of a join's handshake, as captured, to the entry that caps it."""
    effect: Effects
    reloads: Reloads
    ledger_error: str | None
    """As in `status`: why what budgets count cannot be written just now."""
    captures: dict[str, bool]
    """Of each interface whether the throttler captures there now."""
    bpf: BpfPrograms
    """What is done by BPF, where this kernel allows it."""
    policy: SummaryPolicy
    last_event: Sequence
