"""What was in the kernel before us, in a file for the case of a crash: sysctls, the limit of subflows, endpoints."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

from mptcp_common.kernel_error import KernelError
from mptcp_gateway.kernel.network import (
    add_endpoint,
    delete_endpoint,
    endpoints,
    set_subflow_limit,
    subflow_limit,
)
from mptcp_gateway.plan import MOST_UPLINKS, Endpoint

log = logging.getLogger(__name__)

SYSCTLS: Final = {
    # A kernel that got no answer by Multipath TCP once would go without it for an hour (mptcp-sysctl.rst).
    "net/mptcp/blackhole_timeout": "0",
    # A path that is narrower than its interface says, and whose routers do not tell, would stall.
    "net/ipv4/tcp_mtu_probing": "1",
}
_ROOT: Final = Path("/proc/sys")


class Before:
    """It takes note of each thing before that is changed the first time."""

    def __init__(self, path: Path) -> None:
        """Raises KernelError for a file that cannot be read."""
        self._path = path
        self._sysctls: dict[str, str] = {}
        self._limit: int | None = None
        self._ours: set[Endpoint] = set()
        """Endpoints that we made."""
        try:
            noted: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            self._sysctls, self._limit = noted["sysctls"], noted["limit"]
            self._ours = {Endpoint(ip_address(address), device) for address, device in noted["endpoints"]}
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise KernelError(f"{path}, which says what to put back, cannot be read: {error}") from error

    def prepare(self, devices: Mapping[str, str]) -> None:
        """Set sysctls, and the limit where it is lower than what is needed. Raises KernelError."""
        wanted = dict(SYSCTLS)
        for device in devices.values():
            # Answers to what leaves by one uplink may come in by it alone, whatever the best route is (RFC 3704).
            if _read(f"net/ipv4/conf/{device}/rp_filter") == "1" or _read("net/ipv4/conf/all/rp_filter") == "1":
                wanted[f"net/ipv4/conf/{device}/rp_filter"] = "2"
        for name, value in wanted.items():
            found = _read(name)
            if found is not None and found != value:
                self._sysctls.setdefault(name, found)
                self._write()
                _set(name, value)
        limit = subflow_limit()
        if limit < MOST_UPLINKS:
            self._limit = limit if self._limit is None else self._limit
            self._write()
            set_subflow_limit(MOST_UPLINKS)

    def have_endpoints(self, wanted: frozenset[Endpoint], devices: frozenset[str]) -> None:
        """Have these as endpoints on *devices*, and no others of ours. Raises KernelError."""
        there = endpoints()
        for endpoint in wanted - there.keys():
            self._ours.add(endpoint)
            self._write()
            add_endpoint(endpoint)
            log.info("endpoint %s on %s", endpoint.address, endpoint.device)
        for endpoint, number in there.items():
            if endpoint not in wanted and endpoint.device in devices:
                delete_endpoint(number)
                log.info("no endpoint %s on %s", endpoint.address, endpoint.device)

    def restore(self) -> None:
        """Put all back; what cannot be is logged."""
        try:
            there = endpoints()
        except KernelError as error:
            log.error("%s", error)
            there = {}
        for endpoint in self._ours & there.keys():
            with suppress(KernelError):
                delete_endpoint(there[endpoint])
        for name, value in self._sysctls.items():
            try:
                _set(name, value)
            except KernelError as error:
                log.warning("%s", error)  # of a device that has gone
        if self._limit is not None:
            with suppress(KernelError):
                set_subflow_limit(self._limit)
        self._path.unlink(missing_ok=True)

    def _write(self) -> None:
        noted = {
            "sysctls": self._sysctls,
            "limit": self._limit,
            "endpoints": [(str(each.address), each.device) for each in self._ours],
        }
        temporary = self._path.with_suffix(".new")
        try:
            temporary.write_text(json.dumps(noted), encoding="utf-8")
            temporary.replace(self._path)
        except OSError as error:
            raise KernelError(f"write {self._path}: {error.strerror}") from error


def _read(name: str) -> str | None:
    try:
        return (_ROOT / name).read_text(encoding="ascii").strip()
    except OSError:
        return None


def _set(name: str, value: str) -> None:
    try:
        (_ROOT / name).write_text(value, encoding="ascii")
    except OSError as error:
        raise KernelError(f"set {name.replace('/', '.')} to {value}: {error.strerror}") from error
