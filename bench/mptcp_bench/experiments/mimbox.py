# SPDX-License-Identifier: GPL-2.0-or-later
"""Section 4 of "Multipath in the Middle(Box)" with our proxy, which is compared with a router and other proxies.

The testbed is the one of the experiment ``relay``, with a second origin that accepts MPTCP: in the paper's baseline, a
router connects the clients to such a server. With a proxy, the server uses plain TCP. MPTCP connections are counted at
the host that accepts them from the client.

- ``mimbox-goodput``, Figure 4: one download over both paths, on links whose MTU is varied.
- ``mimbox-http``, Figure 5: 40 clients request a file of varied size, each time on a new connection with one subflow,
  because most of these end before a second one could join. The completion time is from connect(2) to the last byte.
- ``mimbox-memory``, Figure 6 and section 4.4: a client with ADSL (8 Mbit/s, 512 kbit/s up, RTT 20 ms) and 3G (2 Mbit/s,
  256 kbit/s, 80 ms) downloads from an origin with 100 Mbit/s, while the sender's tcp_rmem and tcp_wmem are limited. The
  sender is the proxy or, without a proxy, the origin. Memory is measured during 20 simultaneous slow downloads.
- ``mimbox-delay``, Table 1: requests follow one another, each on its own connection. tcpdump records packets on both
  sides of the router or the proxy, with one clock. An answer of 1000 bytes is one data segment, so its delay is that of
  forwarding. A proxy in user space accepts a connection after the client's handshake, and ours connects to the origin
  after the request. The delay of the SYN includes both.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.table import Table as RichTable

from mptcp_lab.emulation.model import Direction, EmulatedPath
from mptcp_lab.testbed import LiveNode, Program, Testbed, TestbedError, lab_of, paths
from mptcp_lab.testbed.mtu import mtu
from mptcp_lab.testbed.node import InterfaceBytes
from mptcp_lab.testbed.services import PROXY_PORT, start_origin, wait_until

from .. import style
from ..statistics import fmean, median
from ..wire.capture import captured
from ..wire.packets import ACK, SYN, Packet
from ..wire.streams import Leg, follow, passages
from ..wire.workload import Workload, send
from ..wire.workload import measure as measure_exchanges
from . import mimbox_judging as judging
from .aims import Aim
from .claims import FEWEST, Claim, Claims
from .columns import Column, Results, Table, Turn
from .drawing import drawn
from .findings import Picture
from .mimbox_judging import EACH, PERCENTS, ROUTER, Cell, Delays, Found, Point, values
from .parameters import number, parameter, several, whole, words
from .peers import peers
from .relay_bed import LARGE, MULTIPATH_PORT, PATIENCE, WARM, Bed
from .relay_judging import DIRECT, LIMIT, OURS, spread
from .relay_load import latencies, user_memory
from .scenario import Scenario
from .tables import mean, new_table
from .two_paths import slow_origin

NEEDS = ("root", "mptcp", "mptcp-pm", "apache2", "squid", "ss", "ethtool", "gcc", "mptcpize")
DEVICES = (("client", "eth0"), ("core", "to-eth0"), ("client", "wlan0"), ("core", "to-wlan0"), ("proxy", "wan0"),
           ("core", "to-proxy"), ("origin", "eth0"), ("core", "to-origin"))  # fmt: skip
"""Node and device of both ends of every link."""
PATHS = ("eth0", "wlan0")
SIZES = several(whole())
QUIET, FEW = 0.3, 3_000
"""If the client receives fewer than this number of bytes in this number of seconds, its last transfer has ended."""


@contextmanager
def built(seed: int, files: Mapping[str, int], seconds: float, paths_: Sequence[Any] = (None, None)) -> Iterator[Bed]:
    """Yield a testbed in which both origins serve *files*; *paths_* are the client's paths."""
    with Testbed(paths(paths_, offloads=False, name="mimbox"), seed=seed) as testbed:
        start_origin(testbed["origin"], files, ports=(MULTIPATH_PORT,), multipath=True)
        for name in ("client", "proxy"):
            # Closed connections keep their ports in TIME-WAIT. Provide enough ports, and allow their reuse.
            for key, value in (("ip_local_port_range", "1024 65535"), ("tcp_tw_reuse", "1")):
                testbed.scope.enter_context(testbed[name].sysctl(f"net.ipv4.{key}", value))
        yield Bed.built(testbed, seconds, files)


@dataclass(frozen=True, slots=True)
class Procedure:
    """How a point is measured: file, parallel streams, one or many requests per connection, memory, warm-up seconds."""

    file: str = LARGE
    streams: int = 1
    close: bool = False
    memory: bool = False
    warm: float = WARM


def measured(bed: Bed, cell: Cell, task: str, how: Procedure, process: Program | None) -> Point:
    """Measure a *task* of *cell* for the bed's seconds. Raises TestbedError if connections are not established."""
    client, streams = bed.testbed["client"], how.streams
    memory = process if how.memory else None
    user = user_memory(memory.pid) if memory else 0
    requests = 1 if how.close else -1
    with bed.asking(cell, task, streams, how.file, process, requests=requests, close=how.close) as (load, accepted):
        # With *close*, wait until there are as many answers as streams, so that connections have been reopened.
        answers = streams if how.close else 0
        bed.wait(load, process, lambda seen: seen.answers >= answers, f"{cell}: {answers} answers")
        time.sleep(how.warm)
        began, first, wires = time.monotonic(), load.read(), client.counters()
        if memory:
            users, kernels = zip(*bed.held_memory(memory), strict=True)
        else:
            time.sleep(bed.seconds)
            users, kernels = (user,), (0,)
        seconds, last, wires_ = time.monotonic() - began, load.read(), client.counters()
        capable, joined = accepted.read()
    # The server may still send data when the client has ended. Wait, or the next measurement would count these data.
    wait_until(lambda: _quiet(client), f"{cell}: nothing comes any more", timeout=PATIENCE)
    octets = max(1, _received(wires_, wires))
    return Point(
        seconds=seconds,
        octets=last.octets - first.octets,
        failures=last.failures,
        # With *close*, the last connection may not be established yet.
        opened=min(last.opened, last.answers) if how.close else last.opened,
        multipath=capable,
        joined=joined,
        packet=octets / max(1, sum(wires_[name].packets - wires[name].packets for name in PATHS)),
        second=(wires_["wlan0"].received - wires["wlan0"].received) / octets,
        spread=latencies(last.late, PERCENTS) if how.close else (),
        user=max(0.0, max(users) - user) / streams,
        kernel=max(kernels) / streams,
    )


def _quiet(client: LiveNode) -> bool:
    before = client.counters()
    time.sleep(QUIET)
    return _received(client.counters(), before) < FEW


def _received(after: Mapping[str, InterfaceBytes], before: Mapping[str, InterfaceBytes]) -> int:
    return sum(after[name].received - before[name].received for name in PATHS)


def through(
    bed: Bed, cell: Cell, how: Procedure, around: Iterable[AbstractContextManager[Any]] = ()
) -> dict[str, Point]:
    """Measure all tasks of *cell* through the same proxy, while the scopes *around* are entered."""
    with ExitStack() as stack:
        for scope in around:
            stack.enter_context(scope)
        process = stack.enter_context(bed.running(cell))
        return {task: measured(bed, cell, task, how, process) for task in cell.tasks}


def crossed(ways: Sequence[Cell], chosen: Sequence[str], at: Sequence[int]) -> list[Cell]:
    """Return a cell for each of *ways* without a proxy or with a *chosen* one, and for each value in *at*."""
    there = [way for way in ways if way.proxy in (DIRECT, *chosen)]
    return [Cell(way.proxy, way.client, each, way.tasks) for each in sorted(at) for way in there]


def common(claims: Callable[[Results[Any, Any]], Sequence[Claim]], *aims: judging.Aims) -> dict[str, Any]:
    """Return the fields common to all four scenarios. Verdicts are first *aims*, then the aims of the *claims*."""

    def verdicts(found: Results[Any, Any]) -> Iterator[Aim]:
        for each in aims:
            yield from each(found)
        yield from (claim.aim for claim in claims(found))

    return {
        "parts": lambda cell: cell.tasks or ("",),
        "drawn": True,
        "lacking": lambda cell: None if cell.proxy == DIRECT else peers()[cell.proxy].lacking(),
        "verdicts": verdicts,
    }


@dataclass(frozen=True, slots=True)
class Curves(Table[Cell, Point]):
    """A figure of the paper: values over the varied parameter, with a line for each proxy, kind of client and task."""

    varied: str = ""
    unit: str = "Mbit/s"
    scale: str = "log"
    """Scale of the vertical axis."""

    def of_line(self, found: Found, side: tuple[str, str, str]) -> dict[int, list[float]]:
        """Return the values of one line by the varied parameter, in ascending order of this parameter."""
        by_at: dict[int, list[float]] = {}
        for (_, at), value in sorted(values(found, side).items()):
            # Compute requests per second from bytes, because few large files are completed in a short time.
            by_at.setdefault(at, []).append(value / (8 * at) if self.unit == "requests/s" else value / 1e6)
        return dict(sorted(by_at.items()))

    def cells(self, found: Found) -> list[Cell]:
        return [cell for cell in found.cells if cell.tasks[0] != "busy"]

    def sizes(self, found: Found) -> list[int]:
        return sorted({cell.at for cell in self.cells(found)})

    def lines(self, found: Found) -> list[tuple[str, str, str]]:
        sides = ((cell.proxy, cell.client, task) for cell in self.cells(found) for task in cell.tasks)
        return list(dict.fromkeys(sides))

    def shown(self, results: Found) -> RichTable:
        sizes = self.sizes(results)
        head = ("proxy", "client", "what", *(f"{at:,}" for at in sizes))
        table = new_table(self.title, head, head[:3])
        for side in self.lines(results):
            there = self.of_line(results, side)
            table.add_row(*side, *(spread(there.get(at, []), 1) for at in sizes))
        return table

    def draw(self, found: Found, axes: Any) -> None:
        """Draw the median of each line's values over the varied parameter."""
        sizes = self.sizes(found)
        for proxy, client, task in self.lines(found):
            if line := self.of_line(found, (proxy, client, task)):
                dotted = style.DOTTED if task == "get" and proxy == OURS else "-"
                dashed = style.DASHED if client == "tcp" else dotted
                label = _label(proxy, client) + (f", {task}" if proxy == OURS else "")
                medians = [median(each) for each in line.values()]
                axes.plot(
                    list(line), medians, color=COLORS[proxy], linestyle=dashed, marker="o", markersize=4, label=label
                )
        axes.set_xscale("log")
        axes.set_yscale(self.scale)
        style.dress(axes, f"{self.varied}, bytes", self.unit)
        axes.set_xticks(sizes, [f"{at:,}" for at in sizes], minor=False)
        axes.minorticks_off()


COLORS = {"direct": style.INK, "ours": style.ETHERNET.color, "haproxy": style.WIFI.color, "splice": style.THIRD,
          "squid": style.FOURTH}  # fmt: skip


def _label(proxy: str, client: str) -> str:
    return f"{'no proxy' if proxy == DIRECT else proxy}, {client}"


def picture(
    name: str, title: str, subtitle: str, *panels: Callable[[Found, Any], None]
) -> Callable[[Found], list[Picture]]:
    """Return a function that returns the picture of an experiment, with *panels* side by side."""

    def pictures(found: Found) -> list[Picture]:
        def draw(target: Path) -> None:
            drawn(target, title, subtitle, [partial(panel, found) for panel in panels])

        return [Picture(name, draw)] if found.runs else []

    return pictures


@dataclass(frozen=True, slots=True)
class GoodputSettings:
    mtu: tuple[int, ...] = parameter("MTUs of all links", "296,576,1000,1500,4000,9000", SIZES, quick="576,9000")
    proxies: tuple[str, ...] = parameter("beside no proxy", "ours,splice,haproxy", words(OURS, LIMIT, "haproxy"))
    runs: int = parameter("rounds", str(FEWEST), whole(), quick="1")
    seconds: float = parameter("for which each is measured", "1.5", number(), quick="0.5")


GOODPUT_WAYS = (
    Cell(DIRECT, "tcp", tasks=("get",)),
    Cell(DIRECT, "mptcp2", tasks=("get",)),
    Cell(OURS, "mptcp2", tasks=("connect", "get")),
    Cell(LIMIT, "mptcp2", tasks=("get",)),
    Cell("haproxy", "mptcp2", tasks=("get",)),
)
GOODPUT_CURVES = Curves("Figures: Mbit/s, by mtu in bytes", (), varied="mtu")
GOODPUT = Scenario(
    settings=GoodputSettings,
    needs=NEEDS,
    cells=lambda chosen: crossed(GOODPUT_WAYS, chosen.proxies, chosen.mtu),
    bed=lambda chosen, cells, seed: built(seed, {LARGE: 50_000_000}, chosen.seconds),
    measure=lambda bed, turn: through(
        bed, turn.cell, Procedure(), (mtu(bed.testbed[node], device, turn.cell.at) for node, device in DEVICES)
    ),
    tables=(Claims("MiMBox's Figure 4: goodput against the MSS", (), claims=judging.goodput_claims), GOODPUT_CURVES),
    together=lambda cell: "mimbox",
    **common(judging.goodput_claims, judging.sound, judging.goodput_aims),
    pictures=picture(
        "mimbox-goodput", "Goodput against the MTU", "one download; Multipath TCP over two paths unless it says tcp",
        GOODPUT_CURVES.draw,
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class HttpSettings:
    size: tuple[int, ...] = parameter("bytes of the file", "1000,10000,100000,1000000", SIZES, quick="1000,100000")
    proxies: tuple[str, ...] = parameter("beside no proxy", "ours,haproxy,squid", words(OURS, "haproxy", "squid"))
    runs: int = parameter("rounds", str(FEWEST), whole(), quick="1")
    seconds: float = parameter("for which each is measured", "2", number(), quick="0.5")


HTTP_CLIENTS = 40
HTTP_WAYS = tuple(
    Cell(proxy, client, tasks=("each",))
    for proxy, client in (
        (DIRECT, "tcp"), (DIRECT, "mptcp1"), (OURS, "mptcp1"), (OURS, "tcp"), ("haproxy", "mptcp1"), ("squid", "tcp"),
    )
)  # fmt: skip
HTTP_CURVES = Curves("Figures: requests/s, by size in bytes", (), varied="size", unit="requests/s")


def draw_times(found: Found, axes: Any) -> None:
    """Draw the distribution of the completion times of the smallest file: each percentile's median over the rounds."""
    size = min(cell.at for cell in found.cells)
    for cell in found.cells:
        if cell.at == size and (there := found.of(cell, "", "each")):
            times = [median([each.spread[index] for each in there]) * 1e3 for index in range(len(PERCENTS))]
            dashed = style.DASHED if cell.client == "tcp" else "-"
            axes.plot(
                times, PERCENTS, color=COLORS[cell.proxy], linestyle=dashed, label=_label(cell.proxy, cell.client)
            )
    axes.set_xscale("log")
    style.dress(axes, f"completion time of {size:,} bytes, ms", "percent")


HTTP = Scenario(
    settings=HttpSettings,
    needs=NEEDS,
    cells=lambda chosen: crossed(HTTP_WAYS, chosen.proxies, chosen.size),
    bed=lambda chosen, cells, seed: built(seed, {str(size): size for size in chosen.size}, chosen.seconds),
    measure=lambda bed, turn: through(bed, turn.cell, Procedure(str(turn.cell.at), HTTP_CLIENTS, close=True)),
    tables=(
        Claims("MiMBox's Figure 5: requests on connections of their own", (), claims=judging.http_claims),
        HTTP_CURVES,
    ),
    together=lambda cell: "mimbox",
    **common(judging.http_claims, judging.sound),
    pictures=picture(
        "mimbox-http", "Requests a second, and completion times",
        f"{HTTP_CLIENTS} clients, each request on a connection of its own, closed after the answer",
        HTTP_CURVES.draw, draw_times,
    ),
)  # fmt: skip

ADSL = EmulatedPath("adsl", Direction(8_000_000, 10_000), Direction(512_000, 10_000))
MOBILE = EmulatedPath("3g", Direction(2_000_000, 40_000), Direction(256_000, 40_000))
ORIGIN_RATE = 100
"""Rate of the origin's link in Mbit/s."""
BUSY = 20
"""Number of simultaneous downloads while memory is measured."""


@dataclass(frozen=True, slots=True)
class MemorySettings:
    buffer: tuple[int, ...] = parameter(
        "what each socket may have at the most", "25000,50000,100000,200000,400000,1000000", SIZES,
        quick="25000,200000,1000000",
    )  # fmt: skip
    proxies: tuple[str, ...] = parameter("beside no proxy", OURS, words(OURS))
    runs: int = parameter("rounds", str(FEWEST), whole(), quick="1")
    seconds: float = parameter("for which each is measured", "5", number(), quick="2")


MEMORY_WAYS = (Cell(DIRECT, "mptcp2", tasks=("get",)), Cell(OURS, "mptcp2", tasks=("connect", "get")))
BUSY_CELL = Cell(OURS, "mptcp2", EACH, ("busy",))
"""The cell whose connections are measured for memory."""
MEMORY_CURVES = Curves("Figures: Mbit/s, by buffer in bytes", (), varied="buffer", scale="linear")


@contextmanager
def built_for_memory(chosen: MemorySettings, cells: Sequence[Cell], seed: int) -> Iterator[Bed]:
    with built(seed, {LARGE: 50_000_000}, chosen.seconds, (ADSL, MOBILE)) as bed, slow_origin(bed.testbed, ORIGIN_RATE):
        yield bed


def measure_memory(bed: Bed, turn: Turn[Cell]) -> dict[str, Point]:
    cell = turn.cell
    node = bed.testbed["origin" if cell.proxy == DIRECT else "proxy"]
    defaults = {"tcp_rmem": cell.at, "tcp_wmem": min(cell.at, 16_384)}
    limits = (node.sysctl(f"net.ipv4.{key}", f"4096 {default} {cell.at}") for key, default in defaults.items())
    streams = BUSY if cell == BUSY_CELL else 1
    return through(bed, cell, Procedure(streams=streams, memory=True, warm=2.0), limits)


def _kilobytes(name: str) -> Column[Cell, Point]:
    return Column(name, name, text=lambda row: mean(row.values(name), 1e-3, 0))


MEMORY = Scenario(
    settings=MemorySettings,
    needs=NEEDS,
    cells=lambda chosen: [*crossed(MEMORY_WAYS, chosen.proxies, chosen.buffer), BUSY_CELL],
    bed=built_for_memory,
    measure=measure_memory,
    tables=(
        Claims("MiMBox's Figure 6: goodput against buffers, and memory", (), claims=judging.memory_claims),
        MEMORY_CURVES,
        Table(
            "Memory of a connection, kB", (_kilobytes("user"), _kilobytes("kernel")),
            (("", lambda row: f"busy tunnel, {row.cell.client}"),), of=lambda row: row.part == "busy",
        ),
    ),
    together=lambda cell: "mimbox",
    **common(judging.memory_claims, judging.sound, judging.memory_aims),
    pictures=picture(
        "mimbox-memory", "Goodput against what a socket may buffer",
        "ADSL of 8 and 3G of 2 Mbit/s; the sender's tcp_rmem and tcp_wmem are limited", MEMORY_CURVES.draw,
    ),
)  # fmt: skip

REQUESTS = Workload("delay", 100, 1000)
FILE = f"{REQUESTS.down}.bin"
DELAY_CELLS = (ROUTER, Cell(LIMIT, "mptcp2"), Cell(OURS, "mptcp2"), Cell(OURS, "tcp"))


@dataclass(frozen=True, slots=True)
class DelaySettings:
    runs: int = parameter("rounds", str(FEWEST), whole(), quick="1")


def measure_delays(bed: Bed, turn: Turn[Cell]) -> Delays:
    """Measure the delays of a cell. Raises TestbedError if its connections had the wrong protocol."""
    cell = turn.cell
    if cell.proxy != DIRECT:
        lab = lab_of(bed.testbed)
        with bed.running(cell, "server_persistent_connections off\n"):
            url = f"http://{lab.proxy.service_address()}:{PROXY_PORT}"
            there = measure_exchanges(lab, url, bed.web, REQUESTS, multipath=cell.client != "tcp").exchanges
        return Delays(
            len(there), median([e.syn_whole for e in there]), median([e.answer for e in there]),
            median([value for e in there for value in e.down]), fmean(e.subflows for e in there),
        )  # fmt: skip
    url = f"http://{bed.origin}:{MULTIPATH_PORT}/{FILE}?[1-{REQUESTS.requests}]"
    devices = ("to-eth0", "to-wlan0", "to-origin")
    with captured(bed.testbed["core"], devices, f"tcp port {MULTIPATH_PORT}") as packets:
        send(bed.testbed["client"], url, REQUESTS, multipath=True)
    return routed(packets)


def routed(packets: Sequence[Packet]) -> Delays:
    """Return the delays of *packets*, captured on both sides of the router. Raises TestbedError for plain TCP."""
    leg = Leg(MULTIPATH_PORT)
    follow(packets, leg)
    plain = [each for each in leg.connections if not each.multipath]
    if plain:
        raise TestbedError(f"{len(plain)} of {len(leg.connections)} connections through the router were plain TCP")
    passed = passages(packets)
    syn = [seconds for packet, seconds in passed if packet.flags & (SYN | ACK) == SYN]
    answer = [seconds for packet, seconds in passed if packet.flags & (SYN | ACK) == SYN | ACK]
    data = [seconds for packet, seconds in passed if packet.length and packet.source_port == MULTIPATH_PORT]
    if not (syn and answer and data):
        raise TestbedError(f"{len(syn)} SYNs, {len(answer)} SYN+ACKs and {len(data)} segments were routed")
    subflows = fmean(each.subflows for each in leg.connections)
    return Delays(len(leg.connections), median(syn), median(answer), median(data), subflows)


def _micro(heading: str, name: str) -> Column[Cell, Delays]:
    return Column(heading, name, text=lambda row: spread([1e6 * value for value in row.values(name)], 1))


DELAY: Scenario[DelaySettings, Cell, Bed, Delays] = Scenario(
    settings=DelaySettings,
    needs=(*NEEDS, "curl", "tcpdump"),
    cells=lambda chosen: DELAY_CELLS,
    bed=lambda chosen, cells, seed: built(seed, {FILE: REQUESTS.down}, 0.0),
    measure=measure_delays,
    tables=(
        Claims("MiMBox's Table 1: delay of a segment", (), claims=judging.delay_claims),
        Table(
            "Delays: µs, median of the rounds' medians",
            (_micro("SYN", "syn"), _micro("SYN+ACK", "answer"), _micro("data", "data")),
            (
                ("", lambda row: "router" if row.cell.proxy == DIRECT else row.cell.proxy),
                ("client", lambda row: row.cell.client),
            ),
        ),
    ),
    together=lambda cell: "mimbox",
    **common(judging.delay_claims, judging.delay_aims),
)
