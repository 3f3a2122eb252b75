# SPDX-License-Identifier: GPL-2.0-or-later
"""Test whether the kernel runs a BPF program on the TCP sockets of this network namespace: bpf(2), libbpf 1.

``python -m mptcp_lab.testbed.bpf_probe`` loads a *sock_ops* program that only reads the cookie of its namespace
(Linux 5.15), attaches it to the root of the cgroup hierarchy (version 2), and exits, which removes both. If the kernel
refuses that, the module prints one line and exits with status 1.

The module shares no code with the throttler's loader. With a shared fault, the tests that need BPF would be skipped,
and would not find the fault.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys

_LIBRARY = "libbpf.so.1"
_PROGRAM_SOCK_OPS, _ATTACH_SOCK_OPS = 13, 3
_NETNS_COOKIE = 122
"""Number of the helper function. If a kernel has it for this program type, it also has older helpers and cgroup
links."""
_CALL, _MOVE, _EXIT = 0x85, 0xB7, 0x95
_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432
"""System call numbers, which are the same on every architecture."""
_FSCONFIG_CMD_CREATE, _CLOSE_ON_EXEC = 6, 1


class _LoadOptions(ctypes.Structure):
    """The first fields of struct bpf_prog_load_opts (bpf/bpf.h). The field ``size`` has the total size in bytes."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("attempts", ctypes.c_int),
        ("expected_attach_type", ctypes.c_int),
    )


def code() -> bytes:
    """Return the program, which returns 1. Each instruction has an opcode, registers, an offset and an immediate."""
    lines = ((_CALL, _NETNS_COOKIE), (_MOVE, 1), (_EXIT, 0))
    return b"".join(struct.pack("=BBhi", operation, 0, 0, number) for operation, number in lines)


def attach() -> None:
    """Load and attach the program until this process ends. Raises OSError with the refused step and the reason."""
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError as error:
        raise OSError(f"load {_LIBRARY}: {error}") from None
    library.libbpf_set_print(None)
    load = library.bpf_prog_load
    load.argtypes = (ctypes.c_int, *(ctypes.c_char_p,) * 3, ctypes.c_size_t, ctypes.c_void_p)
    options = _LoadOptions(ctypes.sizeof(_LoadOptions), 1, _ATTACH_SOCK_OPS)
    program = code()
    loaded = load(_PROGRAM_SOCK_OPS, b"probe", b"GPL", program, len(program) // 8, ctypes.byref(options))
    descriptor = _made(loaded, "load a BPF program of the kind sock_ops")
    link = library.bpf_link_create(descriptor, _cgroup_root(), _ATTACH_SOCK_OPS, None)
    _made(link, "attach it to the root of the cgroup hierarchy")


def _cgroup_root() -> int:
    """Open the cgroup hierarchy without mounting it, because this mount namespace may not have it mounted."""
    system = ctypes.CDLL(None, use_errno=True).syscall

    def called(*arguments: object) -> int:
        result = int(system(*arguments))
        return -ctypes.get_errno() if result < 0 else result

    what = "open the cgroup hierarchy"
    context = _made(called(_FSOPEN, b"cgroup2", _CLOSE_ON_EXEC), what)
    _made(called(_FSCONFIG, context, _FSCONFIG_CMD_CREATE, None, None, 0), what)
    return _made(called(_FSMOUNT, context, _CLOSE_ON_EXEC, 0), what)


def _made(result: int, what: str) -> int:
    if result < 0:
        raise OSError(f"{what}: {os.strerror(-result)}")
    return result


if __name__ == "__main__":
    try:
        attach()
    except OSError as refused:
        sys.exit(str(refused))
