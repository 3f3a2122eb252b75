/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * MPTCP listeners, for a proxy.
 *
 * Debian's Squid does not use MPTCP. When it binds a TCP socket to a port in MPTCP_LISTEN_PORTS, the library replaces
 * the socket, at the same descriptor number, with an MPTCP socket (RFC 8684; socket(2) with IPPROTO_MPTCP) with the
 * same options. Other sockets do not change: Squid binds sockets towards origin servers to port 0 or not at all, so
 * origins see plain TCP. If an option of http_port makes Squid itself open an MPTCP socket, the library only sets the
 * congestion control of that socket.
 *
 * The library replaces the socket at bind and not at listen, because a process may pass a bound socket to another
 * process (SCM_RIGHTS), as Squid does if its workers share a listener. At bind, the socket is not registered with epoll
 * and has no peer, which the new socket would not get.
 *
 * MPTCP_LISTEN_PORTS is a list ("3128,3129") or, if it begins with '/', the name of a file with such a list. The file
 * is read at each bind, so a reload may add a port.
 *
 * If the kernel refuses MPTCP, the TCP socket stays. If it refuses the congestion control, the host's default applies.
 * Each process logs such a failure once, on stderr.
 */

#define _GNU_SOURCE

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "listen.h"

static void report_once(int port, const char *subject, int reason)
{
	LOG_ONCE("no MPTCP on port %d, clients are served over plain TCP: %s: %s"
		 " (logged once, other ports may have the same problem)\n",
		 port, subject, strerror(reason));
}

static bool contains_port(const char *list, int port)
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

static bool is_listed_port(int port)
{
	char list[LIST_SIZE];

	if (listen_ports == NULL || port == 0)
		return false;
	if (!read_list(listen_ports, list, sizeof list)) {
		report_once(port, listen_ports, errno);
		return false;
	}
	return contains_port(list, port);
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
	const char *problem;

	if (!is_listed_port(port) || !is_unbound(fd))
		return;
	if (is_mptcp(fd))
		choose_congestion(fd);
	else if (is_tcp(fd) && (problem = swap(fd)) != NULL)
		report_once(port, problem, errno);
}
