# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the preload library and epoll(7): it reports a socket as writable without the kernel, if it is writable."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from preloading import Preloaded, playing

pytestmark = pytest.mark.kernel
FULL = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>

/* Simulates a kernel without memory for the next $FULL changes. */
int epoll_ctl(int epoll, int what, int fd, struct epoll_event *event)
{
	int (*next)(int, int, int, struct epoll_event *) = dlsym(RTLD_NEXT, "epoll_ctl");
	int left = getenv("FULL") != NULL ? atoi(getenv("FULL")) : 0;
	char text[16];

	if (left == 0)
		return next(epoll, what, fd, event);
	snprintf(text, sizeof text, "%d", left - 1);
	setenv("FULL", text, 1);
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
def known(server):
    "Return the events that the kernel's epoll waits for on this socket; None if it has no entry (proc_pid_fdinfo(5))."
    for each in os.scandir("/proc/self/fd"):
        try:
            if os.readlink(each.path) != "anon_inode:[eventpoll]": continue
            lines = open(f"/proc/self/fdinfo/{each.name}").read().splitlines()
        except OSError: continue
        for words in map(str.split, lines):
            if words[:2] == ["tfd:", str(server.fileno())]: return int(words[3], 16) & 0x7
def turn(wait=0): return dict(loop.poll(wait, 2048))
def put(server, data):
    try: return os.write(server.fileno(), data)
    except OSError as error: return errno.errorcode[error.errno]
def fill(server):
    while put(server, b"x" * 50_000) == 50_000: pass
"""


def test_writable_socket_is_reported_twice_without_the_kernel(play: Callable[..., Any]) -> None:
    found = play("""
server, client = connect(IN)
steps = [[known(server), turn().get(server.fileno())]]
loop.modify(server, IN | OUT)
for _ in range(4): steps.append([turn().get(server.fileno()), known(server)])
loop.modify(server, IN); steps.append([turn().get(server.fileno()), known(server)])
tell(steps=steps)
""")
    assert found["steps"] == [[1, None], [4, 1], [4, 1], [4, 5], [4, 5], [None, 1]]


def test_continuous_writer_is_reported_without_the_kernel(play: Callable[..., Any]) -> None:
    found = play("""
server, client = connect(IN | OUT)
reported = []
for _ in range(20):
    reported.append(turn().get(server.fileno())); put(server, b"x"); client.recv(9)
tell(reported=reported, known=known(server))
""")
    assert found["reported"].count(4) >= 19
    assert found["known"] == 1


def test_kernel_is_asked_without_fair_turns(play: Callable[..., Any]) -> None:
    assert play("tell(known=known(connect(IN | OUT)[0]))", turns="kernel") == {"known": 5}


def test_may_write_can_be_switched_off(play: Callable[..., Any]) -> None:
    found = play(
        """
server, client = connect(IN | OUT)
steps = [known(server)]
for _ in range(3): steps.append(turn().get(server.fileno())); put(server, b"x")
tell(steps=[*steps, known(server)])
""",
        MPTCP_WITHOUT="zero-read,may-write",
    )
    assert found["steps"] == [5, 4, 4, 4, 5]


def test_full_socket_is_reported_when_it_has_room(play: Callable[..., Any]) -> None:
    found = play("""
server, client = connect(IN)
fill(server)
loop.modify(server, IN | OUT)
steps = [turn().get(server.fileno()), known(server)]
while True:
    try: client.recv(1 << 20)
    except BlockingIOError: break
    time.sleep(0.01)
steps.append(turn(5).get(server.fileno()))
tell(steps=steps)
""")
    assert found["steps"] == [None, 5, 4]


def test_socket_used_with_send_is_reported_by_the_kernel(play: Callable[..., Any]) -> None:
    """Defect: GnuTLS sends by itself, found no room in the socket, and the download was cut off."""
    found = play("""
server, client = connect(IN)
vain = 0
for _ in range(200):
    loop.modify(server, IN | OUT)
    if turn().get(server.fileno(), 0) & OUT:
        try: server.send(b"x" * 50_000)
        except BlockingIOError: vain += 1
    loop.modify(server, IN)
tell(vain=vain)
""")
    assert found["vain"] == 0


def test_connecting_socket_is_reported_only_when_connected(play: Callable[..., Any]) -> None:
    """The socket reuses the number of a connection to which everything could be written."""
    found = play("""
connect(IN)
full = socket(AF_INET, SOCK_STREAM); full.bind(("127.0.0.1", 4000)); full.listen(0)
waiting = []
for _ in range(4):
    each = socket(AF_INET, SOCK_STREAM); each.setblocking(False); waiting.append(each)
    each.connect_ex(("127.0.0.1", 4000))
time.sleep(0.1)
here, there = socketpair(); number = here.fileno()
loop.register(here, IN); put(here, b"x"); here.close()
last = socket(AF_INET, SOCK_STREAM); last.setblocking(False)
said = errno.errorcode[last.connect_ex(("127.0.0.1", 4000))]
loop.register(last, OUT)
tell(same=last.fileno() == number, said=said, reported=[turn().get(number) for _ in range(3)])
""")
    assert found == {"same": True, "said": "EINPROGRESS", "reported": [None] * 3}


def test_change_undone_in_the_same_turn_needs_no_system_call(play: Callable[..., Any]) -> None:
    """An example is an idle connection to an origin that is used again."""
    found = play("""
connect(IN)
here, there = socketpair(); there.send(b"?")
loop.register(here, IN); steps = [turn().get(here.fileno())]; here.recv(9); put(here, b"x")
loop.unregister(here); steps.append(known(here))
loop.register(here, OUT); steps += [turn().get(here.fileno()), known(here)]
put(here, b"x")
loop.modify(here, IN | OUT); loop.modify(here, IN); steps += [turn().get(here.fileno()), known(here)]
there.send(b"?"); steps.append(turn(5).get(here.fileno()))
loop.unregister(here); turn(); steps.append(known(here))
try: loop.unregister(here)
except FileNotFoundError: steps.append("not there")
tell(steps=steps)
""")
    assert found["steps"] == [1, 1, 4, 1, None, 1, 1, None, "not there"]


def test_failed_registration_is_reported_at_once(play: Callable[..., Any]) -> None:
    found = play("""
connect(IN)
said, file = [], os.open("/etc/hostname", os.O_RDONLY)
for events in (IN, OUT):
    try: loop.register(file, events)
    except OSError as error: said.append(errno.errorcode[error.errno])
here, there = socketpair(); loop.register(here, IN)
try: loop.register(here, IN)
except OSError as error: said.append(errno.errorcode[error.errno])
tell(said=said)
""")
    assert found == {"said": ["EPERM", "EPERM", "EEXIST"]}


def test_socket_registered_before_the_first_client_uses_the_kernel(play: Callable[..., Any]) -> None:
    found = play("""
here, there = socketpair(); there.send(b"?"); loop.register(here, IN | OUT)
connect(IN)
steps = [turn().get(here.fileno()), known(here)]
loop.modify(here, IN); steps += [turn().get(here.fileno()), known(here)]
loop.unregister(here); steps += [turn().get(here.fileno()), known(here)]
tell(steps=steps)
""")
    assert found["steps"] == [5, 5, 1, 1, None, None]


def test_kernel_is_asked_after_four_turns_of_reports(play: Callable[..., Any]) -> None:
    """While more sockets are to be reported, the kernel is asked without waiting."""
    found = play("""
many = {}
for _ in range(100):
    server, client = connect(OUT); many[server.fileno()] = server, client
here, there = socketpair(); there.send(b"?"); loop.register(here, IN)
before, began = 0, time.monotonic()
while here.fileno() not in (got := turn(5)): before += len(got)
reported = set(got)
for _ in range(16): reported |= set(turn(5))
tell(before=before, quick=time.monotonic() - began < 2, all=len(reported & set(many)))
""")
    assert found["before"] == 16
    assert found["quick"]
    assert found["all"] == 100


def test_each_client_gets_its_share_of_the_reports(play: Callable[..., Any]) -> None:
    found = play("""
many = {}
for address in ["127.0.0.2"] * 60 + ["127.0.0.3"]:
    server, client = connect(OUT, address); many[server.fileno()] = server, client
last = server.fileno()
reported = dict.fromkeys(many, 0)
for _ in range(400):
    for fd in turn():
        reported[fd] += 1; put(many[fd][0], b"x"); many[fd][1].recv(9)
of_one = reported.pop(last)
tell(one=of_one, least=min(reported.values()), most=max(reported.values()))
""")
    assert found["one"] > 5 * found["most"]
    assert found["least"] > 0


def test_copy_of_a_closed_descriptor_has_no_events_in_epoll(play: Callable[..., Any]) -> None:
    """A helper that is just being started holds such a copy.

    Its event would carry a number that belongs to another socket.
    """
    found = play("""
connect(IN)
here, there = socketpair(); loop.register(here, IN)
copy = os.dup(here.fileno())
loop.unregister(here); here.close()
there.send(b"?")
tell(got=turn())
""")
    assert found == {"got": {}}


def test_writable_origin_does_not_block_clients(play: Callable[..., Any]) -> None:
    """Defect: an origin that accepted everything kept the library from asking the kernel about clients."""
    found = play("""
asking, client = connect(IN, "127.0.0.2")
origin, other = socketpair(); origin.setblocking(False); loop.register(origin, OUT)
turn(); put(origin, b"x"); client.sendall(b"?")
for turns in range(200):
    if asking.fileno() in turn(): break
    put(origin, b"x"); other.recv(9)
tell(turns=turns)
""")
    assert found["turns"] < 40


def test_change_refused_for_lack_of_memory_is_repeated(tmp_path: Path, preloaded: Preloaded) -> None:
    """Defect: the change was never repeated, and Squid waited for an event forever."""
    full = tmp_path / "full.so"
    (tmp_path / "full.c").write_text(FULL)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(full), str(tmp_path / "full.c")], check=True)
    found = playing(Preloaded([*preloaded.libraries, full]), SCENE)("""
server, client = connect(IN)
turn()
client.sendall(b"?")
loop.modify(server, 0)
os.environ["FULL"] = "3"
loop.modify(server, IN); loop.modify(server, OUT); fill(server)
reported = []
for _ in range(8):
    reported.append(known(server)); turn()
tell(first=reported[0], last=reported[-1])
""")
    assert found == {"first": 1, "last": 4}


def test_crash_within_the_library_is_reported(preloaded: Preloaded) -> None:
    """Squid's signal handler closes its listeners, which needed a lock that the interrupted code held."""
    found = playing(preloaded, SCENE)("""
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
