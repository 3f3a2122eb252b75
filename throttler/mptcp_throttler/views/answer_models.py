"""What the status socket answers, as models: for the JSON Schema and for tests. No answer is made with them.

Those of ``summary`` are in ``summary_models``; ``python -m mptcp_throttler.views.status_schema conf`` writes it all.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Seconds = Annotated[float, Field(ge=0)]
Moment = Annotated[float, Field(ge=0, description="Seconds since the epoch.")]
Rate = Annotated[int, Field(ge=0, description="Bits/s.")]
Count = Annotated[int, Field(ge=0)]
Bytes = Annotated[int, Field(ge=0)]
Sequence = Annotated[int, Field(ge=0, description="Number of an event; they have no gaps.")]
Token = Annotated[str, Field(pattern="^[0-9a-f]{8}$", description="The proxy's token, as `ss -M` prints it.")]
Endpoint = Annotated[str, Field(description="`ADDR:PORT`, `[ADDR]:PORT` with IPv6.")]
DirectionName = Annotated[Literal["down", "up"], Field(description="`down` is towards the client.")]


class Part(BaseModel):
    """Nothing is left out of what is documented, and nothing else is said."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, use_attribute_docstrings=True)


class Answer(Part):
    """What every answer has."""

    schema_: Annotated[Literal[1], Field(alias="schema")]
    """Version of the answers."""
    time: Moment
    """When it was made."""
    version: str
    """Of the throttler."""
    pid: int


class ErrorAnswer(Part):
    """The answer to a request that cannot be answered."""

    schema_: Annotated[Literal[1], Field(alias="schema")]
    error: str
    """Why, in one line."""


class RefusedReload(Part):
    time: Moment
    errors: list[str]


class Reloads(Part):
    accepted: Count
    refused: Count
    last_refused: RefusedReload | None
    """None where the last reload succeeded."""


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
    """The proxy's, of the settings that were read at the start; connections to others are left alone."""
    netfilter: str
    """The backend: `iptables` or `nftables`."""
    paced: bool
    """Sockets can be paced: caps begin softly."""
    policy: PolicyInForce
    reloads: Reloads
    ledger_error: str | None
    """Why what budgets count cannot be written just now; it is kept and written later."""
    path_manager: Literal["kernel", "user space"]
    uploads_shaped: bool
    in_step: bool
    """The kernel has all that is wanted of it."""


class Upload(Part):
    rule: str | None
    rate: Rate | None
    ceil: Rate | None
    classid: str | None
    landing: bool
    """Its class still falls to the cap, or waits to."""
    reason: str


class Subflow(Part):
    local: Endpoint
    remote: Endpoint
    state: Literal["syn", "syn-ack", "unproven", "active", "closing", "closed"]
    initial: bool
    local_id: int | None
    remote_id: int | None
    backup: bool
    interface: str | None
    since: Moment
    path: str | None
    rule: str | None
    """The rule that decided about the cap."""
    rate: Rate | None
    """Of the cap, guaranteed; null without one."""
    ceil: Rate | None
    """Of the cap, at most."""
    classid: str | None
    """Where the kernel sends its packets now."""
    landing: bool
    """Its cap waits for the end of its transition."""
    pacing_limit: Rate | None
    reason: str
    bytes_sent: Bytes | None
    """Payload that the client acknowledged."""
    bytes_received: Bytes | None
    upload: Upload | None
    """The same of what comes from the client; null where no rule is for that."""


class StatusConnection(Part):
    token: Token
    version: Literal[1]
    """Of Multipath TCP."""
    since: Moment
    relaxed: str | None
    """Why its caps are relaxed."""
    subflows: list[Subflow]


class Class(Part):
    classid: str
    direction: DirectionName
    rate: Rate
    ceil: Rate


class StatusAnswer(HeadAnswer):
    connections: list[StatusConnection]
    classes: list[Class]
    counters: dict[str, Any]


class SubflowDetails(Subflow):
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
    """Of what its connection carries now, or where that is nothing, has carried."""


class ConnectionDetails(Part):
    token: Token
    client: str | None
    """The address from which it was opened, while that subflow is there."""
    since: Moment
    version: Literal[1]
    relaxed: str | None
    bytes_sent: Bytes
    """By the subflows that there are."""
    bytes_received: Bytes
    subflows: list[SubflowDetails]


class ConnectionsAnswer(Answer):
    total: Count
    """How many meet the conditions."""
    connections: list[ConnectionDetails]


class Tried(Part):
    rule: str
    kind: Literal["throttle", "budget", "steer"]
    """What it was asked: which cap, which budget, which steering."""
    matched: bool
    """It decided."""
    failed: str | None
    """The condition that was not met, in words; of one that decided, why its cap is lifted."""
    until: Moment | None
    """When the clock next changes that."""


class StageWords(Part):
    stage: Literal["budgets", "guard", "steering", "rest"]
    what: str
    since: Moment | None
    """When it last did something here, by its events. Without any that says what is so now: when the subflow began, the
    policy was taken, the budget's period began, or the clock last opened the rule or closed one before it, whichever is
    latest; null where events do not go back so far, and for "rest", of which there are none."""


class ExplainedSubflow(Part):
    remote: Endpoint
    local: Endpoint
    path: str | None
    interface: str | None
    direction: DirectionName
    verdict: str
    """`capped at 5 Mbit/s` or `not capped`."""
    reason: str
    rate: Rate | None
    ceil: Rate | None
    rule: str | None
    since: Moment
    """Since when it has had this rule's cap at this rate, or none. A rate that balances loads changes meanwhile."""
    tried: list[Tried]
    """In order, question by question; none after the one that decided."""
    stages: list[StageWords]
    """What came after the rules, in order."""
    cap_state: Literal["none", "coming", "in force", "being lifted"]


class ExplainedConnection(Part):
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


class Event(Part):
    seq: Sequence
    time: Moment
    kind: Literal[
        "connection",
        "subflow",
        "closed",
        "decided",
        "applied",
        "lifted",
        "guard",
        "budget",
        "steering",
        "reload",
        "fault",
    ]
    token: Token | None
    client: str | None
    remote: Endpoint | None
    local: Endpoint | None
    path: str | None
    rule: str | None
    """Of a budget's event, the budget."""
    direction: DirectionName | None
    text: str
    """One line for people."""


class EventsAnswer(Answer):
    first: Sequence
    """The oldest that is kept."""
    last: Sequence
    events: list[Event]


class OwnSubflow(Part):
    path: str | None
    address: str
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


class OwnBudget(Part):
    name: str
    client: str | None
    """The client's own address that it is for; null where all share it."""
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
    since: Moment
    """When it was taken."""
    dry_run: bool
    text: str
    """What was taken, comments included; the file may be another by now."""


class Change(Part):
    token: Token
    remote: Endpoint
    path: str | None
    """On which it would be; where the other policy has no rule for its direction, on which it is."""
    direction: DirectionName
    now: str
    """Its cap, its steering, and where it changes, its budget; `(dry run)` where that is not done."""
    then: str
    why: str | None
    """The reason that the subflow would have."""


class WhatIfAnswer(Answer):
    errors: list[str]
    """Why it is no policy, one line each; then there is nothing else."""
    changes: list[Change] | None = None
    """Subflows with another cap, steering or budget, or for which a dry run would begin or end; at most 200."""
    changed: Count | None = None
    stay_capped: list[Change] | None = None
    """Those that would be capped, and treated in all as they are; at most 200."""
    stay_capped_count: Count | None = None
    capped_now: Count | None = None
    """Each direction of a subflow counts; none in a dry run."""
    capped_then: Count | None = None
    dry_run_now: bool | None = None
    dry_run_then: bool | None = None
