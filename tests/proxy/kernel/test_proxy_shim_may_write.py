# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the feature may-write of the preload library: the library reports to Squid which sockets are writable,
without asking the kernel's epoll(7)."""

from __future__ import annotations

import select
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from preloading import Preloaded, scene_runner

pytestmark = pytest.mark.kernel
IN, OUT = select.EPOLLIN, select.EPOLLOUT
EVENTS_PER_TURN = 4
"""Maximum number of events of clients in a turn (shim/turns/turns.h)."""
NO_MEMORY_SOURCE = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>

/* The next $FAILURES changes fail with ENOMEM. */
int epoll_ctl(int epoll, int operation, int fd, struct epoll_event *event)
{
	int (*next)(int, int, int, struct epoll_event *) = dlsym(RTLD_NEXT, "epoll_ctl");
	int remaining = getenv("FAILURES") != NULL ? atoi(getenv("FAILURES")) : 0;
	char text[16];

	if (remaining == 0)
		return next(epoll, operation, fd, event);
	snprintf(text, sizeof text, "%d", remaining - 1);
	setenv("FAILURES", text, 1);
	errno = ENOMEM;
	return -1;
}
"""
SCENE = """
import select, time
IN, OUT = select.EPOLLIN, select.EPOLLOUT
listener = socket(AF_INET, SOCK_STREAM); listener.bind(("127.0.0.1", 3130)); listener.listen(2000)
loop = select.epoll()
def connect(events, address="127.0.0.1"):
    client = socket(AF_INET, SOCK_STREAM); client.bind((address, 0)); client.connect(("127.0.0.1", 3130))
    server, _ = listener.accept()
    server.setblocking(False); client.setblocking(False)
    loop.register(server, events)
    return server, client
def kernel_events(server):
    "Return the requested events of the socket in the kernel's epoll; None without an entry (proc_pid_fdinfo(5))."
    for each in os.scandir("/proc/self/fd"):
        try:
            if os.readlink(each.path) != "anon_inode:[eventpoll]": continue
            lines = open(f"/proc/self/fdinfo/{each.name}").read().splitlines()
        except OSError: continue
        for words in map(str.split, lines):
            if words[:2] == ["tfd:", str(server.fileno())]: return int(words[3], 16) & 0x7
def turn(wait=0):
    "Return the events of one turn of the event loop, by descriptor."
    return dict(loop.poll(wait, 2048))
def write(server, data):
    try: return os.write(server.fileno(), data)
    except OSError as error: return errno.errorcode[error.errno]
def fill(server):
    while write(server, b"x" * 50_000) == 50_000: pass
"""


def test_writable_socket_is_reported_twice_without_the_kernel(run_scene: Callable[..., Any]) -> None:
    found = run_scene("""
server, client = connect(IN)
in_kernel = kernel_events(server)
steps = [[turn().get(server.fileno()), in_kernel]]
loop.modify(server, IN | OUT)
for _ in range(4): steps.append([turn().get(server.fileno()), kernel_events(server)])
loop.modify(server, IN); steps.append([turn().get(server.fileno()), kernel_events(server)])
report(steps=steps)
""")
    reported_and_in_kernel = [[None, IN], [OUT, IN], [OUT, IN], [OUT, IN | OUT], [OUT, IN | OUT], [None, IN]]
    assert found["steps"] == reported_and_in_kernel


def test_continuous_writer_is_reported_without_the_kernel(run_scene: Callable[..., Any]) -> None:
    found = run_scene("""
server, client = connect(IN | OUT)
reported = []
for _ in range(20):
    reported.append(turn().get(server.fileno())); write(server, b"x"); client.recv(9)
report(reported=reported, in_kernel=kernel_events(server))
""")
    assert found["reported"].count(OUT) >= 19
    assert found["in_kernel"] == IN


def test_kernel_reports_events_without_fair_turns(run_scene: Callable[..., Any]) -> None:
    assert run_scene("report(in_kernel=kernel_events(connect(IN | OUT)[0]))", turns="kernel") == {"in_kernel": IN | OUT}


def test_without_may_write_the_kernel_reports_events(run_scene: Callable[..., Any]) -> None:
    found = run_scene(
        """
server, client = connect(IN | OUT)
before, reported = kernel_events(server), []
for _ in range(3): reported.append(turn().get(server.fileno())); write(server, b"x")
report(before=before, reported=reported, after=kernel_events(server))
""",
        MPTCP_WITHOUT="zero-read,may-write",
    )
    assert found == {"before": IN | OUT, "reported": [OUT] * 3, "after": IN | OUT}


def test_full_socket_is_reported_when_it_has_room(run_scene: Callable[..., Any]) -> None:
    found = run_scene("""
server, client = connect(IN)
fill(server)
loop.modify(server, IN | OUT)
reported, in_kernel = turn().get(server.fileno()), kernel_events(server)
while True:
    try: client.recv(1 << 20)
    except BlockingIOError: break
    time.sleep(0.01)
report(reported=reported, in_kernel=in_kernel, later=turn(5).get(server.fileno()))
""")
    assert found == {"reported": None, "in_kernel": IN | OUT, "later": OUT}


def test_kernel_reports_a_socket_that_is_used_with_send(run_scene: Callable[..., Any]) -> None:
    """Defect: GnuTLS, which calls send(2), found no room in the socket, and the download was truncated."""
    found = run_scene("""
server, client = connect(IN)
failures = 0
for _ in range(200):
    loop.modify(server, IN | OUT)
    if turn().get(server.fileno(), 0) & OUT:
        try: server.send(b"x" * 50_000)
        except BlockingIOError: failures += 1
    loop.modify(server, IN)
report(failures=failures)
""")
    assert found["failures"] == 0


def test_connecting_socket_is_reported_only_when_connected(run_scene: Callable[..., Any]) -> None:
    """The descriptor's previous socket was writable; the library must not remember this."""
    found = run_scene("""
connect(IN)
full = socket(AF_INET, SOCK_STREAM); full.bind(("127.0.0.1", 4000)); full.listen(0)
waiting = []
for _ in range(4):
    each = socket(AF_INET, SOCK_STREAM); each.setblocking(False); waiting.append(each)
    each.connect_ex(("127.0.0.1", 4000))
time.sleep(0.1)
near, far = socketpair(); number = near.fileno()
loop.register(near, IN); write(near, b"x"); near.close()
last = socket(AF_INET, SOCK_STREAM); last.setblocking(False)
result = errno.errorcode[last.connect_ex(("127.0.0.1", 4000))]
loop.register(last, OUT)
report(is_reused=last.fileno() == number, result=result, reported=[turn().get(number) for _ in range(3)])
""")
    assert found == {"is_reused": True, "result": "EINPROGRESS", "reported": [None] * 3}


def test_change_undone_in_the_same_turn_needs_no_system_call(run_scene: Callable[..., Any]) -> None:
    """Squid does this, for example, when it sends another request on an idle connection to an origin."""
    found = run_scene("""
connect(IN)
near, far = socketpair(); far.send(b"?")
loop.register(near, IN); before = [turn().get(near.fileno())]; near.recv(9); write(near, b"x")
loop.unregister(near); before.append(kernel_events(near))
loop.register(near, OUT); registered_again = [turn().get(near.fileno()), kernel_events(near)]
write(near, b"x")
loop.modify(near, IN | OUT); loop.modify(near, IN); changed_twice = [turn().get(near.fileno()), kernel_events(near)]
far.send(b"?"); readable = turn(5).get(near.fileno())
loop.unregister(near); turn(); after, error = kernel_events(near), None
try: loop.unregister(near)
except FileNotFoundError: error = "not registered"
report(before=before, registered_again=registered_again, changed_twice=changed_twice, readable=readable, after=after,
     error=error)
""")
    # Each list contains the events that the loop reported, and those in the kernel.
    assert found == {
        **{"before": [IN, IN], "registered_again": [OUT, IN], "changed_twice": [None, IN]},
        **{"readable": IN, "after": None, "error": "not registered"},
    }


def test_failed_registration_is_reported_immediately(run_scene: Callable[..., Any]) -> None:
    found = run_scene("""
connect(IN)
result, file = [], os.open("/etc/hostname", os.O_RDONLY)
for events in (IN, OUT):
    try: loop.register(file, events)
    except OSError as error: result.append(errno.errorcode[error.errno])
near, far = socketpair(); loop.register(near, IN)
try: loop.register(near, IN)
except OSError as error: result.append(errno.errorcode[error.errno])
report(result=result)
""")
    assert found == {"result": ["EPERM", "EPERM", "EEXIST"]}


def test_socket_registered_before_the_first_client_uses_the_kernel(run_scene: Callable[..., Any]) -> None:
    found = run_scene("""
near, far = socketpair(); far.send(b"?"); loop.register(near, IN | OUT)
connect(IN)
steps = [[turn().get(near.fileno()), kernel_events(near)]]
loop.modify(near, IN); steps.append([turn().get(near.fileno()), kernel_events(near)])
loop.unregister(near); steps.append([turn().get(near.fileno()), kernel_events(near)])
report(steps=steps)
""")
    reported_and_in_kernel = [[IN | OUT, IN | OUT], [IN, IN], [None, None]]
    assert found["steps"] == reported_and_in_kernel


def test_kernel_is_asked_after_four_turns(run_scene: Callable[..., Any]) -> None:
    """While the library has more sockets to report, it calls the kernel's epoll with a timeout of 0."""
    found = run_scene("""
many = {}
for _ in range(100):
    server, client = connect(OUT); many[server.fileno()] = server, client
near, far = socketpair(); far.send(b"?"); loop.register(near, IN)
before, start_time = 0, time.monotonic()
while near.fileno() not in (events := turn(5)): before += len(events)
reported = set(events)
for _ in range(16): reported |= set(turn(5))
report(before=before, quick=time.monotonic() - start_time < 2, all=len(reported & set(many)))
""")
    assert found["before"] == 4 * EVENTS_PER_TURN
    assert found["quick"]
    assert found["all"] == 100


def test_reports_are_shared_equally_among_clients(run_scene: Callable[..., Any]) -> None:
    found = run_scene("""
many = {}
for address in ["127.0.0.2"] * 60 + ["127.0.0.3"]:
    server, client = connect(OUT, address); many[server.fileno()] = server, client
last = server.fileno()
reported = dict.fromkeys(many, 0)
for _ in range(400):
    for fd in turn():
        reported[fd] += 1; write(many[fd][0], b"x"); many[fd][1].recv(9)
last_client = reported.pop(last)
report(last_client=last_client, smallest=min(reported.values()), largest=max(reported.values()))
""")
    assert found["last_client"] > 5 * found["largest"]
    assert found["smallest"] > 0


def test_copy_of_a_closed_descriptor_has_no_events_in_epoll(run_scene: Callable[..., Any]) -> None:
    """A helper process inherits such a copy until it has started. An event of the copy would be reported for a reused
    descriptor, that is, for another socket."""
    found = run_scene("""
connect(IN)
near, far = socketpair(); loop.register(near, IN)
copy = os.dup(near.fileno())
loop.unregister(near); near.close()
far.send(b"?")
report(events=turn())
""")
    assert found == {"events": {}}


def test_writable_origin_does_not_block_clients(run_scene: Callable[..., Any]) -> None:
    """Defect: because of an origin that was always writable, the library did not get events of clients from the
    kernel."""
    found = run_scene("""
server, client = connect(IN, "127.0.0.2")
origin, other = socketpair(); origin.setblocking(False); loop.register(origin, OUT)
turn(); write(origin, b"x"); client.sendall(b"?")
for turns in range(200):
    if server.fileno() in turn(): break
    write(origin, b"x"); other.recv(9)
report(turns=turns)
""")
    assert found["turns"] < 40


def test_change_without_memory_is_repeated(tmp_path: Path, preloaded: Preloaded) -> None:
    """Defect: the library did not repeat the change, and Squid waited for an event forever."""
    no_memory, source = tmp_path / "no_memory.so", tmp_path / "no_memory.c"
    source.write_text(NO_MEMORY_SOURCE)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(no_memory), str(source)], check=True)
    found = scene_runner(Preloaded([*preloaded.libraries, no_memory]), SCENE)("""
server, client = connect(IN)
turn()
client.sendall(b"?")
loop.modify(server, 0)
os.environ["FAILURES"] = "3"
loop.modify(server, IN); loop.modify(server, OUT); fill(server)
reported = []
for _ in range(8):
    reported.append(kernel_events(server)); turn()
report(first=reported[0], last=reported[-1])
""")
    assert found == {"first": IN, "last": OUT}


def test_crash_within_the_library_is_reported(preloaded: Preloaded) -> None:
    """Defect: after a crash, Squid's signal handler closes its listeners, which waited forever for the lock that the
    crashed code held."""
    found = scene_runner(preloaded, SCENE)("""
import ctypes
server, client = connect(IN | OUT)
turn()
HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_int)
def handle(number):
    listener.close(); server.close()
    print(json.dumps("reported"), flush=True)
    os._exit(0)
handler = HANDLER(handle)
libc = ctypes.CDLL(None)
libc.signal(11, handler)
libc.write(server.fileno(), ctypes.c_void_p(16), 4096)
""")
    assert found == "reported"
