# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the preload library on arm64: cross-compiled, and run in QEMU's user mode on this machine's kernel."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from mptcp_proxy import shim

COMPILER = "aarch64-linux-gnu-gcc"
ROOT = "/usr/aarch64-linux-gnu"

TCP, MPTCP = 6, 262
"""Socket protocols of linux/in.h."""
# A program that binds a socket to each given port, connects another socket to it, and prints the protocols of both.
BINDER = r"""
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

int main(int count, char **ports)
{
    for (int i = 1; i < count; i++) {
        struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(ports[i]))};
        int protocol = 0, client_protocol = 0;
        int fd = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
        socklen_t length = sizeof protocol;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        if (bind(fd, (struct sockaddr *)&address, sizeof address) != 0 || listen(fd, 1) != 0 ||
            getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &length) != 0 ||
            connect(client, (struct sockaddr *)&address, sizeof address) != 0 ||
            getsockopt(client, SOL_SOCKET, SO_PROTOCOL, &client_protocol, &length) != 0) {
            perror(ports[i]);
            return 1;
        }
        printf("%d %d\n", protocol, client_protocol);
    }
}
"""


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, require: Callable[..., None]) -> list[str]:
    require(COMPILER)
    monkeypatch.setenv("CC", COMPILER)
    return [str(shim.build(tmp_path / name)) for name in (shim.TURNS, shim.LISTEN)]


def test_libraries_compile_for_arm64(libraries: list[str]) -> None:
    for each in libraries:
        assert "AArch64" in subprocess.check_output(["readelf", "--file-header", each], text=True)


@pytest.mark.kernel
@pytest.mark.skipif(
    # In package tests, the emulator must be installed: the test is not skipped, and fails without it.
    shutil.which("qemu-aarch64") is None and "MPTCP_PACKAGE_RELEASES" not in os.environ,
    reason="NOT TESTED: no emulator for arm64; sudo ./run deb --test installs one",
)
def test_only_listed_ports_and_parents_become_mptcp_on_arm64(libraries: list[str], tmp_path: Path) -> None:
    source, binder = tmp_path / "binder.c", tmp_path / "binder"
    source.write_text(BINDER)
    subprocess.run([COMPILER, "-o", str(binder), str(source)], check=True)
    listed = tmp_path / "listen-ports"
    listed.write_text("3128,3129\n")
    parents = tmp_path / "parents"
    parents.write_text("127.0.0.1:3129 127.0.0.1:3130\n")
    variables = [f"LD_PRELOAD={':'.join(libraries)}", f"MPTCP_LISTEN_PORTS={listed}", f"MPTCP_PARENTS={parents}"]
    emulated = ["qemu-aarch64", "-L", ROOT, *(word for each in variables for word in ("-E", each)), str(binder)]
    ports = ["3128", "3130", "3129"]
    result = subprocess.run(
        ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", *emulated, *ports],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert result.returncode == 0, result.stderr
    # For each port, in the order of the arguments: the protocol of the listener, and that of its client.
    assert [int(each) for each in result.stdout.split()] == [MPTCP, TCP, TCP, MPTCP, MPTCP, MPTCP]
