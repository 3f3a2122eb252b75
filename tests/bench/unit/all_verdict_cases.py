# SPDX-License-Identifier: GPL-2.0-or-later
"""The verdict cases of each of our experiments: its correct result and its mutants."""

from __future__ import annotations

import mutants_of_downloads
import mutants_of_load
import mutants_of_relay
import mutants_of_vpn
from mutants import VerdictCases

MODULES = (mutants_of_downloads, mutants_of_load, mutants_of_relay, mutants_of_vpn)
VERDICT_CASES: dict[str, VerdictCases] = mutants_of_vpn.VPN | {
    name.lower().replace("_", "-"): cases
    for module in MODULES
    for name, cases in vars(module).items()
    if isinstance(cases, VerdictCases)
}
"""The cases by the name of the experiment, which is also the name of a constant in one of the modules."""
