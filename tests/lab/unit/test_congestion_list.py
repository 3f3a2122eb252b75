"""Selecting a congestion control that the host allows to no namespace, or that somebody else has it allow just now."""

from __future__ import annotations

from pathlib import Path

import pytest

from mptcp_lab.testbed import TestbedError, congestion


@pytest.mark.parametrize("stays", [True, False])
def test_one_that_another_run_had_allowed_for_a_moment_cannot_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stays: bool
) -> None:
    """Defect: in a container beside a run outside, whose lock is another, a testbed could not be built."""
    lists = tmp_path / "allowed"
    lists.write_text("reno cubic\n")

    def refused(argv: list[str]) -> None:
        lists.write_text("reno cubic\n" if stays else "reno\n")
        raise TestbedError("Operation not permitted")

    monkeypatch.setattr(congestion, "ALLOWED", lists)
    monkeypatch.setattr(congestion, "AVAILABLE", lists)
    monkeypatch.setattr(congestion, "run", refused)
    if stays:
        with pytest.raises(TestbedError, match="not permitted"):
            congestion.select("cubic", ["a"])
    else:
        assert congestion.select("cubic", ["a"]) is False
