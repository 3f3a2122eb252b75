# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the order in which netfilter backends are tried for ``auto``."""

from __future__ import annotations

import pytest

from mptcp_common.kernel_error import KernelError
from mptcp_common.throttler_needs import BACKENDS
from mptcp_common.throttler_trial import attempt
from mptcp_throttler.kernel import feature_probe


@pytest.mark.parametrize(
    ("iptables_loaded", "working", "expected"),
    [
        (True, {"auto"}, ["auto"]),
        (False, {"nftables"}, ["nftables"]),
        (False, {"auto"}, ["nftables", "auto"]),
        (False, set(), ["nftables", "auto"]),
    ],
)
def test_no_iptables_module_is_loaded_if_nftables_works(
    iptables_loaded: bool, working: set[str], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the check loaded the module, the daemon would choose iptables at its next start.

    The daemon itself cannot load the module.
    """
    tried = []

    def try_backend(backend: str) -> None:
        tried.append(backend)
        if backend not in working:
            raise KernelError(f"{backend} does not work")

    monkeypatch.setattr(feature_probe, "_try_backend", try_backend)
    monkeypatch.setattr(
        feature_probe, "backends_without_modules", lambda: BACKENDS if iptables_loaded else ("nftables",)
    )
    assert attempt({"auto": feature_probe._try_any_backend}) == {"auto": None if working else "auto does not work"}
    assert tried == expected
