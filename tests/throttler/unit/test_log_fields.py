# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for log entries with fields in the journal, and plain lines if the journal does not accept them."""

from __future__ import annotations

import io
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_kernel import FakeKernel
from hypothesis import given
from hypothesis import strategies as st
from mptcp_dialogue import Host, feed, open_connection
from test_daemon import CAPPED, running, scenario, until

from mptcp_common import journal
from mptcp_throttler.mptcp.tracker import Tracker
from mptcp_throttler.runtime import logs
from mptcp_throttler.runtime.logs import JournalHandler, LineFormatter, log_fields


class Journal:
    """A socket that replaces the journal's."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.listen()

    def listen(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(self.path))
        self._socket.setblocking(False)

    def close(self) -> None:
        self._socket.close()
        self.path.unlink(missing_ok=True)

    def entries(self) -> Iterator[dict[str, str]]:
        while True:
            try:
                yield fields_of(self._socket.recv(1 << 20))
            except BlockingIOError:
                return


def fields_of(datagram: bytes) -> dict[str, str]:
    """Return the fields of an entry in the format of systemd.io/JOURNAL_NATIVE_PROTOCOL."""
    fields = {}
    while datagram:
        head, _, remaining = datagram.partition(b"\n")
        name, equals, value = head.partition(b"=")
        if not equals:
            size = int.from_bytes(remaining[:8], "little")
            value, end, datagram = remaining[8 : 8 + size], remaining[8 + size : 9 + size], remaining[9 + size :]
            assert end == b"\n"
        else:
            datagram = remaining
        fields[name.decode()] = value.decode()
    return fields


@pytest.fixture
def journald(tmp_path: Path) -> Iterator[Journal]:
    server = Journal(tmp_path / "journal")
    yield server
    server.close()


@pytest.fixture
def stderr() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def log(journald: Journal, stderr: io.StringIO) -> Iterator[logging.Logger]:
    """A logger like the daemon's that writes to *journald* and *stderr*."""
    handler = JournalHandler(str(journald.path))
    handler.setStream(stderr)
    handler.setFormatter(LineFormatter(for_journal=True))
    logger = logging.Logger("fields", logging.DEBUG)
    logger.addHandler(handler)
    yield logger
    handler.close()


@given(
    st.text(alphabet=st.characters(codec="utf-8")),
    st.dictionaries(st.from_regex("[A-Z][A-Z0-9_]{0,9}", fullmatch=True), st.text()),
)
def test_parsed_entry_equals_the_written_one(text: str, extra_fields: dict[str, str]) -> None:
    encodable = {name: value.encode(errors="replace").decode() for name, value in extra_fields.items()}
    expected = {"MESSAGE": text, "PRIORITY": "6", **encodable}
    assert fields_of(journal.entry(text, 6, extra_fields)) == expected


def test_field_with_several_values_is_repeated() -> None:
    entry = journal.entry("x", 6, log_fields(rule=("one", "two"))["fields"])
    assert entry == b"MESSAGE=x\nPRIORITY=6\nMPTCP_RULE=one\nMPTCP_RULE=two\n"


def test_log_entry_has_the_fields_of_its_connection(
    log: logging.Logger, journald: Journal, stderr: io.StringIO
) -> None:
    tracker, host = Tracker([3128]), Host()
    open_connection(tracker, host)
    feed(tracker, *host.join().handshake())
    extra = log_fields(tracker.connections.get(host.token), rule="spare", path="wifi")
    log.warning("capped: %s", "why", extra=extra)
    log.info("policy reloaded")
    log.error("two\nlines")
    assert list(journald.entries()) == [
        {
            "MESSAGE": "WARNING: capped: why",
            "PRIORITY": "4",
            "SYSLOG_IDENTIFIER": "mptcp-throttler",
            "MPTCP_TOKEN": f"{host.token:08x}",
            "MPTCP_CLIENT": "198.51.100.1",
            "MPTCP_RULE": "spare",
            "MPTCP_PATH": "wifi",
        },
        {"MESSAGE": "INFO: policy reloaded", "PRIORITY": "6", "SYSLOG_IDENTIFIER": "mptcp-throttler"},
        {"MESSAGE": "ERROR: two\nlines", "PRIORITY": "3", "SYSLOG_IDENTIFIER": "mptcp-throttler"},
    ]
    assert stderr.getvalue() == ""


def test_entries_that_the_journal_refuses_become_lines(
    log: logging.Logger, journald: Journal, stderr: io.StringIO
) -> None:
    for number in range(10_000):
        log.info("number %d", number)
    accepted = [each["MESSAGE"] for each in journald.entries()]
    lines = [line.removeprefix("<6>") for line in stderr.getvalue().splitlines()]
    assert accepted, "the journal accepted no entry, although its socket holds some"
    assert lines, "no entry became a line, although the journal's socket was full"
    assert accepted + lines == [f"INFO: number {number}" for number in range(10_000)]


def test_entry_too_long_for_a_datagram_becomes_a_line(
    log: logging.Logger, journald: Journal, stderr: io.StringIO
) -> None:
    log.info("x" * 5_000_000)
    assert len(stderr.getvalue()) > 5_000_000


def test_restarted_journal_gets_entries_again(log: logging.Logger, journald: Journal, stderr: io.StringIO) -> None:
    journald.close()
    log.info("while it is down")
    journald.listen()
    log.info("again")
    assert [each["MESSAGE"] for each in journald.entries()] == ["INFO: again"]
    assert stderr.getvalue() == "<6>INFO: while it is down\n"


def test_child_process_writes_lines(log: logging.Logger, journald: Journal, tmp_path: Path) -> None:
    """The child process for status requests has closed the descriptor, or uses its number for another file."""
    handler = log.handlers[0]
    assert isinstance(handler, JournalHandler)
    child = os.fork()
    if child == 0:
        lines = io.StringIO()
        handler.setStream(lines)
        log.info("from the child")
        (tmp_path / "lines").write_text(lines.getvalue())
        os._exit(0)
    os.waitpid(child, 0)
    assert (tmp_path / "lines").read_text() == "<6>INFO: from the child\n"
    assert list(journald.entries()) == []


@pytest.mark.parametrize(("stderr_is_journal", "journal_exists"), [(True, True), (True, False), (False, True)])
def test_entries_are_used_only_if_stderr_is_the_journal(
    monkeypatch: pytest.MonkeyPatch, journald: Journal, stderr_is_journal: bool, journal_exists: bool
) -> None:
    monkeypatch.setattr(journal, "is_journal", lambda: stderr_is_journal)
    monkeypatch.setattr(journal, "SOCKET", str(journald.path) if journal_exists else "/nowhere/journal")
    handler = logs._create_handler()
    assert isinstance(handler, JournalHandler) is (stderr_is_journal and journal_exists)
    handler.close()


def test_daemon_logs_the_connection_of_a_cap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logs, "CAP_LOG_DELAY", 0.0)
    caplog.set_level(logging.INFO)

    @scenario
    async def test(path: Path) -> None:
        kernel = FakeKernel()
        kernel.sockets.connect(7, "10.1.0.1", "10.2.0.1")
        async with running(path, CAPPED, kernel):
            await until(lambda: any("caps path" in each for each in caplog.messages))

    test(tmp_path)
    record = next(each for each in caplog.records if "caps path" in each.getMessage())
    assert record.fields == {  # type: ignore[attr-defined]
        "MPTCP_TOKEN": "00000007",
        "MPTCP_CLIENT": "10.1.0.1",
        "MPTCP_RULE": "cap-a",
        "MPTCP_PATH": "a",
    }
