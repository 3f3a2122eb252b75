"""What changed in a system is told from what did not."""

from __future__ import annotations

from mptcp_bench.experiments.system_state import differences


def test_only_dumps_that_changed_are_differences() -> None:
    assert differences({"tc": "a", "nft": "b"}, {"tc": "a", "nft": "c"}) == ["nft:\n--- before\nb\n--- after\nc"]
