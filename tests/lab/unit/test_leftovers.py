# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for leftovers of a killed server: its journal is carried out, and kept as long as an entry fails."""

from __future__ import annotations

import base64
import io
import json
import resource
import shutil
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from full_disk import full_at
from immutable import immutable

from mptcp_lab.agent.leftovers import main, noted, remove
from mptcp_lab.agent.server import JOURNAL, Refused, Server, boot_and_network
from mptcp_lab.remote.connection import _CODE, packed_agent


def left_behind(directory: Path, *undo: list[str]) -> Path:
    """Fill *directory* as a run with some files and with changes that *undo* undoes; return its journal."""
    (directory / "origin-apache").mkdir(parents=True)
    (directory / "origin-apache" / "file").write_text("x")
    (directory / "log").write_text("x")
    journal = directory / JOURNAL
    lines = [
        {"run": "r", "pid": 7, **boot_and_network()},
        *({"change": number, "undo": argv} for number, argv in enumerate(undo, 1)),
    ]
    journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return journal


def test_what_can_be_undone_is_and_the_directory_goes(tmp_path: Path) -> None:
    directory, order = tmp_path / "run", tmp_path / "order"
    journal = left_behind(directory, *(["sh", "-c", f"echo {n} >>{order}"] for n in (1, 2, 3)))
    with journal.open("a") as file:
        file.write('{"undone": 2}\n{"change": 4, "un')  # the last line is incomplete
    assert remove(directory, noted(journal)) == []
    assert order.read_text().split() == ["3", "1"]
    assert not directory.exists()


def test_a_change_whose_undoing_fails_stays_in_the_journal(tmp_path: Path) -> None:
    directory, willing, count = tmp_path / "run", tmp_path / "willing", tmp_path / "count"
    journal = left_behind(
        directory, ["no-such-program"], ["sh", "-c", f"echo no; test -e {willing}"], ["sh", "-c", f"echo x >>{count}"]
    )
    advice = f"once it is undone by hand, remove {directory}"
    said = [
        f"sh -c echo no; test -e {willing}: exit code 1 no; {advice}",
        f"no-such-program: the program 'no-such-program' is not installed; {advice}",
    ]
    assert remove(directory, noted(journal)) == said
    assert [path.name for path in directory.iterdir()] == [JOURNAL]
    willing.touch()
    assert remove(directory, noted(journal)) == said[1:]
    # An undone change is not undone a second time.
    assert count.read_text() == "x\n"
    assert directory.exists()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    # The agent must not end other children of this process.
    monkeypatch.setattr("mptcp_lab.agent.server.descendants", lambda pid: ())
    directory = tmp_path / "run"
    directory.mkdir()
    (directory / "log").write_text("x")
    return Server(directory, "r", io.BytesIO())


def test_the_agent_itself_keeps_the_journal_of_what_it_could_not_undo(server: Server) -> None:
    request = {"argv": ["true"], "timeout": 30}
    server._do_change({**request, "undo": ["false"]})
    server._do_change({**request, "undo": ["true"]})
    with pytest.raises(Refused, match="exit code 1"):
        server._do_undo({"change": 1, "timeout": 30})
    assert server.end() == ["false: exit code 1"]
    assert [path.name for path in server.directory.iterdir()] == [JOURNAL]
    found = noted(server.directory / JOURNAL).entries
    assert [entry["undone"] for entry in found if "undone" in entry] == [2]


def test_the_agent_leaves_nothing_where_all_was_undone(server: Server) -> None:
    server._do_change({"argv": ["true"], "undo": ["true"], "timeout": 30})
    assert server.end() == []
    assert not server.directory.exists()


def test_what_a_request_starts_when_the_driver_has_gone_is_ended_too(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect: such a program outlived the agent if the driver was killed just after its request."""
    ending, popen = threading.Event(), subprocess.Popen
    started: list[subprocess.Popen[bytes]] = []

    def offspring(_pid: int) -> tuple[int, ...]:
        ending.set()
        return tuple(each.pid for each in started if each.poll() is None)

    def late(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        ending.wait(60)
        started.append(popen(*arguments, **options))
        return started[-1]

    monkeypatch.setattr("mptcp_lab.agent.server.descendants", offspring)
    monkeypatch.setattr(subprocess, "Popen", late)
    request = {"do": "run", "id": 1, "argv": ["sleep", "3600"], "input": None, "timeout": 3600}
    server.serve(io.BytesIO(json.dumps(request).encode()))
    try:
        assert server.end() == []
        assert [each.poll() for each in started] == [-signal.SIGKILL]
    finally:
        for thread in server._under_way:
            while thread.is_alive():
                for each in started:
                    each.kill()
                thread.join(0.05)


def to_undo(order: Path) -> list[list[str]]:
    return [["sh", "-c", f"echo {n} >>{order}"] for n in (1, 2, 3)]


def test_the_agent_undoes_all_changes_where_its_journal_takes_no_more(server: Server, tmp_path: Path) -> None:
    order = tmp_path / "order"
    for undo in to_undo(order):
        server._do_change({"argv": ["true"], "undo": undo, "timeout": 30})
    with full_at((server.directory / JOURNAL).stat().st_size):
        assert server.end() == []
    assert order.read_text().split() == ["3", "2", "1"]
    assert not server.directory.exists()


@pytest.mark.parametrize("room", [0, 5], ids=["none", "for a part of a line"])
def test_a_journal_that_takes_no_more_keeps_no_change_from_being_undone(tmp_path: Path, room: int) -> None:
    directory, order = tmp_path / "run", tmp_path / "order"
    journal = left_behind(directory, ["false"], *to_undo(order))
    said = journal.read_bytes()
    with full_at(len(said) + room):
        (left,) = remove(directory, noted(journal))
    assert left.startswith("false: exit code 1;")
    assert order.read_text().split() == ["3", "2", "1"]
    assert journal.read_bytes() == said


@pytest.mark.parametrize(
    "gone", [Path.is_symlink, Path.open], ids=["before it is asked whose it is", "before it is read"]
)
def test_a_run_that_ends_while_it_is_looked_at_hides_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, gone: Callable[..., Any]
) -> None:
    ending, directory = tmp_path / "run-a", tmp_path / "run-b"
    left_behind(ending)
    left_behind(directory)

    def ended(path: Path, *arguments: Any, **options: Any) -> Any:
        if path == ending / JOURNAL:
            shutil.rmtree(ending, ignore_errors=True)
        return gone(path, *arguments, **options)

    monkeypatch.setattr(Path, gone.__name__, ended)
    assert main([str(tmp_path), "run-", "another"]) == 0
    assert json.loads(capsys.readouterr().out) == {"removed": [str(directory)], "left": [], "live": []}


def folder_with_a_directory_for_a_journal() -> bytes:
    packed = io.BytesIO(packed_agent())
    with zipfile.ZipFile(packed, "a") as archive:
        archive.writestr(f"{JOURNAL}/", "")
    return packed.getvalue()


@pytest.mark.parametrize("most", [2000, None], ids=["unpacked", "noted"])
def test_an_agent_that_cannot_begin_leaves_no_directory(tmp_path: Path, most: int | None) -> None:
    """Defect: nothing ever found this directory, and each further attempt left another one."""
    folder = base64.b64encode(folder_with_a_directory_for_a_journal() if most is None else packed_agent())
    with full_at(resource.RLIM_INFINITY if most is None else most):
        ended = subprocess.run(
            [sys.executable, "-I", "-c", _CODE, "r", str(tmp_path)],
            input=folder + b"\n",
            capture_output=True,
            check=False,
        )
    assert ended.stderr.splitlines()[-1].startswith(b"IsADirectoryError" if most is None else b"OSError")
    assert list(tmp_path.iterdir()) == []


def swept(directory: Path, capsys: pytest.CaptureFixture[str]) -> tuple[list[str], list[str]]:
    """Sweep the directories beside *directory*; return what was removed and what was left."""
    assert main([str(directory.parent), directory.name, "another"]) == 0
    said = json.loads(capsys.readouterr().out)
    return said["removed"], said["left"]


DAMAGE = [
    b"{",
    b"\0\0\0",
    b"\xff",
    b"[]",
    b"7",
    b'{"change": 2}',
    b'{"change": 2, "undo": []}',
    b'{"change": 2, "undo": [7]}',
]


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_line_is_named_and_the_other_changes_are_undone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: bytes
) -> None:
    directory, order = tmp_path / "run-x", tmp_path / "order"
    journal = left_behind(directory, *(["sh", "-c", f"echo {n} >>{order}"] for n in (1, 2, 3)))
    lines = journal.read_bytes().splitlines()
    lines[2] = damage
    journal.write_bytes(b"\n".join(lines) + b"\n")
    for _ in range(2):
        advice = f"line 3 of {journal} is damaged and may be a change: look for it, then remove {directory}"
        assert swept(directory, capsys) == ([], [advice])
        assert damage in journal.read_bytes().splitlines()
    assert order.read_text().split() == ["3", "1"]


@pytest.mark.parametrize("damage", [*DAMAGE, b'{"run": "r"}', b'{"undone": 1}'])
def test_a_journal_whose_first_line_is_damaged_is_named_and_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: bytes
) -> None:
    directory, undone = tmp_path / "run-x", tmp_path / "undone"
    journal = left_behind(directory, ["touch", str(undone)])
    said = b"\n".join([damage, *journal.read_bytes().splitlines()[1:]]) + b"\n"
    journal.write_bytes(said)
    removed, (left,) = swept(directory, capsys)
    assert removed == []
    assert left.startswith(f"the first line of {journal} is damaged and does not say of what boot and network")
    assert left.endswith(f"then remove {directory}")
    assert journal.read_bytes() == said
    assert not undone.exists()


@pytest.mark.parametrize("said", [b"", b'{"run": "r", "pi'])
def test_a_journal_without_a_first_line_is_named_and_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], said: bytes
) -> None:
    directory = tmp_path / "run-x"
    left_behind(directory).write_bytes(said)
    removed, (left,) = swept(directory, capsys)
    assert (removed, left.split(" is damaged")[0]) == ([], f"the first line of {directory / JOURNAL}")
    assert directory.exists()


def test_a_line_that_was_cut_short_damages_none_that_is_noted_after_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory, count = tmp_path / "run-x", tmp_path / "count"
    journal = left_behind(directory, ["false"], ["sh", "-c", f"echo x >>{count}"])
    with journal.open("a") as file:
        file.write('{"change": 3, "un')
    for _ in range(2):
        assert swept(directory, capsys) == ([], [f"false: exit code 1; once it is undone by hand, remove {directory}"])
    assert count.read_text() == "x\n"


def _of_an_earlier_boot(journal: Path) -> None:
    first, *others = journal.read_text().splitlines()
    journal.write_text("\n".join([json.dumps({**json.loads(first), "boot": "earlier"}), *others]) + "\n")


@pytest.mark.parametrize("earlier", [False, True], ids=["this boot", "an earlier boot"])
def test_a_file_that_stays_is_named_and_so_is_found_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, earlier: bool
) -> None:
    directory, undone = tmp_path / "run-x", tmp_path / "undone"
    journal = left_behind(directory, ["touch", str(undone)])
    if earlier:
        _of_an_earlier_boot(journal)
    with immutable(monkeypatch, "file"):
        for _ in range(2):
            removed, (left,) = swept(directory, capsys)
            assert removed == []
            assert left == f"remove {directory}/origin-apache/file: Operation not permitted"
            assert journal.exists()
    assert swept(directory, capsys) == ([str(directory)], [])
    assert not directory.exists()
    assert undone.exists() is not earlier


def test_a_directory_that_stays_is_named_and_keeps_its_journal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "run-x"
    left_behind(directory)
    with immutable(monkeypatch, directory.name):
        for _ in range(2):
            assert swept(directory, capsys) == ([], [f"remove {directory}: Operation not permitted"])
    assert swept(directory, capsys) == ([str(directory)], [])


def test_the_agent_itself_names_what_it_could_not_remove(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    with immutable(monkeypatch, "log"):
        assert server.end() == [f"remove {server.directory}/log: Operation not permitted"]
    assert sorted(path.name for path in server.directory.iterdir()) == [JOURNAL, "log"]


def test_the_agent_misses_nothing_that_somebody_else_removed(server: Server) -> None:
    shutil.rmtree(server.directory)
    assert server.end() == []
