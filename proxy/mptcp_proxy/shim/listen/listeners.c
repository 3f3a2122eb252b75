/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * MPTCP listeners, for a proxy.
 *
 * Squid has no MPTCP of its own. When it binds a TCP socket to a port in MPTCP_LISTEN_PORTS, replace the socket, at the
 * same descriptor number, by an MPTCP socket (RFC 8684; socket(2) with IPPROTO_MPTCP) with the same options. All other
 * sockets stay: sockets towards origin servers bind to port 0 or not at all, so origins see plain TCP. A Squid that
 * opens an MPTCP socket for such a port itself, by an option of its http_port, keeps it; only its congestion control is
 * set here.
 *
 * Why at bind and not at listen: a bound socket may be handed to another process (SCM_RIGHTS), as by a Squid whose
 * workers share a listener. At bind the socket has no epoll registration and no peer that the old file description
 * would take along.
 *
 * MPTCP_LISTEN_PORTS is a list ("3128,3129") or, if it begins with '/', the name of a file with one. The file is read
 * at each bind, so a reload may add a port.
 *
 * Failure: if the kernel refuses MPTCP the TCP socket stays; if it refuses the congestion control the host's stays. One
 * line on stderr says so, once per process.
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
