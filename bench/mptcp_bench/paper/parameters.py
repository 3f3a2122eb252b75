# SPDX-License-Identifier: GPL-2.0-or-later
"""Parameters of a scenario on the command line: ``--set wifi.rate=30mbit --set wifi.rtt=40ms``.

The defaults are the paper's testbed, as far as the paper describes it: a Raspberry Pi Model B with Ethernet (about 94
Mbit/s of payload, short RTT) and Wi-Fi. Wi-Fi's rate and RTT are chosen such that the required receive buffer is the
paper's "maximum of 0.48 MB": 2 × (100 + 20 Mbit/s) × 16 ms (section 3.3).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from mptcp_common.units import parse_rate
from mptcp_lab.emulation.model import Direction, EmulatedPath, GilbertElliott, Loss, PathError, UniformLoss

MILLISECOND = 1_000
"""Microseconds per millisecond."""
_TIME = re.compile(r"(\d{1,7}(?:\.\d{1,3})?) *(us|µs|ms|s)")
_MICROSECONDS = {"us": 1, "µs": 1, "ms": 1_000, "s": 1_000_000}


class ParameterError(ValueError):
    """An invalid setting. The text names the parameter, the value and what is allowed."""


def parse_time(text: str) -> int:
    """Return a time such as ``16 ms`` in microseconds. Raises ValueError for other text."""
    found = _TIME.fullmatch(text.strip())
    if found is None:
        raise ValueError(f'{text!r} is not a time; write a number and us, ms or s (e.g. "16 ms")')
    return round(float(found[1]) * _MICROSECONDS[found[2]])


def _percent(text: str) -> float:
    try:
        value = float(text.strip().removesuffix("%")) / 100
    except ValueError:
        raise ValueError(f"{text!r} is not a percentage") from None
    if not 0 <= value <= 1:
        raise ValueError(f"{text!r}: 0 % to 100 % is allowed")
    return value


def parse_loss(text: str) -> Loss | None:
    """Return uniform loss for ``1%``, Gilbert-Elliott loss for ``p,r,1-h,1-k`` (percentages), None for ``0``."""
    numbers = [_percent(part) for part in text.split(",")]
    if len(numbers) == 1:
        return UniformLoss(numbers[0]) if numbers[0] else None
    if len(numbers) != 4:
        raise ValueError(f'{text!r}: one percentage ("1%") or four, p,r,1-h,1-k of the Gilbert-Elliott model')
    return GilbertElliott(*numbers)


def _whole(lowest: int, highest: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        # Check the length first, because int() raises another error for thousands of digits.
        if not text.strip().isdecimal() or len(text) > 20 or not lowest <= int(text) <= highest:
            raise ValueError(f"{text!r}: a whole number from {lowest} to {highest} is allowed")
        return int(text)

    return parse


def _word(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(f"{text!r}: {', '.join(words)} are possible")
        return text

    return parse


@dataclass(frozen=True, slots=True)
class Parameter:
    """One setting of the scenarios."""

    name: str
    default: str
    parse: Callable[[str], object]
    meaning: str
    real: Literal["set", "stated", "refused"] = "refused"
    """What it means on real hosts: ``set`` works there too, ``stated`` describes the existing link, ``refused`` is an
    error."""


PARAMETERS: tuple[Parameter, ...] = (
    *(
        Parameter(f"{path}.{name}", default, parse, meaning, real="stated" if name in ("rate", "rtt") else "refused")
        for path, defaults in (
            ("ethernet", ("100 Mbit/s", "2 ms", "0 ms", "0%", "1500")),
            ("wifi", ("20 Mbit/s", "16 ms", "2 ms", "0%", "1500")),
        )
        for (name, parse, meaning), default in zip(
            (
                ("rate", parse_rate, "of the link, in each direction"),
                ("rtt", parse_time, "without queues, half of it in each direction"),
                ("jitter", parse_time, "delay drawn evenly from ± this much, in each direction, order kept"),
                ("loss", parse_loss, 'towards the client: "1%", or p,r,1-h,1-k for Gilbert-Elliott'),
                ("mtu", _whole(576, 9000), "in both directions"),
            ),
            defaults,
            strict=True,
        )
    ),
    Parameter("queue", "50 ms", parse_time, "how long a packet may wait at a link's shaper (drop-tail)"),
    Parameter("cap", "5 Mbit/s", parse_rate, "what the throttler leaves Ethernet in fig6 and fig7", real="set"),
    Parameter(
        "congestion-control",
        "bbr",
        _word("bbr", "cubic", "reno"),
        "of the proxy towards clients",
        real="set",
    ),
    Parameter("repetitions", "0", _whole(0, 1000), "of each case; 0: as the scenario has it", real="set"),
)
_BY_NAME: Mapping[str, Parameter] = {p.name: p for p in PARAMETERS}


@dataclass(frozen=True, slots=True)
class Parameters:
    """A value for each parameter, as the text that :attr:`Parameter.parse` reads."""

    texts: Mapping[str, str]
    known: frozenset[str]
    """Names of the parameters whose values are true. Of real links, only stated values are known."""

    @classmethod
    def of(cls, settings: Sequence[str] = (), *, emulated: bool = True) -> Parameters:
        """Return the defaults, changed by *settings* (``NAME=VALUE``). Raises ParameterError with all problems."""
        texts = {p.name: p.default for p in PARAMETERS}
        known = {p.name for p in PARAMETERS if emulated or p.real == "set"}
        wrong = []
        for setting in settings:
            name, equals, value = setting.partition("=")
            name = name.strip()
            parameter = _BY_NAME.get(name)
            if parameter is None:
                close = difflib.get_close_matches(name, texts, n=1)
                meant = f"; did you mean {close[0]}?" if close else f"; there are {', '.join(texts)}"
                wrong.append(f"--set {setting}: no parameter {name!r}{meant}")
            elif not equals:
                wrong.append(f"--set {setting}: write {name}=VALUE, such as {name}={parameter.default}")
            elif parameter.real == "refused" and not emulated:
                wrong.append(f"--set {setting}: real hosts have the links they have; this can be set of emulated ones")
            else:
                try:
                    parameter.parse(value)
                except ValueError as error:
                    wrong.append(f"--set {setting}: {error}")
                else:
                    texts[name] = value.strip()
                    known.add(name)
        if not wrong:
            try:
                for path in ("ethernet", "wifi"):
                    cls(texts, frozenset(known)).path(path)
            except PathError as error:
                wrong.append(f"--set: {path}: {error}")
        if wrong:
            raise ParameterError("\n".join(wrong))
        return cls(texts, frozenset(known))

    def _integer(self, name: str) -> int:
        value = _BY_NAME[name].parse(self.texts[name])
        assert isinstance(value, int)
        return value

    @property
    def cap(self) -> int:
        """Cap of Ethernet in bits per second."""
        return self._integer("cap")

    @property
    def congestion_control(self) -> str:
        return self.texts["congestion-control"]

    @property
    def repetitions(self) -> int:
        return self._integer("repetitions")

    def rate(self, path: str) -> int:
        """Return the rate of *path* in bits per second."""
        return self._integer(f"{path}.rate")

    def path(self, name: str) -> EmulatedPath:
        """Return the path *name* in the form that the emulation needs."""
        loss = parse_loss(self.texts[f"{name}.loss"])
        half = self._integer(f"{name}.rtt") // 2
        jitter = self._integer(f"{name}.jitter")
        queue = max(1, self._integer("queue") // MILLISECOND)
        rate, mtu = self.rate(name), self._integer(f"{name}.mtu")
        return EmulatedPath(
            name,
            down=Direction(rate, half, jitter, loss, queue_ms=queue, mtu=mtu),
            up=Direction(rate, half, jitter, queue_ms=queue, mtu=mtu),
        )

    def receive_buffer_needed(self) -> float | None:
        """Return 2 × sum of bandwidth × greatest RTT in bytes (RFC 6182, 5.3; section 3.3 of the paper).

        Return None for real links whose rates and RTTs were not stated.
        """
        if not {f"{path}.{what}" for path in ("ethernet", "wifi") for what in ("rate", "rtt")} <= self.known:
            return None
        paths = [self.path(name) for name in ("ethernet", "wifi")]
        bandwidth = sum(path.down.rate or 0 for path in paths) / 8
        return 2 * bandwidth * max(path.rtt for path in paths) / 1e6

    def as_text(self) -> dict[str, str]:
        """Return the known parameters in the form of the result file."""
        return {p.name: self.texts[p.name] for p in PARAMETERS if p.name in self.known}
