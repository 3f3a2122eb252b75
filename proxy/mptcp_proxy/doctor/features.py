# SPDX-License-Identifier: GPL-2.0-or-later
"""Reports the results of the probe for traffic control, sockets and netfilter, and the features of the preload
libraries."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from mptcp_common.findings import Finding, fail, ok, unseen, warn
from mptcp_common.throttler_needs import (
    BACKENDS,
    HTB,
    IFB,
    INGRESS,
    PACKETS,
    PFIFO,
    SOCKETS,
    TBF,
    UPLOAD_FEATURES,
    missing_kernel_features,
    name_of,
    working_text,
)

from ..places import Role
from ..shim import FEATURES, LISTEN, needed_libraries, switched_off

Results = Mapping[str, str | None]
"""For each feature, None if it works, otherwise the reason why it does not (see ``probe``)."""

_LINES = {
    HTB: "tc HTB",
    PFIFO: "tc pfifo",
    TBF: "tc TBF",
    IFB: "IFB",
    PACKETS: "packet sockets",
    SOCKETS: "socket diagnostics",
    INGRESS: "nftables ingress",
}


def not_probed(reason: str, root: bool) -> Finding:
    if not root:
        return unseen("kernel features", "they are tested in a temporary network namespace")
    return warn(
        "kernel features",
        f"not tested: {reason}",
        "only a test in a temporary network namespace shows whether this kernel can throttle",
        "sudo mptcp-proxy doctor",
    )


def throttler_features(results: Results) -> Iterator[Finding]:
    """Check the kernel features that the throttler needs. If a feature of UPLOAD_FEATURES is missing, downloads are
    still throttled."""
    missing_features = dict(missing_kernel_features(results, _LINES))
    for feature, line in _LINES.items():
        if (missing_feature := missing_features.get(feature)) is not None:
            report = warn if feature in UPLOAD_FEATURES else fail
            yield report(line, *missing_feature)
        elif feature in results:
            yield ok(line, f"{name_of(feature)} works")


def netfilter(results: Results) -> Iterator[Finding]:
    """Check the netfilter backends, which find the subflow of a packet; one backend is enough."""
    missing_features = dict(missing_kernel_features(results, BACKENDS))
    for backend in BACKENDS:
        others = [each for each in BACKENDS if each != backend]
        if (missing_feature := missing_features.get(backend)) is None:
            if backend in results:
                yield ok(backend, working_text(backend))
        elif missing_features.keys() >= set(others):
            why = f"{', '.join(others)} does not work either, so no packet finds its class, and nothing is throttled"
            yield fail(backend, missing_feature.what, why, missing_feature.remedy)
        else:
            other = next(each for each in others if each not in missing_features)
            why = f"{other} is used instead, unless the throttler's settings name {backend}"
            yield warn(backend, missing_feature.what, why, missing_feature.remedy)


_COUNTER_TEXTS = {
    "turns": "turns",
    "cut_turns": "turns cut",
    "joined_writes": "writes joined",
    "promised_writes": "writes promised",
    "late_writers": "late writers",
    "zero_reads": "reads of no bytes",
    "postponed_accepts": "clients that waited for a descriptor",
}
_NO_COUNTERS: Mapping[str, int] = {}


def library_features(
    environment: Mapping[str, str], loaded: Collection[str], role: Role, counters: Mapping[str, int] = _NO_COUNTERS
) -> Finding:
    """Report which optional features of the preload libraries a running Squid has. *environment*: Squid's environment
    at its start. *loaded*: names of the libraries that it has loaded. *counters*: the libraries' counters since the
    start (``library_counters``)."""
    check = "library features"
    off = switched_off(environment.get("MPTCP_TURNS", ""), environment.get("MPTCP_WITHOUT", "").split(","))
    missing = [name for name in needed_libraries(off) if name not in loaded]
    if missing:
        why = (
            _WITHOUT_LIBRARY[role]
            if LISTEN in missing
            else "clients do not take turns, and small writes are not joined"
        )
        restart = f"systemctl restart mptcp-{role.value}"
        return fail(check, f"Squid runs without the preload library {' and '.join(missing)}", why, restart)
    features = ("fair-turns", *FEATURES)
    parts = [f"on: {', '.join(each for each in features if each not in off) or 'none'}"]
    if off.intersection(features):
        parts.append(f"off: {', '.join(each for each in features if each in off)}")
    if counters:
        parts.append(", ".join(f"{counters[name]} {text}" for name, text in _COUNTER_TEXTS.items()))
    return ok(check, "; ".join(parts))


_CHANGES = {Role.PROXY: "a listener into an MPTCP listener", Role.RELAY: "a connection to a parent into one of MPTCP"}
_WITHOUT_LIBRARY = {
    Role.PROXY: "listeners are plain TCP",
    Role.RELAY: "connections to parents are plain TCP, over one path",
}


def shim(results: Results, library: str, build_error: str, role: Role = Role.PROXY) -> Finding:
    """Report the preload library. *library*: its path. *build_error*: why the library is missing."""
    why = f"without it Squid's {_WITHOUT_LIBRARY[role]}"
    if build_error:
        return fail("preload library", build_error, why, "apt install gcc libc6-dev && mptcp-proxy build-shim")
    if "shim" not in results:
        return ok("preload library", f"{library} is built")
    if results["shim"] is None:
        return ok("preload library", f"{library} turns {_CHANGES[role]}")
    if results.get("mptcp") is not None:
        return warn(
            "preload library",
            f"{library} could not be tested: this kernel creates no MPTCP socket",
            why,
            "see the line about the kernel's MPTCP first",
        )
    rebuild = f"rm {library} && mptcp-proxy build-shim"
    return fail("preload library", f"{library} does not work: {results['shim']}", why, rebuild)
