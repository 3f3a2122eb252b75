"""What the status socket answers: the shape of each answer, defined here and nowhere else, in the order of ``ANSWERS``.

``runtime.answers`` builds these dictionaries, and mypy holds it to the keys. ``views.schemas`` writes their JSON Schema
with the texts below the keys; a type that has a text of its own keeps it. All keys are always there, but for those that
are ``NotRequired``.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypedDict

from mptcp_throttler.policy.model import Direction, Kind, Share
from mptcp_throttler.telemetry.events import KINDS

SCHEMA = 2
"""Version of the answers: a key that changes its meaning or goes makes it another."""

Seconds = Annotated[float, Field(ge=0)]
Moment = Annotated[float, Field(ge=0, description="Seconds since the epoch.")]
Rate = Annotated[int, Field(ge=0, description="Bits/s.")]
Count = Annotated[int, Field(ge=0)]
Bytes = Annotated[int, Field(ge=0)]
EventNumber = Annotated[int, Field(ge=0, description="Number of an event; they have no gaps.")]
_TOKEN = "The proxy's token, as `ss -M` prints it; a tunnel's has nine digits."
Token = Annotated[str, Field(pattern="^[0-9a-f]{8,9}$", description=_TOKEN)]
_TUNNEL = "Name of the tunnel of Multipath UDP that it is; its subflows are paths, of UDP."
Tunnel = Annotated[str, Field(description=_TUNNEL)]
Endpoint = Annotated[str, Field(description="`ADDR:PORT`, `[ADDR]:PORT` with IPv6.")]
EventKindName = Annotated[str, Field(json_schema_extra={"enum": list(KINDS)})]
SchemaVersion = Annotated[int, Field(ge=SCHEMA, le=SCHEMA, description="Version of the answers.")]
MptcpVersion = Annotated[int, Field(ge=1, le=1, description="Version of Multipath TCP.")]


@with_config(ConfigDict(strict=True, extra="forbid", use_attribute_docstrings=True))
class Part(TypedDict):
    """Nothing is left out of what is documented, and nothing else is said."""


class ErrorAnswer(Part):
    """The answer to a request that cannot be answered."""

    schema: SchemaVersion
    error: str
    """Why, in one line."""


class Answer(Part):
    """What every other answer has."""

    schema: SchemaVersion
    time: Moment  # when it was made
    version: str
    """Of the throttler."""
    pid: int


class RefusedReload(Part):
    time: Moment
    errors: list[str]


class ReloadCounts(Part):
    accepted: Count
    refused: Count
    last_refused: RefusedReload | None
    """Null where the last reload succeeded."""
    settings: list[str]
    """What the last reload found changed in the settings file, which is read at start only, and what is wrong in it."""


class PolicyInForce(Part):
    source: str
    """Its file."""
    dry_run: bool
    rules: list[str]


class HeadAnswer(Answer):
    started: Moment
    now: Moment
    interfaces: list[str]
    listen_ports: list[int]
    """The proxy's, from the settings that were read at the start; connections to others are left alone."""
    netfilter: str
    """The backend: `iptables` or `nftables`."""
    paced: bool
    """Sockets can be paced: caps begin softly."""
    policy: PolicyInForce
    reloads: ReloadCounts
    ledger_error: str | None
    """Why what budgets count cannot be written just now; it is kept and written later."""
    path_manager: Literal["kernel", "user space"]
    uploads_shaped: bool
    in_step: bool
    """The kernel has all that is wanted of it."""


class CapAnswer(Part):
    rule: str | None
    """The rule that decided about the cap."""
    rate: Rate | None
    """Of the cap, guaranteed; null without one."""
    ceil: Rate | None
    """Of the cap, at most."""
    classid: str | None
    """Where the kernel sends its packets now."""
    landing: bool
    """The cap is not in force yet: it waits for the end of its transition, or its class still falls to it."""
    reason: str


class TunnelPathName(Part):
    tunnel_path: NotRequired[str]
    """Of a tunnel: what its daemon calls the path. Bytes are those of IP packets, and there is nothing of TCP."""


class SubflowAnswer(CapAnswer, TunnelPathName):
    """A subflow with the cap of what is sent to the client."""

    local: Endpoint
    remote: Endpoint
    initial: bool
    local_id: int | None
    remote_id: int | None
    backup: bool
    interface: str | None
    since: Moment
    path: str | None
    pacing_limit: Rate | None
    bytes_sent: Bytes | None
    """Payload that the client acknowledged."""
    bytes_received: Bytes | None
    upload: CapAnswer | None
    """The cap of what comes from the client; null where no rule is for that."""


class TunnelName(Part):
    tunnel: NotRequired[Tunnel]


class StatusConnection(TunnelName):
    token: Token
    version: MptcpVersion
    since: Moment
    relaxed: str | None
    """Why its caps are relaxed."""
    subflows: list[SubflowAnswer]


class ClassAnswer(Part):
    classid: str
    direction: Direction
    rate: Rate
    ceil: Rate


class StatusAnswer(HeadAnswer):
    connections: list[StatusConnection]
    classes: list[ClassAnswer]
    counters: dict[str, Any]


class SubflowDetails(SubflowAnswer):
    rtt: Seconds | None
    """Smoothed."""
    rtt_var: Seconds | None
    retransmits: Count | None
    """Segments sent again, since the subflow began."""
    segments_out: Count | None
    lost: Count | None
    """Segments under way that are taken to be lost."""
    cwnd: Count | None
    """Congestion window, segments."""
    rate_sent: Rate | None
    """Between the last two sweeps; null while there are no two."""
    rate_received: Rate | None
    share: Annotated[float, Field(ge=0, le=1)] | None
    """Of what its connection carries now; if that is nothing, of what it has carried."""


class ConnectionDetails(TunnelName):
    token: Token
    client: str | None
    """The address from which it was opened, while that subflow is there."""
    since: Moment
    version: MptcpVersion
    relaxed: str | None
    bytes_sent: Bytes
    """By the subflows that there are."""
    bytes_received: Bytes
    subflows: list[SubflowDetails]


class ConnectionsAnswer(Answer):
    total: Count
    """How many meet the conditions."""
    connections: list[ConnectionDetails]


class SubflowCounts(Part):
    active: Count
    pending: Count
    """Those whose cap waits for the end of its transition."""


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
    direction: Direction
    capped: Count
    """Subflows that have its cap, or are about to."""
    landing: Count
    """Those of them that wait for the end of their transition."""
    rate: Rate | None
    """The least that one of its classes guarantees. Null if the policy in force has no such cap; so with the next
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
    share: Share | None
    """Among whom one class is shared; of several kinds, that of most classes."""


class ClassTotals(ClassAnswer):
    rule: str | None
    """Whose cap it is."""
    bytes: Bytes | None
    """As tc counts, headers included, since the class was made; null if the kernel does not say."""
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
    """Those of which anything was used; at least one if all clients share one."""
    used_up: Count
    """Those that have used their whole volume."""
    used: Bytes
    """Of all of them, as is the volume."""
    volume: Bytes
    first_volume: Bytes
    """The volume of one account."""
    until: Moment  # when it begins anew


class OwnAccount(Part):
    """What a client may see of an account."""

    name: str
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
    """After how much the next one begins; null if none comes."""
    until: Moment  # when it begins anew


class AccountAnswer(OwnAccount):
    rule: str
    """The first that feeds it."""


class GuardTotals(Part):
    relaxed: Count
    """Connections whose caps are relaxed now."""
    interventions: Count
    """Since the daemon's start."""


class LoopDelay(Part):
    longest: Seconds
    """For which the event loop answered nothing, since the start."""
    recent: Seconds
    """The same in the last 10 s."""
    late: Count
    """How often above 50 ms."""


class HistogramAnswer(Part):
    le: list[float]
    """Upper ends of the buckets, seconds."""
    count: list[Count]
    """How many took at most so long; cumulative, one for each of `le`."""
    total: Count
    """How many there were: what Prometheus calls the bucket `+Inf`."""
    sum: Seconds


class EffectHistograms(Part):
    """From the decision about a cap to its full effect, transitions included."""

    down: HistogramAnswer
    up: HistogramAnswer


class PathWords(Part):
    """One path for people."""

    path: str
    conditions: list[str]
    """All of them hold for a subflow on it; none: every subflow."""


class RuleWords(Part):
    """One rule for people."""

    rule: str
    conditions: list[str]
    """All of them hold when the rule does; none: every subflow."""
    does: list[str]
    """Its cap, its budget, its steering, and from what it exempts."""


class PolicySummary(Part):
    file: str
    since: Moment  # when it was taken
    dry_run: bool
    time_zone: str
    """By whose clock hours are, and budgets begin anew."""
    rules: list[str]
    paths_in_words: list[PathWords]
    """In the policy's order."""
    rules_in_words: list[RuleWords]
    """In the same order."""


class BpfPrograms(Part):
    pacing: bool
    """Caps begin softly, by limits on sockets."""
    counting: bool
    """What a subflow carries after its last sample is counted."""


class TunnelPathTotals(Part):
    tunnel: str
    path: str
    """As the tunnel's daemon calls it."""
    bytes_sent: Bytes
    """Of IP packets, since the path has its addresses."""
    bytes_received: Bytes


class SummaryAnswer(Answer):
    started: Moment  # since when the daemon runs
    connections: Count
    """Tunnels included."""
    tunnels: list[TunnelPathTotals]
    """Paths of tunnels of Multipath UDP; at most 1,000."""
    subflows: SubflowCounts
    clients: Count
    """Addresses from which connections were opened."""
    counted: Moment  # when the bytes of all subflows were last counted: a rate is a difference over that time
    paths: list[PathTotals]
    rules: list[RuleTotals]
    classes: list[ClassTotals]
    """Those first that passed most; at most 256."""
    class_counts: ClassCounts
    """How many classes of caps there are, listed or not."""
    budget_totals: list[BudgetTotals]
    """Every budget of the policy, in its order."""
    budgets: list[AccountAnswer]
    """Accounts, the fullest first; at most 100, the fullest of every budget among them."""
    guard: GuardTotals
    counters: dict[str, Any]
    """As in `status`."""
    loop: LoopDelay
    reaction: HistogramAnswer
    """From the last packet of a join's handshake, as captured, to the entry that caps it."""
    effect: EffectHistograms
    reloads: ReloadCounts
    ledger_error: str | None
    """As in `status`: why what budgets count cannot be written just now."""
    captures: dict[str, bool]
    """Of each interface whether the throttler captures there now."""
    bpf: BpfPrograms
    """What is done by BPF, if this kernel allows it."""
    policy: PolicySummary
    last_event: EventNumber


class ClientTotals(Part):
    client: str
    """The address from which its connections were opened."""
    connections: Count
    subflows: Count
    capped: Count
    """Those of its subflows with a cap; none in a dry run."""
    rate_sent: Rate  # to the client, of all its subflows together, as in `connections`
    rate_received: Rate
    bytes_sent: Bytes
    """By the subflows that there are."""
    bytes_received: Bytes
    budgets: list[AccountAnswer]
    """The accounts of its addresses, the fullest first."""


class PlainClient(Part):
    client: str
    connections: Count


class PlainTcp(Part):
    """Established connections to the proxy's ports that are no subflow which the throttler knows, loopback left out."""

    connections: Count
    total: Count
    """How many addresses they come from."""
    clients: list[PlainClient]
    """Those with most of them first; as many as are asked for."""


class ClientsAnswer(Answer):
    total: Count
    """How many clients have connections of Multipath TCP."""
    clients: list[ClientTotals]
    """As many as are asked for. Sorted by `budget`, some may have no connection now."""
    plain_tcp: PlainTcp | None
    """Null if the kernel does not say."""


class RuleTried(Part):
    rule: str
    kind: Kind
    """What it was asked: which cap, which budget, which steering."""
    matched: bool
    """It decided."""
    failed: str | None
    """The condition that was not met, in words; of one that decided, why its cap is lifted."""
    until: Moment | None
    """When the clock next changes that."""


class StageWords(Part):
    stage: Literal["budgets", "grants", "guard", "steering", "rest"]
    what: str
    since: Moment | None
    """When it last did something here, by its events. Without any that says what is so now: when the subflow began, the
    policy was taken, the budget's period began, or the clock last opened the rule or closed one before it, whichever is
    latest. Null if events do not go back so far, and for "rest", of which there are none."""


class ExplainedSubflow(Part):
    remote: Endpoint
    local: Endpoint
    path: str | None
    interface: str | None
    direction: Direction
    verdict: str
    """`capped at 5 Mbit/s` or `not capped`."""
    reason: str
    rate: Rate | None
    ceil: Rate | None
    rule: str | None
    since: Moment
    """Since when it has had this rule's cap at this rate, or none. A rate that balances loads changes meanwhile."""
    tried: list[RuleTried]
    """In order, question by question; none after the one that decided."""
    stages: list[StageWords]
    """What came after the rules, in order."""
    cap_state: Literal["none", "coming", "in force", "being lifted"]


class ExplainedConnection(TunnelName):
    token: Token
    client: str | None
    since: Moment
    subflows: list[ExplainedSubflow]
    """Active ones; one entry for each direction that the policy has rules for."""


class ExplainAnswer(Answer):
    time_zone: str
    """Of the policy's hours."""
    total: Count
    connections: list[ExplainedConnection]
    """The latest first; at most 50."""


class EventAnswer(Part):
    seq: EventNumber
    time: Moment
    kind: EventKindName
    token: Token | None
    client: str | None
    remote: Endpoint | None
    local: Endpoint | None
    path: str | None
    rule: str | None
    """Of a budget's event, the budget."""
    direction: Annotated[str, Field(json_schema_extra={"enum": ["down", "up"]})] | None
    text: str
    """One line for people."""


class EventsAnswer(Answer):
    first: EventNumber  # the oldest that is kept
    last: EventNumber
    events: list[EventAnswer]


class OwnSubflow(Part):
    path: str | None
    address: str | None
    capped: bool
    """Downloads over it are."""
    rate: Rate | None
    """Most that downloads get."""
    rule: str | None
    upload_rate: Rate | None
    bytes: Bytes
    """Both directions."""
    bytes_sent: Bytes
    bytes_received: Bytes


class OwnBudget(OwnAccount):
    shared: bool
    """All clients use it up together."""


class ClientAnswer(Answer):
    multipath: bool
    since: Moment | None
    """When the connection began."""
    time_zone: str
    """Of the policy, by whose clock budgets begin anew."""
    subflows: list[OwnSubflow]
    budgets: list[OwnBudget]
    """Those that meter this connection."""


class BudgetsAnswer(Answer):
    budgets: list[OwnBudget]
    """Those that have metered the address in the present period, meter it now, or would."""


class PolicyAnswer(Answer):
    file: str
    since: Moment  # when it was taken
    dry_run: bool
    text: str
    """What was taken, comments included; the file may be another by now."""


class Difference(Part):
    token: Token
    remote: Endpoint
    path: str | None
    """On which it would be; if the other policy has no rule for its direction, on which it is."""
    direction: Direction
    now: str
    """Its cap, its steering, and where it changes, its budget; `(dry run)` if that is not done."""
    then: str
    why: str | None
    """The reason that the subflow would have."""


class WhatIfAnswer(Answer):
    errors: list[str]
    """Why it is no policy, one line each; then there is nothing else."""
    changes: NotRequired[list[Difference]]
    """Subflows with another cap, steering or budget, or for which a dry run would begin or end; at most 200."""
    changed: NotRequired[Count]
    stay_capped: NotRequired[list[Difference]]
    """Those that would be capped, and treated in all as they are; at most 200."""
    stay_capped_count: NotRequired[Count]
    capped_now: NotRequired[Count]
    """Each direction of a subflow counts; none in a dry run."""
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
"""By query."""
