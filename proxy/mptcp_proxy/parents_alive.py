# SPDX-License-Identifier: GPL-2.0-or-later
"""Queries Squid for the state of a relay's parents. A query also makes Squid test the parents that do not answer.

Squid considers a parent dead when requests to it fail. Whenever the state of a dead parent is needed, Squid opens a
test connection to it, at most once a second (neighborUp and peerProbeConnect in src/neighbors.cc), and considers the
parent alive if that succeeds. The state is needed for a client's request, which goes to another parent before the test
has succeeded, and for the cache manager's page of parents. So this module requests that page every few seconds. While
all parents are up, a query sends no packet on any uplink. Squid opens test connections like all others: through the
preload library, from the address that its rules choose.
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
from .reporter import say

INTERVAL, LONG_INTERVAL = 5.0, 30.0
"""Seconds between queries. The second value applies while a parent is dead and nothing has changed for
UNCHANGED_SECONDS, because with the first value the test connections to a dead parent would take 4 MB a day."""
UNCHANGED_SECONDS = 300.0
_TIMEOUT = 5.0
"""Maximum seconds for each read or write of a query."""
_PAGE = "/squid-internal-mgr/server_list"
_MAX_BYTES = 1 << 20
_UNSUITABLE_OPTIONS = ("accel", "intercept", "transparent", "tproxy", "require-proxy-header")
"""Options of http_port with which a port does not accept the query."""
_PARENT = re.compile(r"^Parent +: (?P<name>\S+)$.*?^Status +: (?P<status>\w+)", re.MULTILINE | re.DOTALL)
ADVICE = 'put "http_access allow localhost manager" before other rules in squid.conf, and open a port on 127.0.0.1'
NO_PORT = "none of its ports accepts the query"


class RefusedError(Exception):
    """Squid refuses to answer, for the reason in the text."""


@dataclass(frozen=True, slots=True)
class QueryAddress:
    """The address of the listener to which queries are sent."""

    host: str
    port: int


def query_address(listeners: Iterable[Listener]) -> QueryAddress | None:
    """Return the address for queries, on loopback if possible; None if no listener accepts them."""
    found = [
        QueryAddress(_loopback(each.host), each.port)
        for each in listeners
        if each.statement.directive == "http_port" and not any(option in _UNSUITABLE_OPTIONS for option in each.options)
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


def fetch_page(address: QueryAddress) -> str:
    """Return Squid's page of parents. Raises OSError if Squid does not answer, RefusedError if it refuses."""
    connection = http.client.HTTPConnection(address.host, address.port, timeout=_TIMEOUT)
    try:
        connection.request("GET", _PAGE, headers={"Connection": "close"})
        answer = connection.getresponse()
        text = answer.read(_MAX_BYTES).decode("utf-8", "replace")
    except (http.client.RemoteDisconnected, http.client.IncompleteRead) as error:
        # Squid is ending or reconfiguring: this does not count as a refusal.
        raise ConnectionResetError(str(error)) from None
    except http.client.HTTPException as error:
        raise RefusedError(str(error) or type(error).__name__) from None
    finally:
        connection.close()
    if answer.status == http.client.NOT_FOUND:
        # The workers have not yet registered with their coordinator (Squid's src/mgr/Inquirer.cc).
        raise ConnectionResetError("Squid is starting")
    if answer.status != http.client.OK:
        raise RefusedError(f"{answer.status} {answer.reason}")
    return text


def read_parents(text: str) -> dict[str, bool]:
    """Return for each parent, by its name in squid.conf, whether it is up for every worker."""
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
    """Queries Squid repeatedly and logs changes, in a daemon thread."""

    def __init__(
        self, query: Callable[[QueryAddress], str] = fetch_page, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._query = query
        self._clock = clock
        self._changed_at = clock()
        self._address: QueryAddress | None = None
        self._states: dict[str, bool] = {}
        self._refusal = ""
        self.summary = ""
        """Summary of Squid's last answer. Another thread reads it."""

    def start(self, listeners: Iterable[Listener]) -> None:
        self.set_listeners(listeners)
        threading.Thread(target=self._run, name="parents-alive", daemon=True).start()

    def set_listeners(self, listeners: Iterable[Listener]) -> None:
        """Send the next queries to one of these listeners."""
        self._address = query_address(listeners)

    def _run(self) -> None:
        while True:
            time.sleep(self.pause)
            self.query_once()

    @property
    def pause(self) -> float:
        """Seconds until the next query."""
        long_dead = not all(self._states.values()) and self._clock() - self._changed_at >= UNCHANGED_SECONDS
        return LONG_INTERVAL if long_dead else INTERVAL

    def query_once(self) -> None:
        if self._address is None:
            self._log_refusal(NO_PORT)
            return
        try:
            states = read_parents(self._query(self._address))
        except OSError:
            return  # Squid is starting, ending or reconfiguring; the supervisor checks whether it is alive
        except RefusedError as error:
            self._log_refusal(str(error))
            return
        self._refusal = ""
        for name, up in states.items():
            if self._states.get(name, True) != up:
                if up:
                    say(f"parent {name} answers again")
                else:
                    say(f"parent {name} does not answer; it is tried every {INTERVAL:g} s", WARNING)
        if states != self._states:
            self._changed_at = self._clock()
        self._states = states
        self.summary = summary(states)

    def _log_refusal(self, why: str) -> None:
        self._states, self.summary = {}, ""
        if why != self._refusal:
            self._refusal = why
            say(
                f"Squid does not report which parents answer ({why}): only a client's request shows that a dead parent"
                f" has recovered, and that request is refused or sent to another parent; {ADVICE}",
                WARNING,
            )


def current_states(listeners: Iterable[Listener]) -> tuple[dict[str, bool], str]:
    """Query Squid once. Return the states of the parents and an empty text, or no states and the reason."""
    address = query_address(listeners)
    if address is None:
        return {}, NO_PORT
    try:
        return read_parents(fetch_page(address)), ""
    except OSError as error:
        return {}, reason(error)
    except RefusedError as error:
        return {}, str(error)
