/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Common to both preload libraries. Each is built from its own directory and this one: mptcp_listen.so from listen/,
 * squid_turns.so from turns/. Either works without the other. If both are loaded, squid_turns.so comes first in
 * LD_PRELOAD: data that it holds for a connection must reach the kernel before mptcp_listen.so ends the connection.
 *
 * EXPORTED functions are only in the files hooks.c. All others are hidden (-fvisibility=hidden), so no name clashes
 * with the program's. A hook calls the next library's function of its name (RTLD_NEXT).
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
/* Exported by both. The linker gives all callers the first one's; weak keeps a compiler from binding its own. */
#define EXPORTED_ONCE __attribute__((visibility("default"), weak))

/* More than the descriptors of Debian's Squid and of the libraries. Higher ones are ignored. */
#define DESCRIPTORS 65536

/* The constructor of each library, in its hooks.c; it initializes once. Every hook calls it, because the constructor of
 * another library may call a hook first. */
void start(void);

/* Put the next library's function *name* into the pointer that *function* points to. */
void resolve(void *function, const char *name);

/* Initialize the common part. start() calls it before its own part. */
void start_both(void);

extern int (*next_close)(int);

/* The value of our environment variable *name* at this process's start, or NULL. */
EXPORTED_ONCE char *mptcp_setting(const char *name);

/* Take the library that holds *object* out of LD_PRELOAD. */
EXPORTED_ONCE void mptcp_hide(const void *object);

/* Duplicate *fd* beyond the descriptors that the program counts. -1: there is no room. */
EXPORTED_ONCE int mptcp_copy(int fd);

/* Is *feature* in the list MPTCP_WITHOUT? */
bool is_left_out(const char *feature);

/* Counters of all processes of a Squid, in the file MPTCP_COUNTERS; mptcp_common/library_counters.py has the same names
 * in the same order. Without the file they are only in this process. */
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

/* Seconds of a monotonic clock. */
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

/* Close *fd* without any hook: the connection goes on by another descriptor, or is at its end. */
static inline int close_alone(int fd)
{
	return (int)syscall(SYS_close, fd);
}

#endif
