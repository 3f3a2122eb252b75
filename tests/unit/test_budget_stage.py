"""The stage of budgets: what is metered, what it comes to, and which cap follows."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from ipaddress import ip_address
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampling import observed

from mptcp_throttler.mptcp.model import Connection, FourTuple, KernelSubflow, Subflow, SubflowState
from mptcp_throttler.policy.budget import Account, Counters
from mptcp_throttler.policy.evaluate import evaluate
from mptcp_throttler.policy.load import load_policy
from mptcp_throttler.policy.model import Policy, ScopeKey, Share, Verdict
from mptcp_throttler.stages.budget import NOTHING_USED, BudgetStage, Usage
from mptcp_throttler.stages.budget_accounts import Volume
from mptcp_throttler.stages.budget_sockets import FORGET_SECONDS, MeteredSockets
from mptcp_throttler.stages.stage import Samples

ATHENS = ZoneInfo("Europe/Athens")
MB = 1_000_000
PROXY = ip_address("10.77.0.1").packed
HEAD = """\
version: 1
time_zone: Europe/Athens
paths:
  lte: {clients: [10.77.1.0/24]}
  wifi: {clients: [10.77.2.0/24]}
"""
STEPS = "steps: [{after: 1 MB, throttle: {rate: 1 Mbit/s}}, {after: 3 MB, throttle: {rate: 64 kbit/s}}]"
LTE = "- {name: lte, paths: [lte], budget: {%s, " + STEPS + "}}\n"


def policy(rules: str, top: str = "") -> Policy:
    return load_policy(f"{HEAD}{top}rules:\n{rules}", "policy.yaml")


MONTHLY = policy(LTE % "period: month")


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ATHENS).timestamp()


def four_tuple(remote: str, port: int = 40000) -> FourTuple:
    return FourTuple(PROXY, 3128, ip_address(remote).packed, port)


class Host:
    """A stage, the sockets that the kernel has, and connections of which each has one subflow or two."""

    def __init__(self, subject: Policy = MONTHLY, now: str = "2026-11-20 12:00") -> None:  # a Friday
        self.stage = BudgetStage()
        self.policy = subject
        self.stage.set_policy(subject)
        self.now = at(now)
        self.clock = 100.0
        self.sockets: dict[FourTuple, KernelSubflow] = {}
        self.connections: dict[int, Connection] = {}
        self.cookies = 0
        self.written: dict[Account, int] = {}

    def connect(self, token: int, *remotes: str) -> tuple[Verdict, ...]:
        subflows: list[Subflow] = []
        for remote in remotes:
            self.cookies += 1
            name = four_tuple(remote, 40000 + token)
            self.sockets[name] = KernelSubflow(token, name, not subflows, 0, 0, False, cookie=self.cookies)
            subflows.append(Subflow(name, SubflowState.ACTIVE, not subflows, 0, 0, False, None, self.now))
        self.connections[token] = Connection(token, tuple(subflows), self.now)
        return self.decide(token)

    def decide(self, token: int) -> tuple[Verdict, ...]:
        connection = self.connections[token]
        return self.stage.apply(connection, evaluate(self.policy, connection, self.now), self.now)

    def carry(self, token: int, octets: int, upload: int = 0, index: int = 0) -> None:
        name = self.connections[token].subflows[index].four_tuple
        socket = self.sockets[name]
        self.sockets[name] = socket._replace(
            bytes_acked=socket.bytes_acked + octets, bytes_received=socket.bytes_received + upload
        )

    def sweep(self, seconds: float = 1.0) -> set[int]:
        """Let time pass and sample all sockets; return the connections that are to be decided anew."""
        self.now += seconds
        self.clock += seconds
        stale = set(self.stage.advance(self.now, self.clock))
        return stale | set(observed(self.stage, Samples(self.clock, dict(self.sockets), True)).changed)

    def close(self, token: int, report: bool = True) -> None:
        """The connection ends: its sockets are gone, and the tracker knows it."""
        for subflow in self.connections.pop(token).subflows:
            socket = self.sockets.pop(subflow.four_tuple)
            if report:
                self.report(socket)
        self.stage.forget(token)

    def report(self, socket: KernelSubflow) -> None:
        end = socket.four_tuple.remote, socket.four_tuple.remote_port, socket.four_tuple.local_port
        self.stage.socket_closed(socket.cookie, end, socket.bytes_acked, socket.bytes_received)

    def used(self) -> dict[str, int]:
        """Return what came to each budget, all clients and periods together."""
        for account, octets in self.stage.take_pending().added.items():
            self.written[account] = self.written.get(account, 0) + octets
        found: dict[str, int] = {}
        for account, octets in self.written.items():
            found[account.budget] = found.get(account.budget, 0) + octets
        return found


def test_a_volume_that_is_used_up_brings_the_cap_of_its_step() -> None:
    host = Host()
    (verdict,) = host.connect(1, "10.77.1.2")
    assert (verdict.throttle, verdict.rule) == (None, None)
    assert verdict.reason == "budget of rule lte: under 50 % of 1.00 MB used until 2026-12-01 00:00 EET"
    host.carry(1, 900_000, upload=100_000)
    assert host.sweep() == {1}
    (verdict,) = host.decide(1)
    assert verdict.throttle is not None
    assert verdict.throttle.rate == 1_000_000
    assert verdict.rule is not None
    assert verdict.rule.name == "lte"
    assert verdict.reason == "rule lte caps what exceeds 1.00 MB until 2026-12-01 00:00 EET"
    host.carry(1, 5 * MB)
    assert host.sweep() == {1}
    (verdict,) = host.decide(1)
    assert verdict.throttle is not None
    assert verdict.throttle.rate == 64_000
    assert host.sweep() == set()


def test_reasons_say_how_much_is_used_without_a_decision_for_each_byte() -> None:
    host = Host()
    host.connect(1, "10.77.1.2")
    said = []
    for _ in range(20):
        host.carry(1, 50_000)
        if host.sweep():
            said.append(host.decide(1)[0].reason)
    until = "until 2026-12-01 00:00 EET"
    assert said == [
        *(f"budget of rule lte: over {percent} % of 1.00 MB used {until}" for percent in (50, 80, 95)),
        f"rule lte caps what exceeds 1.00 MB {until}",
    ]


def test_a_new_period_begins_anew_whoever_asks_first() -> None:
    """Defect: `status` between the rollover and the next count took the change, and the cap stayed in the kernel."""
    host = Host()
    host.connect(1, "10.77.1.2")
    host.connect(2, "10.77.1.3")
    for token in (1, 2):
        host.carry(token, 2 * MB)
    host.sweep()
    assert [host.decide(token)[0].throttle is not None for token in (1, 2)] == [True, True]
    host.now = at("2026-12-01 00:00")
    assert host.decide(1)[0].throttle is None, "asked before the calendar was looked at"
    assert set(host.stage.advance(host.now, host.clock)) == {1, 2}, "the other one hears of it all the same"
    assert host.decide(2)[0].throttle is None
    assert host.stage.advance(host.now, host.clock) == set()


def test_clients_at_different_steps_have_classes_of_their_own() -> None:
    """Defect: with `per: client` and `share: path`, both the default, they flipped one class's rate."""
    host = Host()
    host.connect(1, "10.77.1.2")
    host.connect(2, "10.77.1.3")
    host.carry(1, 1 * MB)
    host.carry(2, 3 * MB)
    host.sweep()
    (one,), (other,) = host.decide(1), host.decide(2)
    assert (one.scope, other.scope) == (
        ScopeKey("lte", Share.PATH, step=1 * MB),
        ScopeKey("lte", Share.PATH, step=3 * MB),
    )


@pytest.mark.parametrize(("share", "members"), [("client", 2), ("connection", 3), ("path", 1)])
def test_shares_of_a_cap_are_those_of_a_rule(share: str, members: int) -> None:
    steps = f"steps: [{{after: 0, throttle: {{rate: 1 Mbit/s, share: {share}}}}}]"
    host = Host(policy(f"- {{name: lte, paths: [lte], budget: {{period: day, {steps}}}}}\n"))
    found = [host.connect(1, "10.77.1.2"), host.connect(2, "10.77.1.3"), host.connect(3, "10.77.1.3")]
    assert len({verdict.scope for (verdict,) in found}) == members


HOURS = f"""\
- name: by-day
  paths: [lte]
  when: {{hours: ["08:00-18:00"]}}
  budget: {{period: month, {STEPS}}}
"""


def test_a_rule_whose_hours_end_is_billed_no_more() -> None:
    """Defect: what once was metered went on being metered. What came between is split at the sample."""
    host = Host(policy(HOURS), now="2026-11-20 17:59")
    host.connect(1, "10.77.1.2")
    host.carry(1, 1000)
    host.sweep(30)
    host.carry(1, 100)
    host.now += 60
    host.decide(1)
    host.carry(1, 10)
    host.sweep()
    host.carry(1, 5000)
    host.sweep()
    assert host.used() == {"by-day": 1110}
    assert not host.stage.watched()


def test_a_rule_whose_hours_begin_bills_what_comes_from_then_on() -> None:
    host = Host(policy(HOURS), now="2026-11-20 07:59")
    host.connect(1, "10.77.1.2")
    host.carry(1, 5000)
    host.sweep(60)
    host.decide(1)
    host.carry(1, 100)
    host.sweep()
    host.carry(1, 10)
    host.sweep()
    assert host.used() == {"by-day": 10}


def test_metering_that_ends_and_begins_again_within_a_sweep_goes_on() -> None:
    """A sweep is taken in slices, between which verdicts change."""
    came: list[int] = []
    subject = MeteredSockets(lambda _, octets: came.append(octets), lambda parts, _: parts)
    name = four_tuple("10.77.1.2")
    (budget,) = MONTHLY.budgets
    parts = (Volume(Account("lte", "", 0), budget, 0).part,)
    socket = KernelSubflow(1, name, True, 0, 0, False, cookie=1)
    subject.meter(name, 1, parts, seen=False)
    subject.meter(name, 1, (), seen=True)
    ended = subject.metered[name]
    assert subject._sample(ended, socket._replace(bytes_acked=10))
    subject.meter(name, 1, parts, seen=True)
    subject._drop(ended)
    for octets in (15, 18):
        assert not subject._sample(subject.metered[name], socket._replace(bytes_acked=octets))
    assert came == [10, 3]


def test_a_budget_that_comes_with_a_reload_does_not_bill_the_past() -> None:
    host = Host(policy("- {name: cap, throttle: {rate: 1mbit}}\n"))
    host.connect(1, "10.77.1.2")
    host.carry(1, 5000)
    host.now += 5
    host.policy = MONTHLY
    host.stage.set_policy(MONTHLY)
    host.decide(1)
    host.now += 1
    host.connect(2, "10.77.1.3")
    host.carry(2, 300)
    host.sweep()
    host.carry(1, 20)
    host.sweep()
    assert host.used() == {"lte": 320}
    host.stage.set_policy(policy("- {name: cap, throttle: {rate: 1mbit}}\n"))
    host.carry(1, 1)
    host.sweep()
    host.carry(1, 9000)
    host.sweep()
    assert host.used() == {"lte": 321}
    assert not host.stage.watched()


EXAMPLE = Path(__file__).parents[2] / "conf/examples/office-hours-and-volume.yaml"


@pytest.mark.parametrize("order", [1, -1], ids=["cap first", "budget first"])
def test_2_mbit_in_office_hours_and_5_gb_a_month_then_512_kbit(order: int) -> None:
    """Defect: the first of the two rules decided alone."""
    example = load_policy(EXAMPLE.read_text(), EXAMPLE.name)
    host = Host(replace(example, rules=example.rules[::order]), now="2026-11-20 12:00")
    verdict, other = host.connect(1, "10.77.3.2", "10.77.2.2")
    assert other.reason == "no rule matches"
    assert verdict.throttle is not None
    assert verdict.throttle.rate == 2_000_000
    assert verdict.reason == (
        "rule lte-by-day caps path lte at 2 Mbit/s: 2 subflows active; "
        "budget of rule lte-month: under 50 % of 5.00 GB used until 2026-12-01 00:00 EET"
    )
    host.carry(1, 4_999 * MB)
    host.carry(1, 4_999 * MB, index=1)
    host.sweep()
    assert host.used() == {"lte-month": 4_999 * MB}, "what office hours carry counts"
    host.carry(1, 1 * MB)
    assert host.sweep() == {1}
    verdict, _ = host.decide(1)
    assert verdict.throttle is not None
    assert verdict.throttle.rate == 512_000
    assert verdict.rule is not None
    assert (verdict.rule.name, verdict.rule.guard) == ("lte-month", False)
    assert verdict.reason == (
        "rule lte-month caps what exceeds 5.00 GB until 2026-12-01 00:00 EET; "
        "tighter than the 2 Mbit/s of rule lte-by-day"
    )
    host.now = at("2026-11-20 20:00")
    verdict, _ = host.decide(1)
    assert verdict.throttle is not None
    assert verdict.throttle.rate == 512_000
    assert verdict.reason == (
        "rule lte-by-day does not apply: outside its hours; "
        "rule lte-month caps what exceeds 5.00 GB until 2026-12-01 00:00 EET"
    )


def test_the_tightest_cap_holds_also_where_it_is_the_rules() -> None:
    rules = "- {name: cap, paths: [lte], when: {min_subflows: 1}, throttle: {rate: 100 kbit/s}, lift_last: false}\n"
    host = Host(policy(rules + LTE % "period: month"))
    host.connect(1, "10.77.1.2")
    host.carry(1, 2 * MB)
    host.sweep()
    (verdict,) = host.decide(1)
    assert verdict.scope == ScopeKey("cap", Share.PATH)
    assert verdict.reason.endswith(
        "; tighter than the budget of rule lte, 1 Mbit/s beyond 1.00 MB until 2026-12-01 00:00 EET"
    )
    assert verdict.beside is not None, "for where the rule's cap is relaxed"
    assert verdict.beside.scope.step == verdict.beside.throttle.rate == 1 * MB
    assert not verdict.beside.rule.guard
    host.carry(1, 2 * MB)
    host.sweep()
    assert host.decide(1)[0].scope == ScopeKey("lte", Share.PATH, step=3 * MB)


def test_exemption_from_caps_is_none_from_a_budget_and_one_from_a_budget_is_said() -> None:
    rules = "- {name: ops, when: {clients: [10.77.1.9]}, throttle: none%s}\n" + LTE % "period: month"
    host = Host(policy(rules % ""))
    (verdict,) = host.connect(1, "10.77.1.9")
    assert verdict.reason.startswith("exempted by rule ops; budget of rule lte: under 50 %")
    host = Host(policy(rules % ", budget: none"))
    (verdict,) = host.connect(1, "10.77.1.9")
    assert verdict.reason == "exempted by rule ops; exempted from budgets by rule ops"
    host.carry(1, 5 * MB)
    host.sweep()
    assert host.used() == {}


BUDGETS = f"budgets: {{month: {{period: month, per: path, {STEPS}}}}}\n"
SHARED = """\
- {name: lte, paths: [lte], budget: month}
- {name: wifi, paths: [wifi], budget: month, direction: both}
"""


def test_several_rules_feed_one_budget() -> None:
    host = Host(policy(SHARED, BUDGETS))
    host.connect(1, "10.77.1.2", "10.77.2.2")
    host.carry(1, 600_000)
    host.carry(1, 600_000, index=1)
    assert host.sweep() == {1}
    lte, wifi, upload = [verdict for verdict in host.decide(1) if verdict.throttle is not None]
    assert lte.scope == wifi.scope == ScopeKey("lte", Share.PATH, step=1 * MB)
    assert upload.scope is not None
    assert upload.scope.direction is not lte.direction
    assert wifi.reason == "budget month caps what exceeds 1.00 MB until 2026-12-01 00:00 EET"
    assert upload.reason.startswith("upload: budget month caps")
    assert wifi.rule is not None
    assert wifi.rule.name == "wifi"
    assert host.used() == {"month": 1_200_000}, "each byte once, however many verdicts name the budget"


def test_a_dry_run_meters_and_says_what_it_would_do() -> None:
    host = Host(replace(MONTHLY, dry_run=True))
    host.connect(1, "10.77.1.2")
    host.carry(1, 2 * MB)
    host.sweep()
    assert host.decide(1)[0].reason.startswith("rule lte would cap what exceeds 1.00 MB")


def test_what_a_socket_carried_last_is_counted_once() -> None:
    host = Host()
    host.connect(1, "10.77.1.2")
    host.carry(1, 500_000)
    host.sweep()
    host.carry(1, 100_000)
    socket = next(iter(host.sockets.values()))
    host.close(1)
    host.sweep()
    observed(host.stage, Samples(host.clock, {socket.four_tuple: socket}, False))
    assert host.used() == {"lte": 600_000}
    assert not host.stage.watched()


def test_a_socket_that_no_sample_ever_showed_counts() -> None:
    host = Host()
    host.connect(1, "10.77.1.2")
    host.carry(1, 70_000)
    host.close(1)
    assert host.used() == {"lte": 70_000}


def test_a_socket_that_closes_before_a_sample_of_it_is_looked_at_counts_once() -> None:
    host = Host()
    host.connect(1, "10.77.1.2")
    host.carry(1, 70_000)
    (socket,) = host.sockets.values()
    host.report(socket)
    host.sweep()
    host.connect(2, "10.77.1.2")
    host.carry(2, 5)
    host.sweep()
    assert host.used() == {"lte": 70_005}


def test_a_socket_that_takes_long_to_close_counts_once() -> None:
    host = Host()
    host.connect(1, "10.77.1.2")
    host.carry(1, 70_000)
    host.sweep()
    (socket,) = host.sockets.values()
    host.close(1, report=False)
    host.sweep()
    host.sweep()
    host.report(socket._replace(bytes_acked=71_000))
    assert host.used() == {"lte": 71_000}


def test_a_socket_that_never_reports_is_forgotten() -> None:
    host = Host()
    host.connect(1, "10.77.1.2")
    host.sweep()
    host.close(1, report=False)
    host.sweep()
    assert host.stage.watched()
    host.sweep(FORGET_SECONDS + 1)
    assert not host.stage.watched()


def test_a_subflow_that_is_half_closed_still_counts() -> None:
    host = Host()
    host.connect(1, "10.77.1.2")
    connection = host.connections[1]
    closing = tuple(replace(each, state=SubflowState.CLOSING) for each in connection.subflows)
    host.connections[1] = replace(connection, subflows=closing)
    host.decide(1)
    host.carry(1, 4000)
    host.sweep()
    assert host.used() == {"lte": 4000}


def test_a_port_that_is_used_again_is_another_socket() -> None:
    host = Host()
    host.connect(1, "10.77.1.2")
    host.carry(1, 1000)
    host.sweep()
    (old,) = host.sockets.values()
    host.connections.clear()
    name = old.four_tuple
    host.sockets = {name: old._replace(token=2, cookie=77, bytes_acked=40)}
    subflow = Subflow(name, SubflowState.ACTIVE, True, 0, 0, False, None, host.now)
    host.connections[2] = Connection(2, (subflow,), host.now)
    host.decide(2)
    host.sweep()
    host.report(old._replace(bytes_acked=1200))
    host.stage.forget(1)
    host.carry(2, 2)
    host.sweep()
    assert host.used() == {"lte": 1242}
    assert list(host.stage.watched()) == [name]


def test_what_the_ledger_knows_of_a_socket_is_not_counted_again() -> None:
    host = Host()
    start = int(at("2026-11-01 00:00"))
    host.stage.restore({Account("lte", "10.77.1.2", start): 900_000}, {1: Counters(5000, 10)})
    host.connect(1, "10.77.1.2")
    host.carry(1, 6000, upload=10)
    host.sweep()
    assert host.used() == {"lte": 1000}
    host.carry(1, 99_000)
    assert host.sweep() == {1}, "it went on from what the ledger had"


def test_counters_of_sockets_that_nobody_sees_go() -> None:
    host = Host()
    host.stage.restore({}, {99: Counters(5000, 10)})
    host.sweep()
    host.sweep(601)
    assert host.stage.take_pending().closed == {99}


def test_a_reset_by_somebody_else_is_taken_over() -> None:
    host = Host()
    host.connect(1, "10.77.1.2")
    host.carry(1, 2 * MB)
    host.sweep()
    assert host.decide(1)[0].throttle is not None
    host.used()
    host.carry(1, 100)
    host.sweep()
    assert set(host.stage.refresh({})) == {1}
    assert host.decide(1)[0].throttle is None
    assert host.used() == {"lte": 2 * MB + 100}, "what came since is still to be written"


def test_a_step_that_is_near_is_urgent_and_nothing_else_is() -> None:
    host = Host()
    host.connect(1, "10.77.1.2")
    host.connect(2, "10.77.1.3")
    host.connect(3, "10.77.1.2")
    host.sweep()
    host.carry(1, 100_000)
    host.carry(2, 1000)
    host.sweep()
    assert list(host.stage.urgent()) == []
    host.carry(1, 300_000)
    host.sweep()
    assert list(host.stage.urgent()) == [four_tuple("10.77.1.2", 40001)]
    host.carry(1, 700_000)
    busy = four_tuple("10.77.1.2", 40001)
    outcome = observed(host.stage, Samples(host.clock + 0.1, {busy: host.sockets[busy]}, False))
    assert set(outcome.changed) == {1, 3}, "at once"
    host.sweep()
    host.sweep()
    assert list(host.stage.urgent()) == []


def test_the_urgent_are_few_however_many_share_the_account() -> None:
    host = Host(policy(LTE % "period: month, per: path"))
    for token in range(600):
        host.connect(token, "10.77.1.2")
    host.sweep()
    for token in range(600):
        host.carry(token, 1000 + token)
    host.sweep()
    urgent = list(host.stage.urgent())
    assert len(urgent) == 200
    assert urgent[0] == four_tuple("10.77.1.2", 40599)


def test_what_could_not_be_written_is_written_with_what_came_since() -> None:
    account, other = Account("a", "", 1), Account("b", "", 1)
    first = Usage({account: 5}, {1: (5, 0), 2: (0, 0)}, frozenset({3}))
    later = Usage({account: 1, other: 2}, {1: (6, 2)}, frozenset({2}))
    both = first.followed_by(later)
    assert both == Usage({account: 6, other: 2}, {1: (6, 2)}, frozenset({2, 3}))
    assert NOTHING_USED.followed_by(first) == first


ACTIONS = st.sampled_from(["send", "sweep", "decide", "reconnect", "silent", "period", "policy"])


@given(st.lists(ACTIONS, max_size=40))
def test_no_byte_counts_twice_and_none_is_lost(actions: list[str]) -> None:
    host = Host(policy(LTE % "period: day"))
    token, sent = 1, 0
    host.connect(token, "10.77.1.2")
    for action in actions:
        if action == "send":
            host.carry(token, 1000, upload=10)
            sent += 1010
        elif action == "sweep":
            host.sweep()
        elif action == "decide":
            host.decide(token)
        elif action in ("reconnect", "silent"):
            if action == "silent":
                host.sweep()
            host.close(token, report=action == "reconnect")
            token += 1
            host.connect(token, "10.77.1.2")
        elif action == "policy":
            host.stage.set_policy(replace(host.policy))
            host.decide(token)
        else:
            host.now += 86_400
    host.sweep()
    assert host.used() == ({"lte": sent} if sent else {})
