# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for reading the answers of the kernel and of name servers, and for restoring the kernel's earlier state."""

from __future__ import annotations

import errno
import socket
import struct
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from pyroute2.netlink.exceptions import NetlinkError

from mptcp_common.kernel_error import KernelError
from mptcp_gateway.daemon import Daemon
from mptcp_gateway.kernel import saved_state
from mptcp_gateway.kernel.endpoints import ExistingEndpoint
from mptcp_gateway.kernel.network import Network, access_of, retransmitting_addresses
from mptcp_gateway.kernel.resolver import Resolver
from mptcp_gateway.kernel.saved_state import SavedState
from mptcp_gateway.model import Access, Address, Outcome, ParentAddress, Verdict
from mptcp_gateway.plan import Endpoint
from mptcp_gateway.settings import Settings

PARENT = ip_address("192.0.2.1")
FIRST, SECOND = ip_address("10.0.0.2"), ip_address("10.1.0.2")


class Message(dict[str, Any]):
    """A message of rtnetlink."""

    def get_attr(self, name: str) -> Any:
        return self.get(name)


def link(state: str = "UP", flags: int = 0) -> Message:
    return Message(index=2, flags=flags, IFLA_IFNAME="eth0", IFLA_OPERSTATE=state)


def address(text: str, preferred: int = 100, flags: int = 0, length: int = 64) -> Message:
    family = socket.AF_INET6 if ":" in text else socket.AF_INET
    return Message(
        index=2,
        family=family,
        scope=0,
        flags=flags,
        prefixlen=length,
        IFA_ADDRESS=text,
        IFA_FLAGS=flags,
        IFA_CACHEINFO={"ifa_preferred": preferred},
    )


def default_route(family: int, **attributes: Any) -> Message:
    return Message(family=family, **({"RTA_OIF": 2} | attributes))


UNIQUE_LOCAL, TEMPORARY, SHORT_LIVED, LONG_LIVED = "fd00::2", "2001:db8::77", "2001:db8::2", "2001:db8:1::2"
IPV6_ADDRESSES = [
    address(UNIQUE_LOCAL, 10**6),
    address(TEMPORARY, 10**6, flags=0x01),
    address("2001:db8::dead", 0, flags=0x20),
    address(SHORT_LIVED, 50),
    address(LONG_LIVED, 100),
    address("2001:db8::40", flags=0x40),
]


@pytest.mark.parametrize(
    ("current", "expected"),
    [
        (None, LONG_LIVED),
        (SHORT_LIVED, SHORT_LIVED),
        (TEMPORARY, LONG_LIVED),
        (UNIQUE_LOCAL, LONG_LIVED),
        ("2001:db8::dead", LONG_LIVED),
    ],
)
def test_ipv6_address_of_the_best_kind_is_chosen(current: str | None, expected: str) -> None:
    before = None if current is None else ip_address(current)
    found = access_of(
        link(), socket.AF_INET6, IPV6_ADDRESSES, [default_route(socket.AF_INET6, RTA_GATEWAY="fe80::1")], before
    )
    assert found is not None
    assert found.address == ip_address(expected)
    # Deprecated addresses can still send; tentative addresses cannot.
    usable = {ip_address(each["IFA_ADDRESS"]) for each in IPV6_ADDRESSES[:5]}
    assert {found.address, *found.other_addresses} == usable
    unique_local = access_of(link(), socket.AF_INET6, IPV6_ADDRESSES[:1], [default_route(socket.AF_INET6)], None)
    assert unique_local is not None
    assert unique_local.address == ip_address(UNIQUE_LOCAL), (
        "the unique local address was not used, although there is no other"
    )


@pytest.mark.parametrize(
    ("found", "routes", "gateway"),
    [
        (link(), [default_route(socket.AF_INET, RTA_GATEWAY="10.0.0.1")], "10.0.0.1"),
        (link(), [default_route(socket.AF_INET, RTA_OIF=3, RTA_GATEWAY="10.0.0.1")], None),
        (
            link(),
            [
                default_route(
                    socket.AF_INET,
                    RTA_OIF=None,
                    RTA_MULTIPATH=[Message(oif=3, RTA_GATEWAY="10.9.0.1"), Message(oif=2, RTA_GATEWAY="10.0.0.1")],
                )
            ],
            "10.0.0.1",
        ),
        (link(flags=0x10), [], ""),
    ],
    ids=["default route", "route over another device", "route with two next hops", "point-to-point device"],
)
def test_route_over_the_device_counts_as_internet_access(
    found: Message, routes: list[Message], gateway: str | None
) -> None:
    """A route with several next hops, and a point-to-point device, count as Internet access."""
    access = access_of(found, socket.AF_INET, [address("10.0.0.2", length=24)], routes, None)
    assert (access is None) is (gateway is None)
    if access is not None:
        assert access.gateway == (ip_address(gateway) if gateway else None)


@pytest.mark.parametrize(
    ("state", "carrier"), [("UP", True), ("UNKNOWN", True), ("DOWN", False), ("LOWERLAYERDOWN", False)]
)
def test_carrier_is_read_from_the_link_state(state: str, carrier: bool) -> None:
    access = access_of(
        link(state), socket.AF_INET, [address("10.0.0.2", length=24)], [default_route(socket.AF_INET)], None
    )
    assert access is not None
    assert access.carrier is carrier


def in_proc_format(address: Address, port: int) -> str:
    return f"{struct.unpack('=I', address.packed)[0]:08X}:{port:04X}"


@pytest.mark.parametrize(
    ("remote", "port", "timer", "expected"),
    [
        (PARENT, 40000, 1, {FIRST}),
        (PARENT, 40000, 0, set()),
        (SECOND, 40000, 1, set()),
        (PARENT, 40001, 1, set()),
    ],
    ids=["retransmission", "no retransmission", "other destination", "trial of the daemon"],
)
def test_retransmitting_connections_to_a_parent_reveal_an_outage(
    remote: Address, port: int, timer: int, expected: set[Address], tmp_path: Path
) -> None:
    """Connections to other hosts, and the daemon's own trials, do not count."""
    table = tmp_path / "tcp"
    addresses = f"{in_proc_format(FIRST, port)} {in_proc_format(remote, 3128)}"
    line = f"   0: {addresses} 02 00000001:00000000 01:00000064 {timer:08X} 0 0 1\n"
    table.write_text("  sl  local_address rem_address st tx_queue rx_queue tr tm->when retrnsmt\n" + line)
    assert retransmitting_addresses([FIRST], [PARENT], {40001}, [table]) == expected


def test_parent_addresses_are_kept_without_a_name_server() -> None:
    answers: list[tuple[ParentAddress, ...] | OSError] = [
        socket.gaierror(socket.EAI_AGAIN, "again"),
        (ParentAddress(FIRST, 80),),
        socket.gaierror(socket.EAI_AGAIN, "again"),
        (ParentAddress(SECOND, 80),),
    ]

    def look_up(host: str, port: int) -> tuple[ParentAddress, ...]:
        assert (host, port) == ("proxy.example.net", 80)
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    changes: list[None] = []
    resolver = Resolver([("proxy.example.net", 80), (str(PARENT), 81)], lambda: changes.append(None), look_up)
    targets = []
    while answers:
        resolver.look_up_all()
        targets.append(resolver.targets)
    literal_parent = ParentAddress(PARENT, 81)
    assert targets == [
        (literal_parent,),
        (ParentAddress(FIRST, 80), literal_parent),
        (ParentAddress(FIRST, 80), literal_parent),
        (ParentAddress(SECOND, 80), literal_parent),
    ]
    assert len(changes) == 2


def test_kernel_without_ipv6_is_supported(monkeypatch: pytest.MonkeyPatch) -> None:
    class Route:
        def get_rules(self, family: int) -> list[Message]:
            if family == socket.AF_INET6:
                raise NetlinkError(errno.EAFNOSUPPORT, "no")
            return []

        def get_routes(self, family: int, table: int) -> list[Message]:
            return self.get_rules(family)

    network = Network.__new__(Network)
    monkeypatch.setattr(network, "_route", Route(), raising=False)
    assert not network.objects().rules


def test_trial_that_raises_an_exception_counts_as_no_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Defect: after an exception the trial was never repeated."""

    def raise_error(*_: object, **__: object) -> Outcome:
        raise ValueError("embedded null byte")

    monkeypatch.setattr("mptcp_gateway.daemon.run_trial", raise_error)
    daemon = Daemon(Settings({"a": "eth0", "b": "eth1"}, (("192.0.2.1", 80),), "x"), tmp_path)
    outcome = daemon._outcome(Access("eth0", 2, FIRST, None, None), [], 1.0, False)
    assert (outcome.verdict, outcome.reason) == (Verdict.DEAD, "embedded null byte")


def test_trial_outcomes_count_despite_kernel_errors(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Defect: one error prevented all later steps. Each error is logged once."""
    daemon = Daemon(Settings({"a": "eth0", "b": "eth1"}, (("192.0.2.1", 80),), "x"), tmp_path)
    calls: list[float] = []

    def refuse(*_: object) -> None:
        raise KernelError("read the uplinks' state: No buffer space available")

    def process_trials(now: float) -> None:
        calls.append(now)
        daemon.ending = len(calls) == 2
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(daemon, "_read_state", refuse)
    monkeypatch.setattr(daemon, "_process_trials", process_trials)
    monkeypatch.setattr("mptcp_gateway.daemon.READ_SECONDS", 0.0)
    daemon._selector.register(daemon._wake_reader, 1)
    daemon.run()
    assert len(calls) == 2
    messages = [each.getMessage() for each in caplog.records]
    assert messages == ["read the uplinks' state: No buffer space available", "No space left on device"]


class Endpoints:
    """A fake kernel's MPTCP endpoints; at most *limit* may exist."""

    def __init__(self, existing: dict[Address, ExistingEndpoint], limit: int = 8) -> None:
        self.existing, self.limit, self.last_number = existing, limit, 100

    def add(self, address: Address, device: str, flags: tuple[str, ...]) -> None:
        if address in self.existing or len(self.existing) >= self.limit:
            raise KernelError(f"{address}: refused")
        self.last_number += 1
        self.existing[address] = ExistingEndpoint(self.last_number, device, flags)

    def delete(self, number: int) -> None:
        (address,) = [address for address, found in self.existing.items() if found.number == number]
        del self.existing[address]

    @property
    def by_address(self) -> dict[Address, tuple[str, tuple[str, ...]]]:
        return {address: (found.device, found.flags) for address, found in self.existing.items()}


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Endpoints:
    kernel = Endpoints({})
    for name, value in (
        ("endpoints", lambda: dict(kernel.existing)),
        ("add_endpoint", kernel.add),
        ("delete_endpoint", kernel.delete),
        ("subflow_limit", lambda: 8),
    ):
        monkeypatch.setattr(saved_state, name, value)
    return kernel


def test_endpoints_of_others_are_restored(kernel: Endpoints, tmp_path: Path) -> None:
    third = ip_address("10.3.0.2")
    kernel.existing = {
        FIRST: ExistingEndpoint(1, "", ("subflow", "backup")),
        SECOND: ExistingEndpoint(2, "eth1", ("signal",)),
        third: ExistingEndpoint(3, "eth3", ("subflow",)),
    }
    original = kernel.by_address
    planned = [Endpoint(FIRST, "eth0"), Endpoint(SECOND, "eth1")]
    file = tmp_path / "before.json"
    saved = SavedState(file)
    assert saved.ensure_endpoints(planned, {FIRST, SECOND}) == []
    with_planned = kernel.by_address
    assert with_planned == original | {SECOND: ("eth1", ("subflow",))}
    assert saved.ensure_endpoints(planned[1:], {FIRST, SECOND}) == []
    assert FIRST not in kernel.existing
    successor = SavedState(file)  # as in a daemon that starts after a crash
    assert successor.ensure_endpoints(planned, {FIRST, SECOND}) == []
    assert kernel.by_address == with_planned, "the endpoints changed after the crash"
    assert successor.ensure_endpoints([], {FIRST, SECOND}) == []
    successor.restore()
    assert kernel.by_address == original
    assert not file.exists()


def test_refused_endpoint_does_not_prevent_others(kernel: Endpoints, tmp_path: Path) -> None:
    """One endpoint is deleted before another is added, because the kernel's limit may have been reached."""
    kernel.limit = 1
    saved = SavedState(tmp_path / "before.json")
    planned = [Endpoint(FIRST, "eth0"), Endpoint(SECOND, "eth1")]
    assert len(saved.ensure_endpoints(planned, {FIRST, SECOND})) == 1
    assert len(kernel.existing) == 1
    for each in (*planned, planned[0]):
        assert saved.ensure_endpoints([each], {FIRST, SECOND}) == []
        assert list(kernel.existing) == [each.address]


def test_strict_rp_filter_of_a_later_device_is_loosened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(saved_state, "_ROOT", tmp_path)

    def rp_filter_file(device: str) -> Path:
        return tmp_path / f"net/ipv4/conf/{device}/rp_filter"

    for device, value in (("all", "0"), ("eth0", "1"), ("eth1", "0"), ("usb0", "1")):
        rp_filter_file(device).parent.mkdir(parents=True)
        rp_filter_file(device).write_text(value)
    saved = SavedState(tmp_path / "before.json")
    assert saved.loosen_rp_filters([("eth0", 2), ("eth1", 3)]) == []
    assert [rp_filter_file(device).read_text() for device in ("eth0", "eth1", "usb0")] == ["2", "0", "1"]
    rp_filter_file("eth0").write_text("1")  # changed by the operator
    saved.loosen_rp_filters([("eth0", 2), ("usb0", 9)])
    assert [rp_filter_file(device).read_text() for device in ("eth0", "usb0")] == ["1", "2"]
    rp_filter_file("usb0").write_text("1")  # the device was plugged in again
    saved.loosen_rp_filters([("usb0", 10)])
    assert rp_filter_file("usb0").read_text() == "2"
    monkeypatch.setattr(saved_state, "endpoints", dict)
    saved.restore()
    assert [rp_filter_file(device).read_text() for device in ("eth0", "eth1", "usb0")] == ["1", "0", "1"]
