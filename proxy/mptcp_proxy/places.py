"""Where one instance of the proxy keeps its things, all made from its service name.

Squid's ``-n NAME`` names the instance; it also goes into the names of its shared memory segments and sockets, so
that two instances, or one and a distribution's Squid (whose name is "squid"), never meet. squid.conf says
``${service_name}`` for the same name.
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
"""Of ``mptcp-portal``, which does not run without it."""
WORKER_SOCKETS = Path("/var/run/squid")
"""Where several workers of one Squid meet. Compiled into Squid; the sockets carry the service name."""
SHARED_MEMORY = Path("/dev/shm")
"""Where POSIX shared memory is (shm_overview(7))."""
_CHECKOUT_CONFIGURATIONS = Path(__file__).resolve().parents[2] / "conf"

# Squid names POSIX shared memory "/NAME-cf__metadata.shm" and the like (shm_open(3): at most 255 bytes) and Unix
# sockets "/run/squid/NAME-coordinator.ipc" (unix(7): 108 bytes); 32 leaves room in both.
_SERVICE_NAME = re.compile(r"[A-Za-z0-9]{1,32}")


class Role(enum.Enum):
    """On which side Squid speaks Multipath TCP."""

    PROXY = "proxy"
    """Towards clients: its listeners."""
    RELAY = "relay"
    """Towards its parents, the proxies that it hands every request to."""

    @property
    def service_name(self) -> str:
        """The name that an instance has unless it is told another."""
        return f"mptcp{self.value}"

    @property
    def file(self) -> str:
        return "squid.conf" if self is Role.PROXY else "relay-squid.conf"

    @property
    def installed(self) -> Path:
        """The squid.conf that systemd's unit has it read."""
        return CONFIGURATIONS / self.file

    @property
    def unit(self) -> str:
        return f"mptcp-{self.value}.service"

    def configuration(self) -> Path:
        """Return the installed squid.conf, or the checkout's where none is installed."""
        checkout = _CHECKOUT_CONFIGURATIONS / self.file
        return checkout if not self.installed.exists() and checkout.exists() else self.installed


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
        """This host's addresses, one a line, for an ``acl ... dst "FILE"``."""
        return self.runtime / "own-addresses"

    @property
    def listen_ports(self) -> Path:
        """The ports of the MPTCP listeners; the preload library reads it at each bind."""
        return self.runtime / "listen-ports"

    @property
    def check_page_missing(self) -> Path:
        """What Squid shows where ``mptcp-portal`` does not answer for the check page, for a ``deny_info``."""
        return self.runtime / "check-page-missing.html"

    @property
    def error_pages(self) -> Path:
        """The directory of what Squid shows where it has no answer of a site, for ``error_directory``."""
        return self.runtime / "error-pages"

    @property
    def counters(self) -> Path:
        """What the preload libraries count, of all of Squid's processes (``mptcp_common.library_counters``)."""
        return self.runtime / library_counters.FILE

    @property
    def parents(self) -> Path:
        """The addresses and ports of a relay's parents; the preload library reads it at each connect."""
        return self.runtime / "parents"

    @property
    def configuration_in_force(self) -> Path:
        """The checked copy of the configuration, includes resolved. Squid reads this one and no other."""
        return self.runtime / "squid.conf"

    @property
    def lists(self) -> Path:
        """Copies of the lists that the configuration in force reads from files."""
        return self.runtime / "lists"

    @property
    def reloads(self) -> Path:
        """How the last reload ended, by the supervisor."""
        return self.runtime / "reloads.json"

    @property
    def reload_lock(self) -> Path:
        """Held by the one command that waits for a reload."""
        return self.runtime / "reload.lock"

    @property
    def pid_file(self) -> Path:
        return self.runtime / "squid.pid"


def service_name_problem(name: str) -> Problem | None:
    """Return what is wrong with *name* as a service name, None when nothing is."""
    if _SERVICE_NAME.fullmatch(name) and name != "squid":
        return None
    if name == "squid":
        return Problem(
            "--service-name squid: this name is the distribution's own Squid's",
            allowed="any other name of letters and digits",
        )
    return Problem(f"--service-name {name}: not a name Squid takes", allowed="1 to 32 letters and digits, A-Z a-z 0-9")
