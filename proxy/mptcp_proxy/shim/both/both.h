/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Declarations for both preload libraries. mptcp_listen.so is built from listen/ and this directory, squid_turns.so
 * from turns/ and this directory. Each works without the other. If both are loaded, squid_turns.so comes first in
 * LD_PRELOAD: data that it holds for a connection must reach the kernel before mptcp_listen.so ends the connection.
 *
 * Only the files hooks.c have EXPORTED functions (hooks), which replace functions of the C library. Other functions are
 * hidden (-fvisibility=hidden), so that their names do not clash with the program's. A hook calls the function of the
 * same name in the next library (RTLD_NEXT).
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
/* Both libraries export these functions, and all callers get those of the first library. "weak" keeps the compiler from
 * binding calls to the functions of the same library. */
#define EXPORTED_ONCE __attribute__((visibility("default"), weak))

/* Limit of descriptor numbers. Debian's Squid and the libraries use only lower numbers; higher numbers are ignored. */
#define DESCRIPTORS 65536

/* The constructor of each library, in its hooks.c. It initializes the library at its first call. Every hook calls it,
 * because the constructor of another library may call a hook earlier. */
void start(void);

/* Store the address of the next library's function *name* in the pointer to which *function* points. */
void resolve(void *function, const char *name);

/* Initialize the part in this directory. start() calls this first. */
void start_both(void);

extern int (*next_close)(int);

/* The value of our environment variable *name* at this process's start, or NULL. */
EXPORTED_ONCE char *mptcp_setting(const char *name);

/* Remove the library that contains *object* from LD_PRELOAD. */
EXPORTED_ONCE void mptcp_hide(const void *object);

/* Duplicate *fd* to a number above the descriptors that the program counts. Return -1 if no such number is free. */
EXPORTED_ONCE int mptcp_copy(int fd);

/* Return whether *feature* is in the list MPTCP_WITHOUT. */
bool is_switched_off(const char *feature);

/* Counters, which all processes of a Squid share in the file MPTCP_COUNTERS. mptcp_common/library_counters.py has the
 * same names in the same order. Without that file, each process has its own counters. */
enum counter {
	TURNS, CUT_TURNS, JOINED_WRITES, JOINED_BYTES, PROMISED_WRITES, LATE_WRITERS, ZERO_READS, POSTPONED_ACCEPTS, COUNTERS
};
extern _Atomic uint64_t *counters;

static inline void count_up(enum counter counter, uint64_t amount)
{
	atomic_fetch_add_explicit(&counters[counter], amount, memory_order_relaxed);
}

/* Return the port of an IPv4 or IPv6 address; 0 for any other address. */
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

/* Write a line to stderr, at most once in each process. */
#define LOG_ONCE(...)                                                      \
	do {                                                               \
		static atomic_flag logged = ATOMIC_FLAG_INIT;                \
                                                                           \
		if (!atomic_flag_test_and_set(&logged))                      \
			dprintf(STDERR_FILENO, "mptcp_listen: " __VA_ARGS__); \
	} while (0)

/* Close *fd* without calling any hook, because the connection continues on another descriptor or has ended. */
static inline int close_without_hooks(int fd)
{
	return (int)syscall(SYS_close, fd);
}

#endif
