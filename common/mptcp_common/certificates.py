# SPDX-License-Identifier: GPL-2.0-or-later
"""Checks that a server can load its certificate and key, so that an error is reported as a problem of the settings."""

from __future__ import annotations

import ssl

from mptcp_common.reasons import reason


class Unusable(Exception):
    """A server cannot use these files; the text is the reason, as a message for the operator."""


def load_certificate(certificate: str, key: str) -> ssl.SSLContext:
    """Return a server's TLS context with these files. Raises Unusable."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # Without the last argument, OpenSSL would request a password at the terminal, which a service does not have.
        context.load_cert_chain(certificate, key, _no_password)
    except (OSError, ValueError) as error:
        raise Unusable(f"{certificate} with {key} cannot be used: {reason(error)}") from error
    return context


def certificate_problem(certificate: str, key: str) -> str | None:
    """Return why a server cannot use these files, as a message for the operator; None if it can use them."""
    try:
        load_certificate(certificate, key)
    except Unusable as error:
        return str(error)
    return None


def _no_password() -> str:
    raise ValueError(
        "the key is encrypted, and a service cannot request its password; store the key unencrypted (openssl pkey)"
    )
