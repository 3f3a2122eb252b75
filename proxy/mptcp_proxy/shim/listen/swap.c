/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Replaces a TCP socket with an MPTCP socket, at the same descriptor number.
 *
 * The MPTCP socket gets the options, the bound address, and the descriptor's flags of the program's TCP socket. It does
 * not get a registration with epoll(7), which belongs to the old socket, so swap() must be called before the program
 * registers the socket. Squid registers a listener after listen(2) and a connection after connect(2)
 * (Comm::ConnOpener::doConnect; 5.7 and 6.13).
 *
 * MPTCP_CONGESTION, if set, names the congestion control (tcp(7), TCP_CONGESTION) of the MPTCP sockets. Accepted
 * connections inherit it from their listener, and joined subflows from their connection. Other sockets use the host's
 * default.
 */

#define _GNU_SOURCE

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "listen.h"

#ifndef IPPROTO_MPTCP
#define IPPROTO_MPTCP 262
#endif
#ifndef SO_BINDTOIFINDEX
#define SO_BINDTOIFINDEX 62
#endif

/* ------------------------------------------------------------------------------------- socket options to copy */

union value {
	int number;
	unsigned long rate;
	struct linger linger;
	struct timeval time;
	char name[64];
};

/* ESSENTIAL: without this option, the listener would accept other connections, or none. If the MPTCP socket refuses it,
 * the TCP socket stays. TUNING: without this option, the socket is only slower or less convenient. */
enum importance { ESSENTIAL, TUNING };

static const struct option {
	int level, name;
	enum importance importance;
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
	{ IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, TUNING, "IP_BIND_ADDRESS_NO_PORT" },
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
	{ IPPROTO_TCP, TCP_FASTOPEN_CONNECT, TUNING, "TCP_FASTOPEN_CONNECT" },
	{ IPPROTO_TCP, TCP_KEEPIDLE, TUNING, "TCP_KEEPIDLE" },
	{ IPPROTO_TCP, TCP_KEEPINTVL, TUNING, "TCP_KEEPINTVL" },
	{ IPPROTO_TCP, TCP_KEEPCNT, TUNING, "TCP_KEEPCNT" },
	{ IPPROTO_TCP, TCP_USER_TIMEOUT, TUNING, "TCP_USER_TIMEOUT" },
	{ IPPROTO_TCP, TCP_MAXSEG, TUNING, "TCP_MAXSEG" },
	{ IPPROTO_TCP, TCP_NOTSENT_LOWAT, TUNING, "TCP_NOTSENT_LOWAT" },
	{ IPPROTO_TCP, TCP_CONGESTION, TUNING, "TCP_CONGESTION" },
};

/* Copy the options in which the program's TCP socket differs from the new socket *new_tcp*. Return the first essential
 * option that the MPTCP socket refuses, with errno set, or NULL. */
static const struct option *copy_options(int tcp, int new_tcp, int mptcp)
{
	for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
		const struct option *option = &options[i];
		union value set = { .name = "" }, default_value = { .name = "" };
		socklen_t set_length = sizeof set, default_length = sizeof default_value;

		if (getsockopt(tcp, option->level, option->name, &set, &set_length) != 0 ||
		    getsockopt(new_tcp, option->level, option->name, &default_value, &default_length) != 0)
			continue;
		if (set_length == default_length && memcmp(&set, &default_value, set_length) == 0)
			continue;
		/* For a buffer size, the kernel reports twice the value that was set (socket(7)). */
		if (option->level == SOL_SOCKET && (option->name == SO_RCVBUF || option->name == SO_SNDBUF))
			set.number /= 2;
		if (setsockopt(mptcp, option->level, option->name, &set, set_length) != 0 &&
		    option->importance == ESSENTIAL)
			return option;
	}
	return NULL;
}

/* An MPTCP socket without a subflow accepts any name, so test with a TCP socket whether the kernel has this congestion
 * control. */
void choose_congestion(int mptcp)
{
	socklen_t length;
	int tcp;

	if (congestion == NULL)
		return;
	length = strlen(congestion);
	tcp = socket(integer_option(mptcp, SO_DOMAIN), SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP);
	if (tcp < 0 || setsockopt(tcp, IPPROTO_TCP, TCP_CONGESTION, congestion, length) != 0 ||
	    setsockopt(mptcp, IPPROTO_TCP, TCP_CONGESTION, congestion, length) != 0)
		LOG_ONCE("cannot use congestion control %s for MPTCP, the host's default is used: %s"
			 " (see sysctl net.ipv4.tcp_available_congestion_control)\n",
			 congestion, strerror(errno));
	if (tcp >= 0)
		next_close(tcp);
}

/* ------------------------------------------------------------------------------------------------------- names */

static bool is_unset(const struct sockaddr_storage *name, socklen_t length)
{
	const struct sockaddr *address = (const struct sockaddr *)name;

	if (port_of(address, length) != 0)
		return false;
	if (address->sa_family == AF_INET)
		return ((const struct sockaddr_in *)name)->sin_addr.s_addr == INADDR_ANY;
	return address->sa_family == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *)name)->sin6_addr);
}

/* Bind the MPTCP socket to the address of the TCP socket, which stays bound: SO_REUSEADDR allows this as long as
 * neither listens (socket(7)). So no other program can bind the port during the replacement. */
static bool copy_address(int tcp, int mptcp)
{
	struct sockaddr_storage name;
	socklen_t length = sizeof name;
	int before = integer_option(tcp, SO_REUSEADDR), on = 1, bound, reason;

	if (getsockname(tcp, (struct sockaddr *)&name, &length) != 0 || is_unset(&name, length))
		return true;
	setsockopt(tcp, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	setsockopt(mptcp, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	bound = next_bind(mptcp, (struct sockaddr *)&name, length);
	reason = errno;
	setsockopt(tcp, SOL_SOCKET, SO_REUSEADDR, &before, sizeof before);
	setsockopt(mptcp, SOL_SOCKET, SO_REUSEADDR, &before, sizeof before);
	errno = reason;
	return bound == 0;
}

/* -------------------------------------------------------------------------------------------------------- swap */

int integer_option(int fd, int name)
{
	int value = -1;
	socklen_t length = sizeof value;

	return getsockopt(fd, SOL_SOCKET, name, &value, &length) == 0 ? value : -1;
}

bool is_tcp(int fd)
{
	int domain = integer_option(fd, SO_DOMAIN);

	return (domain == AF_INET || domain == AF_INET6) && integer_option(fd, SO_TYPE) == SOCK_STREAM &&
	       integer_option(fd, SO_PROTOCOL) == IPPROTO_TCP;
}

bool is_mptcp(int fd)
{
	return integer_option(fd, SO_PROTOCOL) == IPPROTO_MPTCP;
}

const char *swap(int fd)
{
	int domain = integer_option(fd, SO_DOMAIN);
	int descriptor_flags = fcntl(fd, F_GETFD), status_flags = fcntl(fd, F_GETFL);
	int mptcp = socket(domain, SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_MPTCP);
	int new_tcp = mptcp < 0 ? -1 : socket(domain, SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP);
	const struct option *refused;
	const char *problem = NULL;
	int reason;

	if (mptcp < 0 || new_tcp < 0)
		problem = "the kernel refuses an MPTCP socket (see sysctl net.mptcp.enabled)";
	else if ((refused = copy_options(fd, new_tcp, mptcp)) != NULL)
		problem = refused->text;
	else if (!copy_address(fd, mptcp))
		problem = "the MPTCP socket cannot have the TCP socket's address";
	else if (fcntl(mptcp, F_SETFL, status_flags) != 0 ||
		 dup3(mptcp, fd, (descriptor_flags & FD_CLOEXEC) != 0 ? O_CLOEXEC : 0) < 0)
		problem = "the MPTCP socket cannot take the TCP socket's place";
	reason = errno;
	if (problem == NULL)
		choose_congestion(mptcp);
	if (new_tcp >= 0)
		next_close(new_tcp);
	if (mptcp >= 0)
		next_close(mptcp);
	errno = reason;
	return problem;
}

/* ------------------------------------------------------------------------------------------------------- lists */

bool read_list(const char *value, char *list, size_t size)
{
	ssize_t length;
	int file, reason;

	if (value[0] != '/') {
		snprintf(list, size, "%s", value);
		return true;
	}
	file = open(value, O_RDONLY | O_CLOEXEC);
	length = file < 0 ? -1 : read(file, list, size - 1);
	reason = errno;
	if (file >= 0)
		next_close(file);
	errno = reason;
	if (length < 0)
		return false;
	list[length] = '\0';
	return true;
}
