# SPDX-License-Identifier: GPL-2.0-or-later
"""Runs a program as on a host that lacks a kernel feature or a library. The program itself is not changed:

- *system calls*: a seccomp(2) filter refuses them with the error of a kernel built without the feature;
- *names* in netlink messages, such as the qdisc htb: a preloaded library changes them, so that the kernel does not know
  the name;
- *files*: a mount hides them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from mptcp_lab.testbed.commands import run

AF_INET, AF_NETLINK, AF_PACKET = 2, 16, 17
NETLINK_SOCK_DIAG, NETLINK_NETFILTER, IPPROTO_RAW = 4, 12, 255
SYSCALLS = {"x86_64": {"socket": 41, "bpf": 321}, "aarch64": {"socket": 198, "bpf": 280}}

_HIDE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* HIDDEN=NAME: replace the last letter of NAME in netlink messages to the kernel. */
static const void *hide(int fd, const void *data, size_t length, char *copy, size_t capacity)
{
	const char *name = getenv("HIDDEN");
	struct sockaddr address;
	socklen_t size = sizeof(address);
	char *match;

	if (name == NULL || length > capacity || getsockname(fd, &address, &size) != 0 || address.sa_family != AF_NETLINK)
		return data;
	memcpy(copy, data, length);
	match = memmem(copy, length, name, strlen(name) + 1);
	if (match != NULL)
		match[strlen(name) - 1] = '!';
	return copy;
}

ssize_t send(int fd, const void *data, size_t length, int flags)
{
	ssize_t (*next)(int, const void *, size_t, int) = dlsym(RTLD_NEXT, "send");
	char copy[1 << 16];

	return next(fd, hide(fd, data, length, copy, sizeof(copy)), length, flags);
}

ssize_t sendto(int fd, const void *data, size_t length, int flags, const struct sockaddr *to, socklen_t size)
{
	ssize_t (*next)(int, const void *, size_t, int, const struct sockaddr *, socklen_t) = dlsym(RTLD_NEXT, "sendto");
	char copy[1 << 16];

	return next(fd, hide(fd, data, length, copy, sizeof(copy)), length, flags, to, size);
}

/* libmnl sends a transaction of nftables in several buffers; none ends within a name. */
ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
	ssize_t (*next)(int, const struct msghdr *, int) = dlsym(RTLD_NEXT, "sendmsg");
	struct msghdr changed = *message;
	struct iovec buffers[64];
	static char copies[64][1 << 16];
	size_t i;

	if (message->msg_iovlen > 64)
		return next(fd, message, flags);
	for (i = 0; i < message->msg_iovlen; i++) {
		buffers[i] = message->msg_iov[i];
		buffers[i].iov_base = (void *)hide(fd, buffers[i].iov_base, buffers[i].iov_len, copies[i], sizeof(copies[i]));
	}
	changed.msg_iov = buffers;
	return next(fd, &changed, flags);
}
"""

_FILTER = """\
import ctypes, os, struct, sys
RULES = {rules!r}
def instruction(code, jt, jf, k):
    return struct.pack("=HBBI", code, jt, jf, k)
program = b""
for number, arguments, error in RULES:
    # A rule compares the system call and the low words of its arguments. On a mismatch, the next rule is tried.
    tests = [(0, number), *((16 + 8 * index, value) for index, value in arguments)]
    for left, (offset, value) in enumerate(tests):
        program += instruction(0x20, 0, 0, offset) + instruction(0x15, 0, 2 * (len(tests) - left) - 1, value)
    program += instruction(0x06, 0, 0, 0x00050000 | error)  # SECCOMP_RET_ERRNO
program += instruction(0x06, 0, 0, 0x7FFF0000)  # SECCOMP_RET_ALLOW
buffer = ctypes.create_string_buffer(program)
header = ctypes.create_string_buffer(struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
# PR_SET_SECCOMP, SECCOMP_MODE_FILTER
assert libc.prctl(22, 2, header, 0, 0) == 0, os.strerror(ctypes.get_errno())
os.execvp(sys.argv[1], sys.argv[1:])
"""

Refusal = tuple[str, Mapping[int, int], int]
"""A system call, its arguments by index, and the errno with which it fails."""


def refuse_system_calls(refusals: Sequence[Refusal], argv: Sequence[str]) -> list[str]:
    """Return a command that runs *argv* under a seccomp filter that refuses these system calls."""
    numbers = SYSCALLS[os.uname().machine]
    rules = [(numbers[name], sorted(arguments.items()), error) for name, arguments, error in refusals]
    return [sys.executable, "-I", "-c", _FILTER.format(rules=rules), *argv]


def compile_hiding_library(directory: Path) -> Path:
    """Compile and return the library that changes the name in HIDDEN, so that the kernel does not know it."""
    source, library = directory / "hide.c", directory / "hide.so"
    source.write_text(_HIDE)
    run(["gcc", "-shared", "-fPIC", "-O2", "-o", str(library), str(source), "-ldl"])
    return library


def hide_files(pattern: str, directory: Path, argv: Sequence[str]) -> list[str]:
    """Return a command that runs *argv* without the shared libraries whose names match *pattern*."""
    script = f"""\
set -e
for folder in /usr/lib/*-linux-gnu; do
    upper=$(mktemp -d {directory}/hidden-XXXXXX)
    mount -t tmpfs tmpfs "$upper"
    mkdir "$upper/upper" "$upper/work"
    for file in "$folder"/{pattern}; do
        [ -e "$file" ] && mknod "$upper/upper/$(basename "$file")" c 0 0
    done
    mount -t overlay overlay -o lowerdir="$folder",upperdir="$upper/upper",workdir="$upper/work" "$folder"
done
exec "$@"
"""
    return ["unshare", "--mount", "sh", "-c", script, "sh", *argv]
