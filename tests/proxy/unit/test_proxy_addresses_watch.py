# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the times at which Squid is reconfigured for new addresses of the host, with a fake host and clock."""

from __future__ import annotations

import time
from ipaddress import ip_network

import pytest

from mptcp_proxy import addresses_watch
from mptcp_proxy.addresses_watch import AddressesWatch
from mptcp_proxy.own_addresses import Network
from mptcp_proxy.places import Places

BEFORE: frozenset[Network] = frozenset({ip_network("192.0.2.1/32")})
AFTER: frozenset[Network] = frozenset({ip_network("192.0.2.2/32")})


class RecordedProblem:
    """Records the problem that the watch reports."""

    text = ""

    def set_problem(self, subject: str, text: str) -> bool:
        self.text = text
        return True


class Host:
    """A fake host: its addresses, its clock, and *obstacle*, the reason why Squid cannot read its configuration. It
    also acts as the trial of the configuration."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.trials, self.ends, self.obstacle = 1000.0, 0, 0, ""
        self.trial_seconds = 0.0
        """Seconds that a trial takes."""
        self.trial_end: float | None = None
        """Time when the running trial ends, or None."""
        self.installed: list[frozenset[Network]] = []
        self.problems = RecordedProblem()
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(addresses_watch, "local_prefixes", lambda: AFTER)
        monkeypatch.setattr(addresses_watch, "install_own_addresses", self.install)
        self.watch = AddressesWatch(Places("one"), self.problems, BEFORE, self)  # type: ignore[arg-type]

    def install(self, _: Places, prefixes: frozenset[Network]) -> None:
        self.installed.append(prefixes)

    @property
    def is_running(self) -> bool:
        return self.trial_end is not None

    def begin(self) -> None:
        assert self.trial_end is None
        self.trials += 1
        self.trial_end = self.now + self.trial_seconds

    def outcome(self) -> str | None:
        assert self.trial_end is not None
        if self.now < self.trial_end:
            return None
        self.trial_end = None
        return self.obstacle

    def end(self) -> None:
        self.ends += self.trial_end is not None
        self.trial_end = None

    def advance_to(self, end: float) -> int:
        """Advance the clock to *end*, and return the number of reconfigurations of Squid."""
        reconfigurations = 0
        while self.watch.next_check is not None and self.watch.next_check <= end:
            self.now = max(self.now, self.watch.next_check)
            reconfigurations += self.watch.check()
        self.now = end
        return reconfigurations


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(monkeypatch)


def test_new_address_reconfigures_squid(host: Host) -> None:
    assert host.advance_to(1005.0) == 1
    assert host.installed == [BEFORE | AFTER]
    assert host.problems.text == ""


def test_squid_is_reconfigured_only_if_it_can_read_its_configuration(host: Host) -> None:
    """Defect: if a name in squid.conf had no address, Squid ended after a change of the host's addresses.

    For the same reason, the next start was refused.
    """
    host.obstacle = "Squid would end at Bungled squid.conf line 3: acl own src office.example"
    assert host.advance_to(1300.0) == 0
    assert host.installed == []
    assert host.problems.text.startswith(
        "Squid would end at Bungled squid.conf line 3: acl own src office.example; for now"
    )
    # Trials begin after 1, 3, 7, 15, 31 and 63 seconds, then once a minute.
    assert host.trials == 9
    host.obstacle = ""
    assert host.advance_to(1361.0) == 1
    assert len(host.installed) == 1
    assert host.problems.text == ""


def test_further_changes_cause_no_additional_trials(host: Host) -> None:
    host.obstacle = "Bungled"
    for second in range(1001, 1301):
        host.watch.schedule_check()
        assert host.advance_to(float(second)) == 0
    assert host.trials <= 10


def test_slow_trials_are_repeated_less_often(host: Host) -> None:
    """Defect: a trial that took the maximum time was repeated without a pause, forever."""
    host.obstacle, host.trial_seconds = "Squid does not read its configuration within 60 s", 60.0
    host.advance_to(2000.0)
    # The pauses are 2, 4, 8, 16, 32, 60, 60 … seconds.
    assert host.trials == 11
    assert host.problems.text.startswith("Squid does not read its configuration within 60 s; for now")


def test_unwritable_list_is_tried_each_second(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect: the watch tried to write the list after 2, 4, 8 … s, so it succeeded up to a minute after the disk had
    space again."""
    attempts = 0

    def fail_to_install(*_: object) -> None:
        nonlocal attempts
        attempts += 1
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(addresses_watch, "install_own_addresses", fail_to_install)
    assert host.advance_to(1300.0) == 0
    assert attempts > 250
    assert host.trials == 5
    monkeypatch.setattr(addresses_watch, "install_own_addresses", host.install)
    assert host.advance_to(1303.0) == 1
    monkeypatch.setattr(addresses_watch, "local_prefixes", lambda: BEFORE)
    trials = host.trials
    host.watch.schedule_check()
    host.advance_to(1330.0)
    # One trial is for the new address, the other for the removal of the old address ten seconds later.
    assert host.trials == trials + 2, "the outcome of an earlier trial was used again"


def test_check_does_not_wait_for_a_trial(host: Host) -> None:
    """Defect: while name servers did not answer, the supervisor handled no signals."""
    host.trial_seconds = 50.0
    assert host.advance_to(1050.0) == 0
    assert host.is_running
    assert host.advance_to(1052.0) == 1
    assert (host.trials, host.installed) == (1, [AFTER])


def test_reload_ends_the_trial_of_the_old_configuration(host: Host) -> None:
    host.trial_seconds = 50.0
    host.advance_to(1010.0)
    host.watch.record_list(BEFORE)
    assert (host.is_running, host.ends) == (False, 1)
    assert host.advance_to(1063.0) == 1
    assert host.trials == 2


def test_end_stops_a_running_trial(host: Host) -> None:
    host.trial_seconds = 50.0
    host.advance_to(1010.0)
    host.watch.end()
    assert (host.is_running, host.ends) == (False, 1)
