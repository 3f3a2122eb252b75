"""The capabilities that the throttler's systemd unit leaves: a program so confined does what the adapters need."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from mptcp_lab.testbed import Testbed

pytestmark = pytest.mark.kernel

UNIT = Path(__file__).parents[3] / "systemd/mptcp-throttler.service"
WITH_CGROUPS = 'mount -t cgroup2 none /mnt && exec "$@"'
"""systemd mounts the hierarchy; the namespaces of the testbed have a /sys of their own."""
AT_ONCE = """\
from mptcp_throttler.kernel.sockets.pacing import BpfSocketPacing
from mptcp_throttler.shaping.model import Ownership

pacing = BpfSocketPacing(Ownership(), for_accepted=False)
print(pacing.limit_at_once())
pacing.close()
"""


@pytest.mark.parametrize(("without", "possible"), [(None, "True"), ("CAP_PERFMON", "False")])
def test_limits_of_idle_sockets_are_lifted_under_the_shipped_unit(
    testbed: Testbed, without: str | None, possible: str
) -> None:
    """What a stop takes back from sockets that send nothing; without CAP_PERFMON the log counts those."""
    shipped = re.findall(r"^CapabilityBoundingSet=(.*)$", UNIT.read_text(), re.MULTILINE)[-1].split()
    left = [each.lower().removeprefix("cap_") for each in shipped if each != without]
    bounds = ",".join(["-all", *(f"+{each}" for each in left)])
    confined = ["setpriv", f"--bounding-set={bounds}", "--no-new-privs", sys.executable, "-c", AT_ONCE]
    found = testbed["proxy"].run(["unshare", "--mount", "sh", "-c", WITH_CGROUPS, "sh", *confined])
    assert found.stdout.strip() == possible
