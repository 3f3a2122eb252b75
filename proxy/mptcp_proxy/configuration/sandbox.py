# SPDX-License-Identifier: GPL-2.0-or-later
"""Finds files that Squid cannot read, and directories to which it cannot write, when systemd's unit starts it.

If root starts Squid from a shell, it can read files below /root and write logs anywhere. In the unit, the same
configuration fails, and systemd does not restart it. So ``mptcp-proxy check`` warns about this, but only for the
configuration file and the service name of the unit, and only if systemd knows the unit, because tests and demos use
other files. The check gets the unit's properties from systemd, which include drop-ins.

Rules (systemd.exec(5); src/core/namespace.c):

* Of nested directories, the innermost decides. But nothing below a hidden directory is visible, even if it is bound.
* ``ProtectHome=yes`` hides the three directories of homes; with ``tmpfs`` they contain only bound files.
* ``PrivateTmp=`` and ``TemporaryFileSystem=`` give the unit private directories, which are empty at its start.
* With ``ProtectSystem=strict``, only these are writable: /dev, /proc, /sys and homes, which have separate settings; the
  paths of ``ReadWritePaths=`` and ``BindPaths=``; the unit's own directories (``RuntimeDirectory=`` and others).
* The unit's working directory is /, so relative names begin there.

``coredump_dir`` is not checked: Debian's squid.conf names a directory to which the unit may not write, and Squid runs
without it.
"""

from __future__ import annotations

import enum
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from mptcp_common.unit_properties import properties_of_unit

from ..places import CONFIGURATIONS, Role
from ..problem import Problem
from .list_values import listed_file
from .source import IncludedFile, PhysicalLine, Statement, statements

_HOMES = ("/home", "/root", "/run/user")
_TEMPORARY = ("/tmp", "/var/tmp")
_KERNEL_DIRECTORIES = ("/dev", "/proc", "/sys")
_SERVICE_DIRECTORIES = {
    "RuntimeDirectory": "/run",
    "StateDirectory": "/var/lib",
    "CacheDirectory": "/var/cache",
    "LogsDirectory": "/var/log",
}
PROPERTIES = (
    "ProtectSystem",
    "ProtectHome",
    "PrivateTmp",
    "TemporaryFileSystem",
    "BindReadOnlyPaths",
    "BindPaths",
    "ReadWritePaths",
    *_SERVICE_DIRECTORIES,
)
_READ_DIRECTIVES = re.compile(
    r"""https?_port | cache_peer | tls_outgoing_options | sslcrtd_program | auth_param | external_acl_type
      | (?:storeurl|url)_rewrite_program | store_id_program | logfile_daemon | hosts_file | mime_table
      | error_directory | err_page_stylesheet""",
    re.VERBOSE,
)
"""Directives whose words may name certificates, keys, helper programs and their files, or files of Squid's own."""
_FILE_NAME = re.compile(r"""(?:[^/"']*[=:])?["']?(?P<name>/(?!/)[^"']*)["']?""")
"""A word that is a file name, or has one after "=" or ":", but is not a URL."""
_WRITE_DIRECTIVES = re.compile(
    r"access_log|icap_log|tls_key_log|cache_log|cache_store_log|cache_swap_state|pid_filename"
)
_LOG_MODULE = re.compile(r"(?:stdio|daemon):")


class _Access(enum.Enum):
    HIDDEN = enum.auto()
    PRIVATE = enum.auto()
    """The unit has its own directory of this name instead of the host's."""
    READ_ONLY = enum.auto()
    WRITABLE = enum.auto()


class _File(NamedTuple):
    """A file that Squid reads or writes, and the statement that names it."""

    name: str
    description: str
    file: str
    number: int | None
    is_written: bool = False


@dataclass(frozen=True, slots=True)
class Sandbox:
    """Which directories a unit can see, and to which it can write."""

    unit: str
    places: Mapping[Path, _Access]
    writable: tuple[str, ...] = ()
    """The directories that the unit explicitly makes writable."""

    @classmethod
    def from_properties(cls, unit: str, properties: Mapping[str, str]) -> Sandbox:
        """Return the sandbox of a unit with these *properties*, as systemctl prints them."""

        def paths_in(name: str) -> list[str]:
            return [each.lstrip("-+") for each in properties.get(name, "").split()]

        def bind_targets(name: str) -> list[str]:
            # SOURCE, SOURCE:PLACE or SOURCE:PLACE:OPTIONS
            return [each.split(":")[1 if ":" in each else 0] for each in paths_in(name)]

        strict = properties.get("ProtectSystem") == "strict"
        homes = {"yes": _Access.HIDDEN, "tmpfs": _Access.PRIVATE, "read-only": _Access.READ_ONLY}
        access_to_homes = homes.get(properties.get("ProtectHome", ""), _Access.WRITABLE)
        private_places = [each.split(":")[0] for each in paths_in("TemporaryFileSystem")]
        if properties.get("PrivateTmp", "no") != "no":
            private_places.extend(_TEMPORARY)
        writable_paths = paths_in("ReadWritePaths")
        for directory, parent in _SERVICE_DIRECTORIES.items():
            writable_paths.extend(os.path.join(parent, each.split(":")[0]) for each in paths_in(directory))
        access_by_path = {
            "/": _Access.READ_ONLY if strict else _Access.WRITABLE,
            **dict.fromkeys(_KERNEL_DIRECTORIES, _Access.WRITABLE),
            **dict.fromkeys(_HOMES, access_to_homes),
            **dict.fromkeys(private_places, _Access.PRIVATE),
            **dict.fromkeys(bind_targets("BindReadOnlyPaths"), _Access.READ_ONLY),
            **dict.fromkeys(bind_targets("BindPaths"), _Access.WRITABLE),
            **dict.fromkeys(writable_paths, _Access.WRITABLE),
        }
        outermost = [
            each
            for each in writable_paths
            if not any(other != each and _is_below(each, other) for other in writable_paths)
        ]
        places = {Path(os.path.realpath(each)): access for each, access in access_by_path.items()}
        return cls(unit, places, tuple(dict.fromkeys(outermost)))

    def problem(self, file: _File) -> Problem | None:
        """Return a warning if the unit's Squid cannot read or write *file*, otherwise None."""
        name = os.path.normpath(os.path.join("/", file.name))
        real_name = os.path.realpath(name)
        # Both a symbolic link and its target must be visible.
        candidates = [self._innermost(Path(each)) for each in (name, real_name)]
        place, access = next(
            (each for each in candidates if each[1] in (_Access.HIDDEN, _Access.PRIVATE)), candidates[-1]
        )
        link = f" ({file.name} is {real_name})" if real_name != file.name else ""
        edit = f"in a drop-in of the unit (systemctl edit {self.unit.removesuffix('.service')})"
        if access is _Access.HIDDEN:
            why, drop_in = f"does not see the content of {place}", "ProtectHome=read-only"
        elif access is _Access.PRIVATE:
            consequence = (
                "which no other program sees and which is removed when the unit stops"
                if file.is_written
                else "without the host's files"
            )
            why, drop_in = f"has its own {place}, {consequence}", "BindReadOnlyPaths="
        elif file.is_written and access is _Access.READ_ONLY:
            why, drop_in = "may not write there", "ReadWritePaths="
        else:
            return None
        allowed = f"a directory that the unit sees, such as {CONFIGURATIONS}; or {drop_in} {edit}"
        if file.is_written:
            allowed = f"a path below {', '.join(self.writable) or 'a directory to which the unit may write'}"
            if access is _Access.READ_ONLY:
                allowed += f"; or {drop_in} {edit}"
        return Problem(f"{file.description}: {self.unit} {why}{link}", file.file, file.number, allowed, warning=True)

    def _innermost(self, path: Path) -> tuple[Path, _Access]:
        enclosing = sorted(
            (each for each in self.places if path.is_relative_to(each)), key=lambda each: len(each.parts)
        )
        place = next((each for each in enclosing if self.places[each] is _Access.HIDDEN), enclosing[-1])
        return place, self.places[place]


def unit_problems(
    path: Path, lines: Sequence[PhysicalLine], includes: Sequence[IncludedFile], service_name: str, role: Role
) -> Iterator[Problem]:
    """Yield the problems that *lines* have in the unit of *role*, if *path* is the file that the unit reads.
    *includes*: the includes of *path*."""
    is_installed = os.path.realpath(path) == os.path.realpath(role.installed_file)
    if service_name != role.service_name or not is_installed:
        return
    sandbox = Sandbox.from_properties(role.unit, properties_of_unit(role.unit, PROPERTIES))
    files = [_File(str(role.installed_file), "the configuration itself", str(path), None)]
    files.extend(_File(each.name, f"include {each.name}", each.file, each.number) for each in includes)
    files.extend(file for each in statements(lines, service_name) for file in _files(each))
    for file in files:
        if problem := sandbox.problem(file):
            yield problem


def _files(statement: Statement) -> Iterator[_File]:
    words = statement.words
    place = (statement.file, statement.number)
    match words:
        case ("acl", _, _, *values):
            for value in values:
                if name := listed_file(value):
                    yield _File(name, f"{' '.join(words[:3])} {value}", *place)
        case ("cache_dir", _, name, *_) if name.startswith("/"):
            yield _File(name, " ".join(words[:3]), *place, is_written=True)
        case (directive, value, *_) if _WRITE_DIRECTIVES.fullmatch(directive):
            name = _LOG_MODULE.sub("", value, count=1)
            if name.startswith("/"):
                yield _File(name, f"{directive} {value}", *place, is_written=True)
        case (directive, *values) if _READ_DIRECTIVES.fullmatch(directive):
            for value in values:
                if found := _FILE_NAME.fullmatch(value):
                    yield _File(found["name"], f"{directive} {value}", *place)


def _is_below(path: str, other: str) -> bool:
    return Path(path).is_relative_to(other)
