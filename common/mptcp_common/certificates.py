# SPDX-License-Identifier: GPL-2.0-or-later
"""Tries a certificate and its key before a server uses them: an error is a mistake in the settings."""

from __future__ import annotations

import ssl

from mptcp_common.reasons import reason


class Unusable(Exception):
    """Why a server cannot use these files, for people."""


def loaded(certificate: str, key: str) -> ssl.SSLContext:
    """Return a server's context with these files. Raises Unusable."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # Without the last argument, OpenSSL asks the terminal for a password, and a service has none.
        context.load_cert_chain(certificate, key, _no_password)
    except (OSError, ValueError) as error:
        raise Unusable(f"{certificate} with {key} cannot be used: {reason(error)}") from error
    return context


def obstacle(certificate: str, key: str) -> str | None:
    """Return why a server cannot use these files, for people; None if it can."""
    try:
        loaded(certificate, key)
    except Unusable as error:
        return str(error)
    return None


def _no_password() -> str:
    raise ValueError(
        "the key is encrypted, and a service has nobody to type its password; store it without (openssl pkey)"
    )
