# SPDX-License-Identifier: GPL-2.0-or-later
"""Lists the published security fixes that the installed Squid lacks, and which of these weaknesses clients can use with
the shipped squid.conf.

Source: the changelogs of Debian's packages squid 5.7-2+deb12u6 and 6.13-2+deb13u4. docs/squid-versions.md has the same
table; a test compares the two.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from dataclasses import dataclass

from mptcp_common.findings import Finding, ok, warn

PACKAGES = ("dpkg-query", "-W", "-f=${db:Status-Status} ${Version}\\n", "squid", "squid-openssl")
"""Command that prints the versions of Debian's packages with Squid."""
_VERSION = re.compile(r"(?:\d+:)?(\d+)\.(\d+)(?:\.\d+)?(?:-\d+(?:\+deb(\d+)u(\d+))?)?")


class Exposure(enum.Enum):
    """Whether clients can use a weakness with the shipped squid.conf."""

    OPEN = "open"
    """Clients can use the weakness."""
    REFUSED = "refused"
    """A rule refuses the requests that use the weakness."""
    OFF = "not reachable"
    """The feature with the weakness is off."""


@dataclass(frozen=True, slots=True)
class Advisory:
    """A weakness, and the packages that fix it."""

    id: str
    weakness: str
    exposure: Exposure
    why: str
    """The reason for *exposure*."""
    debian12: int | None
    """The first N of 5.7-2+deb12uN with the fix; None if no such package has it yet."""
    debian13: int | None
    """The first N of 6.13-2+deb13uN with the fix; 0 if all these packages have it, None if none has it yet."""
    upstream: tuple[int, int] | None
    """Squid's first release with the fix, if known."""

    def fixed_in(self, version: str) -> bool:
        """Return whether *version*, of a package or of Squid itself, has the fix; True if *version* is malformed."""
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
_NO_ESI = "ESI is for accelerators; this is a forward proxy"
_ONLY_WEB = "HTTP, HTTPS and CONNECT only"
ADVISORIES = (
    Advisory(
        "CVE-2026-61642",
        "Transfer-Encoding: identity together with a length: the body is read as the client's next request",
        Exposure.OPEN,
        "no rule sees that header; harmless unless a proxy before this one shares connections among clients",
        None,
        4,
        None,
    ),
    Advisory("CVE-2026-62846", "a URL becomes commands to an FTP server", Exposure.REFUSED, _ONLY_WEB, None, 4, None),
    Advisory(
        "CVE-2026-104786",
        "credentials of HTTP authentication overflow the buffer for their encoded form",
        Exposure.OFF,
        "no authentication is configured",
        None,
        4,
        None,
    ),
    Advisory(
        "SQUID-2026:8",
        "credentials for ICAP services overflow the buffer for their encoded form",
        Exposure.OFF,
        "no ICAP service",
        None,
        4,
        None,
    ),
    Advisory(
        "CVE-2026-32748", "an ICP answer crashes Squid (use after free)", Exposure.OFF, _NO_PEERS, None, None, (7, 5)
    ),
    Advisory("CVE-2026-50012", "the cache digest of another cache", Exposure.OFF, _NO_PEERS, 6, 2, None),
    Advisory(
        "CVE-2026-47729",
        "an FTP server's listing discloses memory with other clients' requests",
        Exposure.REFUSED,
        _ONLY_WEB,
        6,
        2,
        None,
    ),
    Advisory("CVE-2026-33526", "an ICP query crashes Squid (use after free)", Exposure.OFF, _NO_PEERS, 6, 2, (7, 5)),
    Advisory("CVE-2026-33515", "an answer to an ICP query discloses memory", Exposure.OFF, _NO_PEERS, 6, 3, (7, 5)),
    Advisory(
        "CVE-2025-62168",
        "error pages show credentials to scripts",
        Exposure.REFUSED,
        "email_err_data off: the pages hold no request",
        4,
        1,
        None,
    ),
    Advisory("CVE-2025-59362", "a long SNMP identifier", Exposure.OFF, "SNMP is not switched on", 5, 1, None),
    Advisory("CVE-2025-54574", "a URN overflows a buffer", Exposure.REFUSED, _ONLY_WEB, 3, 0, (6, 4)),
    Advisory("CVE-2024-45802", "ESI in an answer", Exposure.OFF, _NO_ESI, 5, 0, None),
    Advisory("CVE-2024-37894", "ESI variables", Exposure.OFF, _NO_ESI, 2, 0, None),
    Advisory("CVE-2024-25111", "endless chunks overflow the stack", Exposure.OPEN, "part of HTTP", 1, 0, (6, 8)),
    Advisory("CVE-2023-50269", "a long X-Forwarded-For crashes Squid", Exposure.OPEN, "part of HTTP", 1, 0, None),
    Advisory("CVE-2023-46846", "chunks can be read in two ways", Exposure.OPEN, "part of HTTP", 1, 0, None),
    Advisory("CVE-2023-46728", "a Gopher server's answer crashes Squid", Exposure.REFUSED, _ONLY_WEB, 5, 0, (6, 1)),
)


def package_version(printed: str) -> str:
    """Return the version of the installed package from the output of PACKAGES; empty if none is installed."""
    words = (line.split() for line in printed.splitlines())
    return next((each[1] for each in words if len(each) == 2 and each[0] == "installed"), "")


def unfixed_advisories(version: str) -> tuple[Advisory, ...]:
    """Return the weaknesses of *version*, the version of Debian's package or of Squid itself."""
    return tuple(each for each in ADVISORIES if not each.fixed_in(version))


def advisories(version: str) -> Iterator[Finding]:
    """Report weaknesses. *version*: the version of Debian's package, or of Squid itself; empty if Squid is not
    installed."""
    if not version:
        return
    found = unfixed_advisories(version)
    usable = [each for each in found if each.exposure is Exposure.OPEN]
    others = ", ".join(each.id for each in found if each.exposure is not Exposure.OPEN) or "none"
    if usable:
        yield warn(
            "Squid's fixes",
            f"{version} has none for {'; '.join(f'{each.id} ({each.weakness})' for each in usable)}; refused or not "
            f"reachable with the shipped squid.conf: {others}",
            "clients can use weaknesses that no rule blocks",
            "apt update && apt install --only-upgrade squid   # Debian 13 has the fixes that Debian 12 still lacks",
        )
    else:
        yield ok("Squid's fixes", f"{version} has no known open weakness; unfixed, but not reachable: {others}")
