# SPDX-License-Identifier: GPL-2.0-or-later
"""The schema of each answer of the status socket, in the order of ``ANSWERS``.

``runtime.answers`` builds these dictionaries, and mypy checks the keys. ``views.schemas`` writes their JSON Schema.
Every key is present unless it is ``NotRequired``.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypedDict

from mptcp_throttler.policy.model import Direction, Kind, Share
from mptcp_throttler.telemetry.events import KINDS

SCHEMA = 2
"""Version of the answers: increased when a key is removed or changes its meaning."""

Seconds = Annotated[float, Field(ge=0)]
Timestamp = Annotated[float, Field(ge=0, description="Seconds since the epoch.")]
Rate = Annotated[int, Field(ge=0, description="Bits/s.")]
Count = Annotated[int, Field(ge=0)]
Bytes = Annotated[int, Field(ge=0)]
EventNumber = Annotated[int, Field(ge=0, description="Number of an event; they have no gaps.")]
_TOKEN = "The proxy's token, as `ss -M` prints it; a tunnel's has nine digits."
Token = Annotated[str, Field(pattern="^[0-9a-f]{8,9}$", description=_TOKEN)]
_TUNNEL = "Only for Multipath UDP tunnels: the tunnel's name. The subflows are the tunnel's paths."
Tunnel = Annotated[str, Field(description=_TUNNEL)]
Endpoint = Annotated[str, Field(description="`ADDR:PORT`, `[ADDR]:PORT` with IPv6.")]
EventKindName = Annotated[str, Field(json_schema_extra={"enum": list(KINDS)})]
SchemaVersion = Annotated[int, Field(ge=SCHEMA, le=SCHEMA, description="Version of the answers.")]
MptcpVersion = Annotated[int, Field(ge=1, le=1, description="Version of Multipath TCP.")]


def describe(text: str) -> Any:
    """Return the annotation for a key with this description."""
    return Field(description=text)


@with_config(ConfigDict(strict=True, extra="forbid"))
class Part(TypedDict):
    """A part of an answer. It has all documented keys, except optional ones, and no others."""


class ErrorAnswer(Part):
    """The answer to a request that cannot be answered."""

    schema: SchemaVersion
    error: Annotated[str, describe("The reason, in one line.")]


class Answer(Part):
    """The keys common to all other answers."""

    schema: SchemaVersion
    time: Timestamp  # when the answer was built
    version: Annotated[str, describe("Version of the throttler.")]
    pid: int


class RefusedReload(Part):
    time: Timestamp
    errors: list[str]


class ReloadCounts(Part):
    accepted: Count
    refused: Count
    last_refused: Annotated[RefusedReload | None, describe("Null if the last reload succeeded.")]
    settings: Annotated[
        list[str],
        describe(
            "Changes and errors that the last reload found in the settings file, which is read only at the start."
        ),
    ]


class PolicyInForce(Part):
    source: Annotated[str, describe("The policy file.")]
    dry_run: bool
    rules: list[str]


class HeadAnswer(Answer):
    """Like `status`, but without connections, classes and counters."""

    started: Timestamp
    now: Timestamp
    interfaces: list[str]
    listen_ports: Annotated[list[int], describe("The proxy's ports, as read at the start.")]
    netfilter: Annotated[str, describe("The netfilter backend in use.")]
    paced: Annotated[bool, describe("Sockets can be paced, for soft starts.")]
    policy: PolicyInForce
    reloads: ReloadCounts
    ledger_error: Annotated[str | None, describe("Why the ledger cannot be written now.")]
    path_manager: Literal["kernel", "user space"]
    uploads_shaped: bool
    in_step: Annotated[bool, describe("The kernel has everything that the policy needs.")]


class CapAnswer(Part):
    rule: Annotated[str | None, describe("The rule that decided.")]
    rate: Annotated[Rate | None, describe("Guaranteed rate; null without a cap.")]
    ceil: Annotated[Rate | None, describe("Maximum rate.")]
    classid: Annotated[str | None, describe("The class of its packets now.")]
    landing: Annotated[bool, describe("The cap is not fully in force yet.")]
    reason: str


class TunnelPathName(Part):
    tunnel_path: NotRequired[
        Annotated[str, describe("Only for tunnels: the path's name in the tunnel. Its bytes are those of IP packets.")]
    ]


class SubflowAnswer(CapAnswer, TunnelPathName):
    """A subflow with its cap for downloads."""

    local: Endpoint
    remote: Endpoint
    initial: bool
    local_id: int | None
    remote_id: int | None
    backup: bool
    interface: str | None
    since: Timestamp
    path: str | None
    pacing_limit: Rate | None
    bytes_sent: Annotated[Bytes | None, describe("Payload that the client acknowledged.")]
    bytes_received: Bytes | None
    upload: Annotated[
        CapAnswer | None,
        describe("The cap for uploads, with the keys from `rule` to `reason`; null if no rule is for uploads."),
    ]


class TunnelName(Part):
    tunnel: NotRequired[Tunnel]


class StatusConnection(TunnelName):
    token: Token
    version: MptcpVersion
    since: Timestamp
    relaxed: Annotated[str | None, describe("Why its caps are relaxed.")]
    subflows: list[SubflowAnswer]


class ClassAnswer(Part):
    classid: str
    direction: Direction
    rate: Rate
    ceil: Rate


class StatusAnswer(HeadAnswer):
    """The state of all connections: 10 MB with 10,000 connections."""

    connections: list[StatusConnection]
    classes: list[ClassAnswer]
    counters: dict[str, Any]


class SubflowDetails(SubflowAnswer):
    rtt: Seconds | None
    rtt_var: Seconds | None
    retransmits: Count | None
    segments_out: Count | None
    lost: Annotated[Count | None, describe("Segments in flight considered lost.")]
    cwnd: Annotated[Count | None, describe("Congestion window in segments.")]
    rate_sent: Annotated[Rate | None, describe("Rate between the last two samples.")]
    rate_received: Rate | None
    share: Annotated[
        Annotated[float, Field(ge=0, le=1)] | None,
        describe("Share of the connection's current rate; if that is 0, of the bytes that it has carried."),
    ]


class ConnectionDetails(TunnelName):
    token: Token
    client: Annotated[str | None, describe("The address that opened the connection.")]
    since: Timestamp
    version: MptcpVersion
    relaxed: str | None
    bytes_sent: Annotated[Bytes, describe("Sum over its current subflows.")]
    bytes_received: Bytes
    subflows: list[SubflowDetails]


class ConnectionsAnswer(Answer):
    """Connections that match all arguments, with the state of their sockets."""

    total: Annotated[Count, describe("Matching connections.")]
    connections: list[ConnectionDetails]


class SubflowCounts(Part):
    active: Count
    pending: Annotated[Count, describe("In a soft start: the cap is not fully in force yet.")]


class PathTotals(Part):
    path: Annotated[str | None, describe("Null: on no path of the policy.")]
    interface: str | None
    subflows: Annotated[Count, describe("Active subflows.")]
    bytes_sent: Annotated[Bytes, describe("Bytes since the daemon's start.")]
    bytes_received: Bytes


class RuleTotals(Part):
    policy: Annotated[str, describe("Name of the policy file without the suffix.")]
    rule: str
    path: str | None
    direction: Direction
    capped: Annotated[Count, describe("Subflows with the cap.")]
    landing: Annotated[Count, describe("Subflows whose cap is not fully in force.")]
    rate: Annotated[
        Rate | None, describe("Lowest guaranteed rate of its classes; null if the policy in force has no such cap.")
    ]
    lowest_ceil: Annotated[Rate | None, describe("Lowest ceil of its classes.")]
    ceil: Annotated[Rate | None, describe("Highest ceil of its classes.")]
    total_ceil: Annotated[Annotated[int, Field(ge=0)], describe("Sum of its ceils, bits/s.")]
    classes: Annotated[Count, describe("HTB classes of its subflows.")]
    shared_classes: Annotated[Count, describe("Classes that also have subflows on other paths.")]
    bytes: Annotated[Bytes, describe("Bytes under this cap since the daemon's start.")]
    share: Share | None


class ClassTotals(ClassAnswer):
    rule: str | None
    bytes: Annotated[Bytes | None, describe("Bytes including headers, as counted by tc.")]
    packets: Count | None
    drops: Count | None


class ClassCounts(Part):
    down: Count
    up: Count


class BudgetTotals(Part):
    """All accounts of one budget together."""

    name: str
    per: Literal["client", "path"]
    accounts: Annotated[Count, describe("Accounts with usage; a budget that all clients share always has one.")]
    used_up: Annotated[Count, describe("Accounts that have used their volume.")]
    used: Annotated[Bytes, describe("Sum over all accounts.")]
    volume: Annotated[Bytes, describe("Sum over all accounts.")]
    first_volume: Annotated[Bytes, describe("Volume of one account.")]
    until: Timestamp  # when the next period begins


class OwnAccount(Part):
    """The keys of an account that its client may see."""

    name: str
    client: Annotated[str | None, describe("Null for all clients together.")]
    used: Bytes
    volume: Annotated[Bytes, describe("Volume that may be used before the first step.")]
    left: Bytes
    step: Annotated[Bytes | None, describe("Volume of the current step.")]
    next_step: Annotated[Bytes | None, describe("Volume of the next step.")]
    until: Timestamp  # when the next period begins


class AccountAnswer(OwnAccount):
    rule: Annotated[str, describe("The first rule that counts towards this account.")]


class GuardTotals(Part):
    relaxed: Annotated[Count, describe("Connections with relaxed caps.")]
    interventions: Annotated[Count, describe("Interventions since the daemon's start.")]


class LoopDelay(Part):
    longest: Annotated[Seconds, describe("Longest time that the event loop was blocked, since the start.")]
    recent: Annotated[Seconds, describe("Longest time that it was blocked in the last 10 s.")]
    late: Annotated[Count, describe("Delays above 50 ms.")]


class HistogramAnswer(Part):
    le: Annotated[list[float], describe("Upper bounds of the buckets, seconds.")]
    count: Annotated[list[Count], describe("Cumulative, for each of `le`.")]
    total: Annotated[Count, describe("Bucket `+Inf`.")]
    sum: Seconds


class EffectHistograms(Part):
    """Time from the decision about a cap to its full effect, including transitions."""

    down: HistogramAnswer
    up: HistogramAnswer


class PathText(Part):
    """One path in words."""

    path: str
    conditions: list[str]


class RuleText(Part):
    """One rule in words."""

    rule: str
    conditions: list[str]
    does: list[str]


class PolicySummary(Part):
    file: str
    since: Timestamp  # when the policy was loaded
    dry_run: bool
    time_zone: str
    rules: list[str]
    paths_in_words: list[PathText]
    rules_in_words: list[RuleText]


class BpfPrograms(Part):
    pacing: Annotated[bool, describe("Sockets are paced for soft starts.")]
    counting: Annotated[bool, describe("Bytes are counted until a socket closes.")]


class TunnelPathTotals(Part):
    tunnel: str
    path: str
    bytes_sent: Annotated[Bytes, describe("Bytes of IP packets since the path got its addresses.")]
    bytes_received: Bytes


class SummaryAnswer(Answer):
    """Counts, bytes by path and rule, classes, budgets, counters, delays."""

    started: Timestamp  # when the daemon was started
    connections: Annotated[Count, describe("Connections, including tunnels.")]
    tunnels: Annotated[list[TunnelPathTotals], describe("Paths of tunnels; at most 1,000.")]
    subflows: SubflowCounts
    clients: Annotated[Count, describe("Addresses that opened connections.")]
    counted: Timestamp  # when the bytes of all subflows were last counted: a rate is a difference over that time
    paths: list[PathTotals]
    rules: list[RuleTotals]
    classes: Annotated[list[ClassTotals], describe("The 256 with the most bytes.")]
    class_counts: ClassCounts
    budget_totals: Annotated[list[BudgetTotals], describe("Every budget of the policy.")]
    budgets: Annotated[list[AccountAnswer], describe("The 100 fullest accounts, and the fullest of each budget.")]
    guard: GuardTotals
    counters: dict[str, Any]
    loop: LoopDelay
    reaction: Annotated[
        HistogramAnswer,
        describe(
            "Time from the capture of a join handshake's last packet to the entry in the kernel, without transitions."
        ),
    ]
    effect: Annotated[
        EffectHistograms, describe("Time from the decision about a cap to its full effect, including transitions.")
    ]
    reloads: ReloadCounts
    ledger_error: str | None
    captures: Annotated[dict[str, bool], describe("By interface: whether the throttler captures there now.")]
    bpf: BpfPrograms
    policy: PolicySummary
    last_event: EventNumber


class ClientTotals(Part):
    client: Annotated[str, describe("The address that opened the connections.")]
    connections: Count
    subflows: Count
    capped: Annotated[Count, describe("Subflows with a cap.")]
    rate_sent: Rate  # sum over all subflows of the client, as in `connections`
    rate_received: Rate
    bytes_sent: Annotated[Bytes, describe("Sum over its current subflows.")]
    bytes_received: Bytes
    budgets: Annotated[list[AccountAnswer], describe("Accounts of its addresses, the fullest first.")]


class PlainClient(Part):
    client: str
    connections: Count


class PlainTcp(Part):
    """Established connections to the proxy's ports that are not known subflows, without the loopback interface."""

    connections: Count
    total: Annotated[Count, describe("Addresses.")]
    clients: Annotated[list[PlainClient], describe("Those with the most connections first.")]


class ClientsAnswer(Answer):
    """Usage of each client, and clients of plain TCP."""

    total: Count
    clients: Annotated[
        list[ClientTotals], describe("If sorted by `budget`, clients without a connection are included.")
    ]
    plain_tcp: Annotated[
        PlainTcp | None,
        describe("Established connections to the proxy's ports that are not MPTCP; null if they cannot be read."),
    ]


class EvaluatedRule(Part):
    rule: str
    kind: Kind
    matched: Annotated[bool, describe("The rule decided.")]
    failed: Annotated[str | None, describe("The condition that failed or, if the rule decided, why its cap is lifted.")]
    until: Annotated[Timestamp | None, describe("When this result changes because of the rule's hours.")]


class StageText(Part):
    stage: Literal["budgets", "grants", "guard", "steering", "rest"]
    what: str
    since: Annotated[Timestamp | None, describe("Time of the event that reported it; null without an event.")]


class ExplainedSubflow(Part):
    remote: Endpoint
    local: Endpoint
    path: str | None
    interface: str | None
    direction: Direction
    verdict: Annotated[str, describe("`capped at 5 Mbit/s` or `not capped`.")]
    reason: str
    rate: Rate | None
    ceil: Rate | None
    rule: str | None
    since: Timestamp  # since when the subflow has had this rule's cap at this rate, or no cap
    tried: Annotated[list[EvaluatedRule], describe("The rules in order, up to the one that decided, for each kind.")]
    stages: Annotated[list[StageText], describe("Changes that were made after the rules.")]
    cap_state: Literal["none", "coming", "in force", "being lifted"]


class ExplainedConnection(TunnelName):
    token: Token
    client: str | None
    since: Timestamp
    subflows: Annotated[list[ExplainedSubflow], describe("One entry for each direction that the policy has rules for.")]


class ExplainAnswer(Answer):
    """Why each subflow has its cap, or none. Needs one argument."""

    time_zone: str
    total: Count
    connections: Annotated[list[ExplainedConnection], describe("The 50 latest.")]


class EventAnswer(Part):
    seq: EventNumber
    time: Timestamp
    kind: EventKindName
    token: Token | None
    client: str | None
    remote: Endpoint | None
    local: Endpoint | None
    path: str | None
    rule: Annotated[str | None, describe("The rule, or in budget events the budget.")]
    direction: Annotated[str, Field(json_schema_extra={"enum": ["down", "up"]})] | None
    text: str


class EventsAnswer(Answer):
    """Recorded events. With `after`: later events, the oldest first; otherwise the latest."""

    first: EventNumber  # the oldest stored event
    last: EventNumber
    events: list[EventAnswer]


class OwnSubflow(Part):
    path: str | None
    address: str | None
    capped: Annotated[bool, describe("Downloads have a cap.")]
    rate: Annotated[Rate | None, describe("Maximum rate of downloads.")]
    rule: str | None
    upload_rate: Rate | None
    bytes: Annotated[Bytes, describe("Sum of both directions.")]
    bytes_sent: Bytes
    bytes_received: Bytes


class OwnBudget(OwnAccount):
    shared: Annotated[bool, describe("All clients share the volume.")]


class ClientAnswer(Answer):
    """One connection, as its owner may see it."""

    multipath: bool
    since: Timestamp | None
    time_zone: str
    subflows: list[OwnSubflow]
    budgets: Annotated[list[OwnBudget], describe("The budgets that meter the connection.")]


class BudgetsAnswer(Answer):
    """Remaining budgets of one address."""

    budgets: Annotated[
        list[OwnBudget], describe("Those that metered the address in this period, meter it, or would if it connected.")
    ]


class PolicyAnswer(Answer):
    """The policy in force, as text."""

    file: str
    since: Timestamp  # when the policy was loaded
    dry_run: bool
    text: Annotated[str, describe("With comments; the file may have changed since.")]


class Difference(Part):
    token: Token
    remote: Endpoint
    path: str | None
    direction: Direction
    now: Annotated[str, describe("Its cap, steering and budget; ends in `(dry run)` if not applied.")]
    then: str
    why: Annotated[str | None, describe("The subflow's reason under the other policy.")]


class WhatIfAnswer(Answer):
    """Changes that another policy would cause."""

    errors: Annotated[list[str], describe("If there are errors, the optional keys are missing.")]
    changes: NotRequired[
        Annotated[
            list[Difference],
            describe(
                "The first 200 of `changed`: subflows whose cap, steering or budget changes, or whose dry run begins "
                "or ends."
            ),
        ]
    ]
    changed: NotRequired[Count]
    stay_capped: NotRequired[Annotated[list[Difference], describe("The first 200.")]]
    stay_capped_count: NotRequired[Count]
    capped_now: NotRequired[Annotated[Count, describe("Each direction of a subflow counts; 0 in a dry run.")]]
    capped_then: NotRequired[Count]
    dry_run_now: NotRequired[bool]
    dry_run_then: NotRequired[bool]


ANSWERS: dict[str, Any] = {
    "status": StatusAnswer,
    "head": HeadAnswer,
    "summary": SummaryAnswer,
    "connections": ConnectionsAnswer,
    "clients": ClientsAnswer,
    "explain": ExplainAnswer,
    "events": EventsAnswer,
    "client": ClientAnswer,
    "budgets": BudgetsAnswer,
    "policy": PolicyAnswer,
    "what_if": WhatIfAnswer,
}
"""The type of each query's answer."""
