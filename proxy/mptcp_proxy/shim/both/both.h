/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * What both preload libraries have. Each library consists of its own directory and of this one: mptcp_listen.so of
 * listen/, squid_turns.so of turns/. Either works without the other. Where both are loaded, squid_turns.so comes first in
 * LD_PRELOAD, because what it holds of a connection must reach the kernel before mptcp_listen.so ends that connection.
 *
 * EXPORTED functions are in the files hooks.c alone. All else is hidden (-fvisibility=hidden), so that no name meets one of
 * the program's. A hook calls the next library's function of its name (RTLD_NEXT).
 */

#ifndef BOTH_H
#define BOTH_H

#include <netinet/in.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define EXPORTED __attribute__((visibility("default")))
/* Exported by both libraries. The linker gives all callers the first one's, and weak keeps a compiler from choosing itself. */
#define EXPORTED_ONCE __attribute__((visibility("default"), weak))

/* More than the descriptors that Debian's Squid may have, and those of the libraries. What is beyond is nobody's. */
#define DESCRIPTORS 65536

/* The constructor of each library, in its hooks.c: it makes everything ready, once. Every hook calls it, because the
 * constructor of another library may call a hook before. */
void start(void);

/* Put the next library's function *name* into the pointer that *function* points to. */
void resolve(void *function, const char *name);

/* Make ready what both libraries have. To be called by start(), before what follows. */
void start_both(void);

extern int (*next_close)(int);

/* The value of our environment variable *name* as this process was started with it, or NULL. */
EXPORTED_ONCE char *mptcp_setting(const char *name);

/* Take the library that holds *object* out of LD_PRELOAD. */
EXPORTED_ONCE void mptcp_hide(const void *object);

/* Make another descriptor of *fd*, beyond those that the program counts. -1: there is no room. */
EXPORTED_ONCE int mptcp_copy(int fd);

/* Is *feature* in the list MPTCP_WITHOUT? */
bool is_left_out(const char *feature);

/* What all processes of a Squid count together, in the file that MPTCP_COUNTERS names; in this order, and by these names in
 * mptcp_common/library_counters.py. Where there is no such file nobody sees the numbers. */
enum counter {
	TURNS, CUT_TURNS, JOINED_WRITES, JOINED_BYTES, PROMISED_WRITES, LATE_WRITERS, ZERO_READS, POSTPONED_ACCEPTS, COUNTERS
};
extern _Atomic uint64_t *counters;

static inline void count_up(enum counter which, uint64_t more)
{
	atomic_fetch_add_explicit(&counters[which], more, memory_order_relaxed);
}

/* The port of an IPv4 or IPv6 address; 0 for all else. */
static inline int port_of(const struct sockaddr *address, socklen_t length)
{
	if (address == NULL || length < sizeof address->sa_family)
		return 0;
	if (address->sa_family == AF_INET && length >= sizeof(struct sockaddr_in))
		return ntohs(((const struct sockaddr_in *)address)->sin_port);
	if (address->sa_family == AF_INET6 && length >= sizeof(struct sockaddr_in6))
		return ntohs(((const struct sockaddr_in6 *)address)->sin6_port);
	return 0;
}

/* Seconds since some moment. */
static inline time_t now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec;
}

/* Write a line to stderr, once in a process. */
#define SAY_ONCE(...)                                                      \
	do {                                                               \
		static atomic_flag said = ATOMIC_FLAG_INIT;                \
                                                                           \
		if (!atomic_flag_test_and_set(&said))                      \
			dprintf(STDERR_FILENO, "mptcp_listen: " __VA_ARGS__); \
	} while (0)

/* Close *fd* without any hook: of a connection that goes on by another descriptor, or that is at its end. */
static inline int close_alone(int fd)
{
	return (int)syscall(SYS_close, fd);
}

#endif
