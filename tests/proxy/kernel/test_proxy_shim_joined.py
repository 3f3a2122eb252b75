# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the preload library and write(2): small writes reach a client together, soon, and complete."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from preloading import EMBEDDINGS, Preloaded, marked, playing, preloaded_as

from mptcp_proxy import shim

pytestmark = pytest.mark.kernel
TURN = 4
"""Number of clients' events in a turn (shim/turns/turns.h)."""
SCENE = """
import random, select, struct, time
IN, OUT = select.EPOLLIN, select.EPOLLOUT
HEADER = b"HTTP/1.1 200 OK\\r\\nContent-Length: 1000\\r\\n\\r\\n"
PIECE = b"p" * 4096
listener = socket(AF_INET, SOCK_STREAM); listener.bind(("127.0.0.1", PORT)); listener.listen(2000)
loop = select.epoll()
def connect(address="127.0.0.2", events=IN | OUT):
    client = socket(AF_INET, SOCK_STREAM, protocol(listener)); client.bind((address, 0))
    client.connect(("127.0.0.1", PORT))
    server, _ = listener.accept()
    server.setblocking(False); client.setblocking(False)
    loop.register(server, events)
    return server, client
def connect_many(number):
    "Return connections by descriptor, with large buffers in the kernel."
    many = {}
    for _ in range(number):
        server, client = connect()
        server.setsockopt(SOL_SOCKET, SO_SNDBUF, 1 << 22)
        many[server.fileno()] = server, client
    return many
def turn(wait=0): return dict(loop.poll(wait, 2048))
def there(client):
    "Return how many bytes wait to be read."
    time.sleep(0.02)
    try: return len(client.recv(1 << 22, MSG_PEEK))
    except BlockingIOError: return 0
def read(client, most=1 << 22):
    try: return client.recv(most)
    except BlockingIOError: return b""
def read_all(client, size):
    got, until = b"", time.monotonic() + 20
    while len(got) < size and time.monotonic() < until:
        got += read(client)
        turn(0.001)
    return got
def put(server, data):
    try: return os.write(server.fileno(), data)
    except OSError as error: return errno.errorcode[error.errno]
"""


@pytest.fixture(scope="module", params=[marked("plain", "TCP"), *(marked(way, "MPTCP") for way in EMBEDDINGS)])
def play(request: pytest.FixtureRequest, require: Any) -> Callable[..., Any]:
    require("root", "namespaces", "mptcp", "gcc")
    way, protocol = request.param
    preloaded = preloaded_as(way)
    # The library makes the listener on 3128 an MPTCP listener and leaves the one on 3130 unchanged.
    port = 3130 if protocol == "TCP" else 3128
    return playing(preloaded, f"PORT = {port}\n{SCENE}")


def test_header_and_body_are_sent_together(play: Callable[..., Any]) -> None:
    found = play("""
server, client = connect()
fd = server.fileno()
events = [turn()[fd]]
written = [put(server, HEADER)]
events.append(turn()[fd]); held = there(client)
written.append(put(server, b"b" * 1000)); still = there(client)
loop.modify(server, IN); last = turn()
tell(events=events, written=written, held=held, still=still, last=len(last), came=len(HEADER) + 1000 == there(client),
     right=read(client) == HEADER + b"b" * 1000)
""")
    assert found["written"][1] == 1000
    assert found == {**found, "events": [4, 4], "held": 0, "still": 0, "last": 0, "came": True, "right": True}


@pytest.mark.parametrize(("left_out", "comes"), [("", False), ("late-writes,joined-writes", True)])
def test_joined_writes_can_be_switched_off(play: Callable[..., Any], left_out: str, comes: bool) -> None:
    found = play(
        """
server, client = connect()
turn(); put(server, HEADER); tell(come=there(client) == len(HEADER))
""",
        MPTCP_WITHOUT=left_out,
    )
    assert found == {"come": comes}


def test_pieces_are_sent_together_once_the_buffer_is_full(play: Callable[..., Any]) -> None:
    """The library asks the kernel once per turn of events."""
    found = play("""
server, client = connect()
server.setsockopt(SOL_SOCKET, SO_SNDBUF, 1 << 20)
fd, came, events, got = server.fileno(), [], [], b""
turn()
for number in range(40):
    put(server, b"%04d" % number * 1024)
    events.append(turn().get(fd))
    came.append(there(client)); got += read(client)
loop.modify(server, IN); turn()
got += read_all(client, 40 * 4096 - len(got))
tell(came=[each for each in came if each], events=events.count(OUT) >= 38,
     right=got == b"".join(b"%04d" % n * 1024 for n in range(40)))
""")
    assert found == {"came": [17 * 4096] * 2, "events": True, "right": True}


def test_chunks_are_joined_until_a_smaller_write(play: Callable[..., Any]) -> None:
    found = play("""
server, client = connect()
server.setsockopt(SOL_SOCKET, SO_SNDBUF, 1 << 20)
turn(); chunk = b"1000\\r\\n" + PIECE + b"\\r\\n"
for _ in range(3): put(server, chunk); turn()
before = there(client)
put(server, b"5\\r\\nabcde\\r\\n"); turn()
tell(before=before, after=there(client) - 3 * len(chunk))
""")
    assert found == {"before": 0, "after": 10}


@pytest.mark.parametrize(
    ("what", "events"),
    [
        pytest.param("PIECE", "IN", id="no interest in writing"),
        pytest.param("PIECE[1:]", "IN | OUT", id="less than a piece"),
        pytest.param("PIECE * 2", "IN | OUT", id="more than a piece"),
        pytest.param("HEADER + b'body'", "IN | OUT", id="a header with its body"),
        pytest.param("HEADER[1:]", "IN | OUT", id="no header"),
    ],
)
def test_write_that_is_probably_the_last_is_sent_at_once(play: Callable[..., Any], what: str, events: str) -> None:
    found = play(f"""
server, client = connect(events={events})
turn()
size = put(server, {what})
tell(size=size, came=there(client), right=read(client) == {what})
""")
    assert found["size"] == found["came"] > 0
    assert found["right"]


def test_held_data_fit_into_the_kernels_buffer(play: Callable[..., Any]) -> None:
    found = play("""
server, client = connect()
server.setsockopt(SOL_SOCKET, SO_SNDBUF, 1)
turn(); put(server, PIECE)
tell(came=there(client))
""")
    assert found == {"came": 4096}


@pytest.mark.parametrize("turns", [None, "kernel"])
def test_no_data_are_held_without_fair_turns(play: Callable[..., Any], turns: str | None) -> None:
    found = play("server, client = connect(); turn(); put(server, PIECE)\ntell(came=there(client))", turns=turns)
    assert found == {"came": 4096}


def test_data_are_held_for_one_turn_at_most(play: Callable[..., Any]) -> None:
    found = play("""
server, client = connect()
turn(); put(server, PIECE)
came = [there(client)]
for _ in range(2): turn(); came.append(there(client))
tell(came=came)
""")
    assert found == {"came": [0, 0, 4096]}


def test_request_waits_at_most_a_turn_of_running_downloads(play: Callable[..., Any]) -> None:
    """One client has many downloads that can always continue; another client sends a request."""
    found = play("""
many = connect_many(40)
one, asking = connect("127.0.0.3", IN)
while len(turn()) > 4 * 4: pass
waited = []
for _ in range(20):
    asking.sendall(b"?")
    between = 0
    while one.fileno() not in (got := turn()):
        between += len(got)
        for fd in got:
            put(many[fd][0], PIECE)
            read(many[fd][1])
    for fd in got:
        if fd != one.fileno(): put(many[fd][0], PIECE)
    one.recv(9); waited.append(between)
tell(most=max(waited), least=min(waited))
""")
    # The bound is one turn of events that the kernel gave before, and four turns without asking the kernel.
    assert 0 <= found["least"] <= found["most"] <= 5 * TURN


@pytest.mark.nightly(besides=("plain",))
def test_connections_of_one_client_get_equal_turns(play: Callable[..., Any]) -> None:
    """Defect: of one client's 400 downloads, 16 went on forever and the others got nothing."""
    found = play("""
many = connect_many(60)
reported = dict.fromkeys(many, 0)
for _ in range(600):
    for fd in turn():
        reported[fd] += 1; put(many[fd][0], PIECE)
        read(many[fd][1])
tell(least=min(reported.values()), most=max(reported.values()))
""")
    assert found["most"] < 3 * found["least"]


def test_data_of_a_connection_without_a_turn_are_sent(play: Callable[..., Any]) -> None:
    """More connections can continue than events fit into the turns before the kernel is asked again."""
    found = play("""
many = connect_many(40)
while turn(): pass
for server, client in many.values(): put(server, PIECE)
reported = set()
for _ in range(4):
    for fd in (got := turn()): put(many[fd][0], PIECE)
    reported |= set(got)
tell(reported=len(reported), came=sum(there(many[fd][1]) == 4096 for fd in many.keys() - reported))
""")
    assert found["reported"] < 40
    assert found["came"] == 40 - found["reported"]


def test_write_into_a_nearly_full_buffer_must_wait(play: Callable[..., Any]) -> None:
    """The kernel reports a socket writable if a third of its buffer is free, so pieces would be sent one by one."""
    found = play("""
server, client = connect()
server.setsockopt(SOL_SOCKET, SO_SNDBUF, 1 << 20)
sent = 0
while select.select([], [server], [], 0.05)[1]: sent += put(server, b"x" * 50_000)
reported = turn().get(server.fileno())
said = put(server, PIECE)
then = turn().get(server.fileno())
came = len(read_all(client, sent))
last = turn(5).get(server.fileno())
tell(reported=reported, said=said, then=then, all=came == sent, last=last, taken=put(server, PIECE))
""")
    assert found == {"reported": 4, "said": "EAGAIN", "then": None, "all": True, "last": 4, "taken": 4096}


def test_held_data_are_sent_before_the_close(play: Callable[..., Any]) -> None:
    found = play("""
server, client = connect()
turn(); put(server, HEADER); turn(); put(server, PIECE)
os.close(server.detach())
client.setblocking(True); client.settimeout(5)
got = b""
while more := client.recv(9999): got += more
tell(right=got == HEADER + PIECE)
""")
    assert found == {"right": True}


NO_ROOM = """
server, client = connect()
fd = server.fileno()
client.setsockopt(SOL_SOCKET, SO_RCVBUF, 4096)
server.setsockopt(SOL_SOCKET, SO_SNDBUF, 1 << 20)
turn()
# This is more than the client takes, and no piece, so it stays in the kernel.
sent = [b"k" * 200_000]
assert put(server, sent[0]) == len(sent[0])
def more():
    data = b"%06d" % len(sent) * 683
    sent.append(data[:4096])
    return put(server, sent[-1])
for _ in range(9): more(); turn()
# The kernel no longer has room for the held data.
server.setsockopt(SOL_SOCKET, SO_SNDBUF, 1)
"""


def test_rest_is_sent_when_the_kernel_has_room_again(play: Callable[..., Any]) -> None:
    found = play(f"""{NO_ROOM}
loop.modify(server, IN)
events = [turn().get(fd) for _ in range(5)]
held = there(client) < len(sent[0])
said = put(server, b"later")
got = read_all(client, sum(map(len, sent)))
then = put(server, b"later")
tell(events=set(events) == {{None}}, held=held, said=said, right=got == b"".join(sent), then=then,
     last=read_all(client, 5).decode(), quiet=turn())
""")
    assert found == {
        "events": True,
        "held": True,
        "said": "EAGAIN",
        "right": True,
        "then": 5,
        "last": "later",
        "quiet": {},
    }


def test_write_must_wait_until_the_rest_is_sent(play: Callable[..., Any]) -> None:
    found = play(f"""{NO_ROOM}
# After its turn the program does not write again, so the rest waits.
turn(); turn()
reported, said = turn().get(fd), put(server, b"x")
asked = []
for events in (IN, 0, OUT, IN | OUT):
    loop.modify(server, events); asked.append(turn().get(fd))
loop.unregister(server); asked.append(turn().get(fd))
got = read_all(client, sum(map(len, sent)))
quiet = turn()
loop.register(server, IN | OUT)
tell(reported=reported, said=said, asked=asked, right=got == b"".join(sent), quiet=quiet, then=turn(5).get(fd))
""")
    assert found == {"reported": None, "said": "EAGAIN", "asked": [None] * 5, "right": True, "quiet": {}, "then": 4}


def test_all_pipelined_answers_arrive_before_the_close(play: Callable[..., Any]) -> None:
    """Defect: the library held the last header without room to send it; close() reset data the client had not read."""
    found = play("""
def answered(answers):
    "Whether a client that reads late gets *answers* answers and one without a body, after which the server closes."
    client = socket(AF_INET, SOCK_STREAM, protocol(listener)); client.bind(("127.0.0.2", 0))
    client.setsockopt(SOL_SOCKET, SO_RCVBUF, 8192)
    client.connect(("127.0.0.1", PORT))
    server, _ = listener.accept()
    server.setblocking(False); client.setblocking(False)
    server.setsockopt(SOL_SOCKET, SO_SNDBUF, 16384)
    loop.register(server, IN | OUT)
    fd, got, end = server.fileno(), b"", b"\\r\\n\\r\\n"
    waiting = [HEADER + b"b" * 3000] * answers + [b"HTTP/1.1 204 No Content\\r\\nConnection: close" + end]
    sent = b"".join(waiting)
    while waiting:
        # Write as Squid does: the header, then the body, each when the socket is writable.
        if turn(0.01).get(fd, 0) & OUT:
            head, found, _ = waiting[0].partition(end)
            said = put(server, head + found if found else head)
            waiting[0] = waiting[0][said if isinstance(said, int) else 0:]
            if not waiting[0]: del waiting[0]
        else:
            got += read(client, 1500)
    os.close(server.detach())
    client.setblocking(True); client.settimeout(5)
    try:
        while more := client.recv(9999): got += more
    except OSError: return False
    return got == sent
tell(lost=[answers for answers in range(10, 25) if not answered(answers)])
""")
    assert found == {"lost": []}


@pytest.mark.parametrize("meanwhile", ["", "os.dup(0)", "server, client_too = connect()"])
def test_rest_of_a_closed_connection_is_sent_later(play: Callable[..., Any], meanwhile: str) -> None:
    """Defect: the connection was reset, which lost data that was already in the kernel."""
    found = play(f"""{NO_ROOM}
os.close(server.detach())
{meanwhile}
got, said, until = b"", None, time.monotonic() + 20
while said is None and time.monotonic() < until:
    try:
        more = client.recv(9999)
        got += more
        if not more: said = "the end"
    except BlockingIOError: turn(0.001)
    except OSError as error: said = errno.errorcode[error.errno]
tell(all=got == b"".join(sent), said=said)
""")
    assert found == {"all": True, "said": "the end"}


def test_closed_connection_is_reset_if_its_client_does_not_read(tmp_path: Path, require: Any) -> None:
    """After a minute (a second here) the library resets, so that the client notices missing data.

    It frees the epoll.
    """
    require("root", "namespaces", "mptcp", "gcc")
    hasty = tmp_path / shim.TURNS
    flags = ("-std=gnu11", "-shared", "-fPIC", "-DREST_SECONDS=1", "-fvisibility=hidden", "-o", str(hasty))
    subprocess.run(["gcc", *flags, *map(str, shim.sources(shim.TURNS))], check=True)
    found = playing(Preloaded([hasty, shim.library()]), f"PORT = 3128\n{SCENE}")(f"""{NO_ROOM}
os.close(server.detach())
mine = len(os.listdir("/proc/self/fd"))
for _ in range(30): turn(0.1)
left = mine - len(os.listdir("/proc/self/fd"))
client.setblocking(True); client.settimeout(5)
got, said = b"", "the end"
try:
    while more := client.recv(9999): got += more
except OSError as error: said = errno.errorcode[error.errno]
tell(all=got == b"".join(sent), said=said, left=left)
""")
    assert found == {"all": False, "said": "ECONNRESET", "left": 2}


@pytest.mark.nightly(besides=("plain",))
def test_all_data_arrive_before_the_end(play: Callable[..., Any]) -> None:
    """The test closes connections with held data while the kernel has little room and clients read late."""
    found = play("""
rng, right, ends = random.Random(1), 0, {}
def finish(server, client, sent, got, closed):
    global right
    while True:
        try: more = client.recv(rng.choice([100, 5000, 1 << 20]))
        except BlockingIOError: return False
        except OSError: return True
        got += more
        if not more:
            right += closed[0] and bytes(got) == bytes(sent); return True
for n in range(400):
    server, client = connect(f"127.0.0.{2 + n % 3}", OUT)
    client.setsockopt(SOL_SOCKET, SO_RCVBUF, rng.choice([4096, 8192, 65536, 1 << 20]))
    server.setsockopt(SOL_SOCKET, SO_SNDBUF, rng.choice([1, 16384, 65536, 1 << 20]))
    ends[server.fileno()] = server, client, bytearray(), bytearray(), [False]
    for _ in range(rng.randrange(60)):
        for fd in turn():
            if fd in ends and not ends[fd][4][0] and rng.random() < 0.9:
                data = rng.choice([HEADER, PIECE, PIECE, PIECE, b"b" * 3000])
                said = put(ends[fd][0], data)
                if isinstance(said, int): ends[fd][2].extend(data[:said])
    if rng.random() < 0.5: server.setsockopt(SOL_SOCKET, SO_SNDBUF, 1)
    # A closed connection keeps its number until another one gets it.
    ends[-1 - n] = ends.pop(server.fileno())
    os.close(server.detach()); ends[-1 - n][4][0] = True
    if n % 7 == 0: ends = {fd: each for fd, each in ends.items() if not finish(*each)}
until = time.monotonic() + 60
while ends and time.monotonic() < until:
    turn(0.001)
    ends = {fd: each for fd, each in ends.items() if not finish(*each)}
tell(right=right, left=len(ends))
""")
    assert found == {"right": 400, "left": 0}


def test_vanished_client_is_reported_as_without_the_library(play: Callable[..., Any]) -> None:
    found = play("""
server, client = connect()
turn(); put(server, PIECE)
client.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0)); client.close()
time.sleep(0.1)
turn()
events = turn(5).get(server.fileno(), 0)
said = put(server, PIECE)
tell(gone=bool(events & (select.EPOLLHUP | select.EPOLLERR)), said=said)
""")
    assert found["gone"]
    assert found["said"] in {"EPIPE", "ECONNRESET"}


def test_forked_child_sends_no_held_data(play: Callable[..., Any]) -> None:
    """Squid's forked children close the descriptors that they inherited."""
    found = play("""
server, client = connect()
turn(); put(server, PIECE)
if (child := os.fork()) == 0:
    turn()
    os.close(server.fileno())
    os._exit(0)
os.waitpid(child, 0)
before = there(client)
turn(); turn()
tell(before=before, after=there(client))
""")
    assert found == {"before": 0, "after": 4096}


def test_closed_event_loop_sends_held_data(play: Callable[..., Any]) -> None:
    found = play("server, client = connect(); turn(); put(server, PIECE); loop.close(); tell(came=there(client))")
    assert found == {"came": 4096}


def test_reused_descriptor_gets_no_held_data(play: Callable[..., Any]) -> None:
    """The descriptor is closed by a call that the library does not intercept."""
    found = play("""
server, client = connect()
turn(); put(server, PIECE)
number = server.detach()
other = socket(AF_INET, SOCK_STREAM, protocol(listener)); other.connect(("127.0.0.1", PORT)); other.setblocking(False)
os.closerange(number, number + 1)
again, _ = listener.accept()
turn(); turn()
tell(same=again.fileno() == number, came=there(other))
""")
    assert found == {"same": True, "came": 0}


RANDOM = """
rng = random.Random(SEED)
ends, sent, got = {}, {}, {}
for n in range(12):
    server, client = connect(f"127.0.0.{2 + n % 3}", OUT)
    if rng.random() < 0.5: client.setsockopt(SOL_SOCKET, SO_RCVBUF, 4096)
    ends[server.fileno()] = server, client; sent[server.fileno()] = b""; got[server.fileno()] = b""
until = time.monotonic() + 30
goal, count = 200_000, 0
while any(len(got[fd]) < goal for fd in ends) and time.monotonic() < until:
    for fd, event in turn(0.01).items():
        server, client = ends[fd]
        if event & OUT and rng.random() < 0.9:
            count += 1
            size = rng.choice([4096, 4096, 4096, 4104, 4112, 4113, 1, 700, 65536])
            data = (b"%08d" % count * (size // 8 + 1))[:size]
            if len(sent[fd]) > goal: loop.modify(server, IN)
            else:
                size = put(server, data)
                if size != "EAGAIN": sent[fd] += data[:size]
        if rng.random() < 0.02: server.setsockopt(SOL_SOCKET, SO_SNDBUF, rng.choice([1, 1 << 20, 1 << 22]))
    for fd, (server, client) in ends.items():
        if rng.random() < 0.5: got[fd] += read(client, rng.choice([100, 5000, 1 << 20]))
        if rng.random() < 0.05 and len(sent[fd]) <= goal: loop.modify(server, rng.choice([IN, OUT, IN | OUT]))
        elif rng.random() < 0.2 and len(sent[fd]) <= goal: loop.modify(server, OUT)
for fd, (server, client) in ends.items():
    loop.modify(server, IN)
    got[fd] += read_all(client, len(sent[fd]) - len(got[fd]))
tell(right=sum(sent[fd] == got[fd] for fd in ends), enough=min(map(len, sent.values())) >= goal)
"""


@pytest.mark.nightly(besides=("plain-MPTCP-0", "undefined-MPTCP-1"))
@pytest.mark.parametrize("seed", range(3))
def test_random_writes_arrive_unchanged(play: Callable[..., Any], seed: int) -> None:
    assert play(f"SEED = {seed}\n{RANDOM}") == {"right": 12, "enough": True}
