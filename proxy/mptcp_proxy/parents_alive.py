# SPDX-License-Identifier: GPL-2.0-or-later
"""Asks Squid which parents of a relay answer. This also makes Squid try the parents that do not answer.

Squid notices by failed requests that a parent is dead. To notice that it is back, Squid tries a connection, at most
once a second, whenever the state of the parent is queried (neighborUp and peerProbeConnect in src/neighbors.cc). A
query is either a client's request, which has gone to another parent before the trial succeeds, or the cache manager's
page of parents. So this module requests that page every few seconds. While all parents are up, this sends no packet on
any uplink. Squid tries a dead parent in the same way as it sends requests: through the preload library, from the
address that its rules choose.
"""

from __future__ import annotations

import http.client
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address

from mptcp_common.journal import WARNING
from mptcp_common.reasons import reason

from .configuration.listeners import Listener, is_loopback
from .reported import say

INTERVAL, LATER_INTERVAL = 5.0, 30.0
"""Seconds between requests. The second value applies while a parent is dead and nothing has changed for
UNCHANGED_SECONDS, because with the first value the trials of a silent parent would add up to 4 MB a day."""
UNCHANGED_SECONDS = 300.0
_PATIENCE = 5.0
"""Maximum seconds for each step of an answer."""
_PAGE = "/squid-internal-mgr/server_list"
_MOST_BYTES = 1 << 20
_NOT_FOR_US = ("accel", "intercept", "transparent", "tproxy", "require-proxy-header")
_PARENT = re.compile(r"^Parent +: (?P<name>\S+)$.*?^Status +: (?P<status>\w+)", re.MULTILINE | re.DOTALL)
ADVICE = 'squid.conf needs "http_access allow localhost manager" first, and a port that is open on 127.0.0.1'
NO_PORT = "none of its ports accepts the query"


class Refused(Exception):
    """Squid refuses to answer; the text says why."""


@dataclass(frozen=True, slots=True)
class QueryAddress:
    """The address of the listener at which Squid is asked."""

    host: str
    port: int


def query_address(listeners: Iterable[Listener]) -> QueryAddress | None:
    """Return the address at which to ask, on loopback if possible; None if no listener accepts the request."""
    found = [
        QueryAddress(_loopback(each.host), each.port)
        for each in listeners
        if each.statement.directive == "http_port" and not any(option in _NOT_FOR_US for option in each.options)
    ]
    return next((each for each in found if is_loopback(each.host)), found[0] if found else None)


def _loopback(host: str) -> str:
    """Return the address by which this host reaches a listener at *host*."""
    bare = host.strip("[]")
    try:
        address = ip_address(bare)
    except ValueError:
        return bare or "127.0.0.1"
    if not address.is_unspecified:
        return bare
    return "127.0.0.1" if address.version == 4 else "::1"


def ask(place: QueryAddress) -> str:
    """Return Squid's page of parents. Raises OSError if Squid does not answer, Refused if it refuses."""
    connection = http.client.HTTPConnection(place.host, place.port, timeout=_PATIENCE)
    try:
        connection.request("GET", _PAGE, headers={"Connection": "close"})
        answer = connection.getresponse()
        text = answer.read(_MOST_BYTES).decode("utf-8", "replace")
    except (http.client.RemoteDisconnected, http.client.IncompleteRead) as error:
        # Squid is ending or reconfiguring: this does not count as a refusal.
        raise ConnectionResetError(str(error)) from None
    except http.client.HTTPException as error:
        raise Refused(str(error) or type(error).__name__) from None
    finally:
        connection.close()
    if answer.status == http.client.NOT_FOUND:
        # Squid's src/mgr/Inquirer.cc: the workers have not yet registered with their coordinator.
        raise ConnectionResetError("it starts")
    if answer.status != http.client.OK:
        raise Refused(f"{answer.status} {answer.reason}")
    return text


def read_parents(text: str) -> dict[str, bool]:
    """Return whether each parent, by its name in squid.conf, is up for every worker."""
    found: dict[str, bool] = {}
    for match in _PARENT.finditer(text):
        found[match["name"]] = found.get(match["name"], True) and match["status"] == "Up"
    return found


def summary(states: Mapping[str, bool]) -> str:
    """Return *states* as a short text; empty if they are unknown."""
    if not states:
        return ""
    dead = [name for name, up in states.items() if not up]
    if not dead:
        return "all parents answer" if len(states) > 1 else "the parent answers"
    return f"DOES NOT ANSWER: {', '.join(dead)}" + (f" (of {len(states)} parents)" if len(states) > 1 else "")


class ParentsWatch:
    """Asks repeatedly and logs changes, in a daemon thread."""

    def __init__(self, query: Callable[[QueryAddress], str] = ask, clock: Callable[[], float] = time.monotonic) -> None:
        self._query = query
        self._clock = clock
        self._changed = clock()
        self._address: QueryAddress | None = None
        self._states: dict[str, bool] = {}
        self._refused = ""
        self.summary = ""
        """Summary of Squid's last answer. Another thread reads it."""

    def start(self, listeners: Iterable[Listener]) -> None:
        self.follow(listeners)
        threading.Thread(target=self._run, name="parents-alive", daemon=True).start()

    def follow(self, listeners: Iterable[Listener]) -> None:
        """Ask at these listeners from now on."""
        self._address = query_address(listeners)

    def _run(self) -> None:
        while True:
            time.sleep(self.pause)
            self.look()

    @property
    def pause(self) -> float:
        """Seconds until the next request."""
        waits = not all(self._states.values()) and self._clock() - self._changed >= UNCHANGED_SECONDS
        return LATER_INTERVAL if waits else INTERVAL

    def look(self) -> None:
        """Ask once."""
        if self._address is None:
            self._say_refusal(NO_PORT)
            return
        try:
            states = read_parents(self._query(self._address))
        except OSError:
            return  # Squid is starting, ending or reconfiguring; the supervisor checks whether it is alive
        except Refused as error:
            self._say_refusal(str(error))
            return
        self._refused = ""
        for name, up in states.items():
            if self._states.get(name, True) != up:
                if up:
                    say(f"parent {name} answers again")
                else:
                    say(f"parent {name} does not answer; it is tried every {INTERVAL:g} s", WARNING)
        if states != self._states:
            self._changed = self._clock()
        self._states = states
        self.summary = summary(states)

    def _say_refusal(self, why: str) -> None:
        self._states, self.summary = {}, ""
        if why != self._refused:
            self._refused = why
            say(
                f"Squid does not tell which parents answer ({why}): only a client's request shows that a dead parent"
                f" is back, and that request is refused or sent to another parent; {ADVICE}",
                WARNING,
            )


def states_now(listeners: Iterable[Listener]) -> tuple[dict[str, bool], str]:
    """Ask once. Return the known states, and an empty text; or no states, and the reason."""
    place = query_address(listeners)
    if place is None:
        return {}, NO_PORT
    try:
        return read_parents(ask(place)), ""
    except OSError as error:
        return {}, reason(error)
    except Refused as error:
        return {}, str(error)
