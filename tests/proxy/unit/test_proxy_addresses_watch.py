"""When Squid is told of this host's new addresses, with a host and a clock that are not real."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from mptcp_proxy import addresses_watch
from mptcp_proxy.addresses_watch import AddressesWatch
from mptcp_proxy.own_addresses import Network
from mptcp_proxy.places import Places

BEFORE: frozenset[Network] = frozenset({ip_network("192.0.2.1/32")})
AFTER: frozenset[Network] = frozenset({ip_network("192.0.2.2/32")})


class Told:
    """What is shown of the addresses."""

    text = ""

    def trouble(self, about: str, text: str) -> bool:
        self.text = text
        return True


class Host:
    """Its addresses, its clock, and what keeps Squid from reading its configuration."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.trials, self.obstacle = 1000.0, 0, ""
        self.installed: list[frozenset[Network]] = []
        self.told = Told()
        monkeypatch.setattr(addresses_watch.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(addresses_watch, "local_prefixes", lambda: AFTER)
        monkeypatch.setattr(
            addresses_watch, "install_own_addresses", lambda _, prefixes: self.installed.append(prefixes)
        )
        self.watch = AddressesWatch(Places("one"), self.told, BEFORE, self.why)  # type: ignore[arg-type]

    def why(self) -> str:
        self.trials += 1
        return self.obstacle

    def until(self, end: float) -> int:
        """Go on to *end*, and return how often Squid was told."""
        told = 0
        while self.watch.due is not None and self.watch.due <= end:
            self.now = max(self.now, self.watch.due)
            told += self.watch.look()
        self.now = end
        return told


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(monkeypatch)


def test_squid_is_told_of_an_address_that_is_new(host: Host) -> None:
    assert host.until(1005.0) == 1
    assert host.installed == [BEFORE | AFTER]
    assert host.told.text == ""


def test_a_squid_that_would_end_is_told_when_it_can_read_its_configuration(host: Host) -> None:
    """Defect: Squid ended with all its transfers where a name in squid.conf had no address while those of the host
    changed; and the next start was refused for the same reason."""
    host.obstacle = "Bungled squid.conf line 3: acl own src office.example"
    assert host.until(1300.0) == 0
    assert host.installed == []
    assert host.told.text.startswith("Squid would end at Bungled squid.conf line 3: acl own src office.example; until")
    # After 1, 3, 7, 15, 31, 63 seconds and each minute.
    assert host.trials == 9
    host.obstacle = ""
    assert host.until(1361.0) == 1
    assert len(host.installed) == 1
    assert host.told.text == ""


def test_changes_while_squid_would_end_have_it_tried_no_more_often(host: Host) -> None:
    host.obstacle = "Bungled"
    for second in range(1001, 1301):
        host.watch.changed()
        assert host.until(float(second)) == 0
    assert host.trials <= 10
