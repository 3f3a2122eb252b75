"""Which interface has which address of this host, through pyroute2. rtnetlink(7)."""

from __future__ import annotations

from ipaddress import ip_address

from mptcp_throttler.kernel.libraries import AsyncIPRoute, NetlinkError
from mptcp_throttler.kernel.ports import KernelError


async def interface_of_addresses(interfaces: tuple[str, ...]) -> dict[bytes, str]:
    """Return the interface of each local address: where a subflow of unknown interface most likely leaves.

    With one interface, addresses of others (lo, say) are taken to leave by it too. Raises KernelError.
    """
    found: dict[bytes, str] = {}
    try:
        async with AsyncIPRoute() as ipr:
            names = {link["index"]: link.get_attr("IFLA_IFNAME") async for link in await ipr.get_links()}
            async for address in await ipr.get_addr():
                text = address.get_attr("IFA_LOCAL") or address.get_attr("IFA_ADDRESS")
                name = names.get(address["index"])
                if name in interfaces:
                    found[ip_address(text).packed] = name
                elif len(interfaces) == 1:
                    found[ip_address(text).packed] = interfaces[0]
    except NetlinkError as error:
        raise KernelError(f"list the addresses of this host: {error}") from error
    return found
