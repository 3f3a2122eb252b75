# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the preload libraries with a small program instead of Squid, in its own network namespace."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from preloading import DESCRIPTORS, MPTCP, PREAMBLE, TCP, Preloaded
from proxying import skip_in_private_checkout

from mptcp_common import library_counters

pytestmark = pytest.mark.kernel


@pytest.mark.parametrize(
    ("family", "address"),
    [("AF_INET", "127.0.0.1"), ("AF_INET", ""), ("AF_INET6", "::1"), ("AF_INET6", "::")],
)
def test_listener_on_a_listed_port_becomes_mptcp(preloaded: Preloaded, family: str, address: str) -> None:
    found = preloaded(f"""
s = socket({family}, SOCK_STREAM); number = s.fileno()
s.bind(({address!r}, 3129)); s.listen()
report(protocol=protocol(s), is_same_descriptor=s.fileno() == number, name=s.getsockname()[:2],
       files=len(os.listdir("/proc/self/fd")))
""")
    assert found["protocol"] == MPTCP
    assert found["is_same_descriptor"]
    assert found["name"] == [address or "0.0.0.0", 3129]
    # No descriptor leaked: these are standard input, output and error, the socket, and the directory that is read.
    assert found["files"] == 5
    assert preloaded.stderr == ""


@pytest.mark.parametrize("opened", ["socket()", "socket(AF_INET, SOCK_STREAM, 262)"], ids=["TCP", "MPTCP"])
@pytest.mark.parametrize("shared", [False, True])
def test_port_is_shared_only_with_so_reuseport(preloaded: Preloaded, opened: str, shared: bool) -> None:
    """Squid's workers share the port: each has its own listener."""
    found = preloaded(f"""
def listener():
    s = {opened}; s.setsockopt(SOL_SOCKET, SO_REUSEPORT, {int(shared)}); s.bind(("", 3128)); s.listen(); return s
first = listener()
try: second = protocol(listener())
except OSError as error: second = error.errno
report(protocols=[protocol(first), second])
""")
    assert found["protocols"] == [MPTCP, MPTCP if shared else errno.EADDRINUSE]


def test_own_mptcp_listener_is_kept_and_gets_the_congestion_control(preloaded: Preloaded) -> None:
    """A Squid with the option mptcp opens such a listener."""
    found = preloaded(
        """
a = socket(AF_INET, SOCK_STREAM, 262); inode = os.fstat(a.fileno()).st_ino
a.bind(("", 3128)); a.listen()
c = socket(AF_INET, SOCK_STREAM, 262); c.bind(("", 3130))
report(kept=os.fstat(a.fileno()).st_ino == inode,
     congestion=[s.getsockopt(IPPROTO_TCP, TCP_CONGESTION, 16).rstrip(b"\\0").decode() for s in (a, c)])
""",
        congestion="reno",
    )
    assert found["kept"]
    assert found["congestion"][0] == "reno"
    assert found["congestion"][1] != "reno"


@pytest.mark.parametrize(
    ("case", "code"),
    [
        ("port not listed", "s = socket(); s.bind(('127.0.0.1', 3130))"),
        ("port 0, as before connect", "s = socket(); s.bind(('127.0.0.1', 0))"),
        ("never bound", "s = socket()"),
        ("part of a listed number", "s = socket(); s.bind(('127.0.0.1', 312))"),
        ("number that contains a listed one", "s = socket(); s.bind(('127.0.0.1', 31280))"),
    ],
)
def test_other_tcp_sockets_stay_tcp(preloaded: Preloaded, case: str, code: str) -> None:
    assert preloaded(f"{code}\nreport(protocol=protocol(s))")["protocol"] == TCP, case


@pytest.mark.parametrize(
    ("disabled", "answer"), [("", errno.EAGAIN), ("may-write,zero-read", "")], ids=["as shipped", "disabled"]
)
def test_read_of_zero_bytes_reports_no_end_unless_disabled(
    preloaded: Preloaded, disabled: str, answer: int | str
) -> None:
    """Squid 5 reads zero bytes if its buffer is full. Reads of files and pipes are unchanged."""
    found = preloaded(
        """
a, b = socketpair(); b.send(b"more"); r, w = os.pipe(); f = os.open("/proc/self/maps", os.O_RDONLY)
try: socket_read = os.read(a.fileno(), 0).decode()
except BlockingIOError as error: socket_read = error.errno
report(socket=socket_read, file=os.read(f, 0).decode(), after=os.read(a.fileno(), 9).decode())
""",
        MPTCP_WITHOUT=disabled,
    )
    assert found == {"socket": answer, "file": "", "after": "more"}


def test_udp_and_unix_sockets_are_unchanged(preloaded: Preloaded) -> None:
    found = preloaded("""
u = socket(AF_INET, SOCK_DGRAM); u.bind(("127.0.0.1", 3128))
x = socket(AF_UNIX, SOCK_STREAM); x.bind("\\0mpx-shim-test")
report(udp=protocol(u), unix=x.getsockname() and protocol(x))
""")
    assert found == {"udp": socket.IPPROTO_UDP, "unix": 0}


OPTIONS = [
    ("SOL_SOCKET", "SO_REUSEADDR", 1, 1),
    ("SOL_SOCKET", "SO_REUSEPORT", 1, 1),
    ("SOL_SOCKET", "SO_KEEPALIVE", 1, 1),
    ("SOL_SOCKET", "SO_MARK", 77, 77),
    ("SOL_SOCKET", "SO_PRIORITY", 5, 5),
    ("SOL_SOCKET", "SO_RCVBUF", 100_000, 200_000),
    ("SOL_SOCKET", "SO_SNDBUF", 50_000, 100_000),
    ("IPPROTO_IP", "IP_TOS", 0x10, 0x10),
    ("IPPROTO_IP", "IP_TRANSPARENT", 1, 1),
    ("IPPROTO_IP", "15", 1, 1),  # IP_FREEBIND
    ("IPPROTO_TCP", "TCP_NODELAY", 1, 1),
    ("IPPROTO_TCP", "TCP_DEFER_ACCEPT", 3, 3),
    ("IPPROTO_TCP", "TCP_KEEPIDLE", 60, 60),
    ("IPPROTO_TCP", "TCP_KEEPINTVL", 7, 7),
    ("IPPROTO_TCP", "TCP_KEEPCNT", 4, 4),
]
"""For each option: level, name, the value to set, and the value that the kernel then returns."""


# An IPv6 MPTCP socket accepts IP_TOS but does not return it.
@pytest.mark.parametrize(
    ("family", "level", "option", "value", "expected"),
    [
        (family, *option)
        for family in ("AF_INET", "AF_INET6")
        for option in OPTIONS
        if (family, option[1]) != ("AF_INET6", "IP_TOS")
    ],
)
def test_options_are_copied_to_the_mptcp_listener(
    preloaded: Preloaded, family: str, level: str, option: str, value: int, expected: int
) -> None:
    address = "::" if family == "AF_INET6" else "0.0.0.0"
    found = preloaded(f"""
s = socket({family}, SOCK_STREAM)
s.setsockopt({level}, {option}, {value})
before = s.getsockopt({level}, {option})
s.bind(({address!r}, 3128))
report(protocol=protocol(s), before=before, after=s.getsockopt({level}, {option}))
""")
    assert preloaded.stderr == ""
    assert found["protocol"] == MPTCP
    # The kernel may round the value (TCP_DEFER_ACCEPT), so compare it with the earlier value.
    assert found["after"] == found["before"]
    if option != "TCP_DEFER_ACCEPT":
        assert found["after"] == expected


@pytest.mark.parametrize("only", [0, 1])
@pytest.mark.parametrize("default", [0, 1])
def test_v6only_is_copied_for_any_default(preloaded: Preloaded, only: int, default: int) -> None:
    found = preloaded(
        f"""
s = socket(AF_INET6, SOCK_STREAM); s.setsockopt(IPPROTO_IPV6, IPV6_V6ONLY, {only}); s.bind(("::", 3128)); s.listen()
c = socket()
report(protocol=protocol(s), only=s.getsockopt(IPPROTO_IPV6, IPV6_V6ONLY), ipv4=c.connect_ex(("127.0.0.1", 3128)))
""",
        setup=f"sysctl -qw net.ipv6.bindv6only={default}",
    )
    assert found["protocol"] == MPTCP
    assert found["only"] == only
    assert (found["ipv4"] != 0) == bool(only)


def test_transparent_listener_may_bind_to_a_foreign_address(preloaded: Preloaded) -> None:
    found = preloaded("""
s = socket(); s.setsockopt(IPPROTO_IP, IP_TRANSPARENT, 1); s.bind(("192.0.2.1", 3128)); s.listen()
report(protocol=protocol(s), name=s.getsockname())
""")
    assert found == {"protocol": MPTCP, "name": ["192.0.2.1", 3128]}


@pytest.mark.parametrize("nonblocking", [False, True])
@pytest.mark.parametrize("inheritable", [False, True])
def test_descriptor_flags_are_copied_to_the_mptcp_listener(
    preloaded: Preloaded, nonblocking: bool, inheritable: bool
) -> None:
    found = preloaded(f"""
s = socket(); s.setblocking({not nonblocking}); s.set_inheritable({inheritable}); s.bind(("127.0.0.1", 3128))
flags = fcntl.fcntl(s, fcntl.F_GETFL)
report(protocol=protocol(s), nonblocking=bool(flags & os.O_NONBLOCK), inheritable=s.get_inheritable())
""")
    assert found == {"protocol": MPTCP, "nonblocking": nonblocking, "inheritable": inheritable}


def test_errors_of_bind_are_unchanged(preloaded: Preloaded) -> None:
    found = preloaded("""
def error(do):
    try: do()
    except OSError as e: return errno.errorcode[e.errno]
# The other program has no library: env(1) is started without it.
hold = "import socket, sys; s = socket.socket(2, 1, 262); s.bind(('127.0.0.1', 3128)); s.listen(); print(flush=True)"
other = subprocess.Popen(["env", sys.executable, "-c", hold + "; sys.stdin.read()"], stdin=-1, stdout=-1)
other.stdout.readline()
in_use = error(lambda: socket().bind(("127.0.0.1", 3128)))
other.communicate()
a = socket(AF_INET, SOCK_STREAM, 262); a.bind(("127.0.0.1", 3128)); a.listen()
twice = error(lambda: a.bind(("127.0.0.1", 3129)))
foreign = error(lambda: socket().bind(("192.0.2.1", 3128)))
report(in_use=in_use, twice=twice, foreign=foreign, first=a.getsockname())
""")
    assert found["in_use"] == "EADDRINUSE"
    assert found["twice"] == "EINVAL"
    assert found["foreign"] == "EADDRNOTAVAIL"
    assert found["first"] == ["127.0.0.1", 3128]


def test_changes_of_the_list_file_are_effective(preloaded: Preloaded, tmp_path: Path) -> None:
    ports = tmp_path / "ports"
    ports.write_text("3128\n")
    found = preloaded(
        f"""
def bound(port):
    s = socket(); s.bind(("127.0.0.1", port)); return protocol(s)
first = [bound(3128), bound(3129)]
open({str(ports)!r}, "w").write("3128,3131\\n")
report(first=first, after_change=[bound(3130), bound(3131)])
""",
        ports=str(ports),
    )
    assert found == {"first": [MPTCP, TCP], "after_change": [TCP, MPTCP]}


def test_unreadable_list_is_reported_once(preloaded: Preloaded, tmp_path: Path) -> None:
    found = preloaded(
        'a, b = socket(), socket(); a.bind(("", 3128)); b.bind(("", 3129)); report(a=protocol(a), b=protocol(b))',
        ports=str(tmp_path / "none"),
    )
    assert found == {"a": TCP, "b": TCP}
    assert preloaded.stderr.count("\n") == 1
    assert (
        f"no MPTCP on port 3128, clients are served over plain TCP: {tmp_path}/none: No such file" in preloaded.stderr
    )


def test_listener_without_kernel_mptcp_stays_tcp_with_one_message(preloaded: Preloaded) -> None:
    found = preloaded(
        """
a = socket(); a.setsockopt(SOL_SOCKET, SO_MARK, 5); a.bind(("", 3128)); a.listen()
b = socket(AF_INET6, SOCK_STREAM); b.bind(("::1", 3129)); b.listen()
c = socket()
report(a=protocol(a), b=protocol(b), mark=a.getsockopt(SOL_SOCKET, SO_MARK), works=c.connect_ex(("127.0.0.1", 3128)))
""",
        setup="sysctl -qw net.mptcp.enabled=0",
    )
    assert found == {"a": TCP, "b": TCP, "mark": 5, "works": 0}
    assert preloaded.stderr.count("\n") == 1
    assert "net.mptcp.enabled" in preloaded.stderr


CHILD_STARTS = {
    "fork and exec": "subprocess.run(ARGV, close_fds=True)",
    "vfork": "subprocess.run(ARGV, close_fds=False)",
    "posix_spawn": "os.waitpid(os.posix_spawn(ARGV[0], ARGV, os.environ), 0)",
    "system": "C.system(SCRIPT.encode())",
    "execv": "os.fork() or os.execv(ARGV[0], ARGV); os.wait()",
    "execvp": "os.fork() or os.execvp('sh', ARGV); os.wait()",
    "execl": "os.fork() or C.execl(b'/bin/sh', b'sh', b'-c', SCRIPT.encode(), None); os.wait()",
}
PRINT_VARIABLES = (
    """printf '["%s", "%s", %s]\\n' "$LD_PRELOAD" "$MPTCP_LISTEN_PORTS" "$(grep -Ec "$OWN" /proc/$$/maps)" """
)


@pytest.fixture(params=["both", "only listen", "only turns", "both reversed"])
def loaded(request: pytest.FixtureRequest, libraries: list[Path]) -> Preloaded:
    """Return one of the libraries, or both in either order."""
    turns, listen = libraries
    choices = {"both": libraries, "only listen": [listen], "only turns": [turns]}
    return Preloaded(choices.get(request.param, [listen, turns]))


@pytest.mark.parametrize("call", CHILD_STARTS)
def test_other_programs_start_without_the_libraries(loaded: Preloaded, call: str) -> None:
    found = loaded(f"""
import ctypes
C = ctypes.CDLL(None)
SCRIPT = os.environ["PRINT_VARIABLES"]; ARGV = ["/bin/sh", "-c", SCRIPT]
assert has_library()
{CHILD_STARTS[call]}
""", PRINT_VARIABLES=PRINT_VARIABLES, OWN="mptcp_listen|squid_turns")  # fmt: skip
    assert found == ["", "", 0]


OWN_PROGRAM_STARTS = {
    "execv": "os.execv(sys.executable, ARGV)",
    "execve": "os.execve(sys.executable, ARGV, {'REPORT': os.environ['REPORT'], 'LD_PRELOAD': '/wrong.so'})",
    "C execvp": "C('execvp', sys.executable)",
    "C execvp by PATH": "os.environ['PATH'] = '/nonexistent:' + os.path.dirname(sys.executable); C('execvp', 'python')",
    "real and effective ids differ": "os.setegid(13); os.seteuid(13); os.execv(sys.executable, ARGV)",
}


@pytest.mark.parametrize("call", OWN_PROGRAM_STARTS)
def test_own_program_starts_with_the_libraries(loaded: Preloaded, call: str) -> None:
    """Squid executes its workers from its own binary, while effective and real user ids differ."""
    if "ids differ" in call:
        skip_in_private_checkout()
    found = loaded(f"""
import ctypes
ARGV = ["(squid-1)", "-c", os.environ["REPORT"]]
def C(function, program):
    arguments = (ctypes.c_char_p * 4)(*[a.encode() for a in ARGV], None)
    getattr(ctypes.CDLL(None), function)(program.encode(), arguments)
assert has_library() and "LD_PRELOAD" not in os.environ and "MPTCP_LISTEN_PORTS" not in os.environ
if os.fork() == 0:
    {OWN_PROGRAM_STARTS[call]}
    os._exit(1)
os.wait()
""")
    # In the child, the library's constructor has also removed the variables from the environment.
    visible_variables = dict.fromkeys(("preload", "ports", "congestion", "parents", "turns"))
    assert found == {"libraries": sorted((path.name for path in loaded.libraries), reverse=True), **visible_variables}


@pytest.mark.parametrize("start", ["os.execv(ARGV[0], ARGV)", "C.execvp(ARGV[0].encode(), ARGUMENTS)"])
def test_failed_exec_keeps_the_effective_ids(preloaded: Preloaded, tmp_path: Path, start: str) -> None:
    """If execve(2) fails because the program's file is missing, the process must continue without root's privileges."""
    interpreter = tmp_path / "python"
    shutil.copy(os.path.realpath(sys.executable), interpreter)
    for directory in (tmp_path, *tmp_path.parents):
        if directory.is_relative_to("/tmp") and directory != Path("/tmp"):
            directory.chmod(0o755)
    found = preloaded(
        f"""
import ctypes
C = ctypes.CDLL(None, use_errno=True)
ARGV = [sys.executable]
ARGUMENTS = (ctypes.c_char_p * 2)(ARGV[0].encode(), None)
os.unlink(ARGV[0])
os.setegid(13); os.seteuid(13)
error = None
try:
    {start}
    error = ctypes.get_errno()
except OSError as e:
    error = e.errno
report(error=errno.errorcode[error], ids=[os.getuid(), os.geteuid(), os.getgid(), os.getegid()])
""",
        interpreter=str(interpreter),
    )
    assert found == {"error": "ENOENT", "ids": [0, 13, 0, 13]}


def test_each_library_works_without_the_other(libraries: list[Path]) -> None:
    code = """
import select
s = socket(); s.bind(("127.0.0.1", 3128)); s.listen()
loop, kept = select.epoll(), []
for _ in range(30):
    client = socket(AF_INET, SOCK_STREAM, protocol(s)); client.connect(("127.0.0.1", 3128)); client.sendall(b"?")
    server, _ = s.accept(); loop.register(server, select.EPOLLIN); kept.append((server, client))
events = len(loop.poll(5))
server, client = kept.pop(); server.recv(9); before = set(os.listdir("/proc/self/fd")); server.close()
beyond = [fd for fd in set(os.listdir("/proc/self/fd")) - before if int(fd) >= 4096]
report(protocol=protocol(s), events=events, held=len(beyond))
"""
    turns, listen = libraries
    # Only squid_turns.so limits the events of a turn. Only mptcp_listen.so opens MPTCP listeners and holds connections
    # after their close.
    found = [Preloaded(each)(code, turns="fair", setup=DESCRIPTORS) for each in ([turns, listen], [listen], [turns])]
    assert found == [
        {"protocol": MPTCP, "events": 4, "held": 1},
        {"protocol": MPTCP, "events": 30, "held": 1},
        {"protocol": TCP, "events": 4, "held": 0},
    ]


@pytest.mark.parametrize("state", ["file", "no file", "too short"])
def test_counters_sum_all_processes_of_the_program(preloaded: Preloaded, tmp_path: Path, state: str) -> None:
    file = tmp_path / "counters"
    if state != "no file":
        file.write_bytes(library_counters.NONE if state == "file" else library_counters.NONE[8:])
    code = (
        PREAMBLE
        + """
import select, sys
IN, OUT = select.EPOLLIN, select.EPOLLOUT
port = 3128 if "CODE" in os.environ else 3129
s = socket(); s.bind(("127.0.0.1", port)); s.listen()
loop, kept = select.epoll(), []
for _ in range(30):
    client = socket(AF_INET, SOCK_STREAM, 262); client.connect(("127.0.0.1", port)); client.sendall(b"?")
    server, _ = s.accept(); server.setblocking(False); loop.register(server, IN); kept.append((server, client))
loop.poll(5)
server, client = kept.pop(); loop.modify(server, IN | OUT); loop.poll(5); os.write(server.fileno(), b"p" * 4096)
try: os.read(server.fileno(), 0)
except BlockingIOError: pass
loop.unregister(server); server.recv(9); os.close(server.detach())
if port == 3128:
    if os.fork() == 0: os.execve(sys.executable, ["python", "-c", os.environ["CODE"]], {})
    report(visible_variable=os.environ.get("MPTCP_COUNTERS"), child=os.wait()[1])
sys.stdout.flush(); os._exit(0)
"""
    )
    found = preloaded(code, turns="fair", setup=DESCRIPTORS, CODE=code, MPTCP_COUNTERS=str(file))
    assert found == {"visible_variable": None, "child": 0}
    counted = library_counters.read(file)
    if state == "file":
        assert counted == {
            **{"turns": 2 * 2, "cut_turns": 2, "joined_writes": 2, "joined_bytes": 2 * 4096, "promised_writes": 2},
            **{"late_writers": 2, "zero_reads": 2, "postponed_accepts": 0},
        }
    else:
        assert counted == {}


CONGESTION = """
def name(s): return s.getsockopt(IPPROTO_TCP, TCP_CONGESTION, 16).split(b"\\0")[0].decode()
host = open("/proc/sys/net/ipv4/tcp_congestion_control").read().strip()
"""


def test_congestion_control_applies_only_to_listeners_and_connections(
    preloaded: Preloaded, require: Callable[..., None]
) -> None:
    """The setting applies to the listener on the listed port, and to its MPTCP and TCP connections."""
    other = "reno"
    found = preloaded(
        CONGESTION
        + f"""
assert host != {other!r}
s = socket(); s.bind(("127.0.0.1", 3128)); s.listen()
t = socket(); t.bind(("127.0.0.1", 4000)); t.listen()
def both(protocol):
    c = socket(AF_INET, SOCK_STREAM, protocol); c.connect(("127.0.0.1", 3128)); a, _ = s.accept()
    return [name(a), name(c) == host]
report(listener=name(s), other=name(t) == host, mptcp=both(262), tcp=both(6),
     visible_variable=os.environ.get("MPTCP_CONGESTION"))
""",
        congestion=other,
    )
    assert found == {
        "listener": other,
        "other": True,
        "mptcp": [other, True],
        "tcp": [other, True],
        "visible_variable": None,
    }
    assert preloaded.stderr == ""


@pytest.mark.parametrize("name", ["nonesuch", "a_name_that_is_longer_than_any"])
def test_missing_congestion_control_is_reported_once(preloaded: Preloaded, name: str) -> None:
    found = preloaded(
        CONGESTION
        + """
a = socket(); a.bind(("127.0.0.1", 3128)); a.listen()
b = socket(); b.bind(("127.0.0.1", 3129)); b.listen()
c = socket(); c.connect(("127.0.0.1", 3129))
report(a=protocol(a), b=protocol(b), host=name(a) == name(b) == host)
""",
        congestion=name,
    )
    assert found == {"a": MPTCP, "b": MPTCP, "host": True}
    assert preloaded.stderr.count("\n") == 1
    assert (
        f"mptcp_listen: cannot use congestion control {name} for MPTCP, the host's default is used: "
        in preloaded.stderr
    )


NAME_OF_LISTENER = """
s = socket(); s.bind(("127.0.0.1", 3128)); s.listen()
report(name=name(s), visible_variable=os.environ.get("MPTCP_CONGESTION"))
"""


def test_own_program_keeps_the_congestion_control(preloaded: Preloaded) -> None:
    """Like a worker of Squid, the child opens the listener itself."""
    found = preloaded(
        CONGESTION
        + """
code = os.environ["CHILD"]
if os.fork() == 0:
    os.execv(sys.executable, ["python", "-c", code])
os.wait()
""",
        congestion="reno",
        CHILD=PREAMBLE + CONGESTION + NAME_OF_LISTENER,
    )
    assert found == {"name": "reno", "visible_variable": None}


def test_children_keep_a_foreign_preload_entry(libraries: list[Path], tmp_path: Path) -> None:
    """If LD_PRELOAD also contains a foreign library, a child that runs another program keeps only the foreign
    library."""
    second = tmp_path / "second.so"
    subprocess.run(["gcc", "-shared", "-o", str(second), "-x", "c", "/dev/null"], check=True)
    turns, listen = libraries
    for value in (f"{turns}:{listen}:{second}", f"{second} {listen}", f"{turns}:{second} {listen}"):
        answer = subprocess.run(
            ["env", f"LD_PRELOAD={value}", sys.executable, "-c", "import os; os.system('echo $LD_PRELOAD')"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert answer.stdout.strip() == str(second)
