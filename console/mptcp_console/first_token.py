# SPDX-License-Identifier: GPL-2.0-or-later
"""Makes the console's token if the operator has made none: at the unit's first start, as root.

Without a token, every user of the host could see what the status socket gives only to its group, because a port on
loopback is open to all.
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
from mptcp_console.settings import DEFAULT_SETTINGS, TOKEN_NAME, default_token_is_meant

_MODE: Final = 0o640


def make_first_token(file: Path | None) -> Path | None:
    """Write a token beside the settings *file*, or the default one, if the settings use it and it does not exist.

    Return its path; None if there was nothing to do. Raises DocumentError if it cannot be written.
    """
    settings = file or DEFAULT_SETTINGS
    path = settings.parent / TOKEN_NAME
    # The console itself reports invalid settings, and then does not restart.
    if path.exists() or not default_token_is_meant(settings):
        return None
    # Under another name until it is complete, because the console may start meanwhile.
    fresh = path.with_name(f".{TOKEN_NAME}.{os.getpid()}")
    try:
        # A leftover of a killed process with the same ID.
        fresh.unlink(missing_ok=True)
        try:
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            with os.fdopen(descriptor, "w", encoding="ascii") as written:
                written.write(secrets.token_hex(32) + "\n")
                if os.geteuid() == 0:
                    # A host without the group has no unit of ours.
                    with suppress(KeyError):
                        os.fchown(descriptor, 0, grp.getgrnam(GROUP).gr_gid)
                os.fchmod(descriptor, _MODE)
            # A token that was made meanwhile stays.
            os.link(fresh, path)
        finally:
            fresh.unlink(missing_ok=True)
    except FileExistsError:
        return None
    except OSError as error:
        raise DocumentError(
            [Problem(str(path), 0, 0, "", None, f"cannot be written: {error.strerror or reason(error)}")]
        ) from error
    return path
