/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * MPTCP connections to parents, for a relay.
 *
 * MPTCP_PARENTS is a list of addresses and ports ("192.0.2.1:3128 [2001:db8::1]:3128") or, if it begins with '/', the
 * name of a file with such a list. Addresses are in the notation of inet_ntop(3). The file is read at each connect(2),
 * because the addresses of a parent may change. When the program connects a TCP socket to an address in the list, the
 * library replaces the socket with an MPTCP socket (swap.c). Other sockets do not change.
 *
 * The library replaces the socket at connect and not at socket(2), because only connect has the destination. At
 * socket(), the library would have to make all sockets MPTCP sockets, including listeners and the sockets to name
 * servers and helpers, and later turn most of them into TCP sockets again. swap() copies the options that the program
 * has set.
 */

#define _GNU_SOURCE

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>

#include "listen.h"

/* "[", an IPv6 address, "]:", a port and the terminating NUL. */
#define TARGET_SIZE (INET6_ADDRSTRLEN + 8)

/* Write *address* to *target* in the notation of the list, ::ffff:192.0.2.1 as 192.0.2.1. Return false if it is not an
 * IP address with a port. */
static bool write_target(const struct sockaddr *address, socklen_t length, char target[TARGET_SIZE])
{
	char text[INET6_ADDRSTRLEN];
	int family = AF_INET, port = port_of(address, length);
	const void *bytes;

	if (port == 0)
		return false;
	if (address->sa_family == AF_INET) {
		bytes = &((const struct sockaddr_in *)address)->sin_addr;
	} else {
		const struct in6_addr *ipv6 = &((const struct sockaddr_in6 *)address)->sin6_addr;

		family = IN6_IS_ADDR_V4MAPPED(ipv6) ? AF_INET : AF_INET6;
		bytes = family == AF_INET ? &ipv6->s6_addr[12] : ipv6->s6_addr;
	}
	if (inet_ntop(family, bytes, text, sizeof text) == NULL)
		return false;
	snprintf(target, TARGET_SIZE, family == AF_INET ? "%s:%d" : "[%s]:%d", text, port);
	return true;
}

/* Return whether *target* is a word of *list*. */
static bool contains_target(const char *list, const char *target)
{
	size_t length = strlen(target);

	while (*list != '\0') {
		size_t word = strcspn(list, ", \t\n");

		if (word == length && memcmp(list, target, length) == 0)
			return true;
		list += word + (list[word] != '\0');
	}
	return false;
}

static bool is_parent(const char *target)
{
	char list[LIST_SIZE];

	if (!read_list(parents, list, sizeof list)) {
		LOG_ONCE("the list of parents cannot be read, all are reached over plain TCP, over one path: %s: %s"
			 " (logged once)\n",
			 parents, strerror(errno));
		return false;
	}
	return contains_target(list, target);
}

/* Return whether the socket is neither connected nor connecting; getpeername(2) does not show that it is connecting. */
static bool is_unconnected(int fd)
{
	struct tcp_info info = { .tcpi_state = TCP_ESTABLISHED };
	socklen_t length = sizeof info;

	return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0 && info.tcpi_state == TCP_CLOSE;
}

void before_connect(int fd, const struct sockaddr *address, socklen_t length)
{
	char target[TARGET_SIZE];
	const char *problem;

	/* Read the file last: a socket to a name server does not need it. */
	if (parents != NULL && write_target(address, length, target) && is_tcp(fd) && is_unconnected(fd) && is_parent(target) &&
	    (problem = swap(fd)) != NULL)
		LOG_ONCE("no MPTCP to parent %s, it is reached over plain TCP, over one path: %s: %s"
			 " (logged once, other parents may have the same problem)\n",
			 target, problem, strerror(errno));
}
