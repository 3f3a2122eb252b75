# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the preload library and write(2): small writes are joined, and reach a client soon and completely."""

from __future__ import annotations

import select
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from preloading import BUILDS, Preloaded, build_parameter, build_preloaded, scene_runner

from mptcp_proxy import shim

pytestmark = pytest.mark.kernel
OUT = select.EPOLLOUT
MAX_EVENTS_PER_TURN = 4
"""Maximum number of events of clients in a turn (shim/turns/turns.h)."""
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
def unread(client):
    "Return the number of bytes that the client can read."
    time.sleep(0.02)
    try: return len(client.recv(1 << 22, MSG_PEEK))
    except BlockingIOError: return 0
def read(client, size=1 << 22):
    try: return client.recv(size)
    except BlockingIOError: return b""
def read_all(client, size):
    received, deadline = b"", time.monotonic() + 20
    while len(received) < size and time.monotonic() < deadline:
        received += read(client)
        turn(0.001)
    return received
def write(server, data):
    try: return os.write(server.fileno(), data)
    except OSError as error: return errno.errorcode[error.errno]
"""


@pytest.fixture(
    scope="module", params=[build_parameter("plain", "TCP"), *(build_parameter(build, "MPTCP") for build in BUILDS)]
)
def run_scene(request: pytest.FixtureRequest, require: Any) -> Callable[..., Any]:
    require("root", "namespaces", "mptcp", "gcc")
    build, protocol = request.param
    preloaded = build_preloaded(build)
    # The library converts the listener on port 3128 to MPTCP, and does not change the listener on port 3130.
    port = 3130 if protocol == "TCP" else 3128
    return scene_runner(preloaded, f"PORT = {port}\n{SCENE}")


def test_header_and_body_are_sent_together(run_scene: Callable[..., Any]) -> None:
    found = run_scene("""
server, client = connect()
fd = server.fileno()
events = [turn()[fd]]
written = [write(server, HEADER)]
events.append(turn()[fd]); held = unread(client)
written.append(write(server, b"b" * 1000)); held_after = unread(client)
loop.modify(server, IN); last = turn()
report(events=events, written=written, held=held, held_after=held_after, last=len(last),
     arrived=len(HEADER) + 1000 == unread(client), unchanged=read(client) == HEADER + b"b" * 1000)
""")
    assert found["written"][1] == 1000
    assert found == {
        **found,
        "events": [OUT, OUT],
        "held": 0,
        "held_after": 0,
        "last": 0,
        "arrived": True,
        "unchanged": True,
    }


@pytest.mark.parametrize(
    ("disabled", "is_sent"), [("", False), ("late-writes,joined-writes", True)], ids=["as shipped", "disabled"]
)
def test_joined_writes_can_be_disabled(run_scene: Callable[..., Any], disabled: str, is_sent: bool) -> None:
    found = run_scene(
        """
server, client = connect()
turn(); write(server, HEADER); report(sent=unread(client) == len(HEADER))
""",
        MPTCP_WITHOUT=disabled,
    )
    assert found == {"sent": is_sent}


def test_pieces_are_sent_together_once_the_buffer_is_full(run_scene: Callable[..., Any]) -> None:
    """The library calls the kernel's epoll once per turn."""
    found = run_scene("""
server, client = connect()
server.setsockopt(SOL_SOCKET, SO_SNDBUF, 1 << 20)
fd, arrived, events, received = server.fileno(), [], [], b""
turn()
for number in range(40):
    write(server, b"%04d" % number * 1024)
    events.append(turn().get(fd))
    arrived.append(unread(client)); received += read(client)
loop.modify(server, IN); turn()
received += read_all(client, 40 * 4096 - len(received))
report(arrived=[each for each in arrived if each], events=events.count(OUT) >= 38,
     unchanged=received == b"".join(b"%04d" % n * 1024 for n in range(40)))
""")
    # The buffer holds 16 pieces. The next write sends them, together with its own piece.
    assert found == {"arrived": [17 * 4096] * 2, "events": True, "unchanged": True}


def test_chunks_are_joined_until_a_smaller_write(run_scene: Callable[..., Any]) -> None:
    found = run_scene("""
server, client = connect()
server.setsockopt(SOL_SOCKET, SO_SNDBUF, 1 << 20)
turn(); chunk = b"1000\\r\\n" + PIECE + b"\\r\\n"
for _ in range(3): write(server, chunk); turn()
before = unread(client)
write(server, b"5\\r\\nabcde\\r\\n"); turn()
report(before=before, after=unread(client) - 3 * len(chunk))
""")
    assert found == {"before": 0, "after": 10}


@pytest.mark.parametrize(
    ("data", "events"),
    [
        pytest.param("PIECE", "IN", id="no interest in writing"),
        pytest.param("PIECE[1:]", "IN | OUT", id="less than a piece"),
        pytest.param("PIECE * 2", "IN | OUT", id="more than a piece"),
        pytest.param("HEADER + b'body'", "IN | OUT", id="a header with its body"),
        pytest.param("HEADER[1:]", "IN | OUT", id="no header"),
    ],
)
def test_write_that_is_probably_the_last_is_sent_immediately(
    run_scene: Callable[..., Any], data: str, events: str
) -> None:
    found = run_scene(f"""
server, client = connect(events={events})
turn()
size = write(server, {data})
report(size=size, arrived=unread(client), unchanged=read(client) == {data})
""")
    assert found["size"] == found["arrived"] > 0
    assert found["unchanged"]


def test_data_that_exceed_the_kernels_buffer_are_not_held(run_scene: Callable[..., Any]) -> None:
    found = run_scene("""
server, client = connect()
server.setsockopt(SOL_SOCKET, SO_SNDBUF, 1)
turn(); write(server, PIECE)
report(arrived=unread(client))
""")
    assert found == {"arrived": 4096}


@pytest.mark.parametrize("turns", [None, "kernel"], ids=["unset", "kernel"])
def test_no_data_are_held_without_fair_turns(run_scene: Callable[..., Any], turns: str | None) -> None:
    found = run_scene(
        "server, client = connect(); turn(); write(server, PIECE)\nreport(arrived=unread(client))", turns=turns
    )
    assert found == {"arrived": 4096}


def test_data_are_held_for_one_turn_at_most(run_scene: Callable[..., Any]) -> None:
    found = run_scene("""
server, client = connect()
turn(); write(server, PIECE)
arrived = [unread(client)]
for _ in range(2): turn(); arrived.append(unread(client))
report(arrived=arrived)
""")
    assert found == {"arrived": [0, 0, 4096]}


def test_request_waits_at_most_a_turn_of_running_downloads(run_scene: Callable[..., Any]) -> None:
    """A client has many downloads that can always continue; another client sends a request."""
    found = run_scene("""
many = connect_many(40)
server, client = connect("127.0.0.3", IN)
while len(turn()) > 4 * 4: pass
waited = []
for _ in range(20):
    client.sendall(b"?")
    between = 0
    while server.fileno() not in (events := turn()):
        between += len(events)
        for fd in events:
            write(many[fd][0], PIECE)
            read(many[fd][1])
    for fd in events:
        if fd != server.fileno(): write(many[fd][0], PIECE)
    server.recv(9); waited.append(between)
report(largest=max(waited), smallest=min(waited))
""")
    # The limit is one turn of earlier events of the kernel, and four turns without a call of the kernel's epoll.
    assert 0 <= found["smallest"] <= found["largest"] <= 5 * MAX_EVENTS_PER_TURN


@pytest.mark.nightly(except_for=("plain",))
def test_connections_of_one_client_get_equal_turns(run_scene: Callable[..., Any]) -> None:
    """Defect: of one client's 400 downloads, only 16 got all turns, and the others got no data."""
    found = run_scene("""
many = connect_many(60)
reported = dict.fromkeys(many, 0)
for _ in range(600):
    for fd in turn():
        reported[fd] += 1; write(many[fd][0], PIECE)
        read(many[fd][1])
report(smallest=min(reported.values()), largest=max(reported.values()))
""")
    assert found["largest"] < 3 * found["smallest"]


def test_data_of_a_connection_without_a_turn_are_sent(run_scene: Callable[..., Any]) -> None:
    """More connections can continue than events fit into the turns before the next call of the kernel's epoll."""
    found = run_scene("""
many = connect_many(40)
while turn(): pass
for server, client in many.values(): write(server, PIECE)
reported = set()
for _ in range(4):
    for fd in (events := turn()): write(many[fd][0], PIECE)
    reported |= set(events)
report(reported=len(reported), arrived=sum(unread(many[fd][1]) == 4096 for fd in many.keys() - reported))
""")
    assert found["reported"] < 40
    assert found["arrived"] == 40 - found["reported"]


def test_write_into_a_nearly_full_buffer_must_wait(run_scene: Callable[..., Any]) -> None:
    """The kernel reports a socket as writable if a third of its buffer is free. Without waiting, pieces would be sent
    separately."""
    found = run_scene("""
server, client = connect()
server.setsockopt(SOL_SOCKET, SO_SNDBUF, 1 << 20)
sent = 0
while select.select([], [server], [], 0.05)[1]: sent += write(server, b"x" * 50_000)
reported = turn().get(server.fileno())
result = write(server, PIECE)
later = turn().get(server.fileno())
arrived = len(read_all(client, sent))
last = turn(5).get(server.fileno())
report(reported=reported, result=result, later=later, all=arrived == sent, last=last, accepted=write(server, PIECE))
""")
    assert found == {"reported": OUT, "result": "EAGAIN", "later": None, "all": True, "last": OUT, "accepted": 4096}


def test_held_data_are_sent_before_the_close(run_scene: Callable[..., Any]) -> None:
    found = run_scene("""
server, client = connect()
turn(); write(server, HEADER); turn(); write(server, PIECE)
os.close(server.detach())
client.setblocking(True); client.settimeout(5)
received = b""
while chunk := client.recv(9999): received += chunk
report(unchanged=received == HEADER + PIECE)
""")
    assert found == {"unchanged": True}


FULL_KERNEL_BUFFER = """
server, client = connect()
fd = server.fileno()
client.setsockopt(SOL_SOCKET, SO_RCVBUF, 4096)
server.setsockopt(SOL_SOCKET, SO_SNDBUF, 1 << 20)
turn()
# The client cannot receive all of this, and it is not a piece, so the kernel holds it.
sent = [b"k" * 200_000]
assert write(server, sent[0]) == len(sent[0])
def write_piece():
    data = b"%06d" % len(sent) * 683
    sent.append(data[:4096])
    return write(server, sent[-1])
for _ in range(9): write_piece(); turn()
# The kernel no longer has room for the held data.
server.setsockopt(SOL_SOCKET, SO_SNDBUF, 1)
"""


def test_held_data_are_sent_when_the_kernel_has_room_again(run_scene: Callable[..., Any]) -> None:
    found = run_scene(f"""{FULL_KERNEL_BUFFER}
loop.modify(server, IN)
events = [turn().get(fd) for _ in range(5)]
held = unread(client) < len(sent[0])
result = write(server, b"later")
received = read_all(client, sum(map(len, sent)))
later = write(server, b"later")
report(events=set(events) == {{None}}, held=held, result=result, unchanged=received == b"".join(sent), later=later,
     last=read_all(client, 5).decode(), quiet=turn())
""")
    assert found == {
        "events": True,
        "held": True,
        "result": "EAGAIN",
        "unchanged": True,
        "later": 5,
        "last": "later",
        "quiet": {},
    }


def test_write_must_wait_until_the_held_data_are_sent(run_scene: Callable[..., Any]) -> None:
    found = run_scene(f"""{FULL_KERNEL_BUFFER}
# The program does not write again after its turn, so the held data must wait.
turn(); turn()
reported, result = turn().get(fd), write(server, b"x")
requested = []
for events in (IN, 0, OUT, IN | OUT):
    loop.modify(server, events); requested.append(turn().get(fd))
loop.unregister(server); requested.append(turn().get(fd))
received = read_all(client, sum(map(len, sent)))
quiet = turn()
loop.register(server, IN | OUT)
report(reported=reported, result=result, requested=requested, unchanged=received == b"".join(sent), quiet=quiet,
     later=turn(5).get(fd))
""")
    assert found == {
        "reported": None,
        "result": "EAGAIN",
        "requested": [None] * 5,
        "unchanged": True,
        "quiet": {},
        "later": OUT,
    }


def test_all_pipelined_answers_arrive_before_the_close(run_scene: Callable[..., Any]) -> None:
    """Defect: the library held the last header, but could not send it, and close(2) reset unread data of the client."""
    found = run_scene("""
def answered(answers):
    "Return whether a client that reads late gets *answers* answers, and a last one without a body before the close."
    client = socket(AF_INET, SOCK_STREAM, protocol(listener)); client.bind(("127.0.0.2", 0))
    client.setsockopt(SOL_SOCKET, SO_RCVBUF, 8192)
    client.connect(("127.0.0.1", PORT))
    server, _ = listener.accept()
    server.setblocking(False); client.setblocking(False)
    server.setsockopt(SOL_SOCKET, SO_SNDBUF, 16384)
    loop.register(server, IN | OUT)
    fd, received, end = server.fileno(), b"", b"\\r\\n\\r\\n"
    waiting = [HEADER + b"b" * 3000] * answers + [b"HTTP/1.1 204 No Content\\r\\nConnection: close" + end]
    sent = b"".join(waiting)
    while waiting:
        # Write as Squid does: the header, later the body, each when the socket is writable.
        if turn(0.01).get(fd, 0) & OUT:
            head, found, _ = waiting[0].partition(end)
            result = write(server, head + found if found else head)
            waiting[0] = waiting[0][result if isinstance(result, int) else 0:]
            if not waiting[0]: del waiting[0]
        else:
            received += read(client, 1500)
    os.close(server.detach())
    client.setblocking(True); client.settimeout(5)
    try:
        while chunk := client.recv(9999): received += chunk
    except OSError: return False
    return received == sent
report(lost=[answers for answers in range(10, 25) if not answered(answers)])
""")
    assert found == {"lost": []}


@pytest.mark.parametrize(
    "action", ["", "os.dup(0)", "server, client_too = connect()"], ids=["nothing", "file", "connection"]
)
def test_held_data_of_a_closed_connection_are_sent_later(run_scene: Callable[..., Any], action: str) -> None:
    """Defect: the connection was reset, which lost data that was already in the kernel."""
    found = run_scene(f"""{FULL_KERNEL_BUFFER}
os.close(server.detach())
{action}
received, result, deadline = b"", None, time.monotonic() + 20
while result is None and time.monotonic() < deadline:
    try:
        chunk = client.recv(9999)
        received += chunk
        if not chunk: result = "the end"
    except BlockingIOError: turn(0.001)
    except OSError as error: result = errno.errorcode[error.errno]
report(all=received == b"".join(sent), result=result)
""")
    assert found == {"all": True, "result": "the end"}


def test_closed_connection_is_reset_if_its_client_does_not_read(tmp_path: Path, require: Any) -> None:
    """After a minute (in this test, after a second), the library resets the connection, so that the client detects lost
    data.

    The library then also closes the epoll that it uses for this client.
    """
    require("root", "namespaces", "mptcp", "gcc")
    fast_library = tmp_path / shim.TURNS
    flags = ("-std=gnu11", "-shared", "-fPIC", "-DREST_SECONDS=1", "-fvisibility=hidden", "-o", str(fast_library))
    subprocess.run(["gcc", *flags, *map(str, shim.sources(shim.TURNS))], check=True)
    found = scene_runner(Preloaded([fast_library, shim.library()]), f"PORT = 3128\n{SCENE}")(f"""{FULL_KERNEL_BUFFER}
os.close(server.detach())
before = len(os.listdir("/proc/self/fd"))
for _ in range(30): turn(0.1)
closed = before - len(os.listdir("/proc/self/fd"))
client.setblocking(True); client.settimeout(5)
received, result = b"", "the end"
try:
    while chunk := client.recv(9999): received += chunk
except OSError as error: result = errno.errorcode[error.errno]
report(all=received == b"".join(sent), result=result, closed=closed)
""")
    assert found == {"all": False, "result": "ECONNRESET", "closed": 2}


@pytest.mark.nightly(except_for=("plain",))
def test_all_data_arrive_before_the_end(run_scene: Callable[..., Any]) -> None:
    """In this test, connections with held data are closed while the kernel has little room and clients read late."""
    found = run_scene("""
rng, unchanged, ends = random.Random(1), 0, {}
def finish(server, client, sent, received, closed):
    global unchanged
    while True:
        try: chunk = client.recv(rng.choice([100, 5000, 1 << 20]))
        except BlockingIOError: return False
        except OSError: return True
        received += chunk
        if not chunk:
            unchanged += closed[0] and bytes(received) == bytes(sent); return True
for n in range(400):
    server, client = connect(f"127.0.0.{2 + n % 3}", OUT)
    client.setsockopt(SOL_SOCKET, SO_RCVBUF, rng.choice([4096, 8192, 65536, 1 << 20]))
    server.setsockopt(SOL_SOCKET, SO_SNDBUF, rng.choice([1, 16384, 65536, 1 << 20]))
    ends[server.fileno()] = server, client, bytearray(), bytearray(), [False]
    for _ in range(rng.randrange(60)):
        for fd in turn():
            if fd in ends and not ends[fd][4][0] and rng.random() < 0.9:
                data = rng.choice([HEADER, PIECE, PIECE, PIECE, b"b" * 3000])
                result = write(ends[fd][0], data)
                if isinstance(result, int): ends[fd][2].extend(data[:result])
    if rng.random() < 0.5: server.setsockopt(SOL_SOCKET, SO_SNDBUF, 1)
    # Give the closed connection a negative key, because the kernel may reuse its descriptor.
    ends[-1 - n] = ends.pop(server.fileno())
    os.close(server.detach()); ends[-1 - n][4][0] = True
    if n % 7 == 0: ends = {fd: each for fd, each in ends.items() if not finish(*each)}
deadline = time.monotonic() + 60
while ends and time.monotonic() < deadline:
    turn(0.001)
    ends = {fd: each for fd, each in ends.items() if not finish(*each)}
report(unchanged=unchanged, left=len(ends))
""")
    assert found == {"unchanged": 400, "left": 0}


def test_error_of_a_vanished_client_is_the_same_as_without_the_library(run_scene: Callable[..., Any]) -> None:
    found = run_scene("""
server, client = connect()
turn(); write(server, PIECE)
client.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0)); client.close()
time.sleep(0.1)
turn()
events = turn(5).get(server.fileno(), 0)
result = write(server, PIECE)
report(gone=bool(events & (select.EPOLLHUP | select.EPOLLERR)), result=result)
""")
    assert found["gone"]
    assert found["result"] in {"EPIPE", "ECONNRESET"}


def test_forked_child_sends_no_held_data(run_scene: Callable[..., Any]) -> None:
    """Squid's forked children close their inherited descriptors."""
    found = run_scene("""
server, client = connect()
turn(); write(server, PIECE)
if (child := os.fork()) == 0:
    turn()
    os.close(server.fileno())
    os._exit(0)
os.waitpid(child, 0)
before = unread(client)
turn(); turn()
report(before=before, after=unread(client))
""")
    assert found == {"before": 0, "after": 4096}


def test_closed_event_loop_sends_held_data(run_scene: Callable[..., Any]) -> None:
    found = run_scene(
        "server, client = connect(); turn(); write(server, PIECE); loop.close(); report(arrived=unread(client))"
    )
    assert found == {"arrived": 4096}


def test_reused_descriptor_gets_no_held_data(run_scene: Callable[..., Any]) -> None:
    """The program closes the descriptor with a call that the library does not intercept."""
    found = run_scene("""
server, client = connect()
turn(); write(server, PIECE)
number = server.detach()
other = socket(AF_INET, SOCK_STREAM, protocol(listener)); other.connect(("127.0.0.1", PORT)); other.setblocking(False)
os.closerange(number, number + 1)
accepted, _ = listener.accept()
turn(); turn()
report(is_reused=accepted.fileno() == number, arrived=unread(other))
""")
    assert found == {"is_reused": True, "arrived": 0}


RANDOM_WRITES = """
rng = random.Random(SEED)
ends, sent, received = {}, {}, {}
for n in range(12):
    server, client = connect(f"127.0.0.{2 + n % 3}", OUT)
    if rng.random() < 0.5: client.setsockopt(SOL_SOCKET, SO_RCVBUF, 4096)
    ends[server.fileno()] = server, client; sent[server.fileno()] = b""; received[server.fileno()] = b""
deadline = time.monotonic() + 30
size_wanted, count = 200_000, 0
while any(len(received[fd]) < size_wanted for fd in ends) and time.monotonic() < deadline:
    for fd, event in turn(0.01).items():
        server, client = ends[fd]
        if event & OUT and rng.random() < 0.9:
            count += 1
            size = rng.choice([4096, 4096, 4096, 4104, 4112, 4113, 1, 700, 65536])
            data = (b"%08d" % count * (size // 8 + 1))[:size]
            if len(sent[fd]) > size_wanted: loop.modify(server, IN)
            else:
                size = write(server, data)
                if size != "EAGAIN": sent[fd] += data[:size]
        if rng.random() < 0.02: server.setsockopt(SOL_SOCKET, SO_SNDBUF, rng.choice([1, 1 << 20, 1 << 22]))
    for fd, (server, client) in ends.items():
        if rng.random() < 0.5: received[fd] += read(client, rng.choice([100, 5000, 1 << 20]))
        if rng.random() < 0.05 and len(sent[fd]) <= size_wanted: loop.modify(server, rng.choice([IN, OUT, IN | OUT]))
        elif rng.random() < 0.2 and len(sent[fd]) <= size_wanted: loop.modify(server, OUT)
for fd, (server, client) in ends.items():
    loop.modify(server, IN)
    received[fd] += read_all(client, len(sent[fd]) - len(received[fd]))
report(unchanged=sum(sent[fd] == received[fd] for fd in ends), enough=min(map(len, sent.values())) >= size_wanted)
"""


@pytest.mark.nightly(except_for=("plain-MPTCP-0", "undefined-MPTCP-1"))
@pytest.mark.parametrize("seed", range(3))
def test_random_writes_arrive_unchanged(run_scene: Callable[..., Any], seed: int) -> None:
    assert run_scene(f"SEED = {seed}\n{RANDOM_WRITES}") == {"unchanged": 12, "enough": True}
