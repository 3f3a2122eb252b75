"""What the paper says of Table 1, judged by what was measured: one function for each claim."""

from __future__ import annotations

from ..statistics import percentile
from .conversion import ANSWER, MPTCP, OWN_SYN, REFERENCES, TCP, median
from .judging import Claims, Finding, Measured, Missing, either, separate
from .quantities import show
from .results import BULK, DATA, DOWN, STREAM, SYN, UP, WHOLE, Judgement, Result
from .summary import pooled

SAME_SIZE = 2.0
"""Two machines ten years apart: a median within this factor of the paper's is the same."""
PERCENTILES = (50, 95, 99)
_FASTER = (
    "The paper's proxy was a guest of ESXi, short of memory and processor time, as its authors say, and behind a "
    "network card; this one is {} times as fast. "
)


CLAIMS = Claims()


def _values(result: Result, kind: str, direction: str, case: str = MPTCP) -> tuple[float, ...]:
    values = pooled(result, f"{kind} {direction}", case)
    if not values:
        raise Missing(f"{kind} {direction} of {result.case(case).title} was not measured")
    return values


def _told(values: tuple[float, ...]) -> str:
    middle, *tail = (show(percentile(values, percent), "s") for percent in PERCENTILES)
    return f"{middle} at the median, p95 {tail[0]}, p99 {tail[1]} (n = {len(values)})"


def _paper(kind: str) -> float:
    return next(reference.value for reference in REFERENCES if reference.where == kind)


def _against(paper: float, measured: float) -> tuple[Judgement, float]:
    """Return what to say of a median beside the paper's, and how many times it is shorter."""
    ratio = paper / measured
    return "holds" if 1 / SAME_SIZE <= ratio <= SAME_SIZE else "differs" if ratio > 1 else "fails", ratio


def _why(verdict: Judgement, ratio: float, more: str) -> str:
    if verdict == "differs":
        return f"{_FASTER.format(f'{ratio:.0f}')}{more}"
    return "" if verdict == "holds" else f"{1 / ratio:.1f} times the paper's: this host is slower, or was busy."


@CLAIMS.of(
    "table1", "syn", "From the client's connection to the SYN towards the origin: 8.5 ms (0.0078341 + 0.0006805 s)."
)
def _syn(m: Measured) -> Finding:
    values = _values(m.result, SYN, UP)
    plain = percentile(_values(m.result, SYN, UP, TCP), 50)
    whole = _told(_values(m.result, WHOLE, UP))
    verdict, ratio = _against(_paper(SYN), percentile(values, 50))
    return Finding(
        f"Client's third ACK in to SYN out: {_told(values)}. From the client's SYN, its handshake within: "
        f"{whole}. By plain TCP {show(plain, 's')}: the time is Squid's, Multipath TCP has little part in it.",
        verdict,
        _why(verdict, ratio, "What remains is Squid reading the request, deciding, and connecting."),
    )


@CLAIMS.of("table1", "data", "A data segment takes 23.4 ms through the proxy (0.0153311 + 0.0080645 s).")
def _data(m: Measured) -> Finding:
    up, down = _values(m.result, DATA, UP), _values(m.result, DATA, DOWN)
    bulk = _values(m.result, BULK, DOWN)
    verdict, ratio = _against(_paper(DATA), max(percentile(up, 50), percentile(down, 50)))
    return Finding(
        f"Request in to request out: {_told(up)}. Response in to response out: {_told(down)}. In 1 MB downloads, which "
        f"come faster than the client's paths take them: {_told(bulk)}.",
        verdict,
        _why(
            verdict,
            ratio,
            "Times like the paper's are had where data waits: in bulk downloads it stands in the proxy's send buffer "
            "until the client's window opens. The paper does not say whether its segments did.",
        ),
    )


@CLAIMS.of(
    "table1", "data-slower", "Data takes longer than the SYN, since it has to go up to the application and down again."
)
def _slower(m: Measured) -> Finding:
    syn = percentile(_values(m.result, SYN, UP), 50)
    up, down = (percentile(_values(m.result, DATA, direction), 50) for direction in (UP, DOWN))
    streams = {
        name: percentile(values, 50)
        for name, direction in (("up", UP), ("down", DOWN))
        if (values := pooled(m.result, f"{STREAM} {direction}", MPTCP))
    }
    told = " and ".join(f"{show(value, 's')} {name}" for name, value in streams.items())
    # By the medians of the repetitions: those of all segments together hide how far one run is from the next.
    syns = m(MPTCP, median(f"{SYN} {UP}"))
    datas = [m(MPTCP, median(f"{DATA} {way}")) for way in (UP, DOWN)]
    held = all(separate(syns, data) for data in datas)
    if not held and not any(separate(data, syns) for data in datas):
        raise Missing("The medians of SYN and data overlap, which says neither")
    return Finding(
        f"Medians: SYN {show(syn, 's')}, request {show(up, 's')}, response {show(down, 's')}; segments of a transfer "
        f"that waits for nobody {told or 'were not measured'}.",
        "holds" if held else "differs",
        ""
        if held
        else "Squid sends the SYN only after it has read and understood the whole request: that SYN goes through the "
        "application as well, and through more of it than a piece of content, which is read and written.",
    )


@CLAIMS.of(
    "table1",
    "user-space",
    "The passage between kernel and user space adds to the delay of each data segment.",
)
def _user_space(m: Measured) -> Finding:
    kernel, own = m.mean(MPTCP, ANSWER), m.mean(MPTCP, OWN_SYN)
    passage = percentile(_values(m.result, STREAM, DOWN), 50)
    return Finding(
        f"A segment of content goes up to Squid and down again in {show(passage, 's')} at the median; the kernel alone "
        f"answers a client's SYN in {show(kernel, 's')}. What Squid does with a request before it connects takes "
        f"longer than either: {show(own, 's')} from the request's last byte to the SYN.",
        either(passage >= SAME_SIZE * kernel),
    )
