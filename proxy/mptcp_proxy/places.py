# SPDX-License-Identifier: GPL-2.0-or-later
"""The files and directories of one instance of the proxy, all derived from its service name.

Squid gets the service name by its option ``-n``, and uses it in the names of its shared memory and sockets. So two
instances, or an instance and the distribution's Squid ("squid"), never use the same objects. In squid.conf the service
name is ``${service_name}``.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from pathlib import Path

from mptcp_common import library_counters

from .problem import Problem

CONFIGURATIONS = Path("/etc/mptcp-proxy")
PORTAL_SETTINGS = Path("/etc/mptcp-portal/portal.yaml")
"""Settings of ``mptcp-portal``, which runs only if this file exists."""
WORKER_SOCKETS = Path("/var/run/squid")
"""Directory of the sockets by which Squid's workers communicate. The path is compiled into Squid; the names of the
sockets contain the service name."""
SHARED_MEMORY = Path("/dev/shm")
"""POSIX shared memory (shm_overview(7))."""
_CHECKOUT_CONFIGURATIONS = Path(__file__).resolve().parents[2] / "conf"

# Squid names POSIX shared memory "/NAME-cf__metadata.shm" and similar (shm_open(3): at most 255 bytes), and Unix
# sockets "/run/squid/NAME-coordinator.ipc" (unix(7): 108 bytes). 32 leaves room in both.
_SERVICE_NAME = re.compile(r"[A-Za-z0-9]{1,32}")


class Role(enum.Enum):
    """The connections for which Squid uses Multipath TCP."""

    PROXY = "proxy"
    """Connections from clients, through its listeners."""
    RELAY = "relay"
    """Connections to its parents, the proxies that get all its requests."""

    @property
    def service_name(self) -> str:
        """The default name of an instance."""
        return f"mptcp{self.value}"

    @property
    def file(self) -> str:
        return "squid.conf" if self is Role.PROXY else "relay-squid.conf"

    @property
    def installed_file(self) -> Path:
        """The squid.conf that the unit uses."""
        return CONFIGURATIONS / self.file

    @property
    def unit(self) -> str:
        return f"mptcp-{self.value}.service"

    def configuration(self) -> Path:
        """Return the installed squid.conf, or the checkout's if none is installed."""
        checkout = _CHECKOUT_CONFIGURATIONS / self.file
        return checkout if not self.installed_file.exists() and checkout.exists() else self.installed_file


@dataclass(frozen=True, slots=True)
class Places:
    """The files and directories of the instance *service_name*."""

    service_name: str = Role.PROXY.service_name

    @property
    def runtime(self) -> Path:
        return Path("/run") / self.service_name

    @property
    def logs(self) -> Path:
        return Path("/var/log") / self.service_name

    @property
    def state(self) -> Path:
        return Path("/var/lib") / self.service_name

    @property
    def own_addresses(self) -> Path:
        """This host's addresses, one per line, for an ``acl ... dst "FILE"``."""
        return self.runtime / "own-addresses"

    @property
    def listen_ports(self) -> Path:
        """The ports of the MPTCP listeners. The preload library reads this file at each bind."""
        return self.runtime / "listen-ports"

    @property
    def check_page_missing(self) -> Path:
        """The page that clients get (``deny_info``) when ``mptcp-portal`` does not answer."""
        return self.runtime / "check-page-missing.html"

    @property
    def error_pages(self) -> Path:
        """Directory of error pages, for ``error_directory``."""
        return self.runtime / "error-pages"

    @property
    def counters(self) -> Path:
        """Counters of the preload libraries in all of Squid's processes (``mptcp_common.library_counters``)."""
        return self.runtime / library_counters.FILE

    @property
    def parents(self) -> Path:
        """Addresses and ports of a relay's parents. The preload library reads this file at each connect."""
        return self.runtime / "parents"

    @property
    def configuration_in_force(self) -> Path:
        """The checked configuration with includes resolved: the only file that Squid reads."""
        return self.runtime / "squid.conf"

    @property
    def lists(self) -> Path:
        """Directory of the copies of lists that the configuration names."""
        return self.runtime / "lists"

    @property
    def reloads(self) -> Path:
        """The outcome of the last reload, written by the supervisor."""
        return self.runtime / "reloads.json"

    @property
    def reload_lock(self) -> Path:
        """Lock of ``mptcp-proxy reload``, so that only one such command runs at a time."""
        return self.runtime / "reload.lock"

    @property
    def pid_file(self) -> Path:
        return self.runtime / "squid.pid"


def service_name_problem(name: str) -> Problem | None:
    """Return why *name* cannot be a service name, or None."""
    if _SERVICE_NAME.fullmatch(name) and name != "squid":
        return None
    if name == "squid":
        return Problem(
            "--service-name squid: the distribution's own Squid has this name",
            allowed="any other name of letters and digits",
        )
    return Problem(
        f"--service-name {name}: not a name that Squid accepts", allowed="1 to 32 letters and digits, A-Z a-z 0-9"
    )
