# SPDX-License-Identifier: GPL-2.0-or-later
"""The shared libraries and kernel features that the throttler needs; ``check`` and ``doctor`` test for them.

The functions get the properties of the host as arguments, so that every result can be tested on any host.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

PCAP = ("libpcap.so.0.8", "libpcap.so.1", "libpcap.so")
"""The library's name in Debian, in other distributions, and in the development package."""
NFTABLES = ("libnftables.so.1", "libnftables.so")
BPF = ("libbpf.so.1",)
KERNEL_TYPES = "/sys/kernel/btf/vmlinux"
"""Descriptions of the kernel's types (BTF), which the throttler's BPF programs need."""
WITHOUT_BPF = (
    "caps then begin later than a connection's first byte, and without pacing, which may stall the other paths"
)
_MIN_RELEASE_FOR_BPF = (5, 16)
_INSTALL_DEBIAN_KERNEL = "apt install linux-image-$(dpkg --print-architecture) && reboot"
HTB, PFIFO, TBF, IFB = "htb", "pfifo", "tbf", "ifb"
PACKETS, SOCKETS = "packet sockets", "socket diagnostics"
KERNEL_FEATURES = (HTB, PFIFO, PACKETS, SOCKETS)
"""Every policy needs these features."""
NFTABLES_BACKEND: Final = "nftables"
ANY_BACKEND: Final = "auto"
INGRESS = "nftables at ingress"
UPLOAD_FEATURES = (TBF, IFB, INGRESS)
"""Rules for uploads also need these features."""


class MissingFeature(NamedTuple):
    """A missing library or kernel feature, described for the operator."""

    what: str
    why: str
    """What the throttler uses it for, and whether it can start without it."""
    remedy: str
    """A command that installs or loads it."""


class _Feature(NamedTuple):
    name: str
    purpose: str
    modules: str
    options: str
    """Options of the kernel's configuration for the feature."""
    packages: str = ""
    """Debian's packages for the feature."""
    library: Sequence[str] = ()
    """Names of the shared library through which the throttler uses the feature."""
    working_text: str = ""
    """The doctor's text about a working backend."""
    loaded_file: str = ""
    """A file that exists if the feature's modules are loaded or built in; empty if a test of the feature loads no
    modules."""


_CLASSIFIES = "it assigns packets to classes"
_BACKENDS = {
    "iptables": _Feature(
        "iptables",
        _CLASSIFIES,
        "-a iptable_mangle ip6table_mangle xt_set xt_length ip_set_hash_ipportip",
        "CONFIG_IP_NF_MANGLE, CONFIG_IP6_NF_MANGLE, CONFIG_NETFILTER_XT_SET, CONFIG_NETFILTER_XT_MATCH_LENGTH or "
        "CONFIG_IP_SET_HASH_IPPORTIP",
        "iptables",
        working_text="legacy mangle table, SET target and hash:ip,port,ip with skbinfo work",
        loaded_file="/proc/net/ip_tables_names",
    ),
    NFTABLES_BACKEND: _Feature(
        "nftables",
        _CLASSIFIES,
        "nf_tables",
        "CONFIG_NF_TABLES or CONFIG_NF_TABLES_INET",
        "libnftables1",
        NFTABLES,
        working_text="nf_tables maps on postrouting work",
    ),
}
BACKENDS = tuple(_BACKENDS)
"""The programs that can assign packets to classes: the values in the throttler's settings, in the order in which
``auto`` tries them. The adapter of each is the module with its name in ``mptcp_throttler.kernel.netfilter``."""
_FEATURES = {
    **_BACKENDS,
    HTB: _Feature("HTB", "it limits the rate of capped subflows", "sch_htb", "CONFIG_NET_SCH_HTB"),
    PFIFO: _Feature("pfifo", "it keeps the queue of a cap short", "sch_fifo", "CONFIG_NET_SCH_FIFO"),
    TBF: _Feature("TBF", "it cuts the large segments of capped uploads", "sch_tbf", "CONFIG_NET_SCH_TBF"),
    IFB: _Feature("IFB", "capped uploads queue on an IFB device", "ifb", "CONFIG_IFB"),
    PACKETS: _Feature("AF_PACKET", "the throttler detects subflows with packet sockets", "af_packet", "CONFIG_PACKET"),
    SOCKETS: _Feature(
        "NETLINK_SOCK_DIAG",
        "the throttler counts bytes of subflows with socket diagnostics",
        "-a inet_diag tcp_diag mptcp_diag",
        "CONFIG_INET_DIAG",
    ),
    ANY_BACKEND: _Feature(
        "netfilter", _CLASSIFIES, "nf_tables", "CONFIG_NF_TABLES or CONFIG_NF_TABLES_INET", "libnftables1"
    ),
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
    """Return the readable name of one of ``KERNEL_FEATURES``, ``UPLOAD_FEATURES`` or ``BACKENDS``."""
    return _FEATURES[feature].name


def working_text(backend: str) -> str:
    """Return the doctor's text about the working *backend*."""
    return _FEATURES[backend].working_text


def backends_without_modules() -> tuple[str, ...]:
    """Return the backends whose test loads no kernel module. A test that loads a module would change the daemon's next
    start: the daemon cannot load modules itself, but would then use that backend."""
    return tuple(name for name, each in _BACKENDS.items() if not each.loaded_file or Path(each.loaded_file).exists())


def uses_nftables(feature: str) -> bool:
    """Return whether the throttler uses *feature* through libnftables."""
    return _FEATURES[feature].library == NFTABLES


def missing_kernel_features(
    results: Mapping[str, str | None], features: Iterable[str]
) -> Iterator[tuple[str, MissingFeature]]:
    """Yield each of *features* that does not work, with its description. *results* has None for a working feature, and
    the reason for a failing one; untested features are missing in *results*."""
    for feature in features:
        if (reason := results.get(feature)) is None:
            continue
        name, purpose, modules, options, packages, *_ = _FEATURES[feature]
        needed = "rules for uploads need it" if feature in UPLOAD_FEATURES else "the throttler cannot start without it"
        what = f"{name} does not work ({reason}); it needs the kernel option {options}"
        install = f"apt install {packages}; " if packages else ""
        yield (
            feature,
            MissingFeature(
                what, f"{purpose}, and {needed}", f"{install}modprobe {modules} || ({_INSTALL_DEBIAN_KERNEL})"
            ),
        )


def loads(name: str) -> bool:
    """Return whether this process can load the library *name*."""
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def first_loadable(names: Sequence[str], can_load: Callable[[str], bool]) -> str | None:
    """Return the first of *names* that can be loaded; None if no library can be loaded."""
    return next((name for name in names if can_load(name)), None)


def missing_pcap(can_load: Callable[[str], bool]) -> MissingFeature | None:
    """Return the description of libpcap if it is missing: the capture needs it, and the throttler does not start
    without it. Otherwise return None."""
    if first_loadable(PCAP, can_load):
        return None
    return MissingFeature(
        "libpcap cannot be loaded",
        "it compiles the throttler's capture filter; without it, the throttler would detect no subflows",
        "apt install libpcap0.8",
    )


def missing_nftables(can_load: Callable[[str], bool]) -> MissingFeature | None:
    """Return the description of libnftables if it is missing, otherwise None. Uploads need it; downloads need it only
    without legacy iptables."""
    if first_loadable(NFTABLES, can_load):
        return None
    return MissingFeature(
        "libnftables cannot be loaded",
        "the throttler then needs the kernel's legacy iptables tables, which newer kernels lack",
        "apt install libnftables1",
    )


def missing_bpf(can_load: Callable[[str], bool], release: str, has_btf: bool) -> MissingFeature | None:
    """Return the missing requirement of the throttler's BPF programs; None if nothing is missing. *release*: the
    kernel's release; *has_btf*: whether ``KERNEL_TYPES`` exists."""
    if first_loadable(BPF, can_load) is None:
        return MissingFeature(f"{BPF[0]} cannot be loaded", WITHOUT_BPF, "apt install libbpf1")
    if _version(release) >= _MIN_RELEASE_FOR_BPF and has_btf:
        return None
    shortcoming = f"has no {KERNEL_TYPES}" if not has_btf else "is older than 5.16"
    return MissingFeature(
        f"Linux {release} {shortcoming}",
        WITHOUT_BPF,
        f"{_INSTALL_DEBIAN_KERNEL}   # CONFIG_DEBUG_INFO_BTF=y",
    )


def _version(release: str) -> tuple[int, ...]:
    numbers = release.split("-", maxsplit=1)[0].split(".")[:2]
    return tuple(int(number) for number in numbers if number.isdigit())
