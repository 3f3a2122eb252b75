# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for warnings about files that the service cannot see or write, although root can in a shell."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mptcp_common import unit_properties
from mptcp_proxy.configuration.check import check
from mptcp_proxy.places import Role
from mptcp_proxy.problem import Problem

# Properties of the unit as systemctl of systemd 252 prints them.
SHOWN = {
    "ProtectSystem": "strict",
    "ProtectHome": "yes",
    "PrivateTmp": "yes",
    "TemporaryFileSystem": "/dev/shm:mode=1777,size=50%",
    "BindReadOnlyPaths": "",
    "BindPaths": "/run/mptcpproxy/workers:/run/squid:rbind",
    "ReadWritePaths": "/run/mptcpproxy /var/log /run/squid",
    "RuntimeDirectory": "mptcpproxy mptcpproxy/workers",
    "StateDirectory": "",
    "CacheDirectory": "",
    "LogsDirectory": "",
}
OF_THE_UNIT = "mptcp-proxy.service"
EDIT = "in a drop-in of the unit (systemctl edit mptcp-proxy)"
TO_READ = "a directory that the unit sees, such as /etc/mptcp-proxy; or"
TO_WRITE = "below /run/mptcpproxy, /var/log, /run/squid"
NO_HOMES = ("does not see the content of", f"{TO_READ} ProtectHome=read-only {EDIT}")
OWN_PLACES = ("without the host's files", f"{TO_READ} BindReadOnlyPaths= {EDIT}")
READ_ONLY = ("may not write there", f"{TO_WRITE}; or ReadWritePaths= {EDIT}")
LOST = ("which no other program sees and which is removed when the unit stops", TO_WRITE)
UNSEEN = ("does not see the content of", TO_WRITE)


class Service:
    """A host with the unit, whose configurations are in *directory*."""

    def __init__(self, directory: Path, program: Path) -> None:
        self.directory = directory
        self._program = program

    def has(self, **changed: str) -> None:
        """Let systemctl report these properties of the unit; *changed* are those of drop-ins."""
        # The tests' directories are hidden from the unit, so bind them.
        bound = f"{self.directory} {changed.pop('BindReadOnlyPaths', '')}"
        properties = SHOWN | {"BindReadOnlyPaths": bound} | changed
        lines = "\n".join(f"{name}={value}" for name, value in properties.items())
        case = f'[ "$1" = show ] && case "$3" in {OF_THE_UNIT}|{Role.RELAY.unit})'
        self._program.write_text(f"#!/bin/sh\n{case} cat <<'end'\n{lines}\nend\nesac\n")
        self._program.chmod(0o755)

    def warned(
        self, *lines: str, name: str = "squid.conf", service: str = "", role: Role = Role.PROXY
    ) -> list[Problem]:
        """Return the check's warnings about the unit, for a file with these *lines*."""
        file = self.directory / name
        file.write_text("".join(f"{each}\n" for each in lines))
        checked = check(file, service or role.service_name, None, role=role)
        about = [each for each in checked.problems if role.unit in each.text]
        assert about == list(checked.unit_warnings)
        assert all(each.warning for each in about)
        return about


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Service:
    directory = tmp_path / "etc"
    directory.mkdir()
    monkeypatch.setattr("mptcp_proxy.places.CONFIGURATIONS", directory)
    monkeypatch.setattr(unit_properties, "SYSTEMCTL", str(tmp_path / "systemctl"))
    service = Service(directory, tmp_path / "systemctl")
    service.has()
    return service


@pytest.mark.parametrize(
    ("line", "what", "why"),
    [
        ('acl clients src "/root/clients.txt"', "", NO_HOMES),
        ("acl clients src -n 10.0.0.1 '/home/me/clients.txt'", "acl clients src '/home/me/clients.txt'", NO_HOMES),
        ('acl clients src "/run/user/1000/clients"', "", NO_HOMES),
        ('acl clients src "/tmp/clients"', "", OWN_PLACES),
        ('acl clients src "/etc/../var/tmp/clients"', "", OWN_PLACES),
        ('acl clients src "/dev/shm/clients"', "", OWN_PLACES),
        ("include /root/more.conf", "", NO_HOMES),
        ("include /tmp/no-such-directory/*.conf", "", OWN_PLACES),
        ("https_port 3129 tls-cert=/root/c.pem tls-key=/etc/k.pem", "https_port tls-cert=/root/c.pem", NO_HOMES),
        ("auth_param basic program /usr/lib/squid/basic_ncsa_auth /home/passwd", "auth_param /home/passwd", NO_HOMES),
        ('url_rewrite_program "/root/rewrite"', "", NO_HOMES),
        ("access_log stdio:/srv/access.log on-error=drop", "access_log stdio:/srv/access.log", READ_ONLY),
        ("access_log daemon:/opt/access.log squid", "access_log daemon:/opt/access.log", READ_ONLY),
        ("cache_access_log /etc/mptcp-proxy/access.log", "access_log /etc/mptcp-proxy/access.log", READ_ONLY),
        ("cache_log /var/spool/cache.log", "", READ_ONLY),
        ("cache_store_log stdio:/var/lib/store.log", "", READ_ONLY),
        ("pid_filename /run/squid.pid", "", READ_ONLY),
        ("cache_dir rock /var/spool/squid 100", "cache_dir rock /var/spool/squid", READ_ONLY),
        ("cache_log /var/tmp/cache.log", "", LOST),
        ("cache_log /root/cache.log", "", UNSEEN),
    ],
)
def test_file_that_the_unit_cannot_use_is_a_warning(
    service: Service, line: str, what: str, why: tuple[str, str]
) -> None:
    """Defect: check accepted all of these, but after a restart the service ended with status 78 and stayed down."""
    (problem,) = service.warned("http_port 3128", line)
    assert problem.text.startswith(f"{what or line}: {OF_THE_UNIT} ")
    assert (problem.file, problem.line) == (str(service.directory / "squid.conf"), 2)
    assert why[0] in problem.text
    assert problem.allowed == why[1]


@pytest.mark.parametrize(
    "line",
    [
        'acl clients src "/etc/clients.txt"',
        'acl clients src "/rooted/clients.txt"',
        'acl clients src "/srv/home/clients.txt"',
        "acl clients src /root/clients.txt",
        "acl page urlpath_regex ^/home/ /tmp/",
        'acl own dst "/run/${service_name}/own-addresses"',
        '# acl clients src "/root/clients.txt"',
        "http_port 3129 name=x",
        "cache_peer 10.0.0.1 parent 3128 0 no-query",
        "auth_param basic program /usr/lib/squid/basic_ncsa_auth ldap://root/home http://tmp/",
        "access_log none",
        "access_log syslog:daemon.info squid",
        "access_log udp://10.0.0.1:514 squid",
        "access_log stdio:/var/log/${service_name}/access.log on-error=drop",
        "cache_log /var/log/elsewhere/cache.log",
        "cache_log /dev/null",
        "pid_filename /var/run/squid/x.pid",
        "pid_filename none",
        "coredump_dir /var/spool/squid",
        "cache_dir rock /var/log/cache 100",
    ],
)
def test_file_that_the_unit_can_use_has_no_warning(service: Service, line: str) -> None:
    assert service.warned("http_port 3128", line) == []


def test_file_in_a_false_condition_has_no_warning(service: Service) -> None:
    assert service.warned("if false", 'acl a src "/root/a"', "include /root/b", "endif") == []


def test_symbolic_link_is_judged_by_its_target(service: Service) -> None:
    link = service.directory / "clients"
    link.symlink_to("/root/clients.txt")
    log = service.directory / "cache.log"
    log.symlink_to("/var/log/cache.log")
    (problem,) = service.warned(f'acl clients src "{link}"', f"cache_log {log}")
    assert problem.text == (
        f'acl clients src "{link}": {OF_THE_UNIT} does not see the content of /root ({link} is /root/clients.txt)'
    )
    # A path through a hidden directory is not visible either.
    hidden = service.directory / "hidden"
    hidden.mkdir()
    (hidden / "clients").symlink_to(service.directory / "seen")
    service.has(TemporaryFileSystem=f"{hidden}:ro")
    (problem,) = service.warned(f'acl clients src "{hidden}/clients"', f'acl clients src "{service.directory}/seen"')
    assert "without the host's files" in problem.text


def test_relative_name_is_resolved_in_the_root_directory(service: Service) -> None:
    (problem,) = service.warned('acl clients src "root/clients"')
    assert problem.text.endswith("does not see the content of /root (root/clients is /root/clients)")


def test_configuration_that_the_unit_cannot_see_is_a_warning(service: Service, tmp_path: Path) -> None:
    installed, elsewhere = service.directory / "squid.conf", tmp_path / "hidden"
    elsewhere.mkdir()
    service.has(TemporaryFileSystem=str(elsewhere))
    installed.symlink_to(elsewhere / "squid.conf")
    (problem,) = service.warned("http_port 3128")
    assert problem.text.startswith("the configuration itself: ")
    assert (problem.file, problem.line) == (str(installed), None)
    # Under its other name the file also belongs to the unit.
    assert len(check(elsewhere / "squid.conf", "mptcpproxy", None).unit_warnings) == 1


def test_included_file_is_reported_with_the_line_of_the_include(service: Service, tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    service.has(TemporaryFileSystem=str(hidden))
    for name in ("a.conf", "b.conf", "empty.conf"):
        (hidden / name).write_text("" if name == "empty.conf" else "via on\n")
    inner = service.directory / "inner.conf"
    inner.write_text(f"via on\ninclude {hidden}/a.conf\n")
    found = service.warned(f"include {inner}", "", f"include {hidden}/*.conf")
    main = str(service.directory / "squid.conf")
    names = [(f"{hidden}/{name}.conf", main, 3) for name in ("a", "b", "empty")]
    assert [(each.text.split(": ")[0].removeprefix("include "), each.file, each.line) for each in found] == [
        (f"{hidden}/a.conf", str(inner), 2),
        *names,
    ]


def test_file_that_only_a_shell_can_read_stays_a_warning(service: Service, tmp_path: Path) -> None:
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden/clients").write_text("10.0.0.0/8\n")
    service.has(TemporaryFileSystem=f"{tmp_path}/hidden")
    (problem,) = service.warned(f'acl clients src "{tmp_path}/hidden/clients"')
    assert problem.warning
    assert problem not in check(service.directory / "squid.conf", "mptcpproxy", None).errors


@pytest.mark.parametrize(
    ("drop_in", "line"),
    [
        ({"ProtectHome": "read-only"}, 'acl clients src "/root/clients.txt"'),
        ({"ProtectHome": "no"}, "cache_log /root/cache.log"),
        ({"ProtectHome": "tmpfs", "BindReadOnlyPaths": "-/home/me"}, 'acl clients src "/home/me/clients.txt"'),
        ({"BindReadOnlyPaths": "/srv/lists:/tmp/lists:rbind"}, 'acl clients src "/tmp/lists/clients.txt"'),
        ({"ReadWritePaths": "/var/log -/srv/logs"}, "cache_log /srv/logs/cache.log"),
        ({"CacheDirectory": "squid"}, "cache_dir rock /var/cache/squid 100"),
        ({"ProtectSystem": "full"}, "cache_log /srv/logs/cache.log"),
        ({"PrivateTmp": "no"}, 'acl clients src "/tmp/clients.txt"'),
    ],
)
def test_drop_in_that_gives_access_prevents_the_warning(service: Service, drop_in: dict[str, str], line: str) -> None:
    assert len(service.warned(line)) == 1
    service.has(**drop_in)
    assert service.warned(line) == []


@pytest.mark.parametrize(
    ("drop_in", "line"),
    [
        # systemd drops binds below a hidden directory.
        ({"BindReadOnlyPaths": "/home/me"}, 'acl clients src "/home/me/clients.txt"'),
        ({"ReadWritePaths": "/var/log /home/me"}, "cache_log /home/me/cache.log"),
        ({"ProtectHome": "read-only"}, "cache_log /root/cache.log"),
        ({"ProtectHome": "tmpfs"}, 'acl clients src "/root/clients.txt"'),
        ({"PrivateTmp": "no"}, "cache_log /tmp/cache.log"),
    ],
)
def test_drop_in_that_gives_no_access_does_not_prevent_the_warning(
    service: Service, drop_in: dict[str, str], line: str
) -> None:
    service.has(**drop_in)
    assert len(service.warned(line)) == 1


def test_file_of_another_instance_has_no_warning(service: Service) -> None:
    """Trials, tests and the demo run Squid by hand, with lists and logs in /tmp."""
    line = 'acl clients src "/root/clients.txt"'
    assert service.warned(line, name="trial.conf") == []
    assert service.warned(line, service="another") == []
    assert service.warned(line, role=Role.RELAY) == []


def test_file_of_the_relay_is_judged_for_its_unit(service: Service) -> None:
    (problem,) = service.warned('acl clients src "/root/a"', name="relay-squid.conf", role=Role.RELAY)
    assert f": {Role.RELAY.unit} does not see" in problem.text
    assert "systemctl edit mptcp-relay" in problem.allowed


@pytest.mark.parametrize("missing", [Path.unlink, lambda program: program.write_text("#!/bin/sh\nexit 1\n")])
def test_no_warning_without_systemd_or_the_unit(
    service: Service, tmp_path: Path, missing: Callable[[Path], object]
) -> None:
    missing(tmp_path / "systemctl")
    assert service.warned('acl clients src "/root/clients.txt"', "cache_log /srv/cache.log") == []


def test_no_warning_if_systemd_does_not_know_the_unit(service: Service) -> None:
    """systemctl prints defaults for any unit name."""
    nothing = dict.fromkeys(SHOWN, "") | {"ProtectSystem": "no", "ProtectHome": "no", "PrivateTmp": "no"}
    service.has(**nothing)
    assert service.warned('acl clients src "/root/clients.txt"', "cache_log /srv/cache.log") == []
