"""A certificate of its own signature, for 127.0.0.1."""

from __future__ import annotations

import subprocess
from pathlib import Path


def self_signed(directory: Path) -> tuple[Path, Path]:
    """Write a certificate and its key to *directory*, and return their files."""
    certificate, key = directory / "certificate.pem", directory / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
    subprocess.run([*command, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    return certificate, key


def encrypted(key: Path) -> bytes:
    """Return *key* with a password."""
    command = ["openssl", "pkey", "-in", str(key), "-aes256", "-passout", "pass:secret"]
    return subprocess.run(command, check=True, capture_output=True).stdout
