# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the order in which netfilter backends are tried for ``auto``."""

from __future__ import annotations

import pytest

from mptcp_common.kernel_error import KernelError
from mptcp_common.throttler_needs import BACKENDS
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
def test_no_module_of_iptables_is_loaded_where_nftables_works(
    loaded: bool, works: set[str], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the check loaded the module, the daemon would choose iptables at its next start.

    The daemon itself cannot load the module.
    """
    tried = []

    def use(wanted: str) -> None:
        tried.append(wanted)
        if wanted not in works:
            raise KernelError(f"{wanted} does not work")

    monkeypatch.setattr(feature_probe, "_try_backend", use)
    monkeypatch.setattr(feature_probe, "backends_without_modules", lambda: BACKENDS if loaded else ("nftables",))
    assert attempt({"auto": feature_probe._try_any_backend}) == {"auto": None if works else "auto does not work"}
    assert tried == expected
