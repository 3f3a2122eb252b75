"""What the programs of an experiment are given."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mptcp_lab.testbed.services import write_throttler_config


class Directory:
    """A host, as far as a file is written there."""

    name = "proxy"

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def provide(self, file: Path) -> Path:
        return file

    def write(self, name: str, text: str) -> Path:
        (self.directory / name).write_text(text)
        return self.directory / name


@pytest.mark.parametrize("settings", [{}, {"verify_interval": 1, "ledger": "/elsewhere"}])
def test_a_throttler_does_not_count_in_the_hosts_ledger(tmp_path: Path, settings: dict[str, object]) -> None:
    written = write_throttler_config(Directory(tmp_path), Path("policy.yaml"), settings=settings)  # type: ignore[arg-type]
    lines = dict(line.split(": ", 1) for line in written.read_text().splitlines())
    assert json.loads(lines["ledger"]) == settings.get("ledger", f"{tmp_path}/proxy-ledger.sqlite")
    assert json.loads(lines["policy"]) == "policy.yaml"
    assert lines.get("verify_interval", "1") == "1"
