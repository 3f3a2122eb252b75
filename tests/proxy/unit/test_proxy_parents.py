# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for a relay's parents, which are read from statements, resolved by name, and listed for the preload library."""

from __future__ import annotations

import ctypes
import re
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptcp_proxy import parents as parents_module
from mptcp_proxy import shim
from mptcp_proxy.configuration.access import open_proxy_problems
from mptcp_proxy.configuration.exposure import exposure_problems
from mptcp_proxy.configuration.listeners import listener_problems, listeners
from mptcp_proxy.configuration.parents import Parent, parent_problems, parents
from mptcp_proxy.configuration.source import PhysicalLine, Statement, statements
from mptcp_proxy.parents import ParentAddresses, ParentsFile, render, target
from mptcp_proxy.places import Places
from mptcp_proxy.problem import Problem

REPOSITORY = Path(__file__).parents[3]
PEER = "cache_peer proxy.example.net parent 3128 0 no-query"
NEVER = "never_direct allow all"


def parse(*texts: str) -> list[Statement]:
    return list(statements([PhysicalLine("relay.conf", n, text) for n, text in enumerate(texts, 1)], "n"))


def problems(*texts: str) -> list[Problem]:
    return list(parent_problems(parse(*texts), "relay.conf"))


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        (PEER, "proxy.example.net", 3128),
        ("cache_peer 192.0.2.1 parent 8080 0", "192.0.2.1", 8080),
        ("cache_peer [2001:db8::1] parent 3128 0 no-query", "2001:db8::1", 3128),
        ("cache_peer 2001:db8::1 parent 3128 0 no-query", "2001:db8::1", 3128),
    ],
)
def test_parent_is_read_from_cache_peer(text: str, host: str, port: int) -> None:
    (parent,) = parents(parse(text))
    assert (parent.host, parent.port) == (host, port)
    assert str(parent) == (f"[{host}]:{port}" if ":" in host else f"{host}:{port}")


def test_parent_with_a_named_port_is_recognized(monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect: the relay did not recognize such a parent, and used plain TCP to it.

    If this was the only parent, check reported no cache_peer.
    """
    monkeypatch.setattr("socket.getservbyname", lambda name, protocol: {("webcache", "tcp"): 8080}[name, protocol])
    text = "cache_peer proxy.example.net parent webcache 0 no-query"
    assert [str(each) for each in parents(parse(PEER, text))] == ["proxy.example.net:3128", "proxy.example.net:8080"]
    assert problems(text, NEVER) == []


@pytest.mark.parametrize(
    "text",
    [
        "cache_peer p sibling 3128 0",
        "cache_peer p parent 0 0",
        "cache_peer p parent x 0",
        "cache_peer p parent \N{SUPERSCRIPT TWO} 0",
        f"cache_peer p parent {'9' * 5000} 0",
        "cache_peer p parent",
        "cache_peer 127.0.0.1 parent 8123 0 no-query",
        "cache_peer ::1 parent 8123 0 no-query",
        "cache_peer localhost parent 8123 0 no-query",
        "cache_peerx p parent 3128 0",
    ],
)
def test_cache_peer_that_is_not_a_remote_parent_is_reported(text: str) -> None:
    assert list(parents(parse(text))) == []
    names_this_host = "127.0.0.1" in text or "::1" in text or "localhost" in text
    assert ("this host cannot be a parent" if names_this_host else "no cache_peer") in problems(text, NEVER)[0].text
    assert problems(text, NEVER)[0].line == (1 if names_this_host else None)


@pytest.mark.parametrize("host", ["http://10.0.0.1:3128", "10.0.0.1:3128", "proxy.example.net/", "-p", "p-", "a" * 300])
def test_parent_with_an_invalid_host_is_refused(host: str) -> None:
    """Defect: check accepted such a host, and a relay answered no request after a reload with it."""
    (found,) = problems(f"cache_peer {host} parent 3128 0 no-query", NEVER)
    assert (found.line, found.warning) == (1, False)
    assert "neither an address nor a name" in found.text


def test_parent_within_a_false_condition_is_ignored() -> None:
    assert list(parents(parse("if false", PEER, "endif"))) == []
    assert len(list(parents(parse("if ${process_number} = 1", PEER, "endif")))) == 1


@pytest.mark.parametrize(
    "rules",
    [
        [NEVER],
        ["never_direct deny near", NEVER],
        ["always_direct allow near", NEVER],
        ["always_direct deny all", NEVER],
        ["never_direct allow ALL"],
    ],
)
def test_rules_that_send_all_requests_to_parents_have_no_problem(rules: list[str]) -> None:
    assert problems(PEER, *rules) == []


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ([], "never_direct does not apply"),
        (["never_direct allow near"], "never_direct does not apply"),
        (["never_direct deny all", NEVER], "never_direct does not apply"),
        (["if ${process_number} = 1", NEVER, "endif"], "never_direct does not apply"),
        (["if false", NEVER, "endif"], "never_direct does not apply"),
        (["never_direct allow !all"], "never_direct does not apply"),
        (["always_direct allow all", NEVER], "every request bypasses the parents"),
    ],
)
def test_rules_that_bypass_the_parents_are_a_problem(rules: list[str], words: str) -> None:
    (problem,) = problems(PEER, *rules)
    assert words in problem.text
    assert not problem.warning
    assert problem.allowed


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cache_peer b sibling 3128 3130", "a sibling does not get every request"),
        ("cache_peer b parent 3128 3130", "without no-query"),
    ],
)
def test_sibling_or_peer_without_no_query_is_a_warning(text: str, words: str) -> None:
    (problem,) = problems(PEER, text, NEVER)
    assert problem.warning
    assert words in problem.text
    assert problem.line == 2


def shipped_configuration() -> list[Statement]:
    text = (REPOSITORY / "conf" / "relay-squid.conf").read_text().replace("#cache_peer ", "cache_peer ")
    return list(statements([PhysicalLine("x", n, line) for n, line in enumerate(text.splitlines(), 1)], "mptcprelay"))


def test_shipped_configuration_lacks_only_a_parent_and_is_closed() -> None:
    configuration = shipped_configuration()
    own = str(Places("mptcprelay").own_addresses)
    assert list(parent_problems(configuration, "x")) == []
    assert list(open_proxy_problems(configuration)) == []
    assert list(exposure_problems(configuration, own, connects=False)) == []
    assert list(listener_problems(listeners(configuration), "x", True, with_mptcp=False)) == []
    without_parents = [each for each in configuration if each.directive != "cache_peer"]
    assert "no cache_peer" in next(parent_problems(without_parents, "x")).text


def test_rules_without_name_lookups_do_not_protect_a_proxy() -> None:
    """The relay's rules have "dst -n", which does not match a name whose address is 127.0.0.1."""
    own = str(Places("mptcprelay").own_addresses)
    (problem,) = exposure_problems(shipped_configuration(), own)
    for text in ("loopback addresses, link-local addresses", "behind NAT64", "this host's own addresses"):
        assert text in problem.text


def test_relay_ships_the_same_rules_as_the_proxy() -> None:
    def rules(name: str) -> list[str]:
        text = (REPOSITORY / "conf" / name).read_text()
        return re.findall(r"^(?:http_access|acl clients) .*$", text, re.MULTILINE)

    # A relay has no check page, and resolves no names.
    proxy_only = ("to_anywhere", "check_page", "check_name")
    shared = [each for each in rules("squid.conf") if not any(name in each for name in proxy_only)]
    assert shared == rules("relay-squid.conf")


def test_relay_may_have_an_intercepting_listener() -> None:
    """A relay's listener is a TCP socket, so Squid can read the original destination of a redirected connection."""
    configuration = parse("http_port 3128 intercept")
    assert list(listener_problems(listeners(configuration), "x", True, with_mptcp=False)) == []


@pytest.mark.parametrize(
    ("family", "address", "written"),
    [
        (socket.AF_INET, "192.0.2.1", "192.0.2.1:3128"),
        (socket.AF_INET6, "2001:DB8:0:0::1", "[2001:db8::1]:3128"),
        (socket.AF_INET6, "fe80::1%eth0", "[fe80::1]:3128"),
        (socket.AF_INET6, "::ffff:192.0.2.1", "192.0.2.1:3128"),
    ],
)
def test_target_has_the_notation_of_the_preload_library(family: int, address: str, written: str) -> None:
    assert target(family, address, 3128) == written


@given(st.sets(st.integers(0, 1000)), st.sets(st.integers(0, 1000)))
def test_list_begins_with_current_addresses_and_fits_the_buffer(present: set[int], lingering: set[int]) -> None:
    current, old = {f"[2001:db8:ffff:ffff:ffff:ffff:ffff:{n:x}]:65535" for n in present}, {f"b{n}" for n in lingering}
    text = render(current, old)
    listed = text.split()
    assert set(listed) <= current | old
    assert len(listed) == min(parents_module.MAX_ENTRIES, len(current | old))
    assert set(listed[: len(current)]) <= current
    size = re.search(r"#define LIST_SIZE (\d+)", (Path(shim.__file__).parent / "listen/listen.h").read_text())
    assert size
    assert len(text) < int(size[1])


def test_lost_address_of_a_parent_lingers() -> None:
    """Squid may still have the old address in its cache."""
    addresses = ParentAddresses(keep_seconds=100)
    addresses.set_parents(["p"])
    assert not addresses.complete
    addresses.set_addresses("p", frozenset({"a:1", "b:1"}))
    assert addresses.complete
    assert addresses.list(0) == "a:1\nb:1\n"
    addresses.set_addresses("p", frozenset({"c:1"}))
    assert addresses.list(50) == "c:1\na:1\nb:1\n"
    assert addresses.list(149) == "c:1\na:1\nb:1\n"
    assert addresses.list(150) == "c:1\n"


def test_removed_parent_lingers_and_others_keep_their_addresses() -> None:
    addresses = ParentAddresses(keep_seconds=100)
    addresses.set_parents(["p", "q"])
    addresses.set_addresses("p", frozenset({"a:1"}))
    addresses.set_addresses("q", frozenset({"b:1"}))
    addresses.list(0)
    addresses.set_parents(["q", "r"])
    assert addresses.list(1) == "b:1\na:1\n"
    assert not addresses.complete


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    monkeypatch.setattr(Places, "runtime", property(lambda self: tmp_path))
    monkeypatch.setattr(parents_module, "_RETRY_SECONDS", 0.01)
    return Places("mptcprelay")


def wait_until_true(ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_changed_addresses_are_listed_and_a_silent_name_server_removes_none(
    places: Places, capsys: pytest.CaptureFixture[str]
) -> None:
    answers: dict[str, frozenset[str] | OSError] = {"p": socket.gaierror(-3, "Temporary failure in name resolution")}
    looked_up: list[str] = []

    def look_up(host: str, port: int) -> frozenset[str]:
        looked_up.append(host)
        answer = answers[host]
        if isinstance(answer, OSError):
            raise answer
        return frozenset(f"{each}:{port}" for each in answer)

    def parent(host: str) -> Parent:
        return Parent(parse(PEER)[0], host, 3128)

    parents_file = ParentsFile(places, look_up)
    parents_file.start([parent("p")])
    assert places.parents.read_text() == ""
    # While the parent has no address, the relay looks up the name frequently.
    wait_until_true(lambda: len(looked_up) > 3)
    answers["p"] = frozenset({"192.0.2.1"})
    wait_until_true(lambda: places.parents.read_text() == "192.0.2.1:3128\n")
    answers["p"] = socket.gaierror(-3, "Temporary failure in name resolution")
    answers["q"] = frozenset({"192.0.2.2"})
    parents_file.set_parents([parent("p"), parent("q")])
    wait_until_true(lambda: places.parents.read_text() == "192.0.2.1:3128\n192.0.2.2:3128\n")
    printed = capsys.readouterr().err
    assert printed.count("cannot look up parent p: Temporary failure in name resolution\n") == 2
    assert printed.count("addresses of parent p: 192.0.2.1:3128\n") == 1


def test_start_and_end_of_each_name_server_failure_are_reported(
    places: Places, capsys: pytest.CaptureFixture[str]
) -> None:
    """Defect: if the address did not change, the relay reported neither the end nor the next failure."""
    addresses = frozenset({"192.0.2.1:3128"})
    answers: list[frozenset[str] | OSError] = [
        addresses,
        OSError("no answer"),
        OSError("no answer"),
        addresses,
        addresses,
        OSError("no answer"),
    ]

    def look_up(*_: object) -> frozenset[str]:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    parents_file = ParentsFile(places, look_up)
    parents_file.set_parents([Parent(parse(PEER)[0], "p", 3128)])
    while answers:
        parents_file._look_up_all()
    found, failed = "addresses of parent p: 192.0.2.1:3128", "cannot look up parent p: no answer"
    assert [line.partition(": ")[2] for line in capsys.readouterr().err.splitlines()] == [found, failed, found, failed]


def test_addresses_need_no_name_server() -> None:
    assert parents_module.targets("192.0.2.1", 3128) == {"192.0.2.1:3128"}
    assert parents_module.targets("2001:db8::1", 3128) == {"[2001:db8::1]:3128"}


@given(st.binary(min_size=16, max_size=16))
def test_ipv6_address_is_written_as_inet_ntop_does(address: bytes) -> None:
    """The library compares addresses as texts, so Python and the library must write an address in the same way."""
    libc = ctypes.CDLL(None)
    buffer = ctypes.create_string_buffer(64)
    libc.inet_ntop.restype = ctypes.c_char_p
    text = libc.inet_ntop(socket.AF_INET6, address, buffer, 64).decode()
    if address[:12] != bytes(10) + b"\xff\xff":
        assert target(socket.AF_INET6, text, 1) == f"[{text}]:1"


def test_silent_name_server_of_one_parent_does_not_delay_others(places: Places) -> None:
    """Defect: the list was written only after all look-ups, so until then the relay used plain TCP to all parents."""
    lookup_began, lookup_may_end = threading.Event(), threading.Event()

    def look_up(host: str, port: int) -> frozenset[str]:
        if host == "silent.example":
            lookup_began.set()
            assert lookup_may_end.wait(60)
        return frozenset({f"{host}:{port}"})

    parents_file = ParentsFile(places, look_up)
    parents_file.set_parents(
        Parent(parse(PEER)[0], host, 3128) for host in ("p.example", "silent.example", "192.0.2.1")
    )
    thread = threading.Thread(target=parents_file._look_up_all)
    thread.start()
    assert lookup_began.wait(60)
    assert places.parents.read_text() == "192.0.2.1:3128\np.example:3128\n"
    lookup_may_end.set()
    thread.join()
    assert "silent.example:3128\n" in places.parents.read_text()
