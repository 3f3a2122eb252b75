/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Fuzz target for squid_turns.so. The first byte selects the function to test (modulo 13); the other bytes are its input:
 *   5 read(): type of file, number of bytes to read, content;
 *   9 zero-length reads of uploads: each byte is a turn of the event loop;
 *  10 accept(): the client's address;
 *  11 epoll_wait(): the events of one turn;
 *  12 write(): writes to clients, and their times.
 * listen.c uses the other numbers. A failed assertion aborts the process.
 *
 * The library's own sources are part of this file, so that its static functions can be called.
 */

#define _GNU_SOURCE

#include <assert.h>

#include "both/scope.c"
#include "both/hooks.c"
#include "turns/fair_turns.c"
#include "turns/may_write.c"
#include "turns/joined_writes.c"
#include "turns/hooks.c"

#include "room.h"

static int pauses;

/* Replaces nanosleep(2) in zero_read.c: counts the pauses without waiting. */
static int count_sleep(const struct timespec *time, struct timespec *left)
{
	(void)left;
	assert(time->tv_sec == 0 && time->tv_nsec > 0);
	pauses++;
	return 0;
}

#define nanosleep count_sleep
#include "turns/zero_read.c"
#undef nanosleep

#include <arpa/inet.h>
#include <signal.h>

#include "fair_turns.h"
#include "joined_writes.h"

static void try_read(const uint8_t *data, size_t size)
{
	int pipes[2], sockets[2], ends[2];
	char buffer[64];
	ssize_t received;
	size_t requested;

	if (size < 2 || pipe(pipes) != 0 || socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0)
		return;
	ends[0] = data[0] & 1 ? sockets[0] : pipes[0];
	ends[1] = data[0] & 1 ? sockets[1] : pipes[1];
	requested = data[1] % sizeof buffer;
	size = size - 2 > 32 ? 32 : size - 2;
	if (size > 0)
		assert(write(ends[1], data + 2, size) == (ssize_t)size);
	else
		close(ends[1]);
	errno = 0;
	received = read(ends[0], buffer, requested);
	if (requested == 0)
		assert(data[0] & 1 ? received == -1 && errno == EAGAIN : received == 0);
	else
		assert(received == (ssize_t)(size < requested ? size : requested));
	close(pipes[0]), close(sockets[0]);
	close(data[0] & 1 ? pipes[1] : sockets[1]);
	if (size > 0)
		close(ends[1]);
}

#define UPLOADS 64

/* Each byte is a turn of the event loop, and selects an upload. The turn reads each upload from this to the last once. */
static void try_zero_reads(const uint8_t *data, size_t size)
{
	static int sockets[UPLOADS];
	bool had_turn = false;
	char nothing;

	for (int i = 0; i < UPLOADS && sockets[i] == 0; i++)
		assert((sockets[i] = socket(AF_UNIX, SOCK_STREAM, 0)) > 0);
	for (size_t i = 0; i < size && i < 8; i++) {
		size_t from = data[i] * UPLOADS / 256;
		/* Read forwards or backwards, because the kernel chooses the order. */
		bool backwards = data[i] % 2;

		pauses = 0;
		for (size_t n = from; n < UPLOADS; n++) {
			errno = 0;
			assert(read(sockets[backwards ? UPLOADS - 1 + from - n : n], &nothing, 0) == -1 && errno == EAGAIN);
		}
		/* For the library (zero_read.c), a turn begins when an upload is read again. Each turn reads the last upload,
		 * so each turn after the first has exactly one pause. */
		assert(pauses == had_turn || (i == 0 && pauses <= 1));
		had_turn = true;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size == 0)
		return 0;
	switch (data[0] % 13) {
	case 5: try_read(data + 1, size - 1); break;
	case 9: try_zero_reads(data + 1, size - 1); break;
	case 10: try_client(data + 1, size - 1); break;
	case 11: try_fair_turn(data + 1, size - 1); break;
	case 12: try_writes(data + 1, size - 1); break;
	}
	return 0;
}
