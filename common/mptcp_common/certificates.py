"""A certificate and its key, tried before a server takes them: what is wrong is a mistake in the settings."""

from __future__ import annotations

import ssl

from mptcp_common.reasons import reason


def obstacle(certificate: str, key: str) -> str | None:
    """Return why a server cannot use these files, for people; None where it can."""
    try:
        # Without the last argument OpenSSL asks the terminal for a password, and a service has none.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, _no_password)
    except (OSError, ValueError) as error:
        return f"{certificate} with {key} cannot be used: {reason(error)}"
    return None


def _no_password() -> str:
    raise ValueError(
        "the key is encrypted, and a service has nobody to type its password; store it without (openssl pkey)"
    )
