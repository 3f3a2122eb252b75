# SPDX-License-Identifier: GPL-2.0-or-later
"""The keeper: a process that listens to path-manager events for a throttler, and outlives it.

While ``net.mptcp.pm_type`` is 1 the kernel refuses every MP_JOIN unless a socket listens to ``mptcp_pm_events``. For a
connection accepted in that time, this applies until the connection ends, even after the sysctl is restored. So the
keeper holds a second subscribed socket. When the throttler ends, killed or not, the keeper restores the sysctls at
once. It continues to listen until all connections accepted before the restoration have ended.

It is started by its file name, without site packages, and imports only a little of the standard library, to stay small
and robust. Sources: net/mptcp/pm.c, net/mptcp/pm_userspace.c, linux/inet_diag.h, linux/mptcp.h.

The throttler's messages, one per packet: ``hold SYSCTL=VALUE...`` (values to restore when the throttler dies),
``release`` (the throttler has restored all), ``end`` (restore and end, whatever connections exist). The keeper answers
each with ``ok``, and a new throttler's connection with ``ready`` and its process id.
"""

import os
import select
import signal
import socket
import struct
import sys
import syslog
from collections.abc import Iterator
from contextlib import suppress

READY, OK, HOLD, RELEASE, END = b"ready", b"ok", b"hold", b"release", b"end"
START_SECONDS = 10.0  # time for the throttler that started the keeper to connect
FIRST_CHECK_SECONDS = 0.1
"""Delay of the first check. By then, handshakes that were in progress when the sysctls were restored are visible."""
CHECK_SECONDS = 1.0
RETRY_SECONDS = 600.0
_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _DUMP = 4, 20, 0x301
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_IPPROTO_MPTCP, _REQ_PROTOCOL = 262, 3
_ESTABLISHED = 1 << 1
_INFO = 2
_MESSAGE_BYTES = 72
_SUBFLOWS_MAX, _TOKEN = 3, 12  # Offsets in struct mptcp_info. Its limits are zero under the userspace path manager.


class Keeper:
    """Serves one throttler after another on the socket *listening*, bound to *path*. A second throttler waits."""

    def __init__(self, listening: socket.socket, path: str, note: str) -> None:
        self._listening = listening
        self._path = path
        self._note = note
        self._originals: dict[str, str] = {}
        self._has_held_sysctls = False
        self._remaining: set[bytes] | None = None  # tokens of connections that may need a listener; None before a check
        self._pause = START_SECONDS
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def run(self) -> None:
        """Serve until no throttler and no connection needs this process."""
        while True:
            if select.select([self._listening], [], [], self._pause)[0]:
                # Only root and this user may connect: see the mode of the socket and of its directory.
                with self._listening.accept()[0] as throttler:
                    if not self._serve(throttler):
                        return
            elif not self._is_needed():
                self._close()
                return

    def _close(self) -> None:
        """Remove the socket's name first, so that a new throttler starts its own keeper."""
        with suppress(OSError):
            os.unlink(self._path)
        self._listening.close()

    def _serve(self, throttler: socket.socket) -> bool:
        """Serve one throttler until it ends; return whether to continue."""
        # A SIGTERM to all processes of the throttler's service must not end its keeper.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _send(throttler, b"%s %d" % (READY, os.getpid()))
        while (words := _receive_words(throttler))[:1] == [HOLD]:
            pairs = (word.decode("ascii").partition("=") for word in words[1:])
            self._originals = {name: value for name, _, value in pairs}
            self._has_held_sysctls = True
            _send(throttler, OK)
        if words == [RELEASE]:
            self._originals = {}
        self._restore()
        if words == [END]:
            self._close()
        _send(throttler, OK)
        self._remaining = None
        self._pause = FIRST_CHECK_SECONDS
        return words != [END]

    def _restore(self) -> None:
        for name, value in self._originals.items():
            try:
                with open("/proc/sys/" + name.replace(".", "/"), "w", encoding="ascii") as file:
                    file.write(value)
                syslog.syslog(syslog.LOG_WARNING, f"the throttler has ended: {name} is {value} again")
            except OSError as error:
                syslog.syslog(syslog.LOG_ERR, f"set sysctl {name} to {value}: {error.strerror}")
        if self._originals:
            with suppress(OSError):
                os.unlink(self._note)
        self._originals = {}

    def _is_needed(self) -> bool:
        """Return whether a connection remains that may have been accepted under the userspace path manager."""
        if not self._has_held_sysctls:
            return False
        try:
            tokens = userspace_tokens()
        except OSError as error:
            # If in doubt, continue to run, because a connection may need this process.
            syslog.syslog(syslog.LOG_ERR, f"list MPTCP sockets: {error}; the keeper continues to listen")
            self._pause = RETRY_SECONDS
            return True
        if self._remaining is None:
            self._remaining = tokens
        else:
            self._remaining &= tokens
            # Only from the second check on: the SIGTERM that ended the throttler may reach the keeper a little later.
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._pause = CHECK_SECONDS
        return bool(self._remaining)


def userspace_tokens() -> set[bytes]:
    """Return the tokens of established connections that may be under the userspace path manager."""
    tokens = set()
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as netlink:
        netlink.settimeout(10.0)
        netlink.bind((0, 0))
        for family in (socket.AF_INET, socket.AF_INET6):
            request = struct.pack("=BBBxI48x", family, socket.IPPROTO_TCP, 1 << (_INFO - 1), _ESTABLISHED)
            request += struct.pack("=HHI", 8, _REQ_PROTOCOL, _IPPROTO_MPTCP)
            netlink.send(struct.pack("=IHHII", 16 + len(request), _SOCK_DIAG_BY_FAMILY, _DUMP, 1, 0) + request)
            for body in _answers(netlink):
                info = dict(_parts(body, _MESSAGE_BYTES, "=HH", 4)).get(_INFO, b"")
                if len(info) >= _TOKEN + 4 and info[_SUBFLOWS_MAX] == 0:
                    tokens.add(info[_TOKEN : _TOKEN + 4])
    return tokens


def _answers(netlink: socket.socket) -> Iterator[bytes]:
    while True:
        for kind, body in _parts(netlink.recv(1 << 18), 0, "=IH", 16):
            if kind in (_NLMSG_ERROR, _NLMSG_DONE):
                if code := -struct.unpack_from("=i", body)[0]:
                    raise OSError(code, os.strerror(code))
                return
            yield body


def _parts(data: bytes, offset: int, header: str, header_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Yield type and payload of each netlink message or attribute, whose header begins with length and type."""
    while offset + header_bytes <= len(data):
        length, kind = struct.unpack_from(header, data, offset)
        yield kind, data[offset + header_bytes : offset + length]
        offset += (max(length, header_bytes) + 3) & ~3


def _receive_words(throttler: socket.socket) -> list[bytes]:
    try:
        return throttler.recv(4096).split()
    except OSError:
        return []


def _send(throttler: socket.socket, message: bytes) -> None:
    with suppress(OSError):
        throttler.send(message, socket.MSG_NOSIGNAL)


def main(arguments: list[str]) -> None:
    """Serve. *arguments*: the listening socket's descriptor and path, and the file to remove when sysctls are restored.

    The process also inherits the subscribed event socket, and keeps it open.
    """
    listening, path, note = arguments
    # The throttler waits only for the first process, and never has to reap the second.
    if os.fork():
        os._exit(0)
    os.chdir("/")
    with open("/proc/self/comm", "w", encoding="ascii") as name:
        name.write("mptcp-keeper")
    syslog.openlog("mptcp-throttler-keeper", syslog.LOG_PID, syslog.LOG_DAEMON)
    Keeper(socket.socket(fileno=int(listening)), path, note).run()


if __name__ == "__main__":
    main(sys.argv[1:])
