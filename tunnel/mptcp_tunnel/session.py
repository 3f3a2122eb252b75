# SPDX-License-Identifier: GPL-2.0-or-later
"""One end of a tunnel: decides which messages this end sends on its paths and when, and which received messages it
trusts. Pure.

A path's address is proven by a message that echoes a token which was sent only to that address. An attacker who replays
messages from another address, or forges a source address, cannot echo that token. A token is computed from the time and
the address with a secret of this end (like the cookies of RFC 6347, 4.2.1), so an unproven address needs no state.
Times are nanoseconds of the monotonic clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2s
from typing import Final

from mptcp_tunnel.learning import MAX_DELAY, SECOND, DelayEstimator, PathEstimator, Sample, excess_delays
from mptcp_tunnel.message import Kind, Message
from mptcp_tunnel.model import End, PathCounters
from mptcp_tunnel.sizes import SizeSearch

PROBE_INTERVAL: Final = SECOND // 20
"""Nanoseconds between two probes of a path while the tunnel carries packets."""
IDLE_PROBE_INTERVAL: Final = SECOND
IDLE_AFTER: Final = 5 * SECOND
"""The tunnel counts as idle this many nanoseconds after its last packet."""
EXTRA_HOLD_TIME: Final = SECOND // 100
"""Nanoseconds that the resequencer waits for a missing packet in addition to the difference of the delays."""
MAX_SENT_COUNTERS: Final = 64
"""Maximum size of ``Path.sent_bytes_at``: the messages of the last 3 s, or of the last minute if the tunnel is idle."""
MAX_UNPROVEN_ANSWERS: Final = 100
"""Maximum number of answers to unproven addresses in the time between two probes."""
NO_COUNTERS: Final = PathCounters(0, 0, 0, 0)


@dataclass(slots=True)
class Path:
    estimator: PathEstimator = field(default_factory=PathEstimator)
    """Estimates for the direction to the other end."""
    incoming: DelayEstimator = field(default_factory=DelayEstimator)
    """Delay in the direction to this end."""
    remote: End | None = None
    """The other end's proven address on this path."""
    newest_echoed_sent_at: int = 0
    """When this end sent the message that the newest received message echoes."""
    newest_sent_at: int = 0
    """When the other end sent the newest received message, by the clock of the other end."""
    newest_token: int = 0
    newest_received_at: int = 0
    sent_bytes_at: dict[int, int] = field(default_factory=dict)
    """For each message sent to ``remote``: the time at which it was sent, and the splitter's byte counter then."""
    sizes: SizeSearch = field(default_factory=SizeSearch)
    next_probe: int = 0
    counters: PathCounters = NO_COUNTERS


class Session:
    """The paths of one tunnel. A relay sends probes on its paths; a proxy answers them."""

    def __init__(self, kind: Kind, remotes: Sequence[End | None], secret: bytes) -> None:
        """*kind*: kind of this end's messages; *remotes*: the other end of each path, None if it is learned; *secret*:
        16 to 32 random bytes."""
        self.kind = kind
        self.paths = [Path(remote=each) for each in remotes]
        self._secret = secret
        self._unproven_answers, self._unproven_since = 0, 0
        self._last_packet_at = 0
        """When the tunnel last carried a packet."""
        self._resumed_at = 0
        """When the tunnel last carried a packet after an idle time."""
        self._last_expected_interval = IDLE_PROBE_INTERVAL
        """The expected interval of messages when the last message arrived."""

    def process_counters(self, counters: Sequence[PathCounters], now: int) -> None:
        """Process the *counters* that the BPF programs have for each path."""
        was_idle = self.probe_interval(now) == IDLE_PROBE_INTERVAL
        for path, current in zip(self.paths, counters, strict=False):
            if current != path.counters:
                self._last_packet_at = now
                path.counters = current
        if was_idle and self._last_packet_at == now:
            self._resumed_at = now
            for path in self.paths:
                path.next_probe = min(path.next_probe, now + PROBE_INTERVAL)

    def due_probes(self, now: int) -> Iterator[tuple[int, Message]]:
        """Yield the path and the message of each due probe."""
        for index, path in enumerate(self.paths):
            if path.remote is not None and path.next_probe <= now:
                path.next_probe = now + self.probe_interval(now)
                yield index, self._message(index, path.remote, now)

    def size_probes(self, now: int) -> Iterator[tuple[int, Message, int]]:
        """Yield the path, message and payload bytes of probes that search for the largest packet. They may be lost
        because of their size, so their loss must not make a path count as silent."""
        for index, (path, alive) in enumerate(zip(self.paths, self.alive(now), strict=True)):
            sent = now + 1  # an ordinary probe may have *now* as its time
            if alive and path.remote is not None and (size := path.sizes.next_size(sent)) is not None:
                headers = 28 if path.remote.address.version == 4 else 48
                yield index, self._message(index, path.remote, sent), size - headers

    def forget_estimates(self, index: int) -> None:
        """Forget the estimates of a path, because it has another route now."""
        path = self.paths[index]
        path.estimator.forget_clock()
        path.incoming, path.sizes = DelayEstimator(), SizeSearch()

    def receive(
        self, message: Message, source: End, now: int, received_at: int | None = None
    ) -> tuple[Message | None, bool]:
        """Process *message*, which is valid, and which the kernel received at *received_at* (None means now). Return
        the answer, if any, and whether the path's remote address changed."""
        received_at = now if received_at is None else received_at
        if message.kind is self.kind or message.path >= len(self.paths):
            return None, False
        path = self.paths[message.path]
        must_answer = self.kind is Kind.ANSWER
        if message.echoed_token != self._token(message.path, source, message.echoed_sent):
            # The source address may be forged: answer, but ignore the rest of the message.
            must_answer = must_answer and self._may_answer(now)
            return (self._message(message.path, source, now, message, received_at) if must_answer else None), False
        # A message that echoes a later token of this end is newer. ``sent`` is not enough, because the clock of a
        # restarted host begins at 0 again.
        if (message.echoed_sent, message.sent) <= (path.newest_echoed_sent_at, path.newest_sent_at):
            return None, False  # out of order, or a duplicate
        path.newest_echoed_sent_at = message.echoed_sent
        if path.sizes.process_answer(message.echoed_sent):
            return None, False  # a large message takes longer because of its size, and must not look like a queue
        path.newest_sent_at, path.newest_token, path.newest_received_at = message.sent, message.token, received_at
        duration = received_at - message.sent
        minimum = path.incoming.minimum(now)
        if minimum is not None and abs(duration - minimum) > MAX_DELAY:  # the other host's clock restarted
            for each in self.paths:  # all paths share the clock offset
                each.incoming = DelayEstimator()
                each.estimator.forget_clock()
        address_changed = path.remote != source
        if address_changed:
            self.forget_estimates(message.path)
        path.incoming.add(now, duration)
        self._last_expected_interval = self._expected_interval(now)
        sent_bytes = path.sent_bytes_at.get(message.echoed_sent)
        if address_changed:
            path.remote, sent_bytes = source, path.counters.sent_bytes
            path.sent_bytes_at.clear()
        if sent_bytes is not None:
            arrived_at, counted_at, delivered = message.echoed_received_at, message.sent, message.received_bytes
            path.estimator.observe(Sample(now, message.echoed_sent, arrived_at, counted_at, delivered, sent_bytes))
        return (
            self._message(message.path, source, now, message, received_at) if must_answer else None
        ), address_changed

    def alive(self, now: int) -> list[bool]:
        """Return for each path whether it is alive."""
        expected = self._expected_interval(now)
        return [path.remote is not None and path.estimator.is_alive(now, expected) for path in self.paths]

    def usable(self, now: int, present: Sequence[bool]) -> list[bool]:
        """Return for each path whether packets may use it: usually the paths that are *present* and alive.

        If no path is alive, these are the paths that were alive when the last message came, because maybe only the
        other end's daemon has ended. If no message ever came, they are all paths.
        """
        alive = [is_alive and exists for is_alive, exists in zip(self.alive(now), present, strict=True)]
        if any(alive):
            return alive
        times = [path.estimator.last_message_at for path, exists in zip(self.paths, present, strict=True) if exists]
        newest = max((each for each in times if each is not None), default=None)
        if newest is None:
            return [True] * len(alive)
        return [
            path.remote is not None and path.estimator.is_alive(newest, self._last_expected_interval)
            for path in self.paths
        ]

    def next_silence(self, now: int) -> int | None:
        """Return when the first live path becomes silent if no message comes; None if no path is alive."""
        expected = self._expected_interval(now)
        times = [path.estimator.silent_at(expected) for path in self.paths if path.remote is not None]
        minimum = min((each for each in times if each > now), default=None)
        short_interval_from = self._resumed_at + 2 * IDLE_PROBE_INTERVAL
        return minimum if minimum is None or short_interval_from <= now else min(minimum, short_interval_from)

    def probe_interval(self, now: int) -> int:
        """Return the time between two probes of a path."""
        return PROBE_INTERVAL if now - self._last_packet_at < IDLE_AFTER else IDLE_PROBE_INTERVAL

    def delays(self, now: int) -> list[int]:
        """Return each path's delay to the other end in excess of the minimum."""
        return excess_delays([path.estimator.delays for path in self.paths], now)

    def costs(self, now: int) -> list[int]:
        """Return each path's cost, nanoseconds: its delay in excess of the minimum, plus an amount for its loss."""
        return [delay + path.estimator.loss_cost for delay, path in zip(self.delays(now), self.paths, strict=True)]

    def hold_time(self, now: int) -> int:
        """Return how long a received packet may wait for an earlier packet on another path."""
        return max(excess_delays([path.incoming for path in self.paths], now)) + EXTRA_HOLD_TIME

    def _expected_interval(self, now: int) -> int:
        """Return the expected interval of messages. After an idle time it stays long for a while, because the other end
        may not have noticed yet that it must probe often."""
        return IDLE_PROBE_INTERVAL if now - self._resumed_at < 2 * IDLE_PROBE_INTERVAL else self.probe_interval(now)

    def _may_answer(self, now: int) -> bool:
        if now - self._unproven_since >= PROBE_INTERVAL:
            self._unproven_answers, self._unproven_since = 0, now
        self._unproven_answers += 1
        return self._unproven_answers <= MAX_UNPROVEN_ANSWERS

    def _token(self, index: int, to: End, sent: int) -> int:
        text = b"%d %d %d " % (index, to.port, sent) + to.address.packed
        return int.from_bytes(blake2s(text, key=self._secret, digest_size=8).digest(), "big")

    def _message(self, index: int, to: End, now: int, answered: Message | None = None, received_at: int = 0) -> Message:
        """Return a message to *to*. It echoes the message *answered*, which arrived at *received_at*, or by default the
        newest received message of the path."""
        path = self.paths[index]
        counters = path.counters
        if to == path.remote:
            path.sent_bytes_at[now] = counters.sent_bytes
            if len(path.sent_bytes_at) > MAX_SENT_COUNTERS:
                del path.sent_bytes_at[next(iter(path.sent_bytes_at))]
        echoed = (
            (path.newest_sent_at, path.newest_token, path.newest_received_at)
            if answered is None
            else (answered.sent, answered.token, received_at)
        )
        return Message(self.kind, index, now, self._token(index, to, now), *echoed, counters.received_bytes)
