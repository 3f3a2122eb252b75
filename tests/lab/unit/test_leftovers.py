# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for leftovers of a killed server: its journal is carried out, and kept as long as an entry fails."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from full_disk import full_at
from immutable import immutable

from mptcp_lab.agent.leftovers import main, noted, remove
from mptcp_lab.agent.server import JOURNAL, Refused, Server, boot_and_network


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


def test_changes_are_undone_last_first_and_the_directory_is_removed(tmp_path: Path) -> None:
    directory, order = tmp_path / "run", tmp_path / "order"
    journal = left_behind(directory, *(["sh", "-c", f"echo {n} >>{order}"] for n in (1, 2, 3)))
    with journal.open("a") as file:
        file.write('{"undone": 2}\n{"change": 4, "un')  # the last line is incomplete
    assert remove(directory, noted(journal)) == []
    assert order.read_text().split() == ["3", "1"]
    assert not directory.exists()


def test_change_stays_in_the_journal_when_it_cannot_be_undone(tmp_path: Path) -> None:
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


def test_agent_keeps_its_journal_when_it_cannot_undo_a_change(server: Server) -> None:
    request = {"argv": ["true"], "timeout": 30}
    server._do_change({**request, "undo": ["false"]})
    server._do_change({**request, "undo": ["true"]})
    with pytest.raises(Refused, match="exit code 1"):
        server._do_undo({"change": 1, "timeout": 30})
    assert server.end() == ["false: exit code 1"]
    assert [path.name for path in server.directory.iterdir()] == [JOURNAL]
    found = noted(server.directory / JOURNAL).entries
    assert [entry["undone"] for entry in found if "undone" in entry] == [2]


def to_undo(order: Path) -> list[list[str]]:
    return [["sh", "-c", f"echo {n} >>{order}"] for n in (1, 2, 3)]


@pytest.mark.parametrize("room", [0, 5], ids=["none", "for a part of a line"])
def test_all_changes_are_undone_when_the_disk_is_full(tmp_path: Path, room: int) -> None:
    directory, order = tmp_path / "run", tmp_path / "order"
    journal = left_behind(directory, ["false"], *to_undo(order))
    said = journal.read_bytes()
    with full_at(len(said) + room):
        (left,) = remove(directory, noted(journal))
    assert left.startswith("false: exit code 1;")
    assert order.read_text().split() == ["3", "2", "1"]
    assert journal.read_bytes() == said


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
def test_damaged_line_is_named_and_the_other_changes_are_undone(
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
def test_journal_is_named_and_kept_when_its_first_line_is_damaged(
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


def _of_an_earlier_boot(journal: Path) -> None:
    first, *others = journal.read_text().splitlines()
    journal.write_text("\n".join([json.dumps({**json.loads(first), "boot": "earlier"}), *others]) + "\n")


@pytest.mark.parametrize("earlier", [False, True], ids=["this boot", "an earlier boot"])
def test_file_that_cannot_be_removed_is_named_until_it_is(
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
