"""Congestion controls that a kernel lacks, that the host allows to no namespace, or that somebody else has it allow."""

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


def test_what_a_kernel_lacks_is_said_with_what_it_has() -> None:
    assert congestion.lacking("bbr", "reno cubic\n") == "the kernel has no congestion control bbr; it has reno, cubic"
    assert congestion.lacking("cubic", "reno cubic\n") is None
    assert congestion.lacking(congestion.KEEP, "reno cubic\n") is None


def test_this_kernel_is_asked() -> None:
    there = congestion.AVAILABLE.read_text().split()
    assert [congestion.lacking_here(name) for name in there] == [None] * len(there)
    assert (congestion.lacking_here("bbrr") or "").startswith("the kernel has no congestion control bbrr; it has ")
