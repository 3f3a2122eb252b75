/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * The functions of the C library that mptcp_listen.so replaces, except the exec functions (both/hooks.c).
 */

#define _GNU_SOURCE

/* glibc declares these functions with a transparent union instead of the POSIX type. Hide its declarations, so that the
 * definitions below can have the POSIX type. */
#define accept accept_as_libc_declares_it
#define accept4 accept4_as_libc_declares_it
#define bind bind_as_libc_declares_it
#define connect connect_as_libc_declares_it
#include <sys/socket.h>
#undef accept
#undef accept4
#undef bind
#undef connect

#include <errno.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "listen.h"

EXPORTED int accept(int fd, struct sockaddr *address, socklen_t *length);
EXPORTED int accept4(int fd, struct sockaddr *address, socklen_t *length, int flags);
EXPORTED int bind(int fd, const struct sockaddr *address, socklen_t length);
EXPORTED int connect(int fd, const struct sockaddr *address, socklen_t length);

char *listen_ports, *congestion, *parents;
int (*next_bind)(int, const struct sockaddr *, socklen_t);

static int (*next_accept4)(int, struct sockaddr *, socklen_t *, int);
static int (*next_connect)(int, const struct sockaddr *, socklen_t);

__attribute__((constructor)) void start(void)
{
	if (next_bind != NULL)
		return;
	resolve(&next_bind, "bind");
	resolve(&next_accept4, "accept4");
	resolve(&next_connect, "connect");
	start_both();
	listen_ports = mptcp_setting("MPTCP_LISTEN_PORTS");
	congestion = mptcp_setting("MPTCP_CONGESTION");
	parents = mptcp_setting("MPTCP_PARENTS");
	start_late_writes();
}

int bind(int fd, const struct sockaddr *address, socklen_t length)
{
	int saved = errno;

	start();
	before_bind(fd, address, length);
	errno = saved;
	return next_bind(fd, address, length);
}

int connect(int fd, const struct sockaddr *address, socklen_t length)
{
	int saved = errno;

	start();
	before_connect(fd, address, length);
	errno = saved;
	return next_connect(fd, address, length);
}

/* If accept fails for lack of descriptors, Squid considers the listener unusable (TcpAcceptor.cc). So return EAGAIN
 * instead, but only after a pause, because Squid then tries again at once. */
static int hide_lack_of_descriptors(int fd)
{
	const struct timespec pause = { .tv_nsec = 1000000 };

	if (fd >= 0 || (errno != EMFILE && errno != ENFILE))
		return fd;
	LOG_ONCE("new clients have to wait, no descriptor is free: %s (logged once)\n", strerror(errno));
	count_up(POSTPONED_ACCEPTS, 1);
	nanosleep(&pause, NULL);
	errno = EAGAIN;
	return -1;
}

int accept(int fd, struct sockaddr *address, socklen_t *length)
{
	return accept4(fd, address, length, 0);
}

int accept4(int fd, struct sockaddr *address, socklen_t *length, int flags)
{
	start();
	return hide_lack_of_descriptors(next_accept4(fd, address, length, flags));
}

EXPORTED int close(int fd)
{
	int saved = errno;

	start();
	before_close(fd);
	errno = saved;
	return next_close(fd);
}
