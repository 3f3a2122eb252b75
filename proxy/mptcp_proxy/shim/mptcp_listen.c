/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * mptcp_listen: a preload library that gives an unchanged server MPTCP listeners, and nothing else MPTCP.
 *
 * Squid has no MPTCP of its own. This library stands between it and bind(2): a TCP socket that is about to be
 * bound to one of the ports in MPTCP_LISTEN_PORTS is replaced, at the same descriptor number, by an MPTCP socket
 * (RFC 8684; socket(2) with IPPROTO_MPTCP) that carries the same options. Every other socket stays as it is. In
 * particular, sockets towards origin servers bind to port 0 or not at all, so origins see plain TCP.
 *
 * Why at bind and not at listen: with several workers Squid's coordinator process binds the socket and hands it
 * to the workers by SCM_RIGHTS. At bind the socket has no epoll registration and no peer that could be lost with
 * the old file description.
 *
 * MPTCP_LISTEN_PORTS is a list ("3128,3129") or, when it begins with '/', the name of a file that holds one. The
 * file is read at each bind, so a reload may add a port.
 *
 * MPTCP_LISTEN_CONGESTION, where it is there, names the congestion control (tcp(7), TCP_CONGESTION) of the MPTCP
 * listeners. Accepted connections and their joined subflows inherit it; sockets towards origin servers do not come
 * from a listener and keep the host's.
 *
 * Failure: where the kernel refuses MPTCP the TCP socket stays, and where it refuses the congestion control the
 * host's stays; one line on stderr says so, once per process.
 *
 * This file has the listeners; zero_read.c cures a fault of Squid 5, late_writes.c one of MPTCP's; scope.c says which
 * processes the library is in.
 */

#define _GNU_SOURCE

/* glibc declares bind with a transparent union instead of the POSIX type; its declaration is set aside so that the
 * definition below can use the latter. */
#define bind bind_as_libc_declares_it
#include <sys/socket.h>
#undef bind

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#include "mptcp_listen.h"

#ifndef IPPROTO_MPTCP
#define IPPROTO_MPTCP 262
#endif
#ifndef SO_BINDTOIFINDEX
#define SO_BINDTOIFINDEX 62
#endif

EXPORTED int bind(int fd, const struct sockaddr *address, socklen_t length);

static int (*real_bind)(int, const struct sockaddr *, socklen_t);

void resolve_bind(void)
{
	resolve(&real_bind, "bind");
}

/* ------------------------------------------------------------------------------------------------ messages */

static void say_once(int port, const char *what, int reason)
{
	static atomic_flag said = ATOMIC_FLAG_INIT;

	if (!atomic_flag_test_and_set(&said))
		dprintf(STDERR_FILENO,
			"mptcp_listen: no MPTCP on port %d, clients are served by plain TCP: %s: %s"
			" (said once, other ports may have the same trouble)\n",
			port, what, strerror(reason));
}

static void say_once_of_congestion(int reason)
{
	static atomic_flag said = ATOMIC_FLAG_INIT;

	if (!atomic_flag_test_and_set(&said))
		dprintf(STDERR_FILENO,
			"mptcp_listen: no congestion control %s towards clients, the host's own is used: %s"
			" (for those there are, see sysctl net.ipv4.tcp_available_congestion_control)\n",
			listen_congestion, strerror(reason));
}

/* ------------------------------------------------------------------------------------- socket options to carry */

union value {
	int number;
	unsigned long rate;
	struct linger linger;
	struct timeval time;
	char name[64];
};

/* ESSENTIAL: without it the listener would accept from elsewhere, or not at all; then TCP is better than MPTCP.
 * TUNING: a refusal costs speed or comfort only. */
enum weight { ESSENTIAL, TUNING };

static const struct option {
	int level, name;
	enum weight weight;
	const char *text;
} options[] = {
	{ SOL_SOCKET, SO_REUSEADDR, ESSENTIAL, "SO_REUSEADDR" },
	{ SOL_SOCKET, SO_REUSEPORT, ESSENTIAL, "SO_REUSEPORT" },
	{ SOL_SOCKET, SO_BINDTOIFINDEX, ESSENTIAL, "SO_BINDTODEVICE" },
	{ SOL_SOCKET, SO_MARK, ESSENTIAL, "SO_MARK" },
	{ SOL_SOCKET, SO_PRIORITY, TUNING, "SO_PRIORITY" },
	{ SOL_SOCKET, SO_KEEPALIVE, TUNING, "SO_KEEPALIVE" },
	{ SOL_SOCKET, SO_LINGER, TUNING, "SO_LINGER" },
	{ SOL_SOCKET, SO_OOBINLINE, TUNING, "SO_OOBINLINE" },
	{ SOL_SOCKET, SO_RCVLOWAT, TUNING, "SO_RCVLOWAT" },
	{ SOL_SOCKET, SO_RCVTIMEO, TUNING, "SO_RCVTIMEO" },
	{ SOL_SOCKET, SO_SNDTIMEO, TUNING, "SO_SNDTIMEO" },
	{ SOL_SOCKET, SO_RCVBUF, TUNING, "SO_RCVBUF" },
	{ SOL_SOCKET, SO_SNDBUF, TUNING, "SO_SNDBUF" },
	{ SOL_SOCKET, SO_INCOMING_CPU, TUNING, "SO_INCOMING_CPU" },
	{ SOL_SOCKET, SO_MAX_PACING_RATE, TUNING, "SO_MAX_PACING_RATE" },
	{ IPPROTO_IP, IP_TRANSPARENT, ESSENTIAL, "IP_TRANSPARENT" },
	{ IPPROTO_IP, IP_FREEBIND, ESSENTIAL, "IP_FREEBIND" },
	{ IPPROTO_IP, IP_TOS, TUNING, "IP_TOS" },
	{ IPPROTO_IP, IP_TTL, TUNING, "IP_TTL" },
	{ IPPROTO_IP, IP_MTU_DISCOVER, TUNING, "IP_MTU_DISCOVER" },
	{ IPPROTO_IPV6, IPV6_V6ONLY, ESSENTIAL, "IPV6_V6ONLY" },
	{ IPPROTO_IPV6, IPV6_TRANSPARENT, ESSENTIAL, "IPV6_TRANSPARENT" },
	{ IPPROTO_IPV6, IPV6_FREEBIND, ESSENTIAL, "IPV6_FREEBIND" },
	{ IPPROTO_IPV6, IPV6_TCLASS, TUNING, "IPV6_TCLASS" },
	{ IPPROTO_IPV6, IPV6_UNICAST_HOPS, TUNING, "IPV6_UNICAST_HOPS" },
	{ IPPROTO_TCP, TCP_NODELAY, TUNING, "TCP_NODELAY" },
	{ IPPROTO_TCP, TCP_DEFER_ACCEPT, TUNING, "TCP_DEFER_ACCEPT" },
	{ IPPROTO_TCP, TCP_FASTOPEN, TUNING, "TCP_FASTOPEN" },
	{ IPPROTO_TCP, TCP_KEEPIDLE, TUNING, "TCP_KEEPIDLE" },
	{ IPPROTO_TCP, TCP_KEEPINTVL, TUNING, "TCP_KEEPINTVL" },
	{ IPPROTO_TCP, TCP_KEEPCNT, TUNING, "TCP_KEEPCNT" },
	{ IPPROTO_TCP, TCP_USER_TIMEOUT, TUNING, "TCP_USER_TIMEOUT" },
	{ IPPROTO_TCP, TCP_MAXSEG, TUNING, "TCP_MAXSEG" },
	{ IPPROTO_TCP, TCP_NOTSENT_LOWAT, TUNING, "TCP_NOTSENT_LOWAT" },
	{ IPPROTO_TCP, TCP_CONGESTION, TUNING, "TCP_CONGESTION" },
};

/* Give the MPTCP socket what the program set on its TCP socket: the options in which that differs from a fresh one.
 * Returns the first essential option that the MPTCP socket refuses, with errno set; NULL when there is none. */
static const struct option *carry_options(int tcp, int fresh, int mptcp)
{
	for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
		const struct option *option = &options[i];
		union value set = { .name = "" }, untouched = { .name = "" };
		socklen_t set_length = sizeof set, untouched_length = sizeof untouched;

		if (getsockopt(tcp, option->level, option->name, &set, &set_length) != 0 ||
		    getsockopt(fresh, option->level, option->name, &untouched, &untouched_length) != 0)
			continue;
		if (set_length == untouched_length && memcmp(&set, &untouched, set_length) == 0)
			continue;
		/* socket(7): the kernel reports twice the size that was asked for. */
		if (option->level == SOL_SOCKET && (option->name == SO_RCVBUF || option->name == SO_SNDBUF))
			set.number /= 2;
		if (setsockopt(mptcp, option->level, option->name, &set, set_length) != 0 &&
		    option->weight == ESSENTIAL)
			return option;
	}
	return NULL;
}

/* --------------------------------------------------------------------------------------- which sockets to swap */

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
	char list[4096];
	ssize_t length;
	int file, reason;

	if (listen_ports == NULL || port == 0)
		return false;
	if (listen_ports[0] != '/')
		return listed(listen_ports, port);
	file = open(listen_ports, O_RDONLY | O_CLOEXEC);
	length = file < 0 ? -1 : read(file, list, sizeof list - 1);
	reason = errno;
	if (file >= 0)
		close(file);
	if (length < 0) {
		say_once(port, listen_ports, reason);
		return false;
	}
	list[length] = '\0';
	return listed(list, port);
}

static int port_of(const struct sockaddr *address, socklen_t length)
{
	if (address == NULL || length < sizeof address->sa_family)
		return 0;
	if (address->sa_family == AF_INET && length >= sizeof(struct sockaddr_in))
		return ntohs(((const struct sockaddr_in *)address)->sin_port);
	if (address->sa_family == AF_INET6 && length >= sizeof(struct sockaddr_in6))
		return ntohs(((const struct sockaddr_in6 *)address)->sin6_port);
	return 0;
}

static int integer_option(int fd, int name)
{
	int value = -1;
	socklen_t length = sizeof value;

	return getsockopt(fd, SOL_SOCKET, name, &value, &length) == 0 ? value : -1;
}

/* A TCP socket that nobody has bound or connected yet. */
static bool is_unbound_tcp(int fd)
{
	struct sockaddr_storage name;
	socklen_t length = sizeof name;
	int domain = integer_option(fd, SO_DOMAIN);

	return (domain == AF_INET || domain == AF_INET6) && integer_option(fd, SO_TYPE) == SOCK_STREAM &&
	       integer_option(fd, SO_PROTOCOL) == IPPROTO_TCP &&
	       getsockname(fd, (struct sockaddr *)&name, &length) == 0 &&
	       port_of((struct sockaddr *)&name, length) == 0;
}

/* An MPTCP socket that has no subflow yet takes any name, and only a TCP socket tells whether there is such a one. */
static void set_congestion(int tcp, int mptcp)
{
	socklen_t length = strlen(listen_congestion);

	if (setsockopt(tcp, IPPROTO_TCP, TCP_CONGESTION, listen_congestion, length) != 0 ||
	    setsockopt(mptcp, IPPROTO_TCP, TCP_CONGESTION, listen_congestion, length) != 0)
		say_once_of_congestion(errno);
}

/* Squid's coordinator binds, and its workers hold the socket. A coordinator that had to be started again could not bind
 * as long as one of them lives, and every worker that is started after that would be without a listener. The kernel
 * gives new connections to both sockets then; only sockets of one user that all have this option share a port. */
static void let_successors_bind(int mptcp)
{
	int yes = 1;

	(void)setsockopt(mptcp, SOL_SOCKET, SO_REUSEPORT, &yes, sizeof yes);
}

/* Put an MPTCP socket in the place of the TCP socket *fd*, or leave *fd* alone and say why. */
static void swap(int fd, int port)
{
	int domain = integer_option(fd, SO_DOMAIN);
	int descriptor_flags = fcntl(fd, F_GETFD), status_flags = fcntl(fd, F_GETFL);
	int mptcp = socket(domain, SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_MPTCP);
	int fresh = mptcp < 0 ? -1 : socket(domain, SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP);
	const struct option *refused;

	if (mptcp < 0 || fresh < 0)
		say_once(port, "the kernel gives no MPTCP socket (see sysctl net.mptcp.enabled)", errno);
	else if ((refused = carry_options(fd, fresh, mptcp)) != NULL)
		say_once(port, refused->text, errno);
	else {
		let_successors_bind(mptcp);
		if (fcntl(mptcp, F_SETFL, status_flags) != 0 ||
		    dup3(mptcp, fd, (descriptor_flags & FD_CLOEXEC) != 0 ? O_CLOEXEC : 0) < 0)
			say_once(port, "the MPTCP socket cannot take the TCP socket's place", errno);
		else if (listen_congestion != NULL)
			set_congestion(fresh, mptcp);
	}
	if (fresh >= 0)
		close(fresh);
	if (mptcp >= 0)
		close(mptcp);
}

int bind(int fd, const struct sockaddr *address, socklen_t length)
{
	int saved = errno, port = port_of(address, length);

	start();
	if (is_ours(port) && is_unbound_tcp(fd))
		swap(fd, port);
	errno = saved;
	return real_bind(fd, address, length);
}
