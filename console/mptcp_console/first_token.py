"""Makes the console's token where the operator has made none: at the unit's first start, by root.

Without one, whoever has an account on the host could see what the status socket gives to its group alone, for a port of
the loopback interface is everybody's.
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
    """Write a token beside the settings *file*, or the usual one, if these mean it and there is none.

    Return its path; None where nothing was to be done. Raises DocumentError where it cannot be written.
    """
    settings = file or DEFAULT_SETTINGS
    path = settings.parent / TOKEN_NAME
    # What is wrong with the settings is for the console itself to say, which ends for good then.
    if path.exists() or not default_token_is_meant(settings):
        return None
    # Under another name until it is whole: the console may be started meanwhile.
    fresh = path.with_name(f".{TOKEN_NAME}.{os.getpid()}")
    try:
        # One of a process that was killed, and had this number.
        fresh.unlink(missing_ok=True)
        try:
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            with os.fdopen(descriptor, "w", encoding="ascii") as written:
                written.write(secrets.token_hex(32) + "\n")
                if os.geteuid() == 0:
                    # Where the host has no such group, there is no unit of ours.
                    with suppress(KeyError):
                        os.fchown(descriptor, 0, grp.getgrnam(GROUP).gr_gid)
                os.fchmod(descriptor, _MODE)
            # One that came meanwhile stays.
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
