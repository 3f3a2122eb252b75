/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * mptcp_listen: a preload library that gives an unchanged server MPTCP listeners, or MPTCP towards the parents that it is
 * told, and nothing else MPTCP.
 *
 * Squid has no MPTCP of its own. This library stands between it and bind(2): a TCP socket that is about to be
 * bound to one of the ports in MPTCP_LISTEN_PORTS is replaced, at the same descriptor number, by an MPTCP socket
 * (RFC 8684; socket(2) with IPPROTO_MPTCP) that carries the same options. Every other socket stays as it is. In
 * particular, sockets towards origin servers bind to port 0 or not at all, so origins see plain TCP. A Squid that opens
 * an MPTCP socket for such a port itself, by an option of its http_port, keeps it, and only the congestion control is ours.
 *
 * Why at bind and not at listen: a socket that is bound may be handed to another process (SCM_RIGHTS), as a Squid
 * does whose workers share a listener. At bind the socket has no epoll registration and no peer that could be lost
 * with the old file description.
 *
 * MPTCP_LISTEN_PORTS is a list ("3128,3129") or, when it begins with '/', the name of a file that holds one. The
 * file is read at each bind, so a reload may add a port.
 *
 * Failure: where the kernel refuses MPTCP the TCP socket stays, and where it refuses the congestion control the
 * host's stays; one line on stderr says so, once per process.
 *
 * This file has the listeners; connect.c the connections to parents; swap.c puts one socket in the place of another;
 * zero_read.c cures a fault of Squid 5, late_writes.c one of MPTCP's; fair_turns.c has clients take turns, may_write.c and
 * joined_writes.c make what they are written cheaper; scope.c says which processes the library is in.
 */

#define _GNU_SOURCE

/* glibc declares bind with a transparent union instead of the POSIX type; its declaration is set aside so that the
 * definition below can use the latter. */
#define bind bind_as_libc_declares_it
#include <sys/socket.h>
#undef bind

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "mptcp_listen.h"

EXPORTED int bind(int fd, const struct sockaddr *address, socklen_t length);

int (*real_bind)(int, const struct sockaddr *, socklen_t);

void resolve_bind(void)
{
	resolve(&real_bind, "bind");
}

static void say_once(int port, const char *what, int reason)
{
	static atomic_flag said = ATOMIC_FLAG_INIT;

	if (!atomic_flag_test_and_set(&said))
		dprintf(STDERR_FILENO,
			"mptcp_listen: no MPTCP on port %d, clients are served by plain TCP: %s: %s"
			" (said once, other ports may have the same trouble)\n",
			port, what, strerror(reason));
}

/* Is *port* in a list like "3128, 3129"? */
static bool listed(const char *list, int port)
{
	while (*list != '\0') {
		char *end;
		unsigned long number = strtoul(list, &end, 10);

		if (end == list)
			list++;
		else if (number == (unsigned long)port)
			return true;
		else
			list = end;
	}
	return false;
}

static bool is_ours(int port)
{
	char list[LIST_SIZE];

	if (listen_ports == NULL || port == 0)
		return false;
	if (!read_list(listen_ports, list, sizeof list)) {
		say_once(port, listen_ports, errno);
		return false;
	}
	return listed(list, port);
}

static bool is_unbound(int fd)
{
	struct sockaddr_storage name;
	socklen_t length = sizeof name;

	return getsockname(fd, (struct sockaddr *)&name, &length) == 0 && port_of((struct sockaddr *)&name, length) == 0;
}

int bind(int fd, const struct sockaddr *address, socklen_t length)
{
	int saved = errno, port = port_of(address, length);
	const char *trouble;

	start();
	if (is_ours(port) && is_tcp(fd) && is_unbound(fd)) {
		if ((trouble = swap(fd)) != NULL)
			say_once(port, trouble, errno);
	} else if (is_ours(port) && is_mptcp(fd) && is_unbound(fd)) {
		choose_congestion(fd);
	}
	errno = saved;
	return real_bind(fd, address, length);
}
