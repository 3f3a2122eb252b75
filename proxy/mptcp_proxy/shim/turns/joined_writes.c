/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Joins the pieces that Squid writes to a client into one write.
 *
 * Squid writes an answer in pieces of 4 KB (HTTP_REQBUF_SZ), apart from the header, and asks epoll(7) before each
 * whether it may (Comm::Write, Comm::HandleWrite; 5.7 and 6.13). So a download of 64 KB takes 16 calls of write(2),
 * each of which sends packets of its own, and as many of epoll_wait(2).
 *
 * Here a header or a full piece is held, and later pieces are added to it, as long as Squid waits to write more and
 * gets the event that it may write (may_write.c). Held data is sent in these cases: Squid does not wait to write; Squid
 * got the event and wrote nothing; twice, the event had no room in a turn; the last write was less than a piece; the
 * buffer is full. So data is held for at most two turns of the event loop.
 *
 * No data is held for a connection on which Squid does not wait for EPOLLOUT. The held data is at most half of the
 * kernel's free buffer, so that the kernel takes all of it at once. If it does not, for lack of memory, Squid may not
 * write until the kernel has taken the rest. If Squid closes the connection before that, a copy of its descriptor keeps
 * the connection open. If the kernel takes nothing of the rest for REST_SECONDS, the connection is reset, because its
 * client must not mistake a part for the whole answer.
 *
 * The program sees an error in sending at its next write or read, as it does for data that the kernel holds. After an
 * error, no data is held for the connection. A forked child does not send data that its parent holds.
 */

#define _GNU_SOURCE

#include <errno.h>
#include <linux/sock_diag.h>
#include <stdlib.h>
#include <string.h>

#include "turns.h"

#define PIECE 4096
/* Bytes around a piece that is sent as a chunk: its size, and two line ends. */
#define FRAMING 16

#define JOINED 65536
/* Buffer for a header and the data after it, as long as it is unknown whether much data follows. */
#define BEGINNING 16384
/* Maximum number of connections with held data. Writes to other connections go directly to the kernel. */
#define MAX_HELD 256
#ifndef REST_SECONDS
#define REST_SECONDS 60
#endif

struct joined {
	int fd, place;		 /* place: index in all_joined[] */
	bool more;		 /* the last write was probably not the final one */
	bool late;		 /* its event had no room in the last turn */
	bool waits;		 /* the kernel has not taken all data, and will report when it can take more */
	time_t until;		 /* time at which to give up; 0 if the program has not closed the connection */
	size_t first, end, room; /* begin and end of the held bytes, and the limit of the end */
	char bytes[JOINED];
};

static struct joined *all_joined[MAX_HELD], *spare;
static int number_joined;	  /* used entries of all_joined[] */
static atomic_int number_waiting; /* number of them that wait; read without the lock */
static int ended[MAX_HELD];	  /* copies without held data */
static atomic_int number_ended;	  /* read without the lock */

static void drop(struct joined *joined)
{
	descriptors[joined->fd].joined = NULL;
	all_joined[joined->place] = all_joined[--number_joined];
	all_joined[joined->place]->place = joined->place;
	if (spare == NULL)
		spare = joined;
	else
		free(joined);
}

/* End the copy of a connection that the program has closed, because its rest was sent or cannot be sent. */
static void end(struct joined *joined)
{
	ended[number_ended++] = joined->fd;
	drop(joined);
}

static void wait_for_room(struct joined *joined, bool waits)
{
	if (joined->waits == waits)
		return;
	joined->waits = waits;
	number_waiting += waits ? 1 : -1;
	wait_for_rest(joined->fd, waits);
}

/* Send the held data. If the kernel has not taken all of it, return false, with errno; the rest waits or is dropped. */
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
	took(joined->fd, why == 0);
	wait_for_room(joined, why == EAGAIN);
	if (why == EAGAIN && joined->until != 0 && joined->first > before)
		joined->until = now() + REST_SECONDS;
	descriptors[joined->fd].broken = why != 0 && why != EAGAIN;
	if (why != EAGAIN && joined->until != 0)
		end(joined);
	else if (why != EAGAIN)
		drop(joined);
	errno = why;
	return why == 0;
}

/* Make close(2) reset the connection. After a regular end, the client would mistake its part for the whole answer. */
static void reset_at_close(int fd)
{
	const struct linger at_once = { .l_onoff = 1, .l_linger = 0 };

	setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
}

/* Reset a closed connection, because its client has taken no data for too long. */
static void give_up_rest(struct joined *joined)
{
	wait_for_room(joined, false);
	reset_at_close(joined->fd);
	end(joined);
}

/* How much the kernel surely takes at once: what it counts is more than the bytes. And whether epoll would report it as
 * writable: not with less than a third free (sk_stream_is_writeable()). */
static size_t room_of(int fd, bool *writable)
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

/* Begin to hold writes to *fd* if these bytes are probably not the last ones; otherwise return NULL. *wait* is set if
 * the program got its event without asking the kernel, and the kernel has little room. The program must then wait until
 * the kernel reports much room, which saves many small writes. */
static struct joined *begin_to_join(int fd, const char *bytes, size_t size, bool *wait)
{
	struct joined *joined;
	bool writable;
	size_t room;

	*wait = false;
	if (without_joined_writes || number_joined == MAX_HELD || descriptors[fd].broken || !waits_to_write(fd))
		return NULL;
	if (!is_header(bytes, size) && !is_piece(size))
		return NULL;
	room = room_of(fd, &writable);
	*wait = !writable && descriptors[fd].interest.fresh;
	if (*wait || room < 2 * (PIECE + FRAMING))
		return NULL;
	if (is_header(bytes, size) && room > BEGINNING)
		room = BEGINNING;
	joined = spare != NULL ? spare : malloc(sizeof *joined);
	if (joined == NULL)
		return NULL;
	spare = NULL;
	joined->fd = fd;
	joined->more = joined->waits = joined->late = false;
	joined->until = 0;
	joined->first = joined->end = 0;
	joined->room = room < JOINED ? room : JOINED;
	joined->place = number_joined++;
	descriptors[fd].joined = all_joined[joined->place] = joined;
	return joined;
}

ssize_t join(int fd, const char *bytes, size_t size)
{
	struct joined *joined = descriptors[fd].joined;
	bool wait = false;

	if (joined != NULL && (joined->waits || size > joined->room - joined->end))
		/* Write these bytes to the kernel as well. Otherwise a heavy writer would go on before all others forever. */
		return send_joined(joined) ? 0 : -1;
	if (joined == NULL)
		joined = begin_to_join(fd, bytes, size, &wait);
	if (wait)
		errno = EAGAIN;
	if (joined == NULL)
		return wait ? -1 : 0;
	memcpy(joined->bytes + joined->end, bytes, size);
	count_up(JOINED_WRITES, 1);
	count_up(JOINED_BYTES, size);
	joined->end += size;
	joined->more = is_piece(size) || is_header(bytes, size);
	return (ssize_t)size;
}

int continue_joined(struct epoll_event *events, int max)
{
	int count = 0;

	/* Go backwards, because the last entry replaces a dropped one. */
	for (int i = number_joined - 1; i >= 0; i--) {
		struct joined *joined = all_joined[i];

		if (joined->waits) {
			if (joined->until != 0 && now() >= joined->until)
				give_up_rest(joined);
			continue;
		}
		if (!joined->more || !waits_to_write(joined->fd)) {
			send_joined(joined);
		} else if (count < max && may_serve(joined->fd)) {
			serve(joined->fd, &events[count++]);
			joined->more = joined->late = false;
		} else if (joined->late) {
			send_joined(joined);
		} else {
			joined->late = true;
		}
	}
	return count;
}

int without_rests(struct epoll_event *events, int count)
{
	int left = 0;

	if (number_waiting == 0)
		return count;
	pthread_mutex_lock(&events_lock);
	for (int i = 0; i < count; i++) {
		int fd = events[i].data.fd;
		struct joined *joined = fd >= 0 && fd < DESCRIPTORS ? descriptors[fd].joined : NULL;

		if (joined != NULL && joined->waits) {
			if (joined->until != 0)
				events[i].events = 0;
			send_joined(joined);
			if (descriptors[fd].joined != NULL || !waits_to_write(fd))
				events[i].events &= ~EPOLLOUT;
		}
		if (events[i].events != 0)
			events[left++] = events[i];
	}
	pthread_mutex_unlock(&events_lock);
	return left;
}

/* Keep the data that the kernel has not taken of a connection that the program closes, with a copy of its descriptor. */
static bool keep_rest(struct joined *joined)
{
	int copy = mptcp_copy(joined->fd);

	if (copy < 0)
		return false;
	share_place(joined->fd, copy);
	wait_for_room(joined, false);
	descriptors[joined->fd].joined = NULL;
	descriptors[copy].joined = joined;
	joined->fd = copy;
	joined->until = now() + REST_SECONDS;
	wait_for_room(joined, true);
	return true;
}

bool send_held(int fd, bool keep)
{
	bool kept = false;

	if (!is_clients(fd))
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

int next_ended(void)
{
	int fd = -1;

	if (number_ended == 0)
		return -1;
	pthread_mutex_lock(&events_lock);
	if (number_ended > 0)
		fd = ended[--number_ended];
	pthread_mutex_unlock(&events_lock);
	return fd;
}

void forget_joined(int fd)
{
	descriptors[fd].broken = false;
	if (descriptors[fd].joined != NULL) {
		number_waiting -= descriptors[fd].joined->waits;
		drop(descriptors[fd].joined);
	}
}
