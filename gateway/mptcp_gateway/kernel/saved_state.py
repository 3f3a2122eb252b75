# SPDX-License-Identifier: GPL-2.0-or-later
"""Saves the kernel's state before the gateway changes it: sysctls, the subflow limit, endpoints. The state is also in a
file, from which it is restored after a crash."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

from mptcp_common.kernel_error import KernelError
from mptcp_common.state_file import read_state, write_state
from mptcp_gateway.kernel.endpoints import (
    add_endpoint,
    delete_endpoint,
    endpoints,
    set_subflow_limit,
    subflow_limit,
)
from mptcp_gateway.model import Address
from mptcp_gateway.plan import MAX_UPLINKS, Endpoint

log = logging.getLogger(__name__)

SYSCTLS: Final = {
    # Otherwise, after one failure of Multipath TCP, the kernel would not use it for an hour (mptcp-sysctl.rst).
    "net/mptcp/blackhole_timeout": "0",
    # Otherwise a path with a smaller MTU than its interface would stall if its routers send no ICMP errors.
    "net/ipv4/tcp_mtu_probing": "1",
}
_ROOT: Final = Path("/proc/sys")


class SavedState:
    """Records each value before the first change, and restores it."""

    def __init__(self, path: Path) -> None:
        """Read the file at *path*, if it exists. Raises KernelError if it cannot be read."""
        self._path = path
        self._sysctls: dict[str, str] = {}
        self._limit: int | None = None
        self._own_endpoints: set[Address] = set()
        """Addresses of endpoints that the gateway added."""
        self._deleted_endpoints: dict[Address, tuple[str, tuple[str, ...]]] = {}
        """Endpoints of other programs that the gateway deleted: device and flags, by address."""
        self._checked_devices: set[tuple[str, int]] = set()
        """Devices whose rp_filter was checked, by name and index."""
        try:
            if (text := read_state(path)) is not None:
                saved: dict[str, Any] = json.loads(text)
                self._sysctls, self._limit = saved["sysctls"], saved["limit"]
                self._own_endpoints = {ip_address(address) for address in saved["endpoints"]}
                self._deleted_endpoints = {
                    ip_address(each): (device, tuple(flags)) for each, device, flags in saved["others"]
                }
        except (ValueError, KeyError, TypeError) as error:
            raise KernelError(f"{path}, which has the state to restore, cannot be read: {error}") from error

    def prepare(self) -> list[str]:
        """Set sysctls, and raise the subflow limit if it is too low; return the kernel's refusals."""
        refused = [text for name, value in SYSCTLS.items() for text in self._ensure_sysctl(name, value)]
        try:
            limit = subflow_limit()
            if limit < MAX_UPLINKS:
                self._limit = limit if self._limit is None else self._limit
                self._write()
                set_subflow_limit(MAX_UPLINKS)
        except KernelError as error:
            refused.append(str(error))
        return refused

    def enable_forwarding(self, devices: Iterable[str], uplinks: Iterable[str]) -> list[str]:
        """Make this host forward packets between the home and the uplinks; return the kernel's refusals.

        A router ignores router advertisements unless accept_ra is 2 (ip-sysctl.rst). Redirects are disabled, because a
        device on the same network as an uplink's router must not bypass this host.
        """
        sysctls = {
            f"net/ipv6/conf/{each}/accept_ra": "2"
            for each in uplinks
            if _read_sysctl(f"net/ipv6/conf/{each}/accept_ra") == "1"
        }
        sysctls |= {f"net/ipv4/conf/{each}/send_redirects": "0" for each in ("all", *devices)}
        forwarding = {"net/ipv4/ip_forward": "1", "net/ipv6/conf/all/forwarding": "1"}
        if any(_read_sysctl(name) == "0" for name in forwarding):
            # If forwarding changes, the kernel also changes these sysctls. They are recorded first, so that they are
            # restored last.
            dependent_files = [
                *_ROOT.glob("net/ipv4/conf/*/accept_redirects"),
                *_ROOT.glob("net/ipv[46]/conf/*/forwarding"),
            ]
            for each in dependent_files:
                name = str(each.relative_to(_ROOT))
                if not name.endswith("/all/forwarding") and (value := _read_sysctl(name)) is not None:
                    self._sysctls.setdefault(name, value)
        sysctls |= forwarding
        return [text for name, value in sysctls.items() for text in self._ensure_sysctl(name, value)]

    def loosen_rp_filters(self, devices: Iterable[tuple[str, int]]) -> list[str]:
        """Set rp_filter of new devices, given by name and index, to loose; return the kernel's refusals."""
        refused = []
        for device, index in devices:
            if (device, index) in self._checked_devices:
                continue
            self._checked_devices.add((device, index))
            # Answers arrive on the uplink that sent the packets, even if the best route to the sender uses another
            # uplink (RFC 3704).
            name = f"net/ipv4/conf/{device}/rp_filter"
            if _read_sysctl(name) == "1" or (
                _read_sysctl(name) == "0" and _read_sysctl("net/ipv4/conf/all/rp_filter") == "1"
            ):
                refused += self._ensure_sysctl(name, "2")
        return refused

    def ensure_endpoints(self, planned: Iterable[Endpoint], addresses: Collection[Address]) -> list[str]:
        """Add the *planned* endpoints; remove the gateway's other endpoints, and all other endpoints at *addresses*,
        those of the ways. Return the refusals. Raises KernelError if the kernel's endpoints cannot be read."""
        devices = {each.address: each.device for each in planned}
        refused: list[str] = []
        existing = endpoints()
        # Delete first, because the kernel allows eight endpoints, and one per address.
        for address, found in list(existing.items()):
            is_ours = address in self._own_endpoints
            is_suitable = found.opens_subflows and found.device in ("", devices.get(address))
            stays = is_suitable if address in devices else not (is_ours or address in addresses)
            if stays:
                continue
            try:
                if not is_ours:
                    self._deleted_endpoints[address] = (found.device, found.flags)
                    self._write()
                delete_endpoint(found.number)
            except KernelError as error:
                refused.append(str(error))
            else:
                self._own_endpoints.discard(address)
                del existing[address]
                log.info("endpoint %s removed", address)
        for address in devices.keys() - existing.keys():
            try:
                self._add(address, devices[address])
            except KernelError as error:
                refused.append(str(error))
        return refused

    def restore(self) -> None:
        """Restore everything; log failures."""
        refused: list[str] = []
        try:
            existing = endpoints()
        except KernelError as error:
            refused.append(str(error))
            existing = {}
        for address in self._own_endpoints & existing.keys():
            refused += _refusals_of(delete_endpoint, existing[address].number)
        for address, (device, flags) in self._deleted_endpoints.items():
            if address in self._own_endpoints or address not in existing:
                refused += _refusals_of(add_endpoint, address, device, flags)
        for name, value in reversed(self._sysctls.items()):
            if (_ROOT / name).exists():  # missing if the device has been removed
                refused += _refusals_of(_set_sysctl, name, value)
        if self._limit is not None:
            refused += _refusals_of(set_subflow_limit, self._limit)
        for text in refused:
            log.warning("%s", text)
        write_state(self._path, None)

    def _add(self, address: Address, device: str) -> None:
        """Add an endpoint. Raises KernelError."""
        deleted = self._deleted_endpoints.get(address)
        if deleted is not None and "subflow" in deleted[1]:  # restore the endpoint of another program
            add_endpoint(address, *deleted)
            del self._deleted_endpoints[address]
            self._write()
        else:
            self._own_endpoints.add(address)
            self._write()
            add_endpoint(address, device, ("subflow",))
        log.info("endpoint %s on %s", address, device)

    def _ensure_sysctl(self, name: str, value: str) -> list[str]:
        found = _read_sysctl(name)
        if found is None or found == value:
            return []
        try:
            if name not in self._sysctls:
                self._sysctls[name] = found
                self._write()
            _set_sysctl(name, value)
        except KernelError as error:
            return [str(error)]
        return []

    def _write(self) -> None:
        saved = {
            "sysctls": self._sysctls,
            "limit": self._limit,
            "endpoints": [str(each) for each in self._own_endpoints],
            "others": [(str(address), *endpoint) for address, endpoint in self._deleted_endpoints.items()],
        }
        write_state(self._path, json.dumps(saved))


def _refusals_of(operation: Any, *arguments: object) -> list[str]:
    try:
        operation(*arguments)
    except KernelError as error:
        return [str(error)]
    return []


def _read_sysctl(name: str) -> str | None:
    try:
        return (_ROOT / name).read_text(encoding="ascii").strip()
    except OSError:
        return None


def _set_sysctl(name: str, value: str) -> None:
    try:
        (_ROOT / name).write_text(value, encoding="ascii")
    except OSError as error:
        raise KernelError(f"set {name.replace('/', '.')} to {value}: {error.strerror}") from error
