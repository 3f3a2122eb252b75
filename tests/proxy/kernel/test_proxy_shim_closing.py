# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the preload library at the end of connections: late writers soon get an error, and no answer is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from preloading import DESCRIPTORS, MPTCP, TCP, Preloaded

pytestmark = pytest.mark.kernel
MAX_HELD_CONNECTIONS = 512
"""Maximum number of closed connections that the library keeps open (shim/listen/late_writes.c)."""
SCENE = """
import select, struct, threading, time
listener = socket(); listener.bind(("127.0.0.1", 3128)); listener.listen(2000)
def connect(kind=262):
    client = socket(AF_INET, SOCK_STREAM, kind); client.connect(("127.0.0.1", 3128)); client.settimeout(60)
    client.sendall(b"?")
    server, _ = listener.accept()
    assert server.recv(1) == b"?"
    return client, server
def write_error(client, pause=lambda: time.sleep(0.02)):
    "Return the error that the client gets if it continues to write."
    start_time = time.monotonic()
    while time.monotonic() < start_time + 60:
        try: client.sendall(b"more")
        except OSError as error: return errno.errorcode[error.errno]
        pause()
def wait_for(connection, event):
    "Wait until poll(2) reports *event*: the kernel has then handled the action of the other end."
    poll = select.poll(); poll.register(connection, event)
    assert poll.poll(60_000)
def count_sockets():
    count = 0
    for each in os.scandir("/proc/self/fd"):
        try: count += os.readlink(each.path).startswith("socket:")
        except OSError: pass
    return count
def wait_until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
"""


@pytest.fixture
def run_scene(preloaded_with_each_build: Preloaded) -> Callable[..., Any]:
    def run(code: str, **variables: str) -> Any:
        # The interpreter frees little memory when it exits.
        found = preloaded_with_each_build(SCENE + code, setup=DESCRIPTORS, ASAN_OPTIONS="detect_leaks=0", **variables)
        assert preloaded_with_each_build.stderr == ""
        return found

    return run


@pytest.mark.parametrize("kind", [MPTCP, TCP], ids=["MPTCP", "TCP"])
def test_late_writer_gets_an_error(run_scene: Callable[..., Any], kind: int) -> None:
    found = run_scene(f"""
client, server = connect({kind})
server.sendall(b"answer"); server.close()
received = client.recv(100)
wait_for(client, select.POLLRDHUP)
report(received=received.decode(), error=write_error(client), left=count_sockets())
""")
    assert found["received"] == "answer"
    assert found["error"] in ("EPIPE", "ECONNRESET")


def test_answer_arrives_although_the_client_writes(run_scene: Callable[..., Any]) -> None:
    found = run_scene("""
client, server = connect()
size = 3_000_000
def answer(): server.sendall(b"x" * size); server.close()
thread = threading.Thread(target=answer, daemon=True); thread.start()
received = 0
thread.join(0.05)
# The server cannot close until the rest of the answer fits into the buffers.
while thread.is_alive(): received += len(client.recv(65536)); thread.join(0.05)
unread = size - received
client.sendall(b"the next request")
while received < size: received += len(client.recv(65536))
report(unread=unread, received=received == size, error=write_error(client))
""")
    assert found["unread"] > 0
    assert found["received"]
    assert found["error"] in ("EPIPE", "ECONNRESET")


def test_held_connection_is_freed_when_the_client_closes(run_scene: Callable[..., Any]) -> None:
    found = run_scene("""
before = count_sockets()
client, server = connect()
server.sendall(b"answer"); server.close()
received = [client.recv(100).decode(), client.recv(100).decode()]
held = count_sockets() - before - 1
client.close()
wait_until(lambda: count_sockets() == before)
report(received=received, held=held)
""")
    assert found == {"received": ["answer", ""], "held": 1}


@pytest.mark.parametrize(("disabled", "held"), [("", 1), ("zero-read,late-writes", 0)], ids=["as shipped", "disabled"])
def test_late_writes_can_be_disabled(run_scene: Callable[..., Any], disabled: str, held: int) -> None:
    found = run_scene(
        """
client, server = connect()
before = count_sockets()
server.sendall(b"answer"); server.close(); server = None
report(held=count_sockets() - before + 1, received=client.recv(100).decode(), end=client.recv(100).decode())
""",
        MPTCP_WITHOUT=disabled,
    )
    assert found == {"held": held, "received": "answer", "end": ""}


@pytest.mark.parametrize(
    "first",
    [
        "client.shutdown(SHUT_WR); wait_for(server, select.POLLRDHUP)",
        "server.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack('ii', 1, 0))",
        "client.sendall(b'unread'); wait_for(server, select.POLLIN)",
    ],
    ids=["client closed first", "server resets", "data are unread"],
)
def test_connection_that_needs_no_delay_is_closed_immediately(run_scene: Callable[..., Any], first: str) -> None:
    found = run_scene(f"""
client, server = connect()
before = count_sockets()
{first}
server.close(); server = None
report(held=count_sockets() - before + 1)
""")
    assert found["held"] == 0


def test_reused_descriptor_belongs_to_the_new_connection(run_scene: Callable[..., Any]) -> None:
    found = run_scene("""
client, server = connect()
other = socket(AF_INET, SOCK_STREAM, 262)
poll = select.epoll(); number = server.fileno(); poll.register(server, select.EPOLLIN)
poll.unregister(server); server.close()
other.connect(("127.0.0.1", 3128)); accepted, _ = listener.accept()
reused = accepted.fileno() == number
poll.register(number, select.EPOLLIN)
late_events = []
# When the client gets the error, the library has handled the late data, and closed the old connection.
got_error = write_error(client, lambda: late_events.extend(poll.poll(0.02))) is not None
late_events += poll.poll(0)
other.sendall(b"new data")
new_events = [each for each, _ in poll.poll(60)]
report(got_error=got_error, late_events=late_events, new_events=new_events == [number], reused=reused)
""")
    assert found == {"got_error": True, "late_events": [], "new_events": True, "reused": True}


def test_number_of_held_connections_is_bounded(run_scene: Callable[..., Any]) -> None:
    found = run_scene("""
def tasks(): return os.listdir("/proc/self/task")
# A sanitizer starts its own thread together with the first thread.
thread = threading.Thread(target=int); thread.start(); thread.join()
wait_until(lambda: str(thread.native_id) not in tasks())
threads = len(tasks())
pairs = [connect() for _ in range(600)]
before = count_sockets()
pid = os.fork()
if not pid:
    for _, server in pairs: os.close(server.fileno())
    os._exit(0)
os.waitpid(pid, 0)
alive = all(server.send(b"!") == 1 for _, server in pairs)
for _, server in pairs: server.close()
report(alive=alive, held=count_sockets() - before + 600, threads=len(tasks()) - threads)
""")
    assert found == {"alive": True, "held": MAX_HELD_CONNECTIONS, "threads": 1}


@pytest.mark.parametrize(("extra", "held"), [(0, 0), (40, 40)], ids=["none above the limit", "40 above the limit"])
def test_held_connections_use_none_of_the_programs_descriptors(
    run_scene: Callable[..., Any], extra: int, held: int
) -> None:
    """Defect: Squid counted on descriptors that the library held, and accepted no connection when none was free."""
    found = run_scene(f"""
import resource
pairs = [connect() for _ in range(100)]
soft = 2 * len(pairs) + 50
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, soft + {extra}))
for _, server in pairs: server.close()
held = [int(each) for each in os.listdir("/proc/self/fd") if int(each) >= soft]
report(held=len(held), left=count_sockets() - len(held) - len(pairs) - 1)
""")
    assert found == {"held": held, "left": 0}
