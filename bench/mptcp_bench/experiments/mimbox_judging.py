# SPDX-License-Identifier: GPL-2.0-or-later
"""What Detal, Paasch and Bonaventure claim of MiMBox (HotMiddlebox 2013), and whether it holds for our proxy. Pure.

Their converter was in the kernel. Our proxy is in user space, so most of their claims can fail here. Further aims check
the measurement itself: the MTU, the protocol, the use of both paths.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from ..statistics import fmean, geometric_mean, median
from .aims import Aim
from .mimbox_points import PERCENTS, Claim, Delays, HeldMemory, Points, growth
from .relay_cells import CLIENTS, DIRECT, LIMIT, OURS, Cell
from .relay_judging import IDLE, median_or_nan, ratios

ROUTER = Cell(DIRECT, "mptcp2")
"""The paper's baseline: a router takes the converter's place, and the server accepts MPTCP."""
CLOSE = 0.8
"""Least share of the baseline's value that counts as "close to" it."""
TOTAL, EACH = 400.0, 200_000
"""KB per connection, and bytes per socket buffer, with which the paper's client had its full bandwidth."""


def _worst(values: Iterable[float]) -> float:
    return min(values, default=math.nan)


def geometric_mean_or_nan(values: list[float]) -> float:
    """Return the geometric mean; NaN, which meets no aim, if a value is not positive."""
    return geometric_mean(values) if all(value > 0 for value in values) else math.nan


def sound(points: Points, planned: Sequence[tuple[Cell, str, int]], runs: int) -> list[Aim]:
    """Return the aims that check whether *runs* rounds of all *planned* points were measured as intended."""
    counted = {key: len([p for p in points.all if (p.cell, p.task, p.at) == key]) for key in planned}
    plain = [p for p in points.all if not CLIENTS[p.cell.client]]
    multipath = [p for p in points.all if CLIENTS[p.cell.client]]
    two = [p for p in points.all if CLIENTS[p.cell.client] == 2]
    through = [p for p in points.all if p.cell.proxy != DIRECT]
    aims = [
        Aim("rounds of everything", min(counted.values(), default=0), least=runs),
        Aim("answers that were wrong or broken off", sum(p.failures for p in points.all), most=0),
        Aim(
            "connections by Multipath TCP where it was meant, share, least",
            _worst(p.multipath / p.opened if p.opened else 0.0 for p in multipath),
            least=0.99,
        ),
        Aim(
            "bytes that passed the proxy, × what the client received, least",
            _worst(p.passed for p in through),
            least=0.9,
        ),
    ]
    if plain:
        aims.append(Aim("connections by Multipath TCP where TCP was meant", sum(p.multipath for p in plain), most=0))
    if any(key[0].proxy == DIRECT for key in planned):
        most = max((p.passed for p in points.all if p.cell.proxy == DIRECT), default=math.nan)
        aims.append(Aim("bytes that passed it where there should be none, ×, most", most, most=0.1))
    if any(CLIENTS[key[0].client] == 2 for key in planned):
        aims.append(
            Aim(
                "second subflows of a connection, least",
                _worst(p.joined / p.opened if p.opened else 0.0 for p in two),
                least=1,
            )
        )
    return aims


def goodput_claims(points: Points) -> list[Claim]:
    """Return the claims of section 4.1 and Figure 4. The varied parameter is the MTU."""
    ours, router = (Cell(OURS, "mptcp2"), "connect"), (ROUTER, "get")
    peers = [(Cell(LIMIT, "mptcp2"), "get"), (Cell("haproxy", "mptcp2"), "get")]
    return [
        Claim(
            "The goodput is close to that of simple IP forwarding.",
            "goodput, × the router, mean over the MTUs",
            tuple(points.ratios(ours, router, lambda p: p.goodput, geometric_mean_or_nan).values()),
            least=CLOSE,
        ),
        Claim(
            "The converter always outperforms those in user space.",
            "goodput, × the best of the others, at the worst MTU",
            points.least_ratio(ours, peers, lambda p: p.goodput),
            least=1,
        ),
        Claim(
            "A larger MSS increases the goodput: segments are what costs.",
            "goodput with the largest MTU, × the smallest",
            growth(points.values(*ours, lambda p: p.goodput)),
            least=2,
        ),
    ]


def goodput_aims(points: Points) -> list[Aim]:
    """Return the aims that the links had the chosen MTU and that both paths carried data."""
    fill = [p.packet / (p.at + 14) for p in points.all if p.cell == Cell(DIRECT, "tcp")]
    second = [
        median([p.second for p in points.all if (p.cell, p.task) == of])
        for of in {(p.cell, p.task) for p in points.all if CLIENTS[p.cell.client] == 2}
    ]
    return [
        Aim("bytes of a packet by TCP, × what the MTU allows, least", _worst(fill), least=0.9),
        Aim("bytes of a packet by TCP, × what the MTU allows, most", max(fill, default=math.nan), most=1.01),
        Aim("share of the second path, median of each, least", _worst(second), least=0.05),
    ]


def http_claims(points: Points) -> list[Claim]:
    """Return the claims of section 4.3 and Figure 5. The varied parameter is the file's size."""
    ours, router = (Cell(OURS, "mptcp1"), "each"), (Cell(DIRECT, "mptcp1"), "each")
    peers = [(Cell("haproxy", "mptcp1"), "each"), (Cell("squid", "tcp"), "each")]
    return [
        Claim(
            "It sustains a similar number of requests as plain IP forwarding.",
            "requests/s, × the router, mean over the sizes",
            tuple(points.ratios(ours, router, lambda p: p.rate, geometric_mean_or_nan).values()),
            least=CLOSE,
        ),
        Claim(
            "It outperforms HAProxy and Squid at every size.",
            "requests/s, × the best of the others, at the worst size",
            points.least_ratio(ours, peers, lambda p: p.rate),
            least=1,
        ),
        Claim(
            "For large files the cost of new connections is negligible.",
            "requests/s of the largest file, × the router, by the same of the smallest",
            growth(points.quotients(ours, router, lambda p: p.rate)),
            least=1,
        ),
    ]


def http_aims(points: Points) -> list[Aim]:
    """Return the aim that connections were closed after each answer, and completion times relative to the router."""
    pair = (Cell(OURS, "mptcp1"), "each"), (Cell(DIRECT, "mptcp1"), "each")

    def slower(percent: int) -> float:
        number = PERCENTS.index(percent)
        return median_or_nan([*points.ratios(*pair, lambda p: p.spread[number], geometric_mean_or_nan).values()])

    return [
        Aim("connections for each answer, least", _worst(p.renewed for p in points.all), least=0.9),
        *(Aim(f"completion time, p{percent}, × the router", slower(percent)) for percent in (50, 99)),
    ]


def buffer_claims(points: Points) -> list[Claim]:
    """Return the claims of section 4.4 and Figure 6. The varied parameter is the limit of a socket's buffer."""
    ours, router = (Cell(OURS, "mptcp2"), "connect"), (ROUTER, "get")
    goodputs, plain = points.values(*ours, lambda p: p.goodput), points.values(*router, lambda p: p.goodput)
    rounds = sorted({number for number, _ in goodputs})
    sizes = sorted({at for _, at in goodputs})

    def at_size(size: int, others: dict[int, float]) -> tuple[float, ...]:
        return ratios({n: value for (n, at), value in goodputs.items() if at == size}, others)

    best = {n: max((value for (m, _), value in goodputs.items() if m == n), default=0.0) for n in rounds}
    alone = {n: max((value for (m, _), value in plain.items() if m == n), default=0.0) for n in rounds}
    held = [p.memory for p in points.all if (p.cell, p.task, p.at) == (ours[0], "busy", EACH)]
    return [
        Claim(
            "A buffer that is too small costs bandwidth (Figure 6).",
            "goodput with the smallest buffer, × the greatest",
            at_size(sizes[0], best) if len(sizes) > 1 else (),
            most=0.9,
        ),
        Claim(
            "200 KB for each socket give the client the highest performance.",
            "goodput with 200 KB, × the greatest",
            # Only a measurement with a larger buffer can show that a larger one does not help.
            at_size(EACH, best) if sizes and sizes[-1] > EACH else (),
            least=0.95,
        ),
        Claim(
            "It is what the client has without a proxy.",
            "goodput with 200 KB, × the router's greatest",
            at_size(EACH, alone),
            least=0.95,
        ),
        Claim(
            "A connection that is busy then takes 400 KB in all.",
            "user and kernel memory of a busy connection, 200 KB",
            tuple(held),
            " kB",
            most=TOTAL,
        ),
    ]


def buffer_aims(points: Points, idle: Sequence[HeldMemory]) -> list[Aim]:
    """Return the aims that the smallest buffers were filled, and for the memory of *idle* connections."""
    ours = [p for p in points.all if p.cell.proxy == OURS and p.task == "connect"]
    smallest = min((p.at for p in ours), default=0)
    filled = [p.kernel / (2 * p.at) for p in ours if p.at == smallest]
    names = list(dict.fromkeys(each.name for each in idle)) or ["idle connection"]
    return [
        Aim("most that sockets held, × what the smallest buffer allows", median_or_nan(filled), least=0.3),
        *(Aim(f"{name}, kB", median_or_nan([h.total for h in idle if h.name == name]), most=IDLE) for name in names),
    ]


def delay_claims(found: Sequence[Delays]) -> list[Claim]:
    """Return the claims of section 4.2 and Table 1. The limits are twice the paper's times: our machine is another one.

    The paper has means. We use the medians of each round, because other programs affect these less.
    """

    def of(cell: Cell, figure: Callable[[Delays], float]) -> dict[int, float]:
        return {each.round: figure(each) for each in found if each.cell == cell}

    ours, limit, router = Cell(OURS, "mptcp2"), Cell(LIMIT, "mptcp2"), ROUTER

    def micro(figure: Callable[[Delays], float]) -> tuple[float, ...]:
        return tuple(1e6 * value for value in of(ours, figure).values())

    data = of(ours, lambda d: d.data)
    return [
        Claim(
            "A SYN takes 17.5 µs (within a factor of 2).", "SYN in to SYN out", micro(lambda d: d.syn), " µs", most=35.0
        ),
        Claim(
            "A SYN+ACK takes 41.6 µs (within a factor of 2).",
            "SYN in to SYN+ACK out",
            micro(lambda d: d.answer),
            " µs",
            most=83.2,
        ),
        Claim(
            "A segment of data takes 16 µs (within a factor of 2).",
            "data in to data out",
            micro(lambda d: d.data),
            " µs",
            most=32.0,
        ),
        Claim(
            "A converter in user space delays data more.",
            "data, × the least relay in user space",
            ratios(data, of(limit, lambda d: d.data)),
            most=1,
        ),
        Claim("Data is delayed less than a SYN.", "SYN, × data", ratios(of(ours, lambda d: d.syn), data), least=1),
        Claim(
            "It delays data more than a router.",
            "data, × the router",
            ratios(data, of(router, lambda d: d.data)),
            least=1.5,
        ),
    ]


def delay_aims(found: Sequence[Delays], planned: Sequence[Cell], runs: int) -> list[Aim]:
    """Return the aims that everything was measured, with the intended number of subflows."""
    two = [
        fmean(each.subflows for each in found if each.cell == cell)
        for cell in {each.cell for each in found if CLIENTS[each.cell.client] == 2 and each.cell.proxy != DIRECT}
    ]
    least = min((len([each for each in found if each.cell == cell]) for cell in planned), default=0)
    return [
        Aim("rounds of everything", least, least=runs),
        Aim("requests of a round, least", _worst(each.requests for each in found), least=100),
        Aim("subflows of a connection, mean of each proxy, least", _worst(two), least=1.5),
    ]
