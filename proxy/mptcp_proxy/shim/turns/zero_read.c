/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * A read of no bytes is not the end of the connection.
 *
 * Squid before 6 reads a request's body into a buffer, which is full when the origin takes the body more slowly than
 * the client sends it. Squid then reads 0 bytes, gets 0 as read(2) specifies, and takes that for the client's end of
 * the connection. So an upload of more than the buffer to a slow origin always fails (Squid bug 5405). Here such a read
 * of a socket returns EAGAIN, so that Squid tries again.
 *
 * It does so at once, because the socket has data. A pause bounds the cost: without it a core is busy for as long as
 * the origin is slow. Squid is blocked during the pause, so the pause must be short against a busy turn of its event
 * loop. There is one pause in a turn, however many descriptors read: with one for each, a client with 800 such uploads
 * would stop Squid for 0.16 s in each turn. A turn is over when a descriptor reads that has read since the last pause,
 * because the event loop visits each of them once before it visits one again. If the loop leaves some of a client's
 * events for the next time (fair_turns.c), turns are short and others wait: then the pauses are at least ten times
 * their length apart.
 */

#define _GNU_SOURCE

#include <errno.h>
#include <sys/stat.h>

#include "turns.h"

#define PAUSE_NS 200000

static atomic_uint turn = 1;	/* its number */
static atomic_llong last_pause; /* when it ended, nanoseconds */

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
	/* Two that share a place cost one more pause. */
	atomic_uint *last = &descriptors[(unsigned int)fd % DESCRIPTORS].asked_in;

	if (*last == turn) {
		turn++;
		if (!cut || nanoseconds() > last_pause + 10 * PAUSE_NS) {
			nanosleep(&pause, NULL);
			last_pause = nanoseconds();
		}
	}
	*last = turn;
}

bool answers_read(int fd, size_t size)
{
	if (size > 0 || without_zero_read || !is_socket(fd))
		return false;
	pause_once_in_a_turn(fd);
	return true;
}
