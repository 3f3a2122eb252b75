"""The experiment ``crowds`` on real packets: without the limits of squid.conf it misses the aim that is named."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
from rich.console import Console

from mptcp_bench.experiments import crowds
from mptcp_bench.experiments.crowds_judging import ONE_ADDRESS

pytestmark = pytest.mark.kernel
STANDING = f"{ONE_ADDRESS}: connections that stand, × its share"


@pytest.mark.parametrize("limits", ["yes", "no"])
def test_one_address_has_no_more_than_its_share_but_where_nothing_limits_it(
    limits: str, require: Callable[..., None]
) -> None:
    require("root", "mptcp", "squid", "apache2")
    options = {"arm": ONE_ADDRESS, "runs": "2", "requests": "10", "limits": limits}
    findings = crowds.run(Console(file=io.StringIO()), 1, True, options)
    # How long requests take is a matter of the machine.
    missed = {aim.what for aim in findings.aims if not aim.met and "latency" not in aim.what}
    assert missed == (set() if limits == "yes" else {f"{STANDING}, most"})
    assert findings.failures == ()
