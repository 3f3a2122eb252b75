# SPDX-License-Identifier: GPL-2.0-or-later
"""Lists the published security fixes that the installed Squid lacks, and the weaknesses that clients can still use with
the shipped squid.conf.

Source: the changelogs of Debian's packages squid 5.7-2+deb12u6 and 6.13-2+deb13u4. docs/squid-versions.md has the same
table; a test compares both.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from dataclasses import dataclass

from mptcp_common.findings import Finding, ok, warn

PACKAGES = ("dpkg-query", "-W", "-f=${db:Status-Status} ${Version}\\n", "squid", "squid-openssl")
"""Prints the versions of Debian's packages that contain a Squid."""
_VERSION = re.compile(r"(?:\d+:)?(\d+)\.(\d+)(?:\.\d+)?(?:-\d+(?:\+deb(\d+)u(\d+))?)?")
_NEVER = 1 << 30


class Here(enum.Enum):
    """A weakness's effect behind the shipped squid.conf."""

    OPEN = "open"
    REFUSED = "refused"
    OFF = "not reachable"


@dataclass(frozen=True, slots=True)
class Advisory:
    """A weakness and the packages that fix it."""

    id: str
    what: str
    here: Here
    why: str
    debian12: int | None
    """The first N of 5.7-2+deb12uN with the fix; None if no package has it yet."""
    debian13: int | None
    """The first N of 6.13-2+deb13uN with the fix; 0 if all have it."""
    upstream: tuple[int, int] | None
    """Squid's first release with the fix, if known."""

    def fixed_in(self, version: str) -> bool:
        """Return whether *version*, of a package or of Squid itself, has the fix; True if it cannot be parsed."""
        match = _VERSION.match(version)
        if match is None:
            return True
        release = int(match[1]), int(match[2])
        if self.upstream is not None and release >= self.upstream:
            return True
        packaged = {(5, 7): self.debian12, (6, 13): self.debian13}.get(release)
        if packaged == 0:
            return True
        update = int(match[4]) if match[4] else 0
        return packaged is not None and update >= packaged


_NO_PEERS = "no other caches, icp_port 0"
_ONLY_WEB = "HTTP, HTTPS and CONNECT only"
ADVISORIES = (
    Advisory(
        "CVE-2026-61642",
        "Transfer-Encoding: identity beside a length: the body is taken for the client's next request",
        Here.OPEN,
        "no rule sees that header; harmless unless a proxy before this one shares connections among clients",
        None,
        4,
        None,
    ),
    Advisory("CVE-2026-62846", "a URL becomes commands to an FTP server", Here.REFUSED, _ONLY_WEB, None, 4, None),
    Advisory(
        "CVE-2026-104786",
        "credentials of HTTP authentication overrun their encoding",
        Here.OFF,
        "no authentication is configured",
        None,
        4,
        None,
    ),
    Advisory("SQUID-2026:8", "the same towards ICAP services", Here.OFF, "no ICAP service", None, 4, None),
    Advisory("CVE-2026-32748", "an ICP answer ends Squid (use after free)", Here.OFF, _NO_PEERS, None, None, (7, 5)),
    Advisory("CVE-2026-50012", "the cache digest of another cache", Here.OFF, _NO_PEERS, 6, 2, None),
    Advisory(
        "CVE-2026-47729",
        "an FTP server's listing: memory with other clients' requests is given away",
        Here.REFUSED,
        _ONLY_WEB,
        6,
        2,
        None,
    ),
    Advisory("CVE-2026-33526", "an ICP question ends Squid (use after free)", Here.OFF, _NO_PEERS, 6, 2, (7, 5)),
    Advisory("CVE-2026-33515", "an ICP question is answered with memory", Here.OFF, _NO_PEERS, 6, 3, (7, 5)),
    Advisory(
        "CVE-2025-62168",
        "error pages show credentials to scripts",
        Here.REFUSED,
        "email_err_data off: the pages hold no request",
        4,
        1,
        None,
    ),
    Advisory("CVE-2025-59362", "a long SNMP identifier", Here.OFF, "SNMP is not switched on", 5, 1, None),
    Advisory("CVE-2025-54574", "a URN overruns a buffer", Here.REFUSED, _ONLY_WEB, 3, 0, (6, 4)),
    Advisory("CVE-2024-45802", "ESI in an answer", Here.OFF, "ESI is for accelerators, which this is not", 5, 0, None),
    Advisory("CVE-2024-37894", "ESI variables", Here.OFF, "ESI is for accelerators, which this is not", 2, 0, None),
    Advisory("CVE-2024-25111", "chunks without end overrun the stack", Here.OPEN, "part of HTTP", 1, 0, (6, 8)),
    Advisory("CVE-2023-50269", "a long X-Forwarded-For ends Squid", Here.OPEN, "part of HTTP", 1, 0, None),
    Advisory("CVE-2023-46846", "chunks are read with two meanings", Here.OPEN, "part of HTTP", 1, 0, None),
    Advisory("CVE-2023-46728", "a Gopher server's answer ends Squid", Here.REFUSED, _ONLY_WEB, 5, 0, (6, 1)),
)


def packaged(printed: str) -> str:
    """Return the installed package's version from the output of PACKAGES; empty if none."""
    words = (line.split() for line in printed.splitlines())
    return next((each[1] for each in words if len(each) == 2 and each[0] == "installed"), "")


def lacking(version: str) -> tuple[Advisory, ...]:
    """Return the weaknesses of *version*, the version of Debian's package or of Squid itself."""
    return tuple(each for each in ADVISORIES if not each.fixed_in(version))


def advisories(version: str) -> Iterator[Finding]:
    """Report weaknesses. *version*: of Debian's package, or of Squid itself; empty if Squid is not installed."""
    if not version:
        return
    found = lacking(version)
    left_open = [each for each in found if each.here is Here.OPEN]
    others = ", ".join(each.id for each in found if each.here is not Here.OPEN) or "none"
    if left_open:
        yield warn(
            "Squid's fixes",
            f"{version} has none for {'; '.join(f'{each.id} ({each.what})' for each in left_open)}; refused or not "
            f"reachable with the shipped squid.conf: {others}",
            "clients can use weaknesses that no rule blocks",
            "apt update && apt install --only-upgrade squid   # Debian 13 has the fixes that Debian 12 still lacks",
        )
    else:
        yield ok("Squid's fixes", f"{version} has no known open weakness; unfixed, but not reachable: {others}")
