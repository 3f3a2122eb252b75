# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for connections with the preload library: connections to parents use Multipath TCP, all others are
unchanged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from preloading import MPTCP, PREAMBLE, TCP, Preloaded

pytestmark = pytest.mark.kernel
PARENTS = "127.0.0.1:4000 [::1]:4000\n192.0.2.9:4000, 127.0.0.3:4002"
SERVERS = """
def server(port, family=AF_INET6, protocol=262):
    s = socket(family, SOCK_STREAM, protocol)
    if family == AF_INET6: s.setsockopt(IPPROTO_IPV6, IPV6_V6ONLY, 0)
    s.bind(("", port)); s.listen(64); return s
def error(do):
    try: do()
    except OSError as e: return errno.errorcode[e.errno]
servers = [server(4000), server(4001), server(4002)]
"""


@pytest.mark.parametrize("source", ["list", "file"])
@pytest.mark.parametrize(
    ("family", "address", "protocol"),
    [
        ("AF_INET", ("127.0.0.1", 4000), MPTCP),
        ("AF_INET6", ("::1", 4000), MPTCP),
        ("AF_INET6", ("::ffff:127.0.0.1", 4000), MPTCP),
        ("AF_INET", ("127.0.0.3", 4002), MPTCP),
        ("AF_INET", ("127.0.0.1", 4001), TCP),
        ("AF_INET", ("127.0.0.1", 4002), TCP),
        ("AF_INET", ("127.0.0.2", 4000), TCP),
        ("AF_INET6", ("::1", 4001), TCP),
    ],
)
def test_only_a_connection_to_a_parent_is_mptcp(
    preloaded: Preloaded, tmp_path: Path, source: str, family: str, address: tuple[str, int], protocol: int
) -> None:
    """Both address and port must match a parent; an address or a port alone does not suffice."""
    parents = PARENTS
    if source == "file":
        (tmp_path / "parents").write_text(PARENTS)
        parents = str(tmp_path / "parents")
    found = preloaded(
        SERVERS
        + f"""
s = socket({family}); number = s.fileno()
s.connect({address!r}); s.send(b"hello")
a, _ = servers[{address[1]} - 4000].accept()
report(protocol=protocol(s), is_same_descriptor=s.fileno() == number, files=len(os.listdir("/proc/self/fd")),
     received=a.recv(9).decode(), peer=s.getpeername()[:2], accepted=protocol(a))
""",
        parents=parents,
    )
    # The files are three standard files, three servers, both ends, and the directory that is read.
    assert found == {
        "protocol": protocol,
        "is_same_descriptor": True,
        "files": 9,
        "received": "hello",
        "peer": list(address),
        "accepted": protocol,
    }
    assert preloaded.stderr == ""


def test_no_connection_is_mptcp_without_parents(preloaded: Preloaded) -> None:
    code = SERVERS + "s = socket(); s.connect(('127.0.0.1', 4000)); report(protocol=protocol(s))"
    assert preloaded(code)["protocol"] == TCP
    assert preloaded(code, parents="")["protocol"] == TCP
    assert preloaded.stderr == ""


def test_parents_file_may_change_and_an_unreadable_file_is_reported(preloaded: Preloaded, tmp_path: Path) -> None:
    parents = tmp_path / "parents"
    parents.write_text("127.0.0.1:4001\n")
    found = preloaded(
        SERVERS
        + f"""
def protocol_to(port):
    s = socket(); s.connect(("127.0.0.1", port)); return protocol(s)
first = [protocol_to(4000), protocol_to(4001)]
open({str(parents)!r}, "w").write("127.0.0.1:4000\\n")
after_change = [protocol_to(4000), protocol_to(4001)]
os.unlink({str(parents)!r})
socket(AF_INET, SOCK_DGRAM).connect(("127.0.0.1", 53))
print("before", file=sys.stderr, flush=True)
report(first=first, after_change=after_change, unreadable=[protocol_to(4000), protocol_to(4001)])
""",
        parents=str(parents),
    )
    assert found == {"first": [TCP, MPTCP], "after_change": [MPTCP, TCP], "unreadable": [TCP, TCP]}
    before, message = preloaded.stderr.splitlines()
    # The library does not read the list of parents for a UDP socket.
    assert before == "before"
    assert (
        f"the list of parents cannot be read, all are reached over plain TCP, over one path: {parents}: No such"
        in message
    )


@pytest.mark.parametrize("nonblocking", [False, True])
@pytest.mark.parametrize("inheritable", [False, True])
def test_descriptor_flags_are_copied_to_the_connection(
    preloaded: Preloaded, nonblocking: bool, inheritable: bool
) -> None:
    found = preloaded(
        SERVERS
        + f"""
s = socket(); s.setblocking({not nonblocking}); s.set_inheritable({inheritable})
failure = error(lambda: s.connect(("127.0.0.1", 4000)))
flags = fcntl.fcntl(s, fcntl.F_GETFL)
report(protocol=protocol(s), nonblocking=bool(flags & os.O_NONBLOCK), inheritable=s.get_inheritable(), failure=failure)
""",
        parents=PARENTS,
    )
    failure = "EINPROGRESS" if nonblocking else None
    assert found == {"protocol": MPTCP, "nonblocking": nonblocking, "inheritable": inheritable, "failure": failure}


@pytest.mark.parametrize(
    ("level", "option", "value"),
    [
        ("SOL_SOCKET", "SO_MARK", 77),
        ("SOL_SOCKET", "SO_PRIORITY", 5),
        ("SOL_SOCKET", "62", 1),  # SO_BINDTOIFINDEX, of lo
        ("SOL_SOCKET", "SO_RCVBUF", 100_000),
        ("SOL_SOCKET", "SO_KEEPALIVE", 1),
        ("IPPROTO_IP", "IP_TOS", 0x10),
        ("IPPROTO_IP", "IP_TRANSPARENT", 1),
        ("IPPROTO_IP", "24", 1),  # IP_BIND_ADDRESS_NO_PORT
        ("IPPROTO_TCP", "TCP_NODELAY", 1),
        ("IPPROTO_TCP", "TCP_KEEPIDLE", 60),
        ("IPPROTO_TCP", "30", 1),  # TCP_FASTOPEN_CONNECT
    ],
)
def test_options_are_copied_to_the_connection(preloaded: Preloaded, level: str, option: str, value: int) -> None:
    found = preloaded(
        SERVERS
        + f"""
s = socket(); s.setsockopt({level}, {option}, {value}); before = s.getsockopt({level}, {option})
s.connect(("127.0.0.1", 4000))
report(protocol=protocol(s), is_copied=s.getsockopt({level}, {option}) == before != 0)
""",
        parents=PARENTS,
    )
    assert found == {"protocol": MPTCP, "is_copied": True}
    assert preloaded.stderr == ""


@pytest.mark.parametrize(
    ("family", "name", "address"),
    [
        ("AF_INET", ("127.0.0.5", 0), ("127.0.0.1", 4000)),
        ("AF_INET", ("127.0.0.5", 5005), ("127.0.0.1", 4000)),
        ("AF_INET", ("", 5005), ("127.0.0.1", 4000)),
        ("AF_INET6", ("::1", 5005), ("::1", 4000)),
        ("AF_INET6", ("::ffff:127.0.0.5", 0), ("::ffff:127.0.0.1", 4000)),
        ("AF_INET6", ("", 0), ("::1", 4000)),
    ],
)
@pytest.mark.parametrize("reuse", [0, 1])
def test_bound_address_is_copied_to_the_connection(
    preloaded: Preloaded, family: str, name: tuple[str, int], address: tuple[str, int], reuse: int
) -> None:
    """For Squid's tcp_outgoing_address, the first subflow must use the bound address."""
    found = preloaded(
        SERVERS
        + f"""
s = socket({family}); s.setsockopt(SOL_SOCKET, SO_REUSEADDR, {reuse}); s.bind({name!r}); port = s.getsockname()[1]
s.connect({address!r}); a, peer = servers[0].accept()
report(protocol=protocol(s), is_same_port=s.getsockname()[1] == port == peer[1],
     reuse=s.getsockopt(SOL_SOCKET, SO_REUSEADDR), name=s.getsockname()[0])
""",
        parents=PARENTS,
    )
    assert found["protocol"] == MPTCP
    assert found["is_same_port"]
    assert found["reuse"] == reuse
    assert name[0] in ("", found["name"])
    assert preloaded.stderr == ""


def test_connected_or_connecting_socket_is_unchanged(preloaded: Preloaded) -> None:
    """A second connect(2) returns the result of the first. No host answers at 192.0.2.9."""
    found = preloaded(
        SERVERS
        + """
done = socket(); done.connect(("127.0.0.1", 4001))
again = error(lambda: done.connect(("127.0.0.1", 4000)))
waits = socket(); waits.setblocking(False)
first = error(lambda: waits.connect(("192.0.2.8", 4000)))
second = error(lambda: waits.connect(("192.0.2.9", 4000)))
p = socket(); p.setblocking(False)
parent = [error(lambda: p.connect(("192.0.2.9", 4000))), protocol(p), error(lambda: p.connect(("192.0.2.9", 4000)))]
report(done=protocol(done), again=again, waits=protocol(waits), first=first, second=second, parent=parent)
""",
        setup="ip link add far type veth peer name near && ip link set near up && ip link set far up"
        " && ip address add 192.0.2.1/24 dev far",
        parents=PARENTS,
    )
    assert found == {
        "done": TCP,
        "again": "EISCONN",
        "waits": TCP,
        "first": "EINPROGRESS",
        "second": "EALREADY",
        "parent": ["EINPROGRESS", MPTCP, "EALREADY"],
    }


def test_errors_of_connect_are_unchanged(preloaded: Preloaded) -> None:
    found = preloaded(
        SERVERS
        + """
for s in servers: s.close()
closed, s = socket(), socket()
refused = error(lambda: s.connect(("127.0.0.1", 4000)))
udp = error(lambda: socket(AF_INET, SOCK_DGRAM).connect(("127.0.0.1", 4000)))
unix = error(lambda: socket(AF_UNIX).connect("/x"))
report(refused=refused, nowhere=error(lambda: closed.connect(("192.0.2.9", 4000))), udp=udp, unix=unix)
""",
        parents=PARENTS,
    )
    assert found == {"refused": "ECONNREFUSED", "nowhere": "ENETUNREACH", "udp": None, "unix": "ENOENT"}


def test_successful_connect_keeps_errno(preloaded: Preloaded) -> None:
    found = preloaded(
        SERVERS
        + """
import ctypes, struct
libc, s = ctypes.CDLL(None, use_errno=True), socket()
ctypes.set_errno(99)
result = libc.connect(s.fileno(), struct.pack("=H", AF_INET) + struct.pack("!H4s8x", 4000, inet_aton("127.0.0.1")), 16)
report(result=result, errno=ctypes.get_errno(), protocol=protocol(s))
""",
        parents=PARENTS,
    )
    assert found == {"result": 0, "errno": 99, "protocol": MPTCP}


def test_connection_without_kernel_mptcp_is_tcp_with_one_message(preloaded: Preloaded) -> None:
    found = preloaded(
        SERVERS.replace("protocol=262", "protocol=0")
        + """
a, b = socket(), socket(AF_INET6); a.bind(("127.0.0.5", 5005))
a.connect(("127.0.0.1", 4000)); b.connect(("::1", 4000))
report(a=protocol(a), b=protocol(b), name=a.getsockname())
""",
        setup="sysctl -qw net.mptcp.enabled=0",
        parents=PARENTS,
    )
    assert found == {"a": TCP, "b": TCP, "name": ["127.0.0.5", 5005]}
    assert preloaded.stderr.count("\n") == 1
    assert "no MPTCP to parent 127.0.0.1:4000" in preloaded.stderr
    assert "net.mptcp.enabled" in preloaded.stderr


SECCOMP_FILTER = """
import ctypes, struct
def refuse_mptcp(number):
    # seccomp(2): if the system call is socket(2), compare its third argument with IPPROTO_MPTCP.
    arch = {"x86_64": 41, "aarch64": 198}.get(os.uname().machine)
    code = [(0x20, 0, 0, 0), (0x15, 0, 3, arch), (0x20, 0, 0, 32), (0x15, 0, 1, 262), (6, 0, 0, 0x50000 | number),
            (6, 0, 0, 0x7FFF0000)]
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in code))
    filter_program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(code), ctypes.addressof(program)))
    libc = ctypes.CDLL(None, use_errno=True)
    assert arch and libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, filter_program) == 0, ctypes.get_errno()
"""


@pytest.mark.parametrize("error", ["EPROTONOSUPPORT", "EINVAL", "EPERM", "EAFNOSUPPORT"])
def test_connection_is_tcp_after_any_error_of_mptcp(preloaded: Preloaded, error: str) -> None:
    """The errors come from a kernel without MPTCP, a kernel without it for IPv6, and a container's seccomp filter."""
    found = preloaded(
        SERVERS.replace("protocol=262", "protocol=0")
        + SECCOMP_FILTER
        + f"""
refuse_mptcp(errno.{error})
assert error(lambda: socket(AF_INET, SOCK_STREAM, 262)) == "{error}"
a = socket(); a.settimeout(9); a.setsockopt(SOL_SOCKET, SO_MARK, 7); a.bind(("127.0.0.5", 5005))
a.connect(("127.0.0.1", 4000)); a.send(b"hello"); b, _ = servers[0].accept()
report(protocol=protocol(a), name=a.getsockname(), mark=a.getsockopt(SOL_SOCKET, SO_MARK), received=b.recv(9).decode(),
     files=len(os.listdir("/proc/self/fd")))
""",
        parents=PARENTS,
    )
    assert found == {"protocol": TCP, "name": ["127.0.0.5", 5005], "mark": 7, "received": "hello", "files": 9}
    assert preloaded.stderr.count("\n") == 1
    assert "no MPTCP to parent 127.0.0.1:4000" in preloaded.stderr


@pytest.mark.parametrize(("spare", "protocol"), [(0, TCP), (1, TCP), (2, MPTCP)])
def test_connection_is_tcp_without_spare_descriptors(preloaded: Preloaded, spare: int, protocol: int) -> None:
    """To replace the socket, the library temporarily needs two more descriptors."""
    found = preloaded(
        SERVERS
        + f"""
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
s, held = socket(), []
while not (failure := error(lambda: held.append(os.dup(0)))): pass
for each in [held.pop() for _ in range({spare})]: os.close(each)
s.connect(("127.0.0.1", 4000)); free = 0
while not error(lambda: held.append(os.dup(0))): free += 1
report(failure=failure, protocol=protocol(s), free=free)
""",
        parents=PARENTS,
    )
    assert found == {"failure": "EMFILE", "protocol": protocol, "free": spare}


def test_connections_of_several_threads_become_mptcp(preloaded: Preloaded) -> None:
    """As in a relay, there is no Multipath TCP listener, and the library keeps no closed connection (late_writes.c)."""
    found = preloaded(
        SERVERS
        + """
import threading
before, found = len(os.listdir("/proc/self/fd")), []
def connect_repeatedly():
    for number in range(6):
        s = socket(); s.connect(("127.0.0.1", 4000 + number % 2))
        found.append(protocol(s) == (6 if number % 2 else 262))
        s.close()
threads = [threading.Thread(target=connect_repeatedly) for _ in range(8)]
for each in threads: each.start()
for each in threads: each.join()
report(right=all(found), count=len(found), more=len(os.listdir("/proc/self/fd")) - before)
""",
        ports=None,
        parents=PARENTS,
    )
    assert found == {"right": True, "count": 48, "more": 0}
    assert preloaded.stderr == ""


def test_failed_connect_may_be_repeated_on_the_same_socket(preloaded: Preloaded) -> None:
    found = preloaded(
        SERVERS.replace("server(4000), ", "")
        + """
s = socket(); first = error(lambda: s.connect(("127.0.0.1", 4000))); late = server(4000)
second = error(lambda: s.connect(("127.0.0.1", 4000)))
report(first=first, second=second, protocol=protocol(s))
""",
        parents=PARENTS,
    )
    assert found == {"first": "ECONNREFUSED", "second": None, "protocol": MPTCP}


def test_parent_without_mptcp_is_reached_over_tcp(preloaded: Preloaded) -> None:
    """The kernel itself falls back to TCP (RFC 8684, 3.7)."""
    found = preloaded(
        SERVERS.replace("protocol=262", "protocol=0")
        + """
s = socket(); s.connect(("127.0.0.1", 4000)); s.send(b"hello"); a, _ = servers[0].accept()
report(received=a.recv(9).decode(), accepted=protocol(a))
""",
        parents=PARENTS,
    )
    assert found == {"received": "hello", "accepted": TCP}


def test_congestion_control_applies_only_to_parents(preloaded: Preloaded) -> None:
    found = preloaded(
        SERVERS
        + """
def name(port):
    s = socket(); s.connect(("127.0.0.1", port))
    return s.getsockopt(IPPROTO_TCP, TCP_CONGESTION, 16).split(b"\\0")[0].decode()
host = open("/proc/sys/net/ipv4/tcp_congestion_control").read().strip()
report(parent=name(4000), other=name(4001) == host, differs=host != "reno")
""",
        parents=PARENTS,
        congestion="reno",
    )
    assert found == {"parent": "reno", "other": True, "differs": True}


def test_only_the_own_program_keeps_the_parents(preloaded: Preloaded, require: Callable[..., None]) -> None:
    """Squid's workers connect to parents; its helpers are other programs."""
    found = preloaded(
        """
child = os.environ["CHILD"]; visible_variable = os.environ.get("MPTCP_PARENTS")
helper = subprocess.run(["sh", "-c", "echo $MPTCP_PARENTS"], capture_output=True, text=True).stdout.strip()
r, w = os.pipe(); os.set_inheritable(w, True)
if os.fork() == 0:
    os.dup2(w, 1); os.execv(sys.executable, ["python", "-c", child])
os.wait(); report(visible_variable=visible_variable, helper=helper, child=json.loads(os.read(r, 99)))
""",
        parents=PARENTS,
        CHILD=PREAMBLE + SERVERS + "s = socket(); s.connect(('127.0.0.1', 4000)); report(protocol=protocol(s))",
    )
    assert found == {"visible_variable": None, "helper": "", "child": {"protocol": MPTCP}}
