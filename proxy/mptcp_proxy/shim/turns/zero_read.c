/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Keeps Squid from mistaking a read of zero bytes for the end of the connection.
 *
 * Squid before version 6 reads a request's body into a buffer. If the origin accepts the body more slowly than the
 * client sends it, the buffer becomes full. Then Squid reads 0 bytes, gets 0 as read(2) specifies, and concludes that
 * the client has ended the connection. So an upload that is larger than the buffer, to a slow origin, always fails
 * (Squid bug 5405). With this library, such a read of a socket fails with EAGAIN, so Squid tries again.
 *
 * Squid tries again at once, because the socket has data. Without a pause, it would use a whole processor as long as
 * the origin is slow. Squid is blocked during a pause, so the pause must be short compared with a busy turn of its
 * event loop. Each turn has one pause, regardless of the number of such reads: with a pause for each, a client with 800
 * such uploads would stop Squid for 0.16 s in each turn. In a turn, Squid reads from each descriptor once. So if it
 * reads from a descriptor again, a new turn has begun. If some events of a client are left for the next turn
 * (fair_turns.c), turns are short and other clients wait. Then the time between two pauses is at least ten times their
 * length.
 */

#define _GNU_SOURCE

#include <errno.h>
#include <sys/stat.h>

#include "turns.h"

#define PAUSE_NS 200000

static atomic_uint turn = 1;	/* number of the current turn */
static atomic_llong last_pause; /* end of the last pause, nanoseconds */

static bool is_socket(int fd)
{
	struct stat found;

	return fstat(fd, &found) == 0 && S_ISSOCK(found.st_mode);
}

static long long nanoseconds(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000000LL + time.tv_nsec;
}

static void pause_once_in_a_turn(int fd)
{
	const struct timespec pause = { .tv_nsec = PAUSE_NS };
	/* High descriptors may share an entry, which only causes more pauses. */
	atomic_uint *last = &descriptors[(unsigned int)fd % DESCRIPTORS].last_zero_read;

	if (*last == turn) {
		turn++;
		if (!turn_was_cut || nanoseconds() > last_pause + 10 * PAUSE_NS) {
			nanosleep(&pause, NULL);
			last_pause = nanoseconds();
		}
	}
	*last = turn;
}

bool must_fail_read(int fd, size_t size)
{
	if (size > 0 || without_zero_read || !is_socket(fd))
		return false;
	pause_once_in_a_turn(fd);
	return true;
}
