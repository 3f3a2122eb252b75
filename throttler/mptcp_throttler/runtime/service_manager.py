"""What the service manager is told, where there is one: sd_notify(3), without its library."""

from __future__ import annotations

import logging
import os
import socket
import struct
from collections.abc import Sequence

log = logging.getLogger(__name__)


def is_managed() -> bool:
    """Return whether somebody asked to be told."""
    return bool(os.environ.get("NOTIFY_SOCKET"))


def notify(*lines: str, descriptors: Sequence[int] = ()) -> None:
    """Send *lines*, ``READY=1`` say, with *descriptors* for its store. Does nothing where nobody asked for it."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"={len(descriptors)}i", *descriptors))]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as manager:
            manager.connect(address)
            manager.sendmsg(["\n".join(lines).encode()], rights if descriptors else [])
    except OSError as error:
        log.warning("tell the service manager %s: %s", lines[0], error.strerror)
