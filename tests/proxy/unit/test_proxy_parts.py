"""Names and places, who listens, own addresses, log files, installed files, and the build of the library."""

from __future__ import annotations

import errno
import os
import signal
import tempfile
from ipaddress import ip_network
from pathlib import Path
from types import SimpleNamespace

import pytest

from mptcp_proxy import installation, log_files, own_addresses, shim
from mptcp_proxy.cli import main
from mptcp_proxy.configuration.check import Checked
from mptcp_proxy.configuration.listeners import listeners
from mptcp_proxy.configuration.source import PhysicalLine, statements
from mptcp_proxy.configuration.workers import Workers
from mptcp_proxy.listening import Listening, plain_ports, read_listening, taken_by
from mptcp_proxy.noted import NotedSignals
from mptcp_proxy.places import Places, Role, service_name_problem
from mptcp_proxy.problem import Problem, errors
from mptcp_proxy.process import catches, children, pid_in

SHIPPED = Path(__file__).parents[3] / "conf/squid.conf"


@pytest.mark.parametrize("name", [*(role.service_name for role in Role), "a", "A1", "x" * 32])
def test_service_names(name: str) -> None:
    assert service_name_problem(name) is None


@pytest.mark.parametrize("name", ["", "a-b", "a_b", "a b", "../x", "x" * 33, "squid", "é"])
def test_names_that_squid_or_the_distribution_cannot_share(name: str) -> None:
    problem = service_name_problem(name)
    assert problem is not None
    assert problem.allowed


def test_the_shipped_configuration_uses_the_places_of_the_service() -> None:
    text = SHIPPED.read_text()
    places = Places("${service_name}")
    assert f"deny_info 503:../../../../../../../..{places.check_page_missing} " in text
    for path in (places.own_addresses, places.pid_file, places.logs / "access.log", places.logs / "cache.log"):
        assert str(path) in text
    # Without these, workers would rename the same log, or Squid would not be told apart from the distribution's.
    assert "\nlogfile_rotate 0\n" in text
    assert "/run/squid" not in text
    assert "/var/log/squid" not in text


def test_problems_as_people_read_them() -> None:
    assert str(Problem("wrong", "f", 3, "right")) == "f:3: wrong (allowed: right)"
    assert str(Problem("odd", "f", warning=True)) == "f: warning: odd"
    assert str(Problem("caf\xe9 \x1b[2J\n\x07", "f")) == r"f: caf\xe9 \x1b[2J\n\x07".replace(r"\xe9", "\xe9")
    assert str(Problem("wrong")) == "wrong"
    assert errors([Problem("odd", warning=True), Problem("wrong")]) == (Problem("wrong"),)


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("cache_peer p parent 1 0 login=joe:hunter2 x: odd", "cache_peer p parent 1 0 login=… x: odd"),
        ("cache_peer p sslpassword=hunter2", "cache_peer p sslpassword=…"),
        ("cachemgr_passwd hunter2 all: odd", "cachemgr_passwd … all: odd"),
        ("http_port 3128 name=joe", "http_port 3128 name=joe"),
    ],
)
def test_passwords_are_not_repeated(said: str, shown: str) -> None:
    assert str(Problem(said, "f", 3)) == f"f:3: {shown}"


SS = """\
LISTEN 0      4096               *:3128            *:*    users:(("squid",pid=5745,fd=23),("squid",pid=5743,fd=13))
\t bbr cwnd:10 tcp-ulp-mptcp
LISTEN 0      128        127.0.0.1:631       0.0.0.0:*
LISTEN 0      511    10.0.0.1%eth0:80        0.0.0.0:*    users:(("apache2",pid=9,fd=3))
\t cubic cwnd:10
LISTEN 0      128            [::1]:631          [::]:*
ESTAB  0      0          10.0.0.1:22        10.0.0.2:999
"""


def test_ports_that_take_plain_tcp_or_nothing() -> None:
    sockets = [
        Listening("*", 3128, "squid", (5,), mptcp=True),
        Listening("*", 3129, "squid", (5, 6)),
        Listening("*", 3130, "other", (7,), mptcp=True),
    ]
    assert plain_ports([3128, 3129, 3130, 3131], {5}, sockets) == ([3129], [3130, 3131])
    assert plain_ports([3128], {5}, sockets) == ([], [])
    # A process without CAP_SYS_PTRACE sees no owner of what another user's process listens on.
    unknown = [Listening("*", 3128, "", (), mptcp=True), Listening("*", 3129, "", ())]
    assert plain_ports([3128, 3129, 3130], {5}, unknown) == ([3129], [3130])


def test_what_ss_prints() -> None:
    assert list(read_listening(SS)) == [
        Listening("*", 3128, "squid", (5745, 5743), mptcp=True),
        Listening("127.0.0.1", 631, "", ()),
        Listening("10.0.0.1%eth0", 80, "apache2", (9,)),
        Listening("[::1]", 631, "", ()),
    ]


@pytest.mark.parametrize(
    ("host", "port", "taken"),
    [("", 3128, True), ("10.0.0.1", 3128, True), ("", 631, True), ("127.0.0.1", 631, True), ("127.0.0.2", 631, False),
     ("[::1]", 631, True), ("[::2]", 631, False), ("", 3129, False), ("10.0.0.1", 80, True), ("10.0.0.2", 80, False)],
)  # fmt: skip
def test_ports_that_are_taken(host: str, port: int, taken: bool) -> None:
    assert (taken_by(host, port, read_listening(SS)) is not None) == taken


@pytest.mark.parametrize(
    ("bound", "host", "taken"),
    [
        # What ss calls 0.0.0.0 is IPv4 alone, [::] IPv6 alone, and * both.
        ("0.0.0.0", "10.0.0.1", True),
        ("0.0.0.0", "[fd00::1]", False),
        ("0.0.0.0", "", True),
        ("[::]", "[fd00::1]", True),
        ("[::]", "10.0.0.1", False),
        ("[::]", "0.0.0.0", False),
        ("[::]", "", True),
        ("*", "10.0.0.1", True),
        ("*", "[fd00::1]", True),
        ("10.0.0.1", "0.0.0.0", True),
        ("[fd00::1]", "0.0.0.0", False),
        ("10.0.0.1", "[::]", True),
        ("[fd00:0::1]", "[fd00::1]", True),
        ("[::ffff:10.0.0.1]", "10.0.0.1", True),
        ("0.0.0.0", "proxy.example", True),
        ("10.0.0.1", "proxy.example", False),
    ],
)
def test_a_socket_keeps_only_its_own_families_from_being_bound(bound: str, host: str, taken: bool) -> None:
    assert (taken_by(host, 3128, [Listening(bound, 3128, "other", (1,))]) is not None) == taken


def test_own_addresses_are_written_without_those_within_others() -> None:
    names = ("10.0.0.1/32", "127.0.0.0/8", "127.0.0.1/32", "fd00::1/128", "::1/128", "10.9.0.0/16", "10.9.1.0/24")
    assert own_addresses.render(frozenset(map(ip_network, names))).split() == [
        "10.0.0.1/32",
        "10.9.0.0/16",
        "127.0.0.0/8",
        "::1/128",
        "fd00::1/128",
    ]
    assert own_addresses.render(()) != ""


def test_squid_is_told_only_of_addresses_that_the_fixed_rules_do_not_cover() -> None:
    names = ("10.0.0.1/32", "127.0.0.0/8", "169.254.1.1/32", "fe80::1/128", "::1/128", "fd00::1/128", "192.0.2.1/32")
    told = own_addresses.reachable(map(ip_network, names))
    assert {str(prefix) for prefix in told} == {"10.0.0.1/32", "fd00::1/128", "192.0.2.1/32"}


def test_logs_are_renamed_when_they_have_grown(tmp_path: Path) -> None:
    def contents() -> dict[str, str]:
        return {path.name: path.read_text() for path in tmp_path.iterdir()}

    (tmp_path / "access.log").write_text("first")
    (tmp_path / "cache.log").write_text("c")
    (tmp_path / "other.txt").write_text("much too long")
    assert not log_files.rotate(tmp_path, limit=5, keep=2)
    assert log_files.rotate(tmp_path, limit=4, keep=2)
    assert contents() == {"access.log.1": "first", "cache.log": "c", "other.txt": "much too long"}
    for number, text in enumerate(("second", "third", "fourth"), 2):
        (tmp_path / "access.log").write_text(text)
        assert log_files.rotate(tmp_path, limit=4, keep=2)
        assert contents()["access.log.1"] == text, number
    assert contents() == {"access.log.1": "fourth", "access.log.2": "third", "cache.log": "c", "other.txt": "much too long"}  # fmt: skip  # noqa: E501


class Here(Places):
    """Places below a directory of the test's."""

    directory: Path

    @property
    def runtime(self) -> Path:
        return self.directory / "run"

    @property
    def logs(self) -> Path:
        return self.directory / "log"

    @property
    def state(self) -> Path:
        return self.directory / "lib"


def test_files_are_installed_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    Here.directory = tmp_path
    places = Here("n")
    lines = tuple(PhysicalLine("f", n, t) for n, t in enumerate(["http_port 3129", "http_port 3128", "via on"], 1))
    checked = Checked(lines, tuple(listeners(statements(lines, "n"))), "proxy", Workers(), ())
    before = os.umask(0o077)
    try:
        installation.make_directories(places, checked)
        installation.install(places, checked, [ip_network("10.0.0.1/32")], 1)
    finally:
        os.umask(before)
    assert places.configuration_in_force.read_text() == "workers 1\nhttp_port 3129\nhttp_port 3128\nvia on\n"
    assert places.listen_ports.read_text() == "3128,3129\n"
    assert places.own_addresses.read_text() == "10.0.0.1/32\n"
    installation.install(places, checked, [], 1, option=True)
    assert (
        places.configuration_in_force.read_text() == "workers 1\nhttp_port 3129 mptcp\nhttp_port 3128 mptcp\nvia on\n"
    )
    assert places.listen_ports.read_text() == "3128,3129\n"
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path.glob("*/*"))}
    others = {"listen-ports": 0o644, "own-addresses": 0o644, "check-page-missing.html": 0o644}
    assert modes == {"squid.conf": 0o640, **others}
    # Squid takes it for a template, in which this begins a code.
    assert "%" not in places.check_page_missing.read_text()
    assert places.runtime.stat().st_mode & 0o777 == 0o755
    assert places.logs.stat().st_mode & 0o777 == 0o750


def test_files_are_replaced_together_or_not_at_all(tmp_path: Path) -> None:
    """Defect: of a reload that was refused, for there was no room for its last file, the first one was in force."""
    first = tmp_path / "squid.conf"
    first.write_text("in force")
    with pytest.raises(OSError, match="No such file"):
        installation.write_all(
            installation.File(first, b"refused", 0o640), installation.File(tmp_path / "none" / "b", b"", 0o644)
        )
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"squid.conf": "in force"}


def test_no_log_is_renamed_where_no_new_one_could_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "access.log").write_text("kept")

    def no_inode(**_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tempfile, "mkstemp", no_inode)
    with pytest.raises(OSError, match="No space"):
        log_files.rotate(tmp_path, limit=1)
    assert [path.name for path in tmp_path.iterdir()] == ["access.log"]


def test_that_the_disk_of_the_logs_is_full_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = log_files.Logs(tmp_path)
    for room in (1 << 20, 0, 0, 1 << 20, 1 << 20):
        found = SimpleNamespace(f_bavail=room // 4096, f_frsize=4096, f_files=0, f_favail=0)
        monkeypatch.setattr(os, "statvfs", lambda _, found=found: found)
        assert not logs.look()
    assert capsys.readouterr().err.splitlines() == [
        f"mptcp-proxy: {tmp_path}: the disk is full: requests are served, lines of access.log are lost",
        f"mptcp-proxy: {tmp_path}: there is room again, requests are logged",
    ]


@pytest.mark.parametrize("name", ["a b", "a:b", "a\tb"])
def test_a_library_that_ld_preload_cannot_name_is_copied(tmp_path: Path, name: str) -> None:
    Here.directory = tmp_path
    tmp_path.chmod(0o755)
    places = Here("n")
    library = tmp_path / name / "mptcp_listen.so"
    library.parent.mkdir()
    library.write_bytes(b"library")
    used = installation.install_library(places, library)
    assert used == places.runtime / "mptcp_listen.so"
    assert used.read_bytes() == b"library"
    assert shim.can_be_preloaded(used)


def test_processes(tmp_path: Path) -> None:
    pid_file = tmp_path / "squid.pid"
    own_name = Path("/proc/self/comm").read_text().strip()
    assert pid_in(pid_file, own_name) is None
    pid_file.write_text(f"{os.getpid()}\n")
    assert pid_in(pid_file, own_name) == os.getpid()
    # The number of a Squid that crashed, which another program has got since.
    assert pid_in(pid_file, "squid") is None
    for nonsense in ("", "x", "0", "-1", str(2**22 + 1)):
        pid_file.write_text(nonsense)
        assert pid_in(pid_file, own_name) is None
    assert children(2**22 + 1) == ()


def test_signals_that_a_process_catches() -> None:
    before = signal.signal(signal.SIGUSR2, lambda *_: None)
    try:
        assert catches(os.getpid(), signal.SIGUSR2)
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        assert not catches(os.getpid(), signal.SIGUSR2)
        assert not catches(2**22 + 1, signal.SIGUSR2)
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_the_library_is_built_when_its_source_is_newer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler here writes down that it was called; the real one is used by the kernel tests."""
    compiler = tmp_path / "cc"
    compiler.write_text('#!/bin/sh\necho called >> "$0.log"\nwhile [ "$1" != -o ]; do shift; done\necho built > "$2"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    target = tmp_path / "new" / "mptcp_listen.so"

    assert shim.build(target) == target
    assert target.read_text() == "built\n"
    shim.build(target)
    assert (tmp_path / "cc.log").read_text() == "called\n"
    os.utime(target, (1, 1))
    shim.build(target)
    assert (tmp_path / "cc.log").read_text() == "called\ncalled\n"
    assert list(target.parent.iterdir()) == [target]


def test_what_can_go_wrong_with_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = tmp_path / "cc"
    failing.write_text("#!/bin/sh\necho 'no stdio.h' >&2; exit 1\n")
    failing.chmod(0o755)
    monkeypatch.setenv("CC", str(failing))
    with pytest.raises(shim.ShimError, match=r"cannot compile the library in .*shim:\nno stdio.h"):
        shim.build(tmp_path / "x.so")
    monkeypatch.setenv("CC", "/nonexistent/cc")
    with pytest.raises(shim.ShimError, match="apt install gcc"):
        shim.build(tmp_path / "x.so")
    monkeypatch.setenv(shim.PACKAGED, "/nonexistent/y.so")
    with pytest.raises(shim.ShimError, match=r"MPTCP_LISTEN_SHIM=/nonexistent/y\.so"):
        shim.library()
    packaged = tmp_path / "y.so"
    packaged.touch()
    monkeypatch.setenv(shim.PACKAGED, str(packaged))
    assert shim.library() == packaged


@pytest.mark.parametrize("verb", ["run", "check", "doctor"])
def test_a_bad_name_is_refused_before_anything_else(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "--service-name", "a-b"]) == 1
    answer = capsys.readouterr()
    assert answer.out == ""
    assert answer.err.startswith("mptcp-proxy: --service-name a-b: ")


def test_help_names_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    text = capsys.readouterr().out
    assert all(command in text for command in ("run", "check", "doctor", "build-shim"))


def test_signals_are_noted_in_their_order() -> None:
    before = signal.getsignal(signal.SIGHUP), signal.getsignal(signal.SIGUSR2)
    try:
        noted = NotedSignals([signal.SIGHUP])
        noted.note([signal.SIGUSR2])
        assert not noted
        os.kill(os.getpid(), signal.SIGUSR2)
        os.kill(os.getpid(), signal.SIGHUP)
        assert [noted.pop(), noted.pop()] == [signal.SIGUSR2, signal.SIGHUP]
        assert not noted
    finally:
        for number, action in zip((signal.SIGHUP, signal.SIGUSR2), before, strict=True):
            signal.signal(number, action)


@pytest.mark.parametrize("name", ["", "x" * 16, "a b", "bbr;", "b/r"])
def test_what_cannot_name_a_congestion_control(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["run", "--congestion-control", name])
    assert ended.value.code == 2
    assert "allowed: keep, or a name from sysctl" in capsys.readouterr().err
