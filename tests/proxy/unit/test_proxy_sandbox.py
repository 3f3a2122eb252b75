# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for warnings about files that root can read or write in a shell, but the unit cannot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mptcp_common import unit_properties
from mptcp_proxy.configuration.check import check
from mptcp_proxy.places import Role
from mptcp_proxy.problem import Problem

# These are properties of the unit, as systemctl of systemd 252 prints them.
PROPERTIES = {
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
UNIT = "mptcp-proxy.service"
EDIT = "in a drop-in of the unit (systemctl edit mptcp-proxy)"
TO_READ = "a directory that the unit sees, such as /etc/mptcp-proxy; or"
TO_WRITE = "a path below /run/mptcpproxy, /var/log, /run/squid"
# Pairs: words in a warning, and its advice.
HOME_HIDDEN = ("does not see the content of", f"{TO_READ} ProtectHome=read-only {EDIT}")
PRIVATE_DIRECTORY = ("without the host's files", f"{TO_READ} BindReadOnlyPaths= {EDIT}")
READ_ONLY = ("may not write there", f"{TO_WRITE}; or ReadWritePaths= {EDIT}")
WRITTEN_TO_PRIVATE_DIRECTORY = ("which no other program sees and which is removed when the unit stops", TO_WRITE)
WRITTEN_TO_HIDDEN_HOME = ("does not see the content of", TO_WRITE)


class Service:
    """A host with the unit and its configurations in *directory*."""

    def __init__(self, directory: Path, program: Path) -> None:
        self.directory = directory
        self._program = program

    def set_properties(self, **changed: str) -> None:
        """Let systemctl report the properties of the unit with values *changed* by drop-ins."""
        # The unit hides the tests' directories, so bind them.
        bound = f"{self.directory} {changed.pop('BindReadOnlyPaths', '')}"
        properties = PROPERTIES | {"BindReadOnlyPaths": bound} | changed
        lines = "\n".join(f"{name}={value}" for name, value in properties.items())
        case = f'[ "$1" = show ] && case "$3" in {UNIT}|{Role.RELAY.unit})'
        self._program.write_text(f"#!/bin/sh\n{case} cat <<'end'\n{lines}\nend\nesac\n")
        self._program.chmod(0o755)

    def warnings(
        self, *lines: str, name: str = "squid.conf", service: str = "", role: Role = Role.PROXY
    ) -> list[Problem]:
        """Return the check's warnings about the unit, for a file with these *lines*."""
        file = self.directory / name
        file.write_text("".join(f"{each}\n" for each in lines))
        checked = check(file, service or role.service_name, None, role=role)
        found = [each for each in checked.problems if role.unit in each.text]
        assert found == list(checked.unit_warnings)
        assert all(each.warning for each in found)
        return found


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Service:
    directory = tmp_path / "etc"
    directory.mkdir()
    monkeypatch.setattr("mptcp_proxy.places.CONFIGURATIONS", directory)
    monkeypatch.setattr(unit_properties, "SYSTEMCTL", str(tmp_path / "systemctl"))
    service = Service(directory, tmp_path / "systemctl")
    service.set_properties()
    return service


@pytest.mark.parametrize(
    ("line", "statement", "reason"),
    [
        ('acl clients src "/root/clients.txt"', "", HOME_HIDDEN),
        ("acl clients src -n 10.0.0.1 '/home/me/clients.txt'", "acl clients src '/home/me/clients.txt'", HOME_HIDDEN),
        ('acl clients src "/run/user/1000/clients"', "", HOME_HIDDEN),
        ('acl clients src "/tmp/clients"', "", PRIVATE_DIRECTORY),
        ('acl clients src "/etc/../var/tmp/clients"', "", PRIVATE_DIRECTORY),
        ('acl clients src "/dev/shm/clients"', "", PRIVATE_DIRECTORY),
        ("include /root/more.conf", "", HOME_HIDDEN),
        ("include /tmp/no-such-directory/*.conf", "", PRIVATE_DIRECTORY),
        ("https_port 3129 tls-cert=/root/c.pem tls-key=/etc/k.pem", "https_port tls-cert=/root/c.pem", HOME_HIDDEN),
        (
            "auth_param basic program /usr/lib/squid/basic_ncsa_auth /home/passwd",
            "auth_param /home/passwd",
            HOME_HIDDEN,
        ),
        ('url_rewrite_program "/root/rewrite"', "", HOME_HIDDEN),
        ("access_log stdio:/srv/access.log on-error=drop", "access_log stdio:/srv/access.log", READ_ONLY),
        ("access_log daemon:/opt/access.log squid", "access_log daemon:/opt/access.log", READ_ONLY),
        ("cache_access_log /etc/mptcp-proxy/access.log", "access_log /etc/mptcp-proxy/access.log", READ_ONLY),
        ("cache_log /var/spool/cache.log", "", READ_ONLY),
        ("cache_store_log stdio:/var/lib/store.log", "", READ_ONLY),
        ("pid_filename /run/squid.pid", "", READ_ONLY),
        ("cache_dir rock /var/spool/squid 100", "cache_dir rock /var/spool/squid", READ_ONLY),
        ("cache_log /var/tmp/cache.log", "", WRITTEN_TO_PRIVATE_DIRECTORY),
        ("cache_log /root/cache.log", "", WRITTEN_TO_HIDDEN_HOME),
    ],
)
def test_file_that_the_unit_cannot_use_is_a_warning(
    service: Service, line: str, statement: str, reason: tuple[str, str]
) -> None:
    """Defect: check accepted all these files, but after a restart the unit ended with status 78."""
    (problem,) = service.warnings("http_port 3128", line)
    assert problem.text.startswith(f"{statement or line}: {UNIT} ")
    assert (problem.file, problem.line) == (str(service.directory / "squid.conf"), 2)
    words, advice = reason
    assert words in problem.text
    assert problem.allowed == advice


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
    assert service.warnings("http_port 3128", line) == []


def test_file_in_a_false_condition_has_no_warning(service: Service) -> None:
    assert service.warnings("if false", 'acl a src "/root/a"', "include /root/b", "endif") == []


def test_symbolic_link_is_judged_by_its_target(service: Service) -> None:
    link = service.directory / "clients"
    link.symlink_to("/root/clients.txt")
    log = service.directory / "cache.log"
    log.symlink_to("/var/log/cache.log")
    (problem,) = service.warnings(f'acl clients src "{link}"', f"cache_log {log}")
    assert problem.text == (
        f'acl clients src "{link}": {UNIT} does not see the content of /root ({link} is /root/clients.txt)'
    )
    # A path through a hidden directory is not visible either.
    hidden = service.directory / "hidden"
    hidden.mkdir()
    (hidden / "clients").symlink_to(service.directory / "visible")
    service.set_properties(TemporaryFileSystem=f"{hidden}:ro")
    (problem,) = service.warnings(
        f'acl clients src "{hidden}/clients"', f'acl clients src "{service.directory}/visible"'
    )
    assert "without the host's files" in problem.text


def test_relative_name_is_resolved_in_the_root_directory(service: Service) -> None:
    (problem,) = service.warnings('acl clients src "root/clients"')
    assert problem.text.endswith("does not see the content of /root (root/clients is /root/clients)")


def test_configuration_that_the_unit_cannot_see_is_a_warning(service: Service, tmp_path: Path) -> None:
    installed, elsewhere = service.directory / "squid.conf", tmp_path / "hidden"
    elsewhere.mkdir()
    service.set_properties(TemporaryFileSystem=str(elsewhere))
    installed.symlink_to(elsewhere / "squid.conf")
    (problem,) = service.warnings("http_port 3128")
    assert problem.text.startswith("the configuration itself: ")
    assert (problem.file, problem.line) == (str(installed), None)
    # The file also belongs to the unit under its other name.
    assert len(check(elsewhere / "squid.conf", "mptcpproxy", None).unit_warnings) == 1


def test_included_file_is_reported_with_the_line_of_the_include(service: Service, tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    service.set_properties(TemporaryFileSystem=str(hidden))
    for name in ("a.conf", "b.conf", "empty.conf"):
        (hidden / name).write_text("" if name == "empty.conf" else "via on\n")
    inner = service.directory / "inner.conf"
    inner.write_text(f"via on\ninclude {hidden}/a.conf\n")
    found = service.warnings(f"include {inner}", "", f"include {hidden}/*.conf")
    main = str(service.directory / "squid.conf")
    names = [(f"{hidden}/{name}.conf", main, 3) for name in ("a", "b", "empty")]
    assert [(each.text.split(": ")[0].removeprefix("include "), each.file, each.line) for each in found] == [
        (f"{hidden}/a.conf", str(inner), 2),
        *names,
    ]


def test_file_that_only_a_shell_can_read_is_only_a_warning(service: Service, tmp_path: Path) -> None:
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden/clients").write_text("10.0.0.0/8\n")
    service.set_properties(TemporaryFileSystem=f"{tmp_path}/hidden")
    (problem,) = service.warnings(f'acl clients src "{tmp_path}/hidden/clients"')
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
    assert len(service.warnings(line)) == 1
    service.set_properties(**drop_in)
    assert service.warnings(line) == []


@pytest.mark.parametrize(
    ("drop_in", "line"),
    [
        # systemd ignores binds below a hidden directory.
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
    service.set_properties(**drop_in)
    assert len(service.warnings(line)) == 1


def test_file_of_another_instance_has_no_warning(service: Service) -> None:
    """Trials, tests and the demo run Squid without the unit, with lists and logs in /tmp."""
    line = 'acl clients src "/root/clients.txt"'
    assert service.warnings(line, name="trial.conf") == []
    assert service.warnings(line, service="another") == []
    assert service.warnings(line, role=Role.RELAY) == []


def test_file_of_the_relay_is_judged_for_its_unit(service: Service) -> None:
    (problem,) = service.warnings('acl clients src "/root/a"', name="relay-squid.conf", role=Role.RELAY)
    assert f": {Role.RELAY.unit} does not see" in problem.text
    assert "systemctl edit mptcp-relay" in problem.allowed


@pytest.mark.parametrize(
    "disable",
    [Path.unlink, lambda program: program.write_text("#!/bin/sh\nexit 1\n")],
    ids=["no-systemctl", "systemctl-fails"],
)
def test_no_warning_without_systemd_or_the_unit(
    service: Service, tmp_path: Path, disable: Callable[[Path], object]
) -> None:
    disable(tmp_path / "systemctl")
    assert service.warnings('acl clients src "/root/clients.txt"', "cache_log /srv/cache.log") == []


def test_no_warning_if_systemd_does_not_know_the_unit(service: Service) -> None:
    """systemctl prints defaults for any unit name."""
    defaults = dict.fromkeys(PROPERTIES, "") | {"ProtectSystem": "no", "ProtectHome": "no", "PrivateTmp": "no"}
    service.set_properties(**defaults)
    assert service.warnings('acl clients src "/root/clients.txt"', "cache_log /srv/cache.log") == []
