# SPDX-License-Identifier: GPL-2.0-or-later
"""Test whether the kernel runs a BPF program on the TCP sockets of this network namespace: bpf(2), libbpf 1.

``python -m mptcp_lab.testbed.bpf_probe`` loads a *sock_ops* program that only reads the cookie of its namespace
(Linux 5.15), attaches it to the root of the cgroup hierarchy (version 2), and exits, which removes both. If the kernel
refuses a step, the module prints one line and exits with status 1.

The module shares no code with the throttler's loader. With a shared fault, the tests that need BPF would be skipped,
and would not find the fault.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys

_PROGRAM_SOCK_OPS, _ATTACH_SOCK_OPS = 13, 3
_NETNS_COOKIE = 122
"""Number of the helper function. If a kernel has it for this program type, it also has older helpers and cgroup
links."""
_CALL, _MOVE, _EXIT = 0x85, 0xB7, 0x95
_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432
"""System call numbers, which are the same on every architecture."""
_FSCONFIG_CMD_CREATE, _CLOSE_ON_EXEC = 6, 1


def attach() -> None:
    """Load and attach the program until this process ends. Raises OSError with the refused step and the reason."""
    library, system = ctypes.CDLL("libbpf.so.1"), ctypes.CDLL(None, use_errno=True).syscall

    def check_result(result: int, step: str, error: int | None = None) -> int:
        if result < 0:
            raise OSError(f"{step}: {os.strerror(-result if error is None else error)}")
        return result

    def call_kernel(*arguments: object) -> int:
        return check_result(system(*arguments), "open the cgroup hierarchy", ctypes.get_errno())

    library.libbpf_set_print(None)
    library.bpf_prog_load.argtypes = (ctypes.c_int, *(ctypes.c_char_p,) * 3, ctypes.c_size_t, ctypes.c_void_p)
    # Each instruction has an opcode, registers, an offset and an immediate. The program returns 1.
    lines = ((_CALL, _NETNS_COOKIE), (_MOVE, 1), (_EXIT, 0))
    code = b"".join(struct.pack("=BBhi", operation, 0, 0, number) for operation, number in lines)
    loaded = library.bpf_prog_load(_PROGRAM_SOCK_OPS, b"probe", b"GPL", code, len(lines), None)
    program = check_result(loaded, "load a BPF program of the kind sock_ops")
    # Open the hierarchy without mounting it, because this mount namespace may not have it mounted.
    context = call_kernel(_FSOPEN, b"cgroup2", _CLOSE_ON_EXEC)
    call_kernel(_FSCONFIG, context, _FSCONFIG_CMD_CREATE, None, None, 0)
    root = call_kernel(_FSMOUNT, context, _CLOSE_ON_EXEC, 0)
    link = library.bpf_link_create(program, root, _ATTACH_SOCK_OPS, None)
    check_result(link, "attach the BPF program to the root of the cgroup hierarchy")


if __name__ == "__main__":
    try:
        attach()
    except OSError as refused:
        sys.exit(str(refused))
