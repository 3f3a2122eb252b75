# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for broken configurations: ``run`` and ``check`` print one clear message for each mistake and start nothing."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from proxying import skip_in_private_checkout

from mptcp_common.exit_status import CONFIGURATION, FAILED
from mptcp_lab.testbed.services import program
from mptcp_proxy.configuration.check import check
from mptcp_proxy.squid import find_squid

pytestmark = pytest.mark.kernel
ROOT = Path(__file__).parents[3]
SHIPPED = (ROOT / "conf/squid.conf").read_text()
BASE = """\
http_port 3128
acl clients src 10.0.0.0/8
http_access allow clients
http_access deny all
"""
# A sandbox that leaves nothing on the host, and lists the files that the command has created.
SANDBOX = """
ip link set lo up
for directory in /var/log /dev/shm /run; do mount -t tmpfs tmpfs $directory || exit 99; done
"$@"
code=$?
find /run /var/log /dev/shm -mindepth 1
ss -Hltn
exit $code
"""

BROKEN = {
    "unknown directive": (BASE + "http_acess deny all\n", ":5: http_acess: there is no such directive; did you mean"),
    "no port": (BASE.replace("http_port 3128\n", ""), ": no http_port: Squid would not listen"),
    "port out of range": (BASE.replace("3128", "70000"), ":1: http_port 70000: The value '70000' is larger"),
    "port is not a number": (BASE.replace("3128", "proxy"), ":1: http_port proxy: "),
    "port twice": (BASE + "http_port 10.0.0.1:3128\n", ":5: http_port 10.0.0.1:3128: the port is already taken by"),
    "intercept": (BASE.replace("3128", "3128 intercept"), ":1: http_port 3128 intercept: an MPTCP socket does not"),
    "unknown port option": (BASE.replace("3128", "3128 mpt"), ":1: http_port 3128 mpt: Unknown http_port option"),
    "open proxy": (BASE.replace("allow clients", "allow all"), ":3: http_access allow all: an open proxy"),
    "open proxy with a named list": (BASE.replace("10.0.0.0/8", "all"), ":3: http_access allow clients: an open proxy"),
    "open proxy without a last rule": (
        BASE.replace("allow clients\nhttp_access deny all", "deny to_localhost"),
        ":3: http_access deny to_localhost: an open proxy",
    ),
    "open proxy for a port": (
        BASE.replace("acl clients src 10.0.0.0/8", "acl clients port 80 443"),
        ":3: http_access allow clients: an open proxy",
    ),
    "open proxy in two halves": (
        BASE.replace("10.0.0.0/8", "0.0.0.0/1 128.0.0.0/1"),
        ":3: http_access allow clients: an open proxy",
    ),
    "open proxy by !acl": (BASE.replace("allow clients", "allow !clients"), ":3: http_access allow !clients: an open"),
    "open proxy in upper case": (BASE.replace("allow clients", "allow ALL"), ":3: http_access allow ALL: an open"),
    "open proxy in an if": (
        BASE.replace("http_access allow clients", "if 1 = 1\nhttp_access allow all\nendif"),
        ":4: http_access allow all: an open proxy",
    ),
    "open proxy for a range": (
        BASE.replace("10.0.0.0/8", "1.0.0.0-223.255.255.255"),
        ":3: http_access allow clients: an open proxy",
    ),
    "rules from a program": (
        BASE.replace("http_access allow", "if 1 = 1\ninclude |/bin/true\nendif\nhttp_access allow"),
        ":4: include |/bin/true: the output of a program cannot be checked",
    ),
    "wrong netmask": (BASE.replace("/8", "/33"), ":2: acl clients src 10.0.0.0/33: unknown netmask '33'"),
    "unknown access list": (BASE.replace("allow clients", "allow client"), ":3: http_access allow client: ACL not"),
    "neither allow nor deny": (BASE.replace("deny all", "refuse all"), ":4: http_access refuse all: expecting 'allow'"),
    "include no file": (BASE + "include /nonexistent/*.conf\n", ":5: include /nonexistent/*.conf: there is no such"),
    "list from a missing file": (BASE + 'acl x dst "/nonexistent"\n', ':5: acl x dst "/nonexistent": Can not open'),
    "unknown user": (BASE + "cache_effective_user nobodyhere\n", ":5: cache_effective_user nobodyhere: there is"),
    "root": (BASE + "cache_effective_user root\n", ":5: cache_effective_user root: Squid refuses to serve as root"),
    "no directory for the log": (BASE + "access_log stdio:/none/a.log\n", ":5: access_log stdio:/none/a.log: there"),
    "not on or off": (BASE + "via maybe\n", ":5: via maybe: Invalid option: Boolean options"),
    "no unit of time": (BASE + "dns_timeout soon\n", ":5: dns_timeout soon: "),
    "if without endif": (BASE + "if 1 = 1\n", "if-statement without 'endif'"),
    "unfinished line": (BASE + "acl x \\\n", ":5: the file ends in the middle of a continued line"),
    "empty": ("", ": the configuration is empty"),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _needs(require: Callable[..., None]) -> None:
    require("root", "namespaces", "squid")


def run_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["unshare", "--mount", "--net", "sh", "-c", SANDBOX, "sh", program("mptcp-proxy"), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.nightly(
    except_for=(
        "unknown directive",
        "open proxy]",
        "open proxy in two halves",
        "[intercept]",
        "unknown user",
        "unfinished",
        "wrong netmask",
        "rules from",
    )
)
@pytest.mark.parametrize("mistake", BROKEN)
def test_mistake_gives_one_message_and_starts_nothing(tmp_path: Path, mistake: str) -> None:
    text, message = BROKEN[mistake]
    config = tmp_path / "squid.conf"
    config.write_text(text)
    for subcommand in ("check", "run"):
        answer = run_command(subcommand, "--config", str(config))
        assert answer.returncode == (CONFIGURATION if subcommand == "run" else FAILED)
        assert answer.stdout == ""
        errors = [line for line in answer.stderr.splitlines() if "warning: " not in line]
        assert len(errors) == 1, answer.stderr
        assert message in errors[0]
        assert "Traceback" not in answer.stderr


@pytest.mark.parametrize("name", ["my-proxy", "", "squid", "a" * 33, "x/y"])
def test_bad_service_name_is_refused(name: str) -> None:
    for subcommand in ("check", "run", "doctor"):
        answer = run_command(subcommand, "--service-name", name)
        assert answer.returncode == 1
        assert answer.stdout == ""
        assert answer.stderr.startswith(f"mptcp-proxy: --service-name {name}: ")
        assert answer.stderr.count("\n") == 1


def test_missing_file_or_directory_is_refused(tmp_path: Path) -> None:
    for path, reason in ((tmp_path / "none.conf", "No such file or directory"), (tmp_path, "Is a directory")):
        answer = run_command("run", "--config", str(path))
        assert (answer.returncode, answer.stdout) == (CONFIGURATION, "")
        assert answer.stderr == f"mptcp-proxy: {path}: cannot read the configuration: {reason}\n"


def test_unreadable_file_is_refused(tmp_path: Path) -> None:
    skip_in_private_checkout()
    secret = tmp_path / "squid.conf"
    secret.write_text(BASE)
    secret.chmod(0)
    for directory in (tmp_path, *tmp_path.parents):
        if directory.is_relative_to("/tmp") and directory != Path("/tmp"):
            directory.chmod(0o755)
    answer = subprocess.run(
        ["setpriv", "--reuid=65534", "--clear-groups", program("mptcp-proxy"), "check", "--config", str(secret)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert answer.returncode == 1
    assert answer.stderr == f"{secret}: cannot read the configuration: Permission denied\n"


def test_all_mistakes_are_listed_in_the_order_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "more.conf").write_text("via maybe\ncache_mem 10 pigs\n")
    config = tmp_path / "squid.conf"
    config.write_text(f"http_prot 1\nhttp_port 3128 intercept\nacl a src 10.0.0.0/33\ninclude {tmp_path}/m*.conf\n"
                      "http_access allow a\nhttp_access allow all\nworkers \\\n  two\n")  # fmt: skip
    answer = run_command("check", "--config", str(config))
    places = [line.split(": ")[0] for line in answer.stderr.splitlines() if "warning" not in line]
    assert places == [
        f"{config}:1",
        f"{config}:2",
        f"{config}:3",
        f"{tmp_path}/more.conf:1",
        f"{tmp_path}/more.conf:2",
        f"{config}:6",
        f"{config}:8",
    ]


def test_shipped_configuration_is_good_without_a_warning() -> None:
    answer = run_command("check", "--config", str(ROOT / "conf/squid.conf"))
    assert (answer.returncode, answer.stderr) == (0, "")
    line = answer.stdout.splitlines()[-1]
    assert re.search(r"conf/squid\.conf: good; MPTCP listeners on port 3128; \d+ workers? \(.+\)$", line)


def test_statement_that_a_later_squid_refuses_is_left_out() -> None:
    """The installed Squid, which is described with another version number, checks the rest of the file."""
    squid = find_squid()
    assert squid is not None
    # An installed Squid 6 would refuse the statement for 5.7, so skip that case.
    for version, included in (("5.7", True), ("6.13", False))[squid.version.startswith("6") :]:
        checked = check(ROOT / "conf/squid.conf", "mptcpproxy", replace(squid, version=version))
        assert checked.errors == ()
        assert (b"\nrequest_entities on\n" in checked.render(1)) is included
        assert len(checked.notes) == (not included)


def test_missing_squid_is_reported(tmp_path: Path) -> None:
    config = tmp_path / "squid.conf"
    config.write_text(BASE)
    loop = "for each in $(which -a squid | xargs -n 1 realpath | sort -u)"
    hidden = ["sh", "-ec", f'{loop}; do mount --bind /dev/null "$each"; done; exec "$@"', "sh"]
    answer = subprocess.run(
        ["unshare", "--mount", *hidden, program("mptcp-proxy"), "run", "--config", str(config)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    errors = [line for line in answer.stderr.splitlines() if "warning: " not in line]
    assert (answer.returncode, errors) == (CONFIGURATION, ["mptcp-proxy: Squid is not installed: apt install squid"])


def test_open_proxy_is_allowed_by_the_option(tmp_path: Path) -> None:
    config = tmp_path / "squid.conf"
    config.write_text(BASE.replace("allow clients", "allow all").replace("deny all", "deny ALL"))
    refused = run_command("check", "--config", str(config))
    allowed = run_command("check", "--config", str(config), "--allow-open-proxy")
    assert (refused.returncode, allowed.returncode) == (1, 0)
    assert ":3: http_access allow all: an open proxy" in refused.stderr
    assert ":3: warning: http_access allow all: an open proxy" in allowed.stderr


def test_configuration_that_allows_caching_is_accepted(tmp_path: Path) -> None:
    assert SHIPPED.count("\ncache deny all\n") == 1
    config = tmp_path / "squid.conf"
    config.write_text(SHIPPED.replace("\ncache deny all\n", "\n#cache deny all\n"))
    assert run_command("check", "--config", str(config)).returncode == 0
