# SPDX-License-Identifier: GPL-2.0-or-later
"""The settings that the experiment ``relay`` can vary: proxies, their clients, tasks, environment. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from .options import OptionError, choice, count, positive

DIRECT, OURS, KEEPING, REBUILT, LIMIT = "direct", "ours", "ours-keep", "ours-rebuilt", "splice"
OWN = (OURS, KEEPING, REBUILT)
OTHERS = ("squid", "haproxy", "nginx", "traffic-server", "apache")
"""Proxies of other projects, with which ours is compared."""
PROXIES = (DIRECT, *OWN, *OTHERS, LIMIT)
CLIENTS = {"tcp": 0, "mptcp1": 1, "mptcp2": 2}
"""Number of MPTCP subflows per connection, by kind of client."""
BULK = ("get", "connect")
HELD = ("idle-get", "idle-connect", "busy")
TASKS = (*BULK, "requests", "latency", *HELD)
IN_OTHER = (*BULK, "requests")
OFFLOADS, FAMILIES, WORKERS = ("off", "on"), ("4", "6"), ("one", "all")
PROCESSORS, LINKS = ("shared", "apart"), ("fast", "slow")
SLOW = (200_000_000, 100_000_000)
"""Rates of both paths in bits/s, for settings in which the paths are the bottleneck, not the machine."""

RUNS, QUICK_RUNS = 5, 2
SECONDS, QUICK_SECONDS = 2.0, 0.5
HOLD, QUICK_HOLD = 700, 100
"""Number of idle connections to hold. The shipped squid.conf allows one client address more than that."""
BUSY = 50
STREAMS, KEPT = 4, 40
"""Number of connections of bulk transfers, and of small requests."""

OPTIONS = {
    "proxies": f"which of {', '.join(PROXIES)}, default all that are installed",
    "clients": f"which of {', '.join(CLIENTS)} (subflows), default all",
    "tasks": f"which of {', '.join(TASKS)}, default all; in other settings than the first {', '.join(IN_OTHER)}",
    "offloads": "off, on or both: segmentation and receive offloads of the links",
    "family": "4, 6 or both: IPv4, IPv6",
    "workers": "one, all or both: workers, or threads, of each proxy; all: one for each processor",
    "processors": "shared, apart or both; apart: the proxy has one to itself (workers=one), which receives its packets "
    "and no others",
    "links": f"fast, slow or both; slow: the clients' two paths have {SLOW[0] // 10**6} and {SLOW[1] // 10**6} Mbit/s",
    "runs": f"rounds, default {RUNS}",
    "seconds": f"for which a transfer is measured, default {SECONDS:g}",
    "hold": f"idle connections that are held, default {HOLD}",
}


@dataclass(frozen=True, slots=True)
class Setting:
    """The environment in which a whole run is measured."""

    offloads: bool = False
    family: int = 4
    workers: str = "one"
    apart: bool = False
    """Whether the proxy has its own processor (``own_processor``)."""
    slow: bool = False
    """Whether the clients' links are the bottleneck (``SLOW``)."""

    def __str__(self) -> str:
        offloads = "on" if self.offloads else "off"
        workers = "one worker" if self.workers == "one" else "a worker for each processor"
        more = ", its own processor" * self.apart + ", slow links" * self.slow
        return f"offloads {offloads}, IPv{self.family}, {workers}{more}"

    @property
    def rates(self) -> tuple[int | None, int | None]:
        """Rates of the clients' paths in bits/s; None if only the machine limits them."""
        return SLOW if self.slow else (None, None)


BASE = Setting()
SETTINGS = (
    BASE,
    Setting(offloads=True),
    Setting(family=6),
    Setting(workers="all"),
    Setting(apart=True),
    Setting(apart=True, slow=True),
)
"""The settings that are measured by default."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A proxy and the kind of its clients."""

    proxy: str
    client: str

    def __str__(self) -> str:
        return f"{self.proxy}, {self.client}"


@dataclass(frozen=True, slots=True)
class Plan:
    """The measurements that the options choose."""

    settings: tuple[Setting, ...]
    proxies: tuple[str, ...]
    clients: tuple[str, ...]
    tasks: tuple[str, ...] | None
    """The chosen tasks; None for the default tasks of each setting."""
    runs: int
    seconds: float
    hold: int

    def tasks_of(self, setting: Setting) -> tuple[str, ...]:
        if self.tasks is not None:
            return self.tasks
        return TASKS if setting == BASE else IN_OTHER


def plan_of(options: Mapping[str, str], quick: bool) -> Plan:
    """Return the plan that *options* choose. Raises OptionError for an invalid option."""
    varied = {"offloads": OFFLOADS, "family": FAMILIES, "workers": WORKERS, "processors": PROCESSORS, "links": LINKS}
    settings: Sequence[Setting] = (BASE,) if quick else SETTINGS
    if set(options) & set(varied):
        chosen = (choice(options, name, known, known[:1]) for name, known in varied.items())
        settings = [Setting(o == "on", int(f), w, p == "apart", s == "slow") for o, f, w, p, s in product(*chosen)]
        # With its own processor, a proxy has one worker, so that a worker per processor is not possible.
        settings = [each for each in settings if each.workers == "one" or not each.apart]
        if not settings:
            raise OptionError("--set processors=apart: the proxy has one processor then; take workers=one")
    proxies = choice(options, "proxies", PROXIES)
    tasks = None
    if "tasks" in options:
        wanted = choice(options, "tasks", TASKS)
        # The latency task needs the rate of the requests task, because it runs at half of it.
        wanted += ["requests"] if "latency" in wanted else []
        tasks = tuple(task for task in TASKS if task in wanted)
    return Plan(
        tuple(settings),
        # Always include the reference, which is no proxy.
        tuple(proxies) if DIRECT in proxies else (DIRECT, *proxies),
        tuple(choice(options, "clients", CLIENTS)),
        tasks,
        count(options, "runs", QUICK_RUNS if quick else RUNS),
        positive(options, "seconds", QUICK_SECONDS if quick else SECONDS),
        count(options, "hold", QUICK_HOLD if quick else HOLD),
    )


def cells(plan: Plan, multipath: Mapping[str, bool]) -> list[Cell]:
    """Return the cells to measure. *multipath* says of each installed proxy whether MPTCP clients can use it."""
    return [
        Cell(proxy, client)
        for proxy, client in product(plan.proxies, plan.clients if "tcp" in plan.clients else ("tcp", *plan.clients))
        if proxy in multipath and (client == "tcp" or multipath[proxy]) and (client in plan.clients or proxy == DIRECT)
    ]


def applies(task: str, tunnels: bool) -> bool:
    """Return whether a proxy with or without CONNECT support can do *task*."""
    return tunnels or "connect" not in task
