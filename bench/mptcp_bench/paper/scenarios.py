# SPDX-License-Identifier: GPL-2.0-or-later
"""The paper's figures as data: which downloads, over which paths, how often. Run by ``engine``, judged by ``claims``.

A trial is one kind of download. In each repetition, a figure's trials run in a newly drawn order, unless the figure is
about their order. Sizes are in bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .results import Kind

MB = 1_000_000


@dataclass(frozen=True, slots=True)
class Trial:
    """One kind of download. The client always requests MPTCP; the origin itself answers with plain TCP."""

    key: str
    title: str
    size: int
    quick: int
    """Size of the file with ``--quick``."""
    alone: str | None = None
    """The only path of a download directly from the origin; None for a download through the proxy over all paths."""
    receive_buffer: int | None = None
    """The client's maximum receive buffer in bytes (``tcp_rmem``); None for the kernel's default."""
    mtu: int | None = None
    """MTU of the client's interfaces; None to leave it unchanged."""
    throttled: bool = False
    """Whether the throttler enforces the cap on Ethernet."""
    fresh_throttler: bool = False
    """Whether the throttler is restarted before this download."""
    kind: Kind = "panel"
    in_quick: bool = True

    def __str__(self) -> str:
        return self.title


@dataclass(frozen=True, slots=True)
class PaperFigure:
    """One figure of the paper."""

    key: str
    figure: str
    title: str
    question: str
    """The question that the figure answers, as a line for ``mptcp-bench list``."""
    trials: tuple[Trial, ...]
    repetitions: int = 5
    quick_repetitions: int = 2
    ordered: bool = False
    """Whether the trials always run in the given order."""
    interval: float = 0.1
    """Seconds between two samples."""
    memory: bool = False
    """Whether the receive memory of MPTCP sockets is sampled."""


def _alone(path: str, name: str, size: int, quick: int) -> Trial:
    return Trial(f"tcp-{path}", f"TCP, {name} alone", size, quick, alone=path)


ETHERNET_ALONE = _alone("ethernet", "Ethernet", 90 * MB, 30 * MB)
WIFI_ALONE = _alone("wifi", "Wi-Fi", 20 * MB, 7 * MB)
BASELINES = tuple(replace(trial, kind="baseline") for trial in (ETHERNET_ALONE, WIFI_ALONE))
SMALL_BUFFER, LARGE_BUFFER = 180_000, 720_000
"""Receive buffers of Figure 4 in bytes."""
SWEPT = (60_000, 120_000, 180_000, 240_000, 360_000, 480_000, 720_000, 1_440_000, 2_880_000, 5_760_000)
QUICK_SWEPT = (60_000, 240_000, 480_000, 1_440_000)


def _sweep(size: int) -> Trial:
    title = f"buffer {size / MB:g} MB"
    return Trial(
        f"buffer-{size // 1000}",
        title,
        45 * MB,
        20 * MB,
        receive_buffer=size,
        kind="sweep",
        in_quick=size in QUICK_SWEPT,
    )


FIGURES: dict[str, PaperFigure] = {
    s.key: s
    for s in (
        PaperFigure(
            "fig2",
            "Figure 2",
            "Legacy TCP, client to origin without the proxy",
            "What does each interface give alone, and does Multipath TCP fall back where the server has none?",
            (ETHERNET_ALONE, WIFI_ALONE),
        ),
        PaperFigure(
            "fig3",
            "Figure 3",
            "Multipath TCP through the proxy",
            "Which share does each path get, and is the sum no less than single-path TCP?",
            (*BASELINES, Trial("mptcp", "Multipath TCP through the proxy", 120 * MB, 40 * MB)),
        ),
        PaperFigure(
            "fig4",
            "Figure 4",
            "Receive buffer",
            "What do 0.18 MB and 0.72 MB of receive buffer cost, and where does more stop to help?",
            (
                Trial("small", "(a) receive buffer 0.18 MB", 100 * MB, 30 * MB, receive_buffer=SMALL_BUFFER),
                Trial("large", "(b) receive buffer 0.72 MB", 100 * MB, 30 * MB, receive_buffer=LARGE_BUFFER),
                *map(_sweep, SWEPT),
            ),
            memory=True,
        ),
        PaperFigure(
            "fig5",
            "Figure 5",
            "MTU 1000 against 1500, receive buffer 0.72 MB",
            "Does a small MTU make Multipath TCP unstable?",
            (
                Trial("mtu-1500", "MTU 1500", 100 * MB, 30 * MB, receive_buffer=LARGE_BUFFER, mtu=1500),
                Trial("mtu-1000", "MTU 1000", 100 * MB, 30 * MB, receive_buffer=LARGE_BUFFER, mtu=1000),
            ),
            memory=True,
        ),
        PaperFigure(
            "fig6",
            "Figure 6",
            "Throttled Ethernet, a file of 5 MB, first and repeated",
            "How soon does the throttler act, and what does a short transfer pay for it?",
            (
                replace(BASELINES[1], size=5 * MB, quick=5 * MB),
                Trial("free", "not throttled", 5 * MB, 5 * MB),
                Trial("first", "(a) throttled, first transfer", 5 * MB, 5 * MB, throttled=True, fresh_throttler=True),
                Trial("repeated", "(b) throttled, repeated transfer", 5 * MB, 5 * MB, throttled=True),
            ),
            repetitions=10,
            quick_repetitions=4,
            ordered=True,
            interval=0.01,
        ),
        PaperFigure(
            "fig7",
            "Figure 7",
            "Throttled Ethernet, a file of 200 MB",
            "Does the load move to Wi-Fi, and is the sum still more than single-path TCP over it?",
            (
                BASELINES[1],
                Trial("free", "Multipath TCP, not throttled", 100 * MB, 30 * MB),
                Trial("throttled", "Multipath TCP, Ethernet throttled", 200 * MB, 30 * MB, throttled=True),
            ),
            repetitions=3,
        ),
    )
}
TABLE = "table1"
TABLE_QUESTION = "How long does the proxy take from a client's SYN or data to its own towards the origin, and back?"
NAMES = (*FIGURES, TABLE)
QUESTIONS = {each.key: f"{each.figure}: {each.question}" for each in FIGURES.values()}
QUESTIONS[TABLE] = f"Table 1: {TABLE_QUESTION}"
