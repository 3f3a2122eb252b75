# SPDX-License-Identifier: GPL-2.0-or-later
"""The steps that an operator takes after the installation, as the pages of docs/ describe them."""

from __future__ import annotations

import subprocess
from typing import Final

from containers import Container
from installed_services import RELAY_NETWORK, Site
from unit_exposure import MAX_EXPOSURE

TOKEN: Final = "0123456789abcdef" * 4
# From docs/portal.md.
PORTAL_DROP_IN: Final = """
mkdir -p /etc/systemd/system/mptcp-portal.service.d
cat >/etc/systemd/system/mptcp-portal.service.d/certificate.conf <<'END'
[Service]
LoadCredential=certificate:/etc/captive/certificate.pem
LoadCredential=key:/etc/captive/key.pem
END
"""
RELAY_DROP_IN: Final = f"""
mkdir -p /etc/systemd/system/mptcp-relay.service.d
cat >/etc/systemd/system/mptcp-relay.service.d/network.conf <<'END'
[Service]
NetworkNamespacePath={RELAY_NETWORK}
END
"""
"""Script that writes a drop-in, with which the relay runs in a network namespace instead of on a host of its own."""
OPERATOR_FILES: Final = (
    "/etc/captive",
    "/etc/mptcp-tunnel",
    "/etc/systemd/system/mptcp-portal.service.d",
    "/etc/systemd/system/mptcp-relay.service.d",
)
SELF_SIGNED: Final = (
    "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=proxy.example.net"
)
UNCOMMENT: Final = " ".join(f"-e '/^# {each}:/,/^$/ s/^# //'" for each in ("proxy", "onboarding", "captive_portal"))
"""Arguments for sed(1) that uncomment the example sections of portal.yaml."""


def configure_throttler(container: Container) -> None:
    # The examples name the testbed's interface and networks.
    container.sh("cd /etc/mptcp-throttler && for each in throttler policy; do cp $each.yaml.example $each.yaml; done")
    container.sh("systemctl start mptcp-throttler")


def configure(site: Site) -> None:
    """Configure and start the other services: docs/packages.md, docs/console.md, docs/portal.md, docs/relay.md."""
    container, address = site.container, site.address
    configure_throttler(container)

    container.sh(f"(umask 027; echo {TOKEN} >/etc/mptcp-console/token; chgrp mptcp-throttler /etc/mptcp-console/token)")
    # Without a token, the console serves only this host.
    container.sh(f"printf 'listen: {address}:8610\\nopen_to_this_host: true\\n' >/etc/mptcp-console/console.yaml")
    assert "so a token is needed" in container.sh("mptcp-console check", check=False)
    container.sh("sed -i /open_to_this_host/d /etc/mptcp-console/console.yaml && mptcp-console check")
    container.sh("systemctl restart mptcp-console")

    # Use all sections of the example; only root can read the certificate.
    sign = ["openssl", *SELF_SIGNED.split(), "-keyout", "key.pem", "-out", "certificate.pem"]
    subprocess.run(sign, cwd=container.shared, check=True, capture_output=True)
    container.sh("install -D -m600 -t /etc/captive /shared/key.pem /shared/certificate.pem")
    container.sh(PORTAL_DROP_IN)
    edit = f"sed {UNCOMMENT} -e 's/192.168.1.10/{address}/' portal.yaml.example"
    container.sh(f"cd /etc/mptcp-portal && {edit} >portal.yaml")
    container.sh("systemctl daemon-reload && systemctl start mptcp-portal && mptcp-portal check")

    container.sh(RELAY_DROP_IN + "systemctl daemon-reload")
    container.sh("cd /etc/mptcp-proxy && install -m640 -g proxy relay-squid.conf.example relay-squid.conf")
    # The shipped file names no parent, so the relay ends immediately, and systemd does not restart it.
    assert "no cache_peer" in container.sh("mptcp-proxy check --role relay", check=False)
    container.sh("systemctl start mptcp-relay", check=False)
    properties = container.sh("systemctl show -p ExecMainStatus -p NRestarts mptcp-relay").split()
    assert sorted(properties) == ["ExecMainStatus=78", "NRestarts=0"]
    container.sh(f"sed -i 's/^#cache_peer proxy.example.net/cache_peer {address}/' /etc/mptcp-proxy/relay-squid.conf")
    container.sh("mptcp-proxy check --role relay && systemctl start mptcp-relay")

    # See docs/tunnel.md. The shipped example is for a relay whose uplinks may appear later.
    container.sh("(umask 077; head -c 32 /dev/urandom | base64 >/etc/mptcp-tunnel/home.key)")
    container.sh("cd /etc/mptcp-tunnel && cp tunnel.yaml.example tunnel.yaml && mptcp-tunnel check")
    container.sh("systemctl start mptcp-tunnel")
    # See docs/relay.md. The gateway's uplinks and the home's network may appear later, too.
    container.sh("cd /etc/mptcp-gateway && cp gateway.yaml.example gateway.yaml")
    container.sh("echo 'lan: {devices: [lan0]}' >>/etc/mptcp-gateway/gateway.yaml && mptcp-gateway check")
    container.sh("systemctl start mptcp-gateway")
    assert [unit for unit in MAX_EXPOSURE if not container.is_active(unit)] == []
