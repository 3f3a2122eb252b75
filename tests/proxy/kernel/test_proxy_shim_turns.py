# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the preload library and epoll(7): each client gets its share of a turn, however many connections it has."""

from __future__ import annotations

import select
from collections.abc import Callable
from typing import Any

import pytest
from preloading import Preloaded

pytestmark = pytest.mark.kernel
IN, OUT = select.EPOLLIN, select.EPOLLOUT
MAX_EVENTS_PER_TURN = 4
"""Maximum number of events of clients in a turn (shim/turns/turns.h)."""
SCENE = """
import collections, select, struct, threading, time
listeners = {}
def listen(name, port, family):
    listener = listeners[port] = socket(family, SOCK_STREAM); listener.bind((name, port)); listener.listen(2000)
def connect(address, number, port=3130, family=AF_INET):
    "Return the accepted descriptors of *number* connections from *address*; each has unread data."
    found = []
    for _ in range(number):
        client = socket(family, SOCK_STREAM); client.bind((address, 0))
        client.connect(("::1" if family == AF_INET6 else "127.0.0.1", port)); client.sendall(b"?")
        server, _ = listeners[port].accept()
        # Keep both ends, because Python closes sockets without a reference.
        kept[server.fileno()] = server, client
        loop.register(server, select.EPOLLIN)
        found.append(server.fileno())
    return found
def count_epolls():
    found = 0
    for each in os.scandir("/proc/self/fd"):
        try: found += os.readlink(each.path) == "anon_inode:[eventpoll]"
        except OSError: pass
    return found
kept, loop = {}, select.epoll()
def turn(limit=2048): return [fd for fd, _ in loop.poll(5, limit)]
listen("127.0.0.1", 3130, AF_INET)
"""


ONE_AND_MANY = """
many, one = connect("127.0.0.2", 100), connect("127.0.0.3", 1)
near, far = socketpair(); far.send(b"?"); loop.register(near, select.EPOLLIN)
events = turn()
report(count=len(events), each_once=len(set(events)) == len(events), of_many=len(set(events) & set(many)),
     of_one=one[0] in events, of_no_client=near.fileno() in events, visible_variable=os.environ.get("MPTCP_TURNS"))
"""


def test_client_with_many_connections_gets_an_equal_share(run_scene: Callable[..., Any]) -> None:
    found = run_scene(ONE_AND_MANY)
    share = MAX_EVENTS_PER_TURN // 2
    assert found == {
        **{"count": share + 2, "each_once": True, "of_many": share, "of_one": True, "of_no_client": True},
        "visible_variable": None,
    }


@pytest.mark.parametrize("turns", [None, "kernel"], ids=["unset", "kernel"])
def test_one_turn_has_all_events_without_fair_turns(run_scene: Callable[..., Any], turns: str | None) -> None:
    assert run_scene(ONE_AND_MANY, turns=turns)["count"] == 100 + 2


def test_each_connection_of_a_client_gets_its_turn(run_scene: Callable[..., Any]) -> None:
    """Each connection is served once before any connection is served twice. Unread data keep a socket ready."""
    found = run_scene(f"""
many = connect("127.0.0.2", {6 * MAX_EVENTS_PER_TURN})
served = collections.Counter()
spreads = []
for _ in range(18):
    events = turn()
    served.update(events)
    spreads.append([len(events), max(served.values()) - min(served[fd] for fd in many)])
report(spreads=spreads)
""")
    # After each six turns, all connections were served equally often.
    assert all(
        spread == [MAX_EVENTS_PER_TURN, 1 if (number + 1) % 6 else 0] for number, spread in enumerate(found["spreads"])
    )


def test_few_events_are_not_changed(run_scene: Callable[..., Any]) -> None:
    code = "many = connect('127.0.0.2', 2) + connect('127.0.0.3', 2)\nreport(events=sorted(turn()), all=sorted(many))"
    found = run_scene(code)
    assert found["events"] == found["all"]


def test_many_clients_get_one_event_each(run_scene: Callable[..., Any]) -> None:
    found = run_scene("""
many = [connect(f"127.0.1.{n}", 3) for n in range(1, 41)]
all_events = turn()
few = [turn(10) for _ in range(20)]
report(all=len(all_events), largest=max(map(len, few)), smallest=min(map(len, few)),
     clients=sum(any(fd in client for each in few for fd in each) for client in many))
""")
    assert found == {"all": 40, "largest": 10, "smallest": 10, "clients": 40}


def test_number_of_epolls_is_bounded(run_scene: Callable[..., Any]) -> None:
    """Defect: each client had an epoll, so that Squid ran out of descriptors in accept() and never accepted again."""
    found = run_scene("""
before = count_epolls()
many = [fd for n in range(1, 201) for fd in connect(f"127.0.1.{n}", 2)]
epoll_count, served = count_epolls() - before, set()
for _ in range(50): served.update(turn())
for fd in many:
    for end in kept.pop(fd): end.close()
report(epoll_count=epoll_count, served=len(served), after=count_epolls() - before)
""")
    assert found == {"epoll_count": 63, "served": 400, "after": 0}


@pytest.mark.parametrize("turns", ["fair", "kernel"])
def test_accept_without_free_descriptors_can_be_repeated(preloaded: Preloaded, turns: str) -> None:
    """Defects: after EMFILE of accept(2), Squid no longer used its listener, or it tried again without a pause."""
    found = preloaded(
        SCENE
        + """
import resource, time
waiting = socket(AF_INET, SOCK_STREAM); waiting.connect(("127.0.0.1", 3130))
listeners[3130].setblocking(False)
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
first_free = max(int(each) for each in os.listdir("/proc/self/fd")) + 1
filled = []
resource.setrlimit(resource.RLIMIT_NOFILE, (first_free, hard))
try:
    while True: filled.append(os.dup(0))
except OSError: pass
results, start_time = set(), time.monotonic()
for _ in range(50):
    try: listeners[3130].accept(); results.add("accepted")
    except OSError as error: results.add(errno.errorcode[error.errno])
duration = time.monotonic() - start_time
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
report(results=list(results), paused=duration > 0.05, then=listeners[3130].accept()[0].fileno() > 0)
""",
        turns=turns,
    )
    assert found == {"results": ["EAGAIN"], "paused": True, "then": True}
    assert preloaded.stderr.count("no descriptor is free") == preloaded.stderr.count("\n") == 1


@pytest.mark.parametrize(("number", "min_pauses", "max_pauses"), [(1, 450, 600), (100, 0, 250)], ids=["one", "hundred"])
def test_waiting_upload_does_not_slow_down_other_clients(
    run_scene: Callable[..., Any], number: int, min_pauses: int, max_pauses: int
) -> None:
    """Defect: a pause in each of the short turns took half of a worker's time (zero_read.c)."""
    found = run_scene(f"""
import resource
[upload] = connect("127.0.0.2", 1)
connect("127.0.0.3", {number})
def count_pauses(): return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
before = count_pauses()
for _ in range(500):
    turn()
    try: os.read(upload, 0)
    except BlockingIOError: pass
report(pauses=count_pauses() - before)
""")
    assert min_pauses <= found["pauses"] <= max_pauses


def test_turn_has_at_most_the_requested_number_of_events(run_scene: Callable[..., Any]) -> None:
    found = run_scene(
        "connect('127.0.0.2', 30); connect('127.0.0.3', 30)\nreport(events=[len(turn(limit)) for limit in (2, 3, 99)])"
    )
    assert found["events"] == [2, 2, MAX_EVENTS_PER_TURN]


ACCEPT_SCENE = """
connect("127.0.0.2", 1)
listener = listeners[3130]; listener.setblocking(False); loop.register(listener, select.EPOLLIN)
def open_clients(number):
    for _ in range(number):
        client = socket(AF_INET, SOCK_STREAM); client.connect(("127.0.0.1", 3130)); waiting.append(client)
def accept(limit=99):
    "Accept a connection for each event of the listener; return the number of events."
    events = turn().count(listener.fileno())
    for _ in range(min(limit, events)):
        try: accepted.append(listener.accept())
        except BlockingIOError: pass
    return events
waiting, accepted = [], []
"""


def test_turn_accepts_more_connections_if_many_wait(run_scene: Callable[..., Any]) -> None:
    """Defect: each turn accepted one connection, so that a client waited for all connections of an earlier client."""
    found = run_scene(f"""{ACCEPT_SCENE}
open_clients(42)
events = [accept() for _ in range(10)]
open_clients(1)
report(events=events, then=[accept(), accept(), accept()], accepted=len(accepted))
""")
    # Five of the last eight calls found no connection to accept.
    assert found == {"events": [1, 2, 4, 8, 8, 8, 8, 8, 0, 0], "then": [1, 0, 0], "accepted": 43}


def test_listener_without_waiting_connections_gets_one_event_again(run_scene: Callable[..., Any]) -> None:
    found = run_scene(f"""{ACCEPT_SCENE}
events = []
for _ in range(4):
    open_clients(4); events.append([accept(), accept(), accept()])
report(events=events, accepted=len(accepted))
""")
    assert found == {"events": [[1, 2, 4], [1, 2, 4], [1, 2, 4], [1, 2, 4]], "accepted": 16}


def test_listener_events_fit_into_the_requested_number(run_scene: Callable[..., Any]) -> None:
    found = run_scene(f"""{ACCEPT_SCENE}
connect("127.0.0.3", 5)
open_clients(40)
for _ in range(4): accept(0)
report(events=[len(turn(limit)) for limit in (9, 12, 3, 2, 1)])
""")
    assert found["events"] == [9, 11, 3, 2, 1]


def test_number_of_a_closed_listener_may_be_reused(run_scene: Callable[..., Any]) -> None:
    found = run_scene(f"""{ACCEPT_SCENE}
open_clients(20)
for _ in range(3): accept()
number = listener.fileno(); listener.close()
near, far = socketpair(); far.send(b"?"); os.dup2(near.fileno(), number); loop.register(number, select.EPOLLIN)
report(events=[turn().count(number) for _ in range(5)])
""")
    assert found == {"events": [1] * 5}


@pytest.mark.parametrize("turns", [None, "kernel"], ids=["unset", "kernel"])
def test_listener_gets_one_event_without_fair_turns(run_scene: Callable[..., Any], turns: str | None) -> None:
    assert (
        run_scene(f"{ACCEPT_SCENE}\nopen_clients(9)\nreport(events=[accept() for _ in range(9)])", turns=turns)[
            "events"
        ]
        == [1] * 9
    )


def test_closed_descriptor_no_longer_counts_as_a_client(run_scene: Callable[..., Any]) -> None:
    """The kernel reuses the descriptor, for example for a connection to an origin, to which turns do not apply."""
    found = run_scene("""
before = count_epolls()
many = connect("127.0.0.2", 100)
during = count_epolls()
for fd in many:
    server, client = kept.pop(fd)
    server.close(); client.close()
after = count_epolls()
pairs = [socketpair() for _ in range(50)]
for near, far in pairs: far.send(b"?"); loop.register(near, select.EPOLLIN)
new_descriptors = {near.fileno() for near, far in pairs}
report(epolls=[during - before, after - before], reused=len(new_descriptors & set(many)) > 25,
     events=set(turn()) == new_descriptors)
""")
    assert found == {"epolls": [1, 0], "reused": True, "events": True}


def test_copy_of_a_closed_descriptor_has_no_events_in_turns(run_scene: Callable[..., Any]) -> None:
    """late_writes.c keeps such a copy. Its events would have the descriptor of another connection."""
    found = run_scene("""
first, other = connect("127.0.0.2", 2)
server, client = kept.pop(first)
copy = os.dup(first); server.close()
report(events=turn() == [other])
""")
    assert found == {"events": True}


def test_requested_events_can_be_changed_and_removed(run_scene: Callable[..., Any]) -> None:
    found = run_scene("""
[fd] = connect("127.0.0.2", 1)
steps = [loop.poll(5, 2048)]
loop.modify(fd, select.EPOLLOUT); steps.append(loop.poll(5, 2048))
loop.modify(fd, 0); steps.append(loop.poll(0, 2048))
loop.unregister(fd); steps.append(loop.poll(0, 2048))
loop.register(fd, select.EPOLLIN); steps.append(loop.poll(5, 2048))
late = threading.Timer(0.2, lambda: kept[fd][1].sendall(b"later"))
kept[fd][0].recv(9); late.start()
steps.append(loop.poll(20, 2048))
try: loop.register(fd, select.EPOLLIN)
except FileExistsError: steps.append("registered")
report(steps=[[event for _, event in step] if isinstance(step, list) else step for step in steps])
""")
    assert found["steps"] == [[IN], [OUT], [], [], [IN], [IN], "registered"]


@pytest.mark.parametrize(
    ("first", "second", "clients"),
    [
        ("2001:db8::1", "2001:db8::2:0:0:1", 1),
        ("2001:db8::1", "2001:db8:0:1::1", 2),
        # All clients of a NAT64 share the first 64 bits, so the library counts them by their IPv4 address.
        ("64:ff9b::192.0.2.1", "64:ff9b::198.51.100.9", 2),
    ],
)
def test_addresses_of_one_ipv6_network_are_one_client(
    run_scene: Callable[..., Any], first: str, second: str, clients: int
) -> None:
    found = run_scene(f"""
addresses = ["{first}", "{second}"]
for each in addresses: subprocess.run(["ip", "addr", "add", each, "dev", "lo", "nodad"], check=True)
listen("::1", 3131, AF_INET6)
before = count_epolls()
for each in addresses: connect(each, 20, 3131, AF_INET6)
report(clients=count_epolls() - before, events=len(turn()))
""")
    assert found == {"clients": clients, "events": MAX_EVENTS_PER_TURN}


def test_ipv4_client_is_the_same_at_a_dual_stack_listener(run_scene: Callable[..., Any]) -> None:
    """Squid's listener is an IPv6 socket for both families. There, the client's address is ::ffff:127.0.0.2."""
    found = run_scene("""
listen("::", 3131, AF_INET6)
before = count_epolls()
connect("127.0.0.2", 20); connect("127.0.0.2", 20, 3131)
same = count_epolls() - before
connect("127.1.0.2", 20, 3131)
report(clients=[same, count_epolls() - before], events=len(turn()))
""")
    assert found == {"clients": [1, 2], "events": MAX_EVENTS_PER_TURN}


def test_forked_child_does_not_change_the_parents_turns(run_scene: Callable[..., Any]) -> None:
    """Squid's forked children close inherited descriptors, but parent and child share the same epoll."""
    found = run_scene("""
many = connect("127.0.0.2", 40)
if (child := os.fork()) == 0:
    for fd in many: os.close(fd)
    os._exit(0)
os.waitpid(child, 0)
report(events=len(turn()), clients=count_epolls())
""")
    assert found == {"events": MAX_EVENTS_PER_TURN, "clients": 2}
