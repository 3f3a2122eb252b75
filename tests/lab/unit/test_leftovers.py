# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for leftovers of a killed server: its journal is carried out, and kept as long as an entry fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from full_disk import full_at
from immutable import immutable

from mptcp_lab.agent.leftovers import main
from mptcp_lab.agent.server import JOURNAL, boot_and_network

Swept = tuple[list[str], list[str]]


def left_behind(directory: Path, *undo: list[str], boot: str | None = None) -> Path:
    """Fill *directory* as a run with some files and with changes that *undo* undoes; return its journal."""
    (directory / "origin-apache").mkdir(parents=True)
    (directory / "origin-apache" / "file").write_text("x")
    first = {"run": "r", "pid": 7, **boot_and_network(), **({"boot": boot} if boot else {})}
    lines = [first, *({"change": number, "undo": argv} for number, argv in enumerate(undo, 1))]
    (directory / JOURNAL).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return directory / JOURNAL


def swept(directory: Path, capsys: pytest.CaptureFixture[str]) -> Swept:
    """Sweep the directories beside *directory*; return what was removed and what was left."""
    assert main([str(directory.parent), directory.name, "another"]) == 0
    said = json.loads(capsys.readouterr().out)
    return said["removed"], said["left"]


def in_order(order: Path) -> list[list[str]]:
    return [["sh", "-c", f"echo {n} >>{order}"] for n in (1, 2, 3)]


def test_changes_are_undone_last_first_and_the_directory_is_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory, order = tmp_path / "run", tmp_path / "order"
    with left_behind(directory, *in_order(order)).open("a") as file:
        file.write('{"undone": 2}\n{"change": 4, "un')  # the last line is incomplete
    assert swept(directory, capsys) == ([str(directory)], [])
    assert order.read_text().split() == ["3", "1"]
    assert not directory.exists()


def test_change_stays_in_the_journal_when_it_cannot_be_undone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory, count = tmp_path / "run", tmp_path / "count"
    left_behind(directory, ["no-such-program"], ["sh", "-c", f"echo x >>{count}"])
    for _ in range(2):
        said = "no-such-program: the program 'no-such-program' is not installed; once it is undone by hand, remove"
        assert swept(directory, capsys) == ([], [f"{said} {directory}"])
        assert [path.name for path in directory.iterdir()] == [JOURNAL]
    assert count.read_text() == "x\n", "an undone change is not undone a second time"


def test_all_changes_are_undone_when_the_disk_is_full(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory, order = tmp_path / "run", tmp_path / "order"
    journal = left_behind(directory, ["false"], *in_order(order))
    with full_at(journal.stat().st_size):
        _, (left,) = swept(directory, capsys)
    assert left.startswith("false: exit code 1;")
    assert order.read_text().split() == ["3", "2", "1"]


@pytest.mark.parametrize("damage", [b"{", b"\xff", b"[]", b"7", b'{"run": "r"}'])
def test_damaged_journal_is_named_and_nothing_is_undone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: bytes
) -> None:
    directory, undone = tmp_path / "run", tmp_path / "undone"
    journal = left_behind(directory, ["touch", str(undone)])
    journal.write_bytes(b"\n".join([damage, *journal.read_bytes().splitlines()[1:]]) + b"\n")
    said = f"{journal} is damaged: undo by hand what it has, then remove {directory}"
    assert swept(directory, capsys) == ([], [said])
    assert not undone.exists()


@pytest.mark.parametrize("boot", [None, "earlier"])
def test_file_that_cannot_be_removed_is_named_until_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, boot: str | None
) -> None:
    directory, undone = tmp_path / "run", tmp_path / "undone"
    left_behind(directory, ["touch", str(undone)], boot=boot)
    with immutable(monkeypatch, "file"):
        assert swept(directory, capsys) == ([], [f"remove {directory}/origin-apache/file: Operation not permitted"])
    assert swept(directory, capsys) == ([str(directory)], [])
    assert undone.exists() is (boot is None)
