# SPDX-License-Identifier: GPL-2.0-or-later
"""Section 4 of "Multipath in the Middle(Box)" with our proxy, which is compared with a router and other proxies.

In the paper's baseline, a router connects the clients to a server that accepts MPTCP. With a proxy, the server uses
plain TCP. The host that accepts connections counts those with MPTCP; a measurement with the wrong protocol fails.

- ``mimbox-goodput``, Figure 4: one download over both paths, on links whose MTU is varied.
- ``mimbox-http``, Figure 5: 40 clients request a file of varied size, each time on a new connection with one subflow,
  because most of these end before a second one could join. The completion time is from connect(2) to the last byte.
- ``mimbox-memory``, Figure 6 and section 4.4: a client with ADSL and 3G downloads from an origin with 100 Mbit/s, while
  the sender's tcp_rmem and tcp_wmem are limited. The sender is the proxy or, without a proxy, the origin. Memory is
  measured during 20 simultaneous slow downloads.
- ``mimbox-delay``, Table 1: tcpdump records requests, each on its own connection, on both sides of the router or the
  proxy. An answer of 1000 bytes is one data segment, so its delay is that of forwarding. The delay of the SYN includes
  the client's handshake and, with our proxy, the arrival of its request.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, make_dataclass, replace
from functools import partial
from typing import Any

from rich.table import Table as RichTable

from mptcp_lab.emulation.model import Direction, EmulatedPath
from mptcp_lab.testbed import Testbed, TestbedError, lab_of, paths
from mptcp_lab.testbed.services import PROXY_PORT, start_origin

from .. import style
from ..statistics import fmean, median
from ..wire.capture import ACK, SYN, Packet, capture_segments
from ..wire.streams import Leg, follow, forwarded_packets
from ..wire.workload import Workload, measure, send
from . import mimbox_judging as judging
from .claims import FEWEST
from .columns import Column, Table, Turn
from .devices import DEVICES
from .findings import Aim, Picture
from .mimbox_judging import PAPER_BUFFER, PERCENTS, ROUTER, Delays, MimboxResults, Point
from .parameters import number, parameter, several, whole, words
from .peers import peers
from .relay_bed import LARGE, MULTIPATH_PORT, WARM_UP_SECONDS, Bed
from .relay_judging import DIRECT, LIMIT, OURS, Cell, spread
from .relay_load import buffers, latencies, user_memory
from .scenario import Scenario
from .tables import new_table
from .two_paths import slow_origin

NEEDS = ("root", "mptcp", "mptcp-pm", "apache2", "squid", "ss", "ethtool", "gcc", "mptcpize")
END_SECONDS = 1.0
"""Seconds in which the last data of a transfer reach the client."""


@contextmanager
def mimbox_bed(
    seed: int, files: Mapping[str, int], seconds: float, client_paths: Sequence[EmulatedPath | None] = (None, None)
) -> Iterator[Bed]:
    """Yield a bed with *client_paths*, in which a server with MPTCP and one with plain TCP serve *files*."""
    with Testbed(paths(client_paths, name="mimbox"), seed=seed) as testbed:
        start_origin(testbed["origin"], files, ports=(MULTIPATH_PORT,), multipath=True)
        for name in ("client", "proxy"):
            # Closed connections keep their ports in TIME-WAIT.
            for key, value in (("ip_local_port_range", "1024 65535"), ("tcp_tw_reuse", "1")):
                testbed.scope.enter_context(testbed[name].sysctl(f"net.ipv4.{key}", value))
        yield Bed.on(testbed, seconds, files)


def measure_cell(
    bed: Bed,
    cell: Cell,
    file: str = LARGE,
    *,
    connections: int = 1,
    close: bool = False,
    warm_up: float = WARM_UP_SECONDS,
    scopes: Iterable[AbstractContextManager[Any]] = (),
) -> dict[str, Point]:
    """Measure all tasks of *cell* through the same proxy for the bed's seconds, within the context managers *scopes*.

    With *close*, each request has its own connection. Raises TestbedError if connections lack *cell*'s protocol.
    """
    client, is_busy = bed.testbed["client"], cell == BUSY_CELL

    def measure_task(task: str) -> Point:
        user, kernel = (user_memory(process.pid) if is_busy and process else 0), 0
        with bed.clients(cell, task, connections, file, requests=1 if close else -1, close=close) as (load, check):
            time.sleep(warm_up)
            start, load_before, bytes_before = time.monotonic(), load.read(), client.counters()
            time.sleep(bed.seconds)
            seconds, load_after, bytes_after = time.monotonic() - start, load.read(), client.counters()
            if is_busy and process:
                kernel = buffers(bed.testbed["proxy"].run(["ss", "-tMmH"]).stdout)
                user = user_memory(process.pid) - user
            # With *close*, the last connection may not be established yet.
            check(min(load_after.opened, load_after.answers) if close else load_after.opened)
        # The server may still send data after the clients have stopped, which the next measurement would count.
        time.sleep(END_SECONDS)
        received = [bytes_after[device].received - bytes_before[device].received for device in DEVICES]
        return Point(
            goodput=(load_after.octets - load_before.octets) * 8 / seconds,
            failures=load_after.failures,
            second_path_share=received[1] / max(1, sum(received)),
            completion_times=latencies(load_after.latency, PERCENTS) if close else (),
            user=max(0, user) / connections,
            kernel=kernel / connections,
        )

    with ExitStack() as stack:
        for scope in scopes:
            stack.enter_context(scope)
        process = stack.enter_context(bed.running(cell))
        return {task: measure_task(task) for task in cell.tasks}


def lacking(cell: Cell) -> str | None:
    return None if cell.proxy == DIRECT else peers()[cell.proxy].lacking()


COLORS = {
    "direct": style.INK, "ours": style.ETHERNET.color, "haproxy": style.WIFI.color, "splice": style.THIRD,
    "squid": style.FOURTH,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Curves(Table[Cell, Point]):
    """A figure of the paper: values over the varied parameter, with a line for each proxy, kind of client and task."""

    varied: str = ""
    """Name of the parameter, which is also an option. Its unit is bytes."""
    unit: str = "Mbit/s"
    scale: str = "log"
    """Scale of the vertical axis."""

    def lines(self, results: MimboxResults) -> dict[tuple[str, str, str], dict[int, list[float]]]:
        """Return the values of each line by the varied parameter, in ascending order of this parameter."""
        lines: dict[tuple[str, str, str], dict[int, list[float]]] = {}
        for cell in sorted(results.cells, key=lambda cell: cell.at):
            for task in cell.tasks if cell != BUSY_CELL else ():
                # In a short time, few large files are completed. So requests per second are computed from bytes.
                unit = 8 * cell.at if self.unit == "requests/s" else 1e6
                measured = [point.goodput / unit for point in results.of(cell, "", task)]
                lines.setdefault((cell.proxy, cell.client, task), {})[cell.at] = measured
        return lines

    def render(self, results: MimboxResults) -> RichTable:
        labels, lines = ("proxy", "client", "task"), self.lines(results)
        values = list(dict.fromkeys(at for line in lines.values() for at in line))
        table = new_table(self.title, (*labels, *(f"{at:,}" for at in values)), labels)
        for names, line in lines.items():
            table.add_row(*names, *(spread(line.get(at, []), 1) for at in values))
        return table

    def draw(self, results: MimboxResults, axes: Any) -> None:
        """Draw the median of each line's values over the varied parameter."""
        lines = self.lines(results)
        for (proxy, client, task), line in lines.items():
            if medians := {at: median(measured) for at, measured in line.items() if measured}:
                line_format = _line_format(proxy, client, task)
                axes.plot(list(medians), list(medians.values()), marker="o", markersize=4, **line_format)
        axes.set_xscale("log")
        axes.set_yscale(self.scale)
        style.label_axes(axes, f"{self.varied}, bytes", self.unit)
        values = list(dict.fromkeys(at for line in lines.values() for at in line))
        axes.set_xticks(values, [f"{at:,}" for at in values], minor=False)
        axes.minorticks_off()


def _line_format(proxy: str, client: str, task: str = "") -> dict[str, Any]:
    """Return label, colour and style of a line. Only our proxy has several tasks, which its labels name."""
    label = ", ".join(filter(None, ("no proxy" if proxy == DIRECT else proxy, client, task if proxy == OURS else "")))
    dashes = style.DASHED if client == "tcp" else style.DOTTED if (proxy, task) == (OURS, "get") else "-"
    return {"label": label, "color": COLORS[proxy], "linestyle": dashes}


def paper_figure(
    name: str,
    titles: tuple[str, str],
    curves: Curves,
    compared: Sequence[Cell],
    *,
    varied: tuple[str, str, str],
    seconds: tuple[str, str],
    bed: Callable[[Any, int], AbstractContextManager[Bed]],
    measure: Callable[[Bed, Turn[Cell]], dict[str, Point]],
    verdicts: Callable[[MimboxResults], Iterator[Aim]],
    busy: Sequence[Cell] = (),
    tables: Sequence[Table[Cell, Point]] = (),
    panels: Sequence[Callable[[MimboxResults, Any], None]] = (),
) -> Scenario[Any, Cell, Bed, Point]:
    """Return the experiment that repeats a figure.

    *titles*: title and subtitle of the picture. The cells *compared* are measured with each value of the parameter, and
    the cells *busy* once. *varied*: the parameter's meaning, its values, and its values in a quick run. *seconds*:
    duration of a measurement, normally and in a quick run.
    """
    proxies = tuple(dict.fromkeys(cell.proxy for cell in compared if cell.proxy != DIRECT))
    meaning, usual, quick = varied
    options = {
        curves.varied: parameter(meaning, usual, several(whole()), quick=quick),
        "proxies": parameter("proxies to compare, in addition to none", ",".join(proxies), words(*proxies)),
        "runs": parameter("number of rounds", str(FEWEST), whole(), quick="1"),
        "seconds": parameter("duration of each measurement in seconds", seconds[0], number(), quick=seconds[1]),
    }

    def cells(chosen: Any) -> list[Cell]:
        varied = sorted(getattr(chosen, curves.varied))
        cells = [cell for cell in compared if cell.proxy in (DIRECT, *chosen.proxies)]
        return [*(replace(cell, at=at) for at in varied for cell in cells), *busy]

    def pictures(results: MimboxResults) -> list[Picture]:
        drawings = [partial(panel, results) for panel in (curves.draw, *panels)]
        draw = partial(style.draw_panels, title=titles[0], subtitle=titles[1], panels=drawings)
        return [Picture(name, draw)] if results.runs else []

    return Scenario(
        settings=make_dataclass("Settings", [(name, Any, field) for name, field in options.items()], frozen=True),
        needs=NEEDS,
        cells=cells,
        bed=lambda chosen, cells, seed: bed(chosen, seed),
        measure=measure,
        tables=(curves, *tables),
        parts=lambda cell: cell.tasks,
        shuffled=True,
        shared_bed=lambda cell: "mimbox",
        skip_reason=lacking,
        verdicts=verdicts,
        pictures=pictures,
    )


def measure_with_mtu(bed: Bed, turn: Turn[Cell]) -> dict[str, Point]:
    ends = [end for link in bed.testbed.topology.links for end in (link.a, link.b)]
    scopes = (bed.testbed[end.node].set_mtu(end.device, turn.cell.at) for end in ends)
    return measure_cell(bed, turn.cell, scopes=scopes)


GOODPUT = paper_figure(
    "mimbox-goodput",
    ("Goodput against the MTU",
     "one download; Multipath TCP over two paths, except where labelled tcp"),
    Curves("Figures: Mbit/s, by mtu in bytes", (), varied="mtu"),
    (
        Cell(DIRECT, "tcp", tasks=("get",)),
        Cell(DIRECT, "mptcp2", tasks=("get",)),
        Cell(OURS, "mptcp2", tasks=("connect", "get")),
        Cell(LIMIT, "mptcp2", tasks=("get",)),
        Cell("haproxy", "mptcp2", tasks=("get",)),
    ),
    varied=("MTUs of all links, bytes", "296,576,1000,1500,4000,9000", "576,9000"),
    seconds=("1.5", "0.5"),
    bed=lambda chosen, seed: mimbox_bed(seed, {LARGE: 50_000_000}, chosen.seconds),
    measure=measure_with_mtu,
    verdicts=judging.goodput_verdicts,
)  # fmt: skip

HTTP_CLIENTS = 40


def draw_times(results: MimboxResults, axes: Any) -> None:
    """Draw the distribution of the completion times of the smallest file: each percentile's median over the rounds."""
    size = min(cell.at for cell in results.cells)
    for cell in results.cells:
        if cell.at == size and (points := results.of(cell, "", "each")):
            times = [1e3 * median(values) for values in zip(*(point.completion_times for point in points), strict=True)]
            axes.plot(times, PERCENTS, **_line_format(cell.proxy, cell.client))
    axes.set_xscale("log")
    style.label_axes(axes, f"completion time of {size:,} bytes, ms", "percent")


HTTP = paper_figure(
    "mimbox-http",
    ("Requests per second, and completion times",
     f"{HTTP_CLIENTS} clients, each request on its own connection, closed after the answer"),
    Curves("Figures: requests/s, by size in bytes", (), varied="size", unit="requests/s"),
    [
        Cell(proxy, client, tasks=("each",))
        for proxy, client in (
            (DIRECT, "tcp"), (DIRECT, "mptcp1"), (OURS, "mptcp1"), (OURS, "tcp"), ("haproxy", "mptcp1"),
            ("squid", "tcp"),
        )
    ],
    varied=("sizes of the file, bytes", "1000,10000,100000,1000000", "1000,100000"),
    seconds=("2", "0.5"),
    bed=lambda chosen, seed: mimbox_bed(seed, {str(size): size for size in chosen.size}, chosen.seconds),
    measure=lambda bed, turn: measure_cell(bed, turn.cell, str(turn.cell.at), connections=HTTP_CLIENTS, close=True),
    verdicts=judging.http_verdicts,
    panels=(draw_times,),
)  # fmt: skip

ADSL = EmulatedPath("adsl", Direction(8_000_000, 10_000), Direction(512_000, 10_000))
MOBILE = EmulatedPath("3g", Direction(2_000_000, 40_000), Direction(256_000, 40_000))
ORIGIN_RATE = 100
"""Rate of the origin's link in Mbit/s."""
BUSY_CONNECTIONS = 20
BUSY_CELL = Cell(OURS, "mptcp2", tasks=("busy",), at=PAPER_BUFFER)
"""The cell in which memory is measured, during the above number of simultaneous downloads."""


@contextmanager
def memory_bed(chosen: Any, seed: int) -> Iterator[Bed]:
    files = {LARGE: 50_000_000}
    with mimbox_bed(seed, files, chosen.seconds, (ADSL, MOBILE)) as bed, slow_origin(bed.testbed, ORIGIN_RATE):
        yield bed


def measure_memory(bed: Bed, turn: Turn[Cell]) -> dict[str, Point]:
    cell = turn.cell
    node = bed.testbed["origin" if cell.proxy == DIRECT else "proxy"]
    defaults = {"tcp_rmem": cell.at, "tcp_wmem": min(cell.at, 16_384)}
    limits = (node.sysctl(f"net.ipv4.{key}", f"4096 {default} {cell.at}") for key, default in defaults.items())
    connections = BUSY_CONNECTIONS if cell == BUSY_CELL else 1
    return measure_cell(bed, cell, connections=connections, warm_up=2.0, scopes=limits)


MEMORY = paper_figure(
    "mimbox-memory",
    ("Goodput against the socket buffer",
     "ADSL 8 Mbit/s, 3G 2 Mbit/s; the sender's tcp_rmem and tcp_wmem are limited"),
    Curves("Figures: Mbit/s, by buffer in bytes", (), varied="buffer", scale="linear"),
    (Cell(DIRECT, "mptcp2", tasks=("get",)), Cell(OURS, "mptcp2", tasks=("connect", "get"))),
    busy=(BUSY_CELL,),
    varied=("maximum buffers of a socket, bytes", "25000,50000,100000,200000,400000,1000000", "25000,200000,1000000"),
    seconds=("5", "2"),
    bed=memory_bed,
    measure=measure_memory,
    verdicts=judging.memory_verdicts,
    tables=(
        Table(
            "Memory of a connection, kB", [Column(name, name, scale=1e-3, digits=0) for name in ("user", "kernel")],
            (("", lambda row: f"busy tunnel, {row.cell.client}"),), of=lambda row: row.part == "busy",
        ),
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class DelaySettings:
    runs: int = parameter("number of rounds", str(FEWEST), whole(), quick="1")


REQUESTS = Workload(100, 1000)
FILE = f"{REQUESTS.down}.bin"
MIN_SUBFLOWS = 1.5
"""Minimum mean number of subflows per connection; below 2, because short connections can end before the join."""
DELAY_CELLS = (ROUTER, Cell(LIMIT, "mptcp2"), Cell(OURS, "mptcp2"), Cell(OURS, "tcp"))


def measure_delays(bed: Bed, turn: Turn[Cell]) -> Delays:
    """Measure the delays of a cell. Raises TestbedError if its connections had the wrong protocol."""
    cell = turn.cell
    if cell.proxy != DIRECT:
        lab = lab_of(bed.testbed)
        with bed.running(cell, "server_persistent_connections off\n"):
            url = f"http://{lab.proxy.service_address()}:{PROXY_PORT}"
            exchanges, _ = measure(lab, url, bed.web, REQUESTS, multipath=cell.client != "tcp")
        if fmean(each.subflows for each in exchanges) < (MIN_SUBFLOWS if cell.client == "mptcp2" else 1):
            raise TestbedError(f"{cell}: too few subflows")
        return Delays(
            median([each.syn_after_syn for each in exchanges]),
            median([each.answer for each in exchanges]),
            median([value for each in exchanges for value in each.down]),
        )
    url = f"http://{bed.origin}:{MULTIPATH_PORT}/{FILE}?[1-{REQUESTS.requests}]"
    devices = ("to-eth0", "to-wlan0", "to-origin")
    with capture_segments(bed.testbed["core"], devices, f"tcp port {MULTIPATH_PORT}") as packets:
        send(bed.testbed["client"], url, REQUESTS, multipath=True)
    return router_delays(packets)


def router_delays(packets: Sequence[Packet]) -> Delays:
    """Return the delays of *packets*, captured on both sides of the router. Raises TestbedError for plain TCP."""
    leg = Leg(MULTIPATH_PORT)
    follow(packets, leg)
    multipath = sum(each.multipath for each in leg.connections)
    if multipath < max(REQUESTS.requests, len(leg.connections)):
        raise TestbedError(f"{multipath} of {REQUESTS.requests} connections through the router were Multipath TCP")
    forwarded = forwarded_packets(packets)
    syn, answer = (
        [seconds for packet, seconds in forwarded if packet.flags & (SYN | ACK) == flags] for flags in (SYN, SYN | ACK)
    )
    data = [seconds for packet, seconds in forwarded if packet.length and packet.source_port == MULTIPATH_PORT]
    # The median of no values raises ValueError.
    return Delays(median(syn), median(answer), median(data))


DELAY: Scenario[DelaySettings, Cell, Bed, Delays] = Scenario(
    settings=DelaySettings,
    needs=(*NEEDS, "curl", "tcpdump"),
    cells=lambda chosen: DELAY_CELLS,
    bed=lambda chosen, cells, seed: mimbox_bed(seed, {FILE: REQUESTS.down}, 0.0),
    measure=measure_delays,
    tables=(
        Table(
            "Delays: µs, median of the rounds' medians",
            [
                Column(heading, name, "median", scale=1e6, digits=1)
                for heading, name in (("SYN", "syn"), ("SYN+ACK", "answer"), ("data", "data"))
            ],
            (
                ("", lambda row: "router" if row.cell.proxy == DIRECT else row.cell.proxy),
                ("client", lambda row: row.cell.client),
            ),
        ),
    ),
    shuffled=True,
    shared_bed=lambda cell: "mimbox",
    skip_reason=lacking,
    verdicts=judging.delay_verdicts,
)
