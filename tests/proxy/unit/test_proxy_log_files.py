"""Log files are renamed."""

from __future__ import annotations

from pathlib import Path

from mptcp_proxy import log_files


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
