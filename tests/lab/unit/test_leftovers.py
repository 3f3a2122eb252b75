"""What a server that was killed left: its journal is carried out, and kept as long as something in it fails."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from mptcp_lab.agent.leftovers import entries, remove
from mptcp_lab.agent.server import JOURNAL, Refused, Server


def left_behind(directory: Path, *undo: list[str]) -> Path:
    """Make *directory* that of a run with changes that *undo* would undo, and some files; return its journal."""
    (directory / "origin-apache").mkdir(parents=True)
    (directory / "origin-apache" / "file").write_text("x")
    (directory / "log").write_text("x")
    journal = directory / JOURNAL
    lines = [{"run": "r"}, *({"change": number, "undo": argv} for number, argv in enumerate(undo, 1))]
    journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return journal


def test_what_can_be_undone_is_and_the_directory_goes(tmp_path: Path) -> None:
    directory, order = tmp_path / "run", tmp_path / "order"
    journal = left_behind(directory, *(["sh", "-c", f"echo {n} >>{order}"] for n in (1, 2, 3)))
    with journal.open("a") as file:
        file.write('{"undone": 2}\n{"change": 4, "un')  # cut short
    assert remove(directory, entries(journal)) == []
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
    assert remove(directory, entries(journal)) == said
    assert [path.name for path in directory.iterdir()] == [JOURNAL]
    willing.touch()
    assert remove(directory, entries(journal)) == said[1:]
    # What was undone is not undone again.
    assert count.read_text() == "x\n"
    assert directory.exists()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    # Whatever this process started is not the agent's to end.
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
    noted = entries(server.directory / JOURNAL)
    assert [entry["undone"] for entry in noted if "undone" in entry] == [2]


def test_the_agent_leaves_nothing_where_all_was_undone(server: Server) -> None:
    server._do_change({"argv": ["true"], "undo": ["true"], "timeout": 30})
    assert server.end() == []
    assert not server.directory.exists()
