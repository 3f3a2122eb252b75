# SPDX-License-Identifier: GPL-2.0-or-later
"""The shared libraries and kernel features that the throttler needs; ``check`` and ``doctor`` look for them.

Facts about the host are arguments, so that every answer can be tested on any host.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

PCAP = ("libpcap.so.0.8", "libpcap.so.1", "libpcap.so")
"""Debian's name, everyone else's, and the development package's."""
NFTABLES = ("libnftables.so.1", "libnftables.so")
BPF = ("libbpf.so.1",)
KERNEL_TYPES = "/sys/kernel/btf/vmlinux"
WITHOUT_BPF = "caps then begin without pacing, which may stall the other paths, and not with a connection's first byte"
_OLDEST_FOR_BPF = (5, 16)
_DEBIANS_KERNEL = "apt install linux-image-$(dpkg --print-architecture) && reboot"
HTB, PFIFO, TBF, IFB = "htb", "pfifo", "tbf", "ifb"
PACKETS, SOCKETS = "packet sockets", "socket diagnostics"
OF_KERNEL = (HTB, PFIFO, PACKETS, SOCKETS)
"""Needed by every policy."""
BY_NFTABLES: Final = "nftables"
BY_EITHER: Final = "auto"
INGRESS = "nftables at ingress"
FOR_UPLOADS = (TBF, IFB, INGRESS)
"""Also needed by rules for uploads."""


class Lack(NamedTuple):
    """Something that a host lacks, in words for people."""

    what: str
    why: str
    """The function that does not work without it."""
    remedy: str
    """A command that provides it."""


class _Feature(NamedTuple):
    name: str
    serves: str
    modules: str
    options: str
    """Options of the kernel's configuration for it."""
    packages: str = ""
    """Debian's packages for it."""
    library: Sequence[str] = ()
    """Names of the shared library that the throttler uses for it."""
    works: str = ""
    """The text about a working backend."""
    there: str = ""
    """For a backend whose trial loads its modules: a file that exists if they are loaded or built in."""


_FINDS = "packets find their classes by it"
_BACKENDS = {
    "iptables": _Feature(
        "iptables",
        _FINDS,
        "-a iptable_mangle ip6table_mangle xt_set xt_length ip_set_hash_ipportip",
        "CONFIG_IP_NF_MANGLE, CONFIG_IP6_NF_MANGLE, CONFIG_NETFILTER_XT_SET, CONFIG_NETFILTER_XT_MATCH_LENGTH or "
        "CONFIG_IP_SET_HASH_IPPORTIP",
        "iptables",
        works="legacy mangle table, SET target and hash:ip,port,ip with skbinfo work",
        there="/proc/net/ip_tables_names",
    ),
    BY_NFTABLES: _Feature(
        "nftables",
        _FINDS,
        "nf_tables",
        "CONFIG_NF_TABLES or CONFIG_NF_TABLES_INET",
        "libnftables1",
        NFTABLES,
        works="nf_tables maps on postrouting work",
    ),
}
BACKENDS = tuple(_BACKENDS)
"""How packets find their classes: the words of the throttler's settings, in the order of ``auto``. The adapter of each
is the module of its name in ``mptcp_throttler.kernel.netfilter``."""
_FEATURES = {
    **_BACKENDS,
    HTB: _Feature("HTB", "it is what caps a subflow", "sch_htb", "CONFIG_NET_SCH_HTB"),
    PFIFO: _Feature("pfifo", "it keeps the queue of a cap short", "sch_fifo", "CONFIG_NET_SCH_FIFO"),
    TBF: _Feature("TBF", "it cuts the large segments of capped uploads", "sch_tbf", "CONFIG_NET_SCH_TBF"),
    IFB: _Feature("IFB", "capped uploads wait on such a device", "ifb", "CONFIG_IFB"),
    PACKETS: _Feature("AF_PACKET", "subflows are seen by packet sockets", "af_packet", "CONFIG_PACKET"),
    SOCKETS: _Feature(
        "NETLINK_SOCK_DIAG",
        "subflows are counted by socket diagnostics",
        "-a inet_diag tcp_diag mptcp_diag",
        "CONFIG_INET_DIAG",
    ),
    BY_EITHER: _Feature("netfilter", _FINDS, "nf_tables", "CONFIG_NF_TABLES or CONFIG_NF_TABLES_INET", "libnftables1"),
    INGRESS: _Feature(
        "nftables at ingress",
        "it sends capped uploads to the IFB device",
        "-a nf_tables nft_fwd_netdev",
        "CONFIG_NF_TABLES_NETDEV or CONFIG_NFT_FWD_NETDEV",
        "libnftables1",
        NFTABLES,
    ),
}


def name_of(feature: str) -> str:
    """Return the readable name of one of ``OF_KERNEL``, ``FOR_UPLOADS`` or ``BACKENDS``."""
    return _FEATURES[feature].name


def what_works(backend: str) -> str:
    """Return a text about the parts of the working *backend*."""
    return _FEATURES[backend].works


def backends_there() -> tuple[str, ...]:
    """Return the backends whose trial loads no kernel module. The daemon, which cannot load modules itself, would use
    a loaded one after its next start."""
    return tuple(name for name, each in _BACKENDS.items() if not each.there or Path(each.there).exists())


def by_nftables(feature: str) -> bool:
    """Tell whether the throttler uses *feature* by libnftables."""
    return _FEATURES[feature].library == NFTABLES


def lacks_of_kernel(results: Mapping[str, str | None], features: Iterable[str]) -> Iterator[tuple[str, Lack]]:
    """Yield those of *features* with a reason in *results*: None there means that it works; untried ones are absent."""
    for feature in features:
        if (reason := results.get(feature)) is None:
            continue
        name, serves, modules, options, packages, *_ = _FEATURES[feature]
        without = "rules for uploads need it" if feature in FOR_UPLOADS else "the throttler cannot start without"
        what = f"{name} does not work ({reason}), kernel option {options}"
        install = f"apt install {packages}; " if packages else ""
        yield feature, Lack(what, f"{serves}, and {without}", f"{install}modprobe {modules} || ({_DEBIANS_KERNEL})")


def loads(name: str) -> bool:
    """Tell whether this process can load the library *name*."""
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def first(names: Sequence[str], loads: Callable[[str], bool]) -> str | None:
    """Return the first of *names* that loads; None if none does."""
    return next((name for name in names if loads(name)), None)


def lack_of_pcap(loads: Callable[[str], bool]) -> Lack | None:
    """Return the missing requirement of the capture; without it, the throttler does not start."""
    if first(PCAP, loads):
        return None
    return Lack(
        "libpcap cannot be loaded",
        "the throttler's capture filter is compiled by it, so it would see no subflow",
        "apt install libpcap0.8",
    )


def lack_of_nftables(loads: Callable[[str], bool]) -> Lack | None:
    """Return the missing requirement of netfilter, which uploads need; without legacy iptables, downloads need it,
    too."""
    if first(NFTABLES, loads):
        return None
    return Lack(
        "libnftables cannot be loaded",
        "the throttler then needs the kernel's legacy iptables tables, which newer kernels lack",
        "apt install libnftables1",
    )


def lack_of_bpf(loads: Callable[[str], bool], release: str, has_types: bool) -> Lack | None:
    """Return the missing requirement of the throttler's programs. *release*: the kernel's; *has_types*:
    ``KERNEL_TYPES`` exists."""
    if first(BPF, loads) is None:
        return Lack(f"{BPF[0]} cannot be loaded", WITHOUT_BPF, "apt install libbpf1")
    if _version(release) >= _OLDEST_FOR_BPF and has_types:
        return None
    lacks = f"has no {KERNEL_TYPES}" if not has_types else "is older than 5.16"
    return Lack(
        f"Linux {release} {lacks}",
        WITHOUT_BPF,
        f"{_DEBIANS_KERNEL}   # CONFIG_DEBUG_INFO_BTF=y",
    )


def _version(release: str) -> tuple[int, ...]:
    numbers = release.split("-", maxsplit=1)[0].split(".")[:2]
    return tuple(int(number) for number in numbers if number.isdigit())
