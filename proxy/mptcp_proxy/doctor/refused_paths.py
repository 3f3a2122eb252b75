# SPDX-License-Identifier: GPL-2.0-or-later
"""Finds paths of the throttler's policy whose clients squid.conf does not allow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mptcp_common.findings import Finding, ok, warn
from mptcp_common.yaml_document import parse_document

from ..configuration.access import possibly_allowed
from ..configuration.access_lists import access_rules, names_of
from ..configuration.addresses import Addresses
from ..configuration.source import Statement

_CHECK = "clients of the paths"


def prefixes(policy: str) -> Iterator[tuple[str, str]]:
    """Yield the name of each path with each of its client prefixes. *policy*: the text of a valid policy file."""
    data = parse_document(policy, "").data
    paths = data.get("paths") if isinstance(data, dict) else None
    for name, path in paths.items() if isinstance(paths, dict) else ():
        clients = path.get("clients") if isinstance(path, dict) else None
        yield from ((name, each) for each in clients or () if isinstance(each, str))


def refused_paths(policy: str, directives: Sequence[Statement], file: str) -> Iterator[Finding]:
    """Check the paths. *directives*: the statements of squid.conf (*file*). A path is good if some of its clients have
    access, or have access with a password."""
    allowed = possibly_allowed(directives)
    found = list(prefixes(policy))
    if allowed is None or not found:
        return
    refused = [(path, prefix) for path, prefix in found if not _is_allowed(prefix, allowed)]
    if not refused:
        yield ok(_CHECK, f"{file} allows clients of each path of the policy")
        return
    refused_clients = ", ".join(f"{prefix} (path {path})" for path, prefix in refused)
    networks = " ".join(dict.fromkeys(prefix for _, prefix in refused))
    name = "clients" if _allows_clients_list(directives) else "path_clients"
    rule = "" if name == "clients" else f' and, before "http_access deny all", the line: http_access allow {name}'
    yield warn(
        _CHECK,
        f"no http_access of {file} allows {refused_clients}",
        "a client whose first subflow comes over such a path is refused (403)",
        f"add to {file} the line: acl {name} src {networks}{rule}; then: mptcp-proxy reload",
    )


def _is_allowed(prefix: str, allowed: Addresses) -> bool:
    try:
        return bool(Addresses.from_prefixes(prefix) & allowed)
    except ValueError:
        return True  # the policy has a mistake, which is reported elsewhere


def _allows_clients_list(directives: Sequence[Statement]) -> bool:
    """Return whether squid.conf allows a list of addresses named "clients", as the shipped squid.conf does."""
    is_list = any(each.words[:3] == ("acl", "clients", "src") for each in directives)
    rules = access_rules(directives, "http_access")
    return is_list and any(each.words[1] == "allow" and names_of(each) == ["clients"] for each in rules)
