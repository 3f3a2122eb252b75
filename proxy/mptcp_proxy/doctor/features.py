"""What the probe found out about traffic control, sockets and netfilter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mptcp_common.throttler_needs import FOR_UPLOADS, HTB, IFB, PACKETS, PFIFO, SOCKETS, TBF, lacks_of_kernel, name_of

from ..places import Role
from .model import Finding, fail, ok, warn

Results = Mapping[str, str | None]
"""Feature to None where it works, else to the reason; see ``probe``."""

_LINES = {
    HTB: "tc HTB",
    PFIFO: "tc pfifo",
    TBF: "tc TBF",
    IFB: "IFB",
    PACKETS: "packet sockets",
    SOCKETS: "socket diagnostics",
}
_MODULES = "apt install linux-image-$(dpkg --print-architecture) && reboot   # Debian's kernel has it"


def not_probed(reason: str) -> Finding:
    return warn(
        "kernel features",
        f"not tried out: {reason}",
        "whether this kernel can throttle is seen only by trying, in a network namespace made for it",
        "sudo mptcp-proxy doctor",
    )


def of_throttler(results: Results) -> Iterator[Finding]:
    """What the throttler needs of the kernel: without it nothing is throttled, or no upload, though the proxy works."""
    lacks = dict(lacks_of_kernel(results, _LINES))
    for feature, line in _LINES.items():
        if (lack := lacks.get(feature)) is not None:
            say = warn if feature in FOR_UPLOADS else fail
            yield say(line, *lack)
        elif feature in results:
            yield ok(line, f"{name_of(feature)} works")


def netfilter(results: Results) -> Iterator[Finding]:
    """One of the two ways to find a packet's subflow is enough."""
    legacy = _first_reason(results, "ipset", "iptables")
    modern = results.get("nftables", "not tried")
    if legacy is None:
        yield ok("iptables", "legacy mangle table, SET target and hash:ip,port,ip with skbinfo work")
    else:
        say = warn if modern is None else fail
        yield say(
            "iptables",
            f"legacy iptables with ipset does not work: {legacy}",
            "nftables does the same and is taken instead"
            if modern is None
            else "nftables does not work either, so that no packet finds its class and nothing is throttled",
            f"apt install iptables ipset; modprobe -a iptable_mangle ip6table_mangle xt_set ip_set_hash_ipportip"
            f" || ({_MODULES})",
        )
    if modern is None:
        yield ok("nftables", "nf_tables maps on postrouting work")
    else:
        say = warn if legacy is None else fail
        yield say(
            "nftables",
            f"nftables does not work: {modern}",
            "legacy iptables does the same and is taken instead; kernels from 6.17 may lack that one"
            if legacy is None
            else "legacy iptables does not work either, so that no packet finds its class and nothing is throttled",
            f"apt install libnftables1; modprobe nf_tables || ({_MODULES})",
        )


def _first_reason(results: Results, *features: str) -> str | None:
    return next((reason for f in features if (reason := results.get(f, "not tried")) is not None), None)


_DOES = {Role.PROXY: "a listener into an MPTCP listener", Role.RELAY: "a connection to a parent into one of MPTCP"}
_WITHOUT = {Role.PROXY: "listeners are plain TCP", Role.RELAY: "connections to parents are plain TCP, over one path"}


def shim(results: Results, library: str, build_error: str, role: Role = Role.PROXY) -> Finding:
    """*library*: where it is; *build_error*: why there is none."""
    why = f"without it Squid's {_WITHOUT[role]}"
    if build_error:
        return fail("preload library", build_error, why, "apt install gcc libc6-dev && mptcp-proxy build-shim")
    if "shim" not in results:
        return ok("preload library", f"{library} is built")
    if results["shim"] is None:
        return ok("preload library", f"{library} turns {_DOES[role]}")
    if results.get("mptcp") is not None:
        return warn(
            "preload library",
            f"{library} could not be tried out: this kernel gives no MPTCP socket",
            why,
            "see the line about the kernel's MPTCP first",
        )
    rebuild = f"rm {library} && mptcp-proxy build-shim"
    return fail("preload library", f"{library} does not work: {results['shim']}", why, rebuild)
