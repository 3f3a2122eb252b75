# SPDX-License-Identifier: GPL-2.0-or-later
"""Checks that ``mptcp-proxy check`` warns of each file that the proxy's unit cannot open although root can."""

from __future__ import annotations

from typing import Final

from containers import Container

CONFIG: Final = "/etc/mptcp-proxy/squid.conf"
BACKUP: Final = f"{CONFIG}.kept"
DROP_INS: Final = "/run/systemd/system/mptcp-proxy.service.d"
CASES: Final = (
    ('acl more src "/root/clients.txt"', 78, "does not see the content of /root", "ProtectHome=read-only"),
    ('acl more src "/tmp/clients.txt"', 78, "has a /tmp of its own", "BindReadOnlyPaths=/tmp/clients.txt"),
    # Squid's own check of its configuration does not open logs.
    ("access_log stdio:/srv/logs/access.log", 1, "may not write there", "ReadWritePaths=/srv/logs"),
)
"""A line of squid.conf, the unit's exit status with it, the check's warning, and the drop-in that opens the file."""


def check_warns_of_files_the_unit_cannot_open(container: Container) -> None:
    container.sh("for each in /root /tmp; do echo 10.99.0.0/16 >$each/clients.txt; done; install -d -o proxy /srv/logs")
    for line, status, warning, setting in CASES:
        container.sh(f"cp -p {CONFIG} {BACKUP} && echo '{line}' >>{CONFIG} && systemctl reset-failed mptcp-proxy")
        output = container.sh("mptcp-proxy check")
        assert f"mptcp-proxy.service {warning}" in output, output
        assert setting.partition("=")[0] in output, output
        assert container.run(["systemctl", "restart", "mptcp-proxy"], check=False).returncode != 0, line
        assert container.sh("systemctl show --value -p ExecMainStatus mptcp-proxy") == f"{status}\n", line

        container.sh(f"mkdir -p {DROP_INS} && printf '[Service]\\n{setting}\\n' >{DROP_INS}/places.conf")
        container.sh("systemctl daemon-reload")
        assert warning not in container.sh("mptcp-proxy check"), line
        container.restart_after_failure("mptcp-proxy")

        container.sh(f"mv {BACKUP} {CONFIG} && rm -r {DROP_INS} && systemctl daemon-reload")
        container.restart_after_failure("mptcp-proxy")
    assert "mptcp-proxy.service" not in container.sh("mptcp-proxy check")
    container.sh("rm -r /root/clients.txt /tmp/clients.txt /srv/logs")
    assert container.failed_units() == ""
