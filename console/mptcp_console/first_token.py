# SPDX-License-Identifier: GPL-2.0-or-later
"""Creates the console's token if the operator has not created one: at the unit's first start, as root.

Without a token, every user of the host could see what the status socket shows only to its group, because all users can
connect to a port on loopback.
"""

from __future__ import annotations

import grp
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Final

from mptcp_common.problems import DocumentError, Problem
from mptcp_common.reasons import reason
from mptcp_common.unit_user import GROUP
from mptcp_console.settings import DEFAULT_SETTINGS, TOKEN_NAME, uses_default_token

_MODE: Final = 0o640


def make_first_token(file: Path | None) -> Path | None:
    """Create the token file in the directory of *file* (by default, of the default settings file), if the settings
    refer to it and it is missing.

    Return the token file's path; None if no token was needed. Raises DocumentError if it cannot be written.
    """
    settings = file or DEFAULT_SETTINGS
    path = settings.parent / TOKEN_NAME
    # The console itself reports invalid settings, and then does not restart.
    if path.exists() or not uses_default_token(settings):
        return None
    # Write the token to a temporary file first, because the console may start before the file is complete.
    temporary = path.with_name(f".{TOKEN_NAME}.{os.getpid()}")
    try:
        # A killed process that had our process ID may have left a file with this name.
        temporary.unlink(missing_ok=True)
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            with os.fdopen(descriptor, "w", encoding="ascii") as opened:
                opened.write(secrets.token_hex(32) + "\n")
                if os.geteuid() == 0:
                    # On a host without the group, the console's unit is not installed.
                    with suppress(KeyError):
                        os.fchown(descriptor, 0, grp.getgrnam(GROUP).gr_gid)
                os.fchmod(descriptor, _MODE)
            # link(2) fails if another process has created a token in the meantime; that token is kept.
            os.link(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except FileExistsError:
        return None
    except OSError as error:
        raise DocumentError(
            [Problem(str(path), 0, 0, "", None, f"cannot be written: {error.strerror or reason(error)}")]
        ) from error
    return path
