"""Runs whose lock file is damaged: what is known of them is removed, and what is not known is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mptcp_lab.testbed import ownership


@pytest.fixture
def deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Have runs and namespaces below *tmp_path*; return the names of the namespaces that are deleted."""
    monkeypatch.setattr(ownership, "RUN_DIRECTORY", tmp_path / "runs")
    monkeypatch.setattr(ownership, "NAMESPACES", tmp_path / "netns")
    names: list[str] = []

    def delete(namespace: str) -> None:
        (tmp_path / "netns" / namespace).unlink()
        names.append(namespace)

    monkeypatch.setattr(ownership, "delete_namespace", delete)
    for name in ("runs", "netns"):
        (tmp_path / name).mkdir()
    return names


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff",
        b"[]",
        b"{}",
        b'{"pid": 7}',
        b'{"pid": null, "directory": "/"}',
        b'{"pid": 7, "directory": 7}',
    ],
)
def test_a_run_with_a_damaged_lock_file_is_named(tmp_path: Path, deleted: list[str], content: bytes) -> None:
    lock = tmp_path / "runs" / "a1b2c3.lock"
    lock.write_bytes(content)
    (tmp_path / "netns" / "mpx-a1b2c3-core").touch()
    sound, directory = tmp_path / "runs" / "d4e5f6.lock", tmp_path / "mpx-d4e5f6-x"
    directory.mkdir()
    sound.write_text(json.dumps({"pid": 7, "directory": str(directory)}))
    assert [run.id for run in ownership.runs()] == ["a1b2c3", "d4e5f6"]
    for expected in (["mpx-a1b2c3-core"], []):
        deleted.clear()
        cleaned = ownership.remove_stale()
        (left,) = cleaned.left
        assert left.startswith(f"testbed a1b2c3: {lock} is damaged and does not say where")
        assert deleted == expected
        assert lock.exists()
    assert not sound.exists()
    assert not directory.exists()
