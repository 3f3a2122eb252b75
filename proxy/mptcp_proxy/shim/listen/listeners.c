/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Listeners by MPTCP: what a proxy has its Squid do.
 *
 * Squid has no MPTCP of its own. A TCP socket that is about to be bound to one of the ports in MPTCP_LISTEN_PORTS is
 * replaced, at the same descriptor number, by an MPTCP socket (RFC 8684; socket(2) with IPPROTO_MPTCP) that carries the same
 * options. Every other socket stays as it is. In particular, sockets towards origin servers bind to port 0 or not at all,
 * so origins see plain TCP. A Squid that opens an MPTCP socket for such a port itself, by an option of its http_port, keeps
 * it, and only the congestion control is ours.
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
 */

#define _GNU_SOURCE

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "listen.h"

static void say_once(int port, const char *what, int reason)
{
	SAY_ONCE("no MPTCP on port %d, clients are served by plain TCP: %s: %s"
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

void before_bind(int fd, const struct sockaddr *address, socklen_t length)
{
	int port = port_of(address, length);
	const char *trouble;

	if (!is_ours(port) || !is_unbound(fd))
		return;
	if (is_mptcp(fd))
		choose_congestion(fd);
	else if (is_tcp(fd) && (trouble = swap(fd)) != NULL)
		say_once(port, trouble, errno);
}
