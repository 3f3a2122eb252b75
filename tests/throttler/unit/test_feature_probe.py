# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the order in which netfilter backends are tried for ``auto``."""

from __future__ import annotations

from pathlib import Path

import pytest

from mptcp_common.kernel_error import KernelError
from mptcp_common.throttler_trial import attempt
from mptcp_throttler.kernel import feature_probe


@pytest.mark.parametrize(
    ("loaded", "works", "expected"),
    [
        (True, {"auto"}, ["auto"]),
        (False, {"nftables"}, ["nftables"]),
        (False, {"auto"}, ["nftables", "auto"]),
        (False, set(), ["nftables", "auto"]),
    ],
)
def test_iptables_module_is_not_loaded_if_nftables_works(
    loaded: bool, works: set[str], expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the check loaded the module, the daemon would choose iptables at its next start.

    The daemon itself cannot load it.
    """
    tried = []

    def use(wanted: str) -> None:
        tried.append(wanted)
        if wanted not in works:
            raise KernelError(f"{wanted} does not work")

    monkeypatch.setattr(feature_probe, "_use_backend", use)
    monkeypatch.setattr(feature_probe, "IPTABLES_THERE", tmp_path if loaded else tmp_path / "absent")
    assert attempt({"auto": feature_probe._either}) == {"auto": None if works else "auto does not work"}
    assert tried == expected
