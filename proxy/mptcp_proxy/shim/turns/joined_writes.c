/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Joins the pieces that Squid writes to a client into one write.
 *
 * Squid writes the header of an answer, and then the body in pieces of 4 KB (HTTP_REQBUF_SZ). Before each write, it
 * waits for EPOLLOUT (Comm::Write, Comm::HandleWrite; 5.7 and 6.13). So a download of 64 KB takes 16 calls of write(2),
 * each of which sends separate packets, and 16 calls of epoll_wait(2).
 *
 * The library holds a header or a full piece, and adds later pieces to it, as long as Squid waits to write more and
 * gets the event that it may write (may_write.c). It sends held data in these cases: Squid does not wait to write;
 * Squid got the event and wrote nothing; the event did not fit into two turns; the last write was less than a piece;
 * the buffer is full. So data is held for at most two turns of the event loop.
 *
 * The library holds no data for a connection on which Squid does not wait for EPOLLOUT. The held data is at most half
 * of the kernel's free buffer, so that the kernel accepts all of it at once. If the kernel does not, for lack of
 * memory, Squid may not write until the kernel has accepted the rest. If Squid closes the connection before that, a
 * copy of its descriptor keeps the connection open. If the kernel accepts nothing of the rest for REST_SECONDS, the
 * connection is reset, so that the client does not mistake a part of the answer for the whole.
 *
 * If held data cannot be sent, the program gets the error at its next write or read, as for data in the kernel's
 * buffer. After an error, the library holds no data for the connection. A forked child does not send its parent's held
 * data.
 */

#define _GNU_SOURCE

#include <errno.h>
#include <linux/sock_diag.h>
#include <stdlib.h>
#include <string.h>

#include "turns.h"

/* Size of Squid's pieces. */
#define PIECE 4096
/* Maximum number of bytes around a piece that Squid sends as a chunk: the chunk's size, and two line ends. */
#define FRAMING 16

/* Maximum number of held bytes for a connection. */
#define MAX_JOINED_BYTES 65536
/* Maximum number of held bytes after a header, as long as it is unknown whether much data follows. */
#define MAX_AFTER_HEADER 16384
/* Maximum number of connections with held data. Writes to other connections go directly to the kernel. */
#define MAX_JOINED_CONNECTIONS 256
#ifndef REST_SECONDS
#define REST_SECONDS 60
#endif

struct joined {
	int fd, index;		     /* index in all_joined[] */
	bool more_expected;	     /* the last write was probably not the final one */
	bool postponed;		     /* its event did not fit into the last turn */
	bool waits_for_kernel;	     /* the kernel has not accepted all data, and will report when it accepts more */
	time_t deadline;	     /* time at which the connection is reset; 0 if the program has not closed it */
	size_t first, end, capacity; /* begin and end of the held bytes, and the maximum of the end */
	char bytes[MAX_JOINED_BYTES];
};

static struct joined *all_joined[MAX_JOINED_CONNECTIONS], *spare;
static int joined_count;	       /* used entries of all_joined[] */
static atomic_int waiting_count;       /* number of entries that wait for the kernel; read without the lock */
static int ended_copies[MAX_JOINED_CONNECTIONS]; /* copies without held data, which must be closed */
static atomic_int ended_count;	       /* used entries of ended_copies[]; read without the lock */

static void drop(struct joined *joined)
{
	descriptors[joined->fd].joined = NULL;
	all_joined[joined->index] = all_joined[--joined_count];
	all_joined[joined->index]->index = joined->index;
	if (spare == NULL)
		spare = joined;
	else
		free(joined);
}

/* End a copy of a descriptor that the program has closed, because the rest of its data was sent or cannot be sent. */
static void end_copy(struct joined *joined)
{
	ended_copies[ended_count++] = joined->fd;
	drop(joined);
}

static void set_waits_for_kernel(struct joined *joined, bool waits)
{
	if (joined->waits_for_kernel == waits)
		return;
	joined->waits_for_kernel = waits;
	waiting_count += waits ? 1 : -1;
	set_library_waits(joined->fd, waits);
}

/* Send the held data. Return whether the kernel accepted all of it; if not, set errno. With EAGAIN, the rest is held,
 * otherwise it is dropped. */
static bool send_joined(struct joined *joined)
{
	size_t before = joined->first;
	int why = 0;

	while (joined->first < joined->end && why == 0) {
		ssize_t sent = send(joined->fd, joined->bytes + joined->first, joined->end - joined->first,
				    MSG_DONTWAIT | MSG_NOSIGNAL);

		if (sent >= 0)
			joined->first += sent;
		else if (errno != EINTR)
			why = errno;
	}
	record_write(joined->fd, why == 0);
	set_waits_for_kernel(joined, why == EAGAIN);
	if (why == EAGAIN && joined->deadline != 0 && joined->first > before)
		joined->deadline = now() + REST_SECONDS;
	descriptors[joined->fd].broken = why != 0 && why != EAGAIN;
	if (why != EAGAIN && joined->deadline != 0)
		end_copy(joined);
	else if (why != EAGAIN)
		drop(joined);
	errno = why;
	return why == 0;
}

/* Make close(2) reset the connection. After a regular end, the client would mistake the part that it got for the whole
 * answer. */
static void reset_at_close(int fd)
{
	const struct linger at_once = { .l_onoff = 1, .l_linger = 0 };

	setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
}

/* Reset a connection that the program has closed, because its client has accepted no data for too long. */
static void give_up_rest(struct joined *joined)
{
	set_waits_for_kernel(joined, false);
	reset_at_close(joined->fd);
	end_copy(joined);
}

/* Return how many bytes the kernel certainly accepts at once; it counts more memory than the bytes need. Set *writable*
 * to whether epoll would report EPOLLOUT, which requires a third of the buffer to be free
 * (sk_stream_is_writeable()). */
static size_t free_buffer(int fd, bool *writable)
{
	uint32_t memory[SK_MEMINFO_VARS];
	socklen_t length = sizeof memory;
	size_t all, queued;

	*writable = true;
	if (getsockopt(fd, SOL_SOCKET, SO_MEMINFO, memory, &length) != 0)
		return 0;
	all = memory[SK_MEMINFO_SNDBUF];
	queued = memory[SK_MEMINFO_WMEM_QUEUED];
	*writable = queued + queued / 2 <= all;
	return all > queued ? (all - queued) / 2 : 0;
}

static bool is_piece(size_t size)
{
	return size >= PIECE && size <= PIECE + FRAMING;
}

static bool is_header(const char *bytes, size_t size)
{
	return size > 9 && size < PIECE && memcmp(bytes, "HTTP/", 5) == 0 && memcmp(bytes + size - 4, "\r\n\r\n", 4) == 0;
}

/* Begin to hold writes to *fd* if these bytes are probably not the last bytes; otherwise return NULL. *wait* is set if
 * the program got its event without a request to the kernel, and the kernel has little free buffer. Then the program
 * must wait until the kernel reports EPOLLOUT, which avoids many small writes. */
static struct joined *begin_joining(int fd, const char *bytes, size_t size, bool *wait)
{
	struct joined *joined;
	bool writable;
	size_t room;

	*wait = false;
	if (without_joined_writes || joined_count == MAX_JOINED_CONNECTIONS || descriptors[fd].broken || !waits_to_write(fd))
		return NULL;
	if (!is_header(bytes, size) && !is_piece(size))
		return NULL;
	room = free_buffer(fd, &writable);
	*wait = !writable && descriptors[fd].interest.promised;
	if (*wait || room < 2 * (PIECE + FRAMING))
		return NULL;
	if (is_header(bytes, size) && room > MAX_AFTER_HEADER)
		room = MAX_AFTER_HEADER;
	joined = spare != NULL ? spare : malloc(sizeof *joined);
	if (joined == NULL)
		return NULL;
	spare = NULL;
	joined->fd = fd;
	joined->more_expected = joined->waits_for_kernel = joined->postponed = false;
	joined->deadline = 0;
	joined->first = joined->end = 0;
	joined->capacity = room < MAX_JOINED_BYTES ? room : MAX_JOINED_BYTES;
	joined->index = joined_count++;
	descriptors[fd].joined = all_joined[joined->index] = joined;
	return joined;
}

ssize_t join_write(int fd, const char *bytes, size_t size)
{
	struct joined *joined = descriptors[fd].joined;
	bool wait = false;

	if (joined != NULL && (joined->waits_for_kernel || size > joined->capacity - joined->end))
		/* Also write these bytes to the kernel. Otherwise a fast writer would always be served before all
		 * others. */
		return send_joined(joined) ? 0 : -1;
	if (joined == NULL)
		joined = begin_joining(fd, bytes, size, &wait);
	if (wait)
		errno = EAGAIN;
	if (joined == NULL)
		return wait ? -1 : 0;
	memcpy(joined->bytes + joined->end, bytes, size);
	count_up(JOINED_WRITES, 1);
	count_up(JOINED_BYTES, size);
	joined->end += size;
	joined->more_expected = is_piece(size) || is_header(bytes, size);
	return (ssize_t)size;
}

int continue_joined(struct epoll_event *events, int max)
{
	int count = 0;

	/* Go backwards, because the last entry replaces a dropped entry. */
	for (int i = joined_count - 1; i >= 0; i--) {
		struct joined *joined = all_joined[i];

		if (joined->waits_for_kernel) {
			if (joined->deadline != 0 && now() >= joined->deadline)
				give_up_rest(joined);
			continue;
		}
		if (!joined->more_expected || !waits_to_write(joined->fd)) {
			send_joined(joined);
		} else if (count < max && may_give_event(joined->fd)) {
			give_write_event(joined->fd, &events[count++]);
			joined->more_expected = joined->postponed = false;
		} else if (joined->postponed) {
			send_joined(joined);
		} else {
			joined->postponed = true;
		}
	}
	return count;
}

int remove_rest_events(struct epoll_event *events, int count)
{
	int remaining = 0;

	if (waiting_count == 0)
		return count;
	pthread_mutex_lock(&events_lock);
	for (int i = 0; i < count; i++) {
		int fd = events[i].data.fd;
		struct joined *joined = fd >= 0 && fd < DESCRIPTORS ? descriptors[fd].joined : NULL;

		if (joined != NULL && joined->waits_for_kernel) {
			if (joined->deadline != 0)
				events[i].events = 0;
			send_joined(joined);
			if (descriptors[fd].joined != NULL || !waits_to_write(fd))
				events[i].events &= ~EPOLLOUT;
		}
		if (events[i].events != 0)
			events[remaining++] = events[i];
	}
	pthread_mutex_unlock(&events_lock);
	return remaining;
}

/* Keep a connection that the program closes open, with a copy of its descriptor, until the kernel accepts all its data.
 * Return whether that is possible. */
static bool keep_rest(struct joined *joined)
{
	int copy = mptcp_copy(joined->fd);

	if (copy < 0)
		return false;
	share_place(joined->fd, copy);
	set_waits_for_kernel(joined, false);
	descriptors[joined->fd].joined = NULL;
	descriptors[copy].joined = joined;
	joined->fd = copy;
	joined->deadline = now() + REST_SECONDS;
	set_waits_for_kernel(joined, true);
	return true;
}

bool send_held(int fd, bool keep)
{
	bool kept = false;

	if (!belongs_to_client(fd))
		return false;
	pthread_mutex_lock(&events_lock);
	if (descriptors[fd].joined != NULL && !send_joined(descriptors[fd].joined) && descriptors[fd].joined != NULL) {
		kept = keep && keep_rest(descriptors[fd].joined);
		if (!kept)
			reset_at_close(fd);
	}
	pthread_mutex_unlock(&events_lock);
	return kept;
}

int next_ended_copy(void)
{
	int fd = -1;

	if (ended_count == 0)
		return -1;
	pthread_mutex_lock(&events_lock);
	if (ended_count > 0)
		fd = ended_copies[--ended_count];
	pthread_mutex_unlock(&events_lock);
	return fd;
}

void forget_joined(int fd)
{
	descriptors[fd].broken = false;
	if (descriptors[fd].joined != NULL) {
		waiting_count -= descriptors[fd].joined->waits_for_kernel;
		drop(descriptors[fd].joined);
	}
}
