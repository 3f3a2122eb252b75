# SPDX-License-Identifier: GPL-2.0-or-later
"""Creates self-signed certificates for 127.0.0.1, and reads the certificate of a server."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
from pathlib import Path

KEYS = {"ec": ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"], "rsa": ["-newkey", "rsa:2048"]}
"""Arguments of openssl(1) for each kind of key."""


def self_signed(directory: Path, kind: str = "ec") -> tuple[Path, Path]:
    """Write a certificate and its key to *directory*. Return the two files."""
    certificate, key = directory / "certificate.pem", directory / "key.pem"
    command = ["openssl", "req", "-x509", *KEYS[kind], "-nodes"]
    command += ["-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
    subprocess.run([*command, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    return certificate, key


def replace_file(file: Path, by: Path) -> None:
    """Replace *file* by a copy of *by* atomically, as programs that renew certificates do."""
    new = file.with_suffix(".new")
    new.write_bytes(by.read_bytes())
    new.replace(file)


def served_certificate(port: int) -> bytes:
    """Return the certificate (DER) that a server on loopback shows to a new connection without a server name."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", port), 60) as plain, context.wrap_socket(plain) as connection:
        certificate = connection.getpeercert(binary_form=True)
    assert certificate is not None
    return certificate


def der(certificate: Path) -> bytes:
    return ssl.PEM_cert_to_DER_cert(certificate.read_text())


def checking_often(module: str) -> list[str]:
    """Return a command that runs *module* and checks the certificate files 50 times per second, not once per minute."""
    # The module must tolerate all failures: on a busy machine, the test may replace the key long after the certificate.
    text = (
        "import runpy; from mptcp_common import renewal; "
        "renewal.CHECK_INTERVAL = 0.02; renewal.TOLERATED_FAILURES = 10**9; "
        "runpy.run_module({!r}, run_name={!r})"
    )
    return [sys.executable, "-c", text.format(module, "__main__")]


def encrypted(key: Path) -> bytes:
    """Return the private key in file *key*, encrypted with a password."""
    command = ["openssl", "pkey", "-in", str(key), "-aes256", "-passout", "pass:secret"]
    return subprocess.run(command, check=True, capture_output=True).stdout
