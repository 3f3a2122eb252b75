# SPDX-License-Identifier: GPL-2.0-or-later
"""Whether a path or client starves beside a low cap: what each path carries, also beside clients that vanished.

A download runs under a policy that gives some of its paths low caps. Shown is the rate of each path in the steady
state, as a share of its link or cap; rates are on the wire, as links and caps count. For comparison, the same download
runs without a policy over links that really are as slow as the caps. In the layouts ``vanished-N``, N other downloads
share the cap, and then their client is cut off on both paths.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import inf, nan

from mptcp_lab.testbed import LiveNode, Testbed, TestbedError
from mptcp_lab.testbed.plan import ETHERNET_HEADER
from mptcp_lab.testbed.recorder import Recorder, Sample, mean_rate
from mptcp_lab.testbed.services import (
    PROXY_PORT,
    mptcp_command,
    start_origin,
    start_proxy,
    start_throttler,
    wait_until,
    write_throttler_config,
)

from .columns import RUNS, Column, Row, Table, Turn
from .load_crowd import Crowd
from .parameters import parameter, whole, words
from .scenario import Scenario
from .setup import FILE_SIZE
from .starvation_layouts import LAYOUTS, OTHERS, Layout, PathLoad
from .subflow_ends import client_ends
from .two_paths import dropping

VARIANTS = ("cap", "link")
"""The download under the policy; and without a policy, over links as slow as the caps."""
FREE, CAPPED = 0.95, 0.97
"""Least rate of an uncapped path, as a share of its link, and of a capped path, as a share of its cap."""
RESTS = 16
"""If the uncapped paths carry this multiple of its cap, a capped path may be idle."""
MOST = 1.05
"""Most rate of any path, as a share of its link or cap. A link that carries more was not emulated."""
INTERVAL = 0.25
"""Seconds between two readings of the counters."""
TABLE, PREFIX = "bench_counters", "from_"
"""The counters' table, and the prefix of their names, because some short names are keywords of nft(8)."""
RECOVERY = 1.0
"""Seconds over which the rate of the capped path is measured to tell whether it has recovered."""
SILENT = f'iifname "to-{OTHERS}*" drop; oifname "to-{OTHERS}*" drop'
"""Rules for nft(8) that drop all packets from and to the other clients."""
CROWDED = 50
"""If at least this many clients vanish, they are one program (a crowd)."""
WARM, MEASURED = 4.0, 8.0
"""Seconds that a download runs before the measurement, and seconds of the measurement."""
GIVEN_UP = 2.0
"""Seconds from the vanishing of the other clients to the measurement."""
CROWD_GIVEN_UP = 30.0
"""The same seconds for a thousand clients. Each had a packet in 2.4 seconds, and TCP waits that long for a retry."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What ``--set`` chooses."""

    layout: tuple[str, ...] = parameter(
        f"which of {', '.join(LAYOUTS)}", ",".join(name for name in LAYOUTS if name != "vanished-1000"), words(*LAYOUTS)
    )
    variant: tuple[str, ...] = parameter(f"which of {', '.join(VARIANTS)}", ",".join(VARIANTS), words(*VARIANTS))
    runs: int = parameter("of each", "3", whole(), quick="1")


@dataclass(frozen=True, slots=True)
class Case:
    """A layout, whose caps are those of a policy, or links."""

    layout: Layout
    variant: str

    def __str__(self) -> str:
        return f"{self.layout.name}, {self.variant}"


def cases(chosen: Settings) -> list[Case]:
    layouts = [LAYOUTS[name] for name in chosen.layout]
    both = [Case(layout, variant) for layout in layouts for variant in chosen.variant]
    return [one for one in both if one.variant == "cap" or not (one.layout.one_link or one.layout.vanishing)]


@dataclass(frozen=True, slots=True)
class Carried:
    """What one path carried."""

    share: float
    """Rate of the path as a share of its link or cap."""
    again: float = nan
    """Seconds from the vanishing of the others until the path carries its cap; infinite if it never does."""


@dataclass(frozen=True, slots=True)
class Site:
    """The testbed of one case, with its programs."""

    testbed: Testbed
    layout: Layout
    download: Sequence[str]
    crowd: Crowd | None

    def check_emulation(self) -> None:
        self.testbed.check_emulation()

    @contextmanager
    def others(self) -> Iterator[None]:
        """Let the other clients download."""
        if self.crowd is not None:
            self.crowd.hold(self.layout.vanishing)
            self.crowd.joined(self.layout.vanishing)
            yield
            return
        with ExitStack() as stack:
            for _ in range(self.layout.vanishing):
                stack.enter_context(self.testbed[OTHERS].running(self.download, name="other"))
            time.sleep(WARM if self.layout.vanishing else 0)
            yield

    def subflows(self) -> set[str]:
        return set(client_ends(self.testbed["proxy"], [load.address for load in self.layout.loads]))


@contextmanager
def built(chosen: Settings, cells: Sequence[Case], seed: int) -> Iterator[Site]:
    [case] = cells
    layout = case.layout
    with Testbed(layout.topology(case.variant == "link"), seed=seed) as testbed:
        host = testbed["proxy"]
        if case.variant == "cap":
            start_throttler(host, write_throttler_config(host, host.write("policy.yaml", layout.policy())))
        crowd = Crowd.built(testbed, layout.vanishing, OTHERS) if layout.vanishing >= CROWDED else None
        proxy = crowd.proxy if crowd else start_proxy(host, control="bbr")
        origin = start_origin(testbed["origin"], {"big": FILE_SIZE})
        # Use the proxy's IPv4 address in IPv6 form: Linux joins by IPv6 only if the connection was opened on an IPv6
        # socket.
        through = f"http://[::ffff:{host.service_address()}]:{PROXY_PORT}" if layout.mapped else proxy.url()
        download = ["curl", "-s", "-m", "90", "-o", "/dev/null", "-x", through, origin.url("big")]
        yield Site(testbed, layout, mptcp_command(download), crowd)


def measure(site: Site, turn: Turn[Case]) -> Mapping[str, Carried]:
    """Run one download. Return what each path carried, by its name. Raises TestbedError if a subflow is missing."""
    client, layout = site.testbed["client"], site.layout
    wait_until(lambda: not site.subflows(), "the last download's subflows are gone", timeout=30)
    addresses = {load.name: load.address for load in layout.loads}
    with site.others(), counting(client, addresses) as recorder, client.running(site.download) as process:
        recorder.wait(WARM)
        subflows = site.subflows()
        if any(address not in subflows for address in addresses.values()):
            raise TestbedError(f"{layout.name}: there are subflows from {', '.join(subflows)} alone")
        vanished = begin = recorder.now
        if layout.vanishing:
            with dropping(site.testbed["core"], SILENT):
                begin += CROWD_GIVEN_UP if site.crowd else GIVEN_UP
                recorder.wait(begin + MEASURED + 0.5)
                process.kill()
        else:
            recorder.wait(begin + MEASURED + 0.5)
    return judge(recorder.samples, layout, begin, vanished)


@contextmanager
def counting(node: LiveNode, addresses: Mapping[str, str]) -> Iterator[Recorder]:
    """Record the bytes that arrive at *node* for each of *addresses*, by name, even for subflows on one device.

    nftables counts them. Packet merging is off in the testbed, so that each counted packet is one on the wire.
    """

    def read() -> dict[str, int]:
        return octets(node.run(["nft", "-j", "list", "counters", "table", "inet", TABLE]).stdout)

    with (
        node.changed(["nft", table(addresses)], ["nft", "delete", "table", "inet", TABLE]),
        Recorder(node, tuple(addresses), interval=INTERVAL, read=read) as recorder,
    ):
        yield recorder


def table(addresses: Mapping[str, str]) -> str:
    """Return the table with a counter for each address, in nft(8) syntax."""
    counters = "".join(f"counter {PREFIX}{name} {{ }}\n" for name in addresses)
    rules = "".join(
        f"{'ip6' if ':' in address else 'ip'} daddr {address} counter name {PREFIX}{name}\n"
        for name, address in addresses.items()
    )
    return f"table inet {TABLE} {{\n{counters}chain input {{\ntype filter hook input priority 0\n{rules}}}\n}}\n"


def octets(text: str) -> dict[str, int]:
    """Return each counter's bytes, including Ethernet headers, from the output of ``nft -j list counters``."""
    found = (each["counter"] for each in json.loads(text)["nftables"] if "counter" in each)
    return {each["name"].removeprefix(PREFIX): each["bytes"] + ETHERNET_HEADER * each["packets"] for each in found}


def judge(samples: Sequence[Sample], layout: Layout, begin: float, vanished: float) -> dict[str, Carried]:
    """Return what each path carried from *begin* on. Raises ValueError if there are too few samples."""
    found = {}
    for load in layout.loads:
        share = mean_rate(samples, load.name, begin, begin + MEASURED) / load.due
        again = recovered(samples, load, vanished) if layout.vanishing and load.cap is not None else nan
        found[load.name] = Carried(share, again)
    return found


def recovered(samples: Sequence[Sample], path: PathLoad, since: float) -> float:
    """Return the seconds from *since* until the path begins to carry what it must; infinite if it never does."""
    for sample in samples:
        if sample.time < since:
            continue
        later = [each for each in samples if each.time >= sample.time + RECOVERY - 1e-6]
        if not later:
            break
        octets = later[0].octets[path.name] - sample.octets[path.name]
        if 8 * octets / (later[0].time - sample.time) >= FREE * path.due:
            return sample.time - since
    return inf


def least(row: Row[Case, Carried]) -> float:
    """Return the least share of its link or cap that the row's path must carry."""
    load = row.cell.layout.load(row.part)
    if load.cap is None:
        return FREE
    others = sum(each.due for each in row.cell.layout.loads if each.cap is None)
    return 0.0 if others >= RESTS * load.cap else CAPPED


def what(row: Row[Case, Carried]) -> str:
    """Return the row's path and what its rate is compared with."""
    return f"{row.part}, of its {'link' if row.cell.layout.load(row.part).cap is None else 'cap'}"


SCENARIO = Scenario(
    settings=Settings,
    needs=("root", "mptcp", "mptcp-pm", "tbf", "htb", "nftables", "apache2", "squid", "curl", "mptcpize"),
    cells=cases,
    parts=lambda case: [load.name for load in case.layout.loads],
    bed=built,
    measure=measure,
    tables=(
        Table(
            "Who starves beside a low cap",
            (
                RUNS,
                Column("carried", "share", aim=what, digits=3, least=least, most=MOST,
                       judged=lambda row: row.cell.variant == "cap"),
                Column("again s", "again", by="median", digits=1),
            ),
            (("layout", lambda row: str(row.cell)), ("path", what)),
        ),
    ),
    name=lambda row: str(row.cell),
    counted=lambda row: "runs" if row.part in ("", row.cell.layout.loads[0].name) else "",
)  # fmt: skip
