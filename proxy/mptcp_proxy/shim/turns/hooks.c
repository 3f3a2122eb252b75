/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * The functions of the C library that squid_turns.so replaces, except the exec functions (both/hooks.c).
 */

#define _GNU_SOURCE

/* glibc declares these functions with a transparent union instead of the POSIX type. Hide its declarations, so that the
 * definitions below can have the POSIX type. */
#define accept accept_as_libc_declares_it
#define accept4 accept4_as_libc_declares_it
#include <sys/socket.h>
#undef accept
#undef accept4

#include <errno.h>
#include <unistd.h>

#include "turns.h"

EXPORTED int accept(int fd, struct sockaddr *address, socklen_t *length);
EXPORTED int accept4(int fd, struct sockaddr *address, socklen_t *length, int flags);
EXPORTED ssize_t read(int fd, void *buffer, size_t size);
EXPORTED ssize_t write(int fd, const void *bytes, size_t size);

struct descriptor descriptors[DESCRIPTORS];
bool without_may_write, without_joined_writes, without_zero_read;
int (*next_epoll_ctl)(int, int, int, struct epoll_event *);
int (*next_epoll_wait)(int, struct epoll_event *, int, int);

static int (*next_accept4)(int, struct sockaddr *, socklen_t *, int);
static ssize_t (*next_read)(int, void *, size_t);
static ssize_t (*next_write)(int, const void *, size_t);

__attribute__((constructor)) void start(void)
{
	if (next_accept4 != NULL)
		return;
	resolve(&next_accept4, "accept4");
	resolve(&next_read, "read");
	resolve(&next_write, "write");
	resolve(&next_epoll_ctl, "epoll_ctl");
	resolve(&next_epoll_wait, "epoll_wait");
	start_both();
	start_turns();
	without_may_write = is_switched_off("may-write");
	without_joined_writes = is_switched_off("joined-writes");
	without_zero_read = is_switched_off("zero-read");
}

/* Delete all records about *fd*, because it is closed, or will be. */
static void forget(int fd)
{
	int saved = errno;

	if (!fair || fd < 0)
		return;
	if (fd == event_loop) {
		for (int each = 0; each < DESCRIPTORS; each++)
			send_held(each, false);
		end_turns();
	}
	if (fd < DESCRIPTORS) {
		descriptors[fd].is_listener = false;
		pthread_mutex_lock(&events_lock);
		forget_interest(fd);
		forget_joined(fd);
		pthread_mutex_unlock(&events_lock);
		leave_place(fd);
	}
	errno = saved;
}

/* Process the result of accept(2) on *listener*: *fd*, or a failure with errno. *room*: size of the caller's buffer for
 * the address. If *length* is larger, the kernel has truncated the address. */
static int process_accepted(int listener, int fd, const struct sockaddr *address, const socklen_t *length,
			    socklen_t room)
{
	uint64_t client;

	if (!fair || address == NULL || length == NULL)
		return fd;
	note_accept(listener, fd);
	if (fd < 0 || fd >= DESCRIPTORS || !client_of(address, *length < room ? *length : room, &client))
		return fd;
	forget(fd);
	enter_place(fd, client);
	pthread_mutex_lock(&events_lock);
	record_write(fd, true);
	pthread_mutex_unlock(&events_lock);
	return fd;
}

int accept(int fd, struct sockaddr *address, socklen_t *length)
{
	return accept4(fd, address, length, 0);
}

int accept4(int fd, struct sockaddr *address, socklen_t *length, int flags)
{
	socklen_t room = length != NULL ? *length : 0;

	start();
	return process_accepted(fd, next_accept4(fd, address, length, flags), address, length, room);
}

EXPORTED int epoll_ctl(int epoll, int operation, int fd, struct epoll_event *event)
{
	start();
	if (fair && place_at(fd) != 0)
		open_place(epoll, fd);
	if (!has_turns(fd) || epoll != event_loop || (event == NULL && operation != EPOLL_CTL_DEL))
		return next_epoll_ctl(epoll, operation, fd, event);
	return change_registration(operation, fd, event);
}

/* Store the events that need no request to the kernel, and return their number. They come first, in a separate turn. */
static int promised_events(struct epoll_event *events, int max, int *timeout)
{
	int count;

	pthread_mutex_lock(&events_lock);
	count = continue_joined(events, max);
	count = add_promised(events, count, max, timeout);
	pthread_mutex_unlock(&events_lock);
	return count;
}

EXPORTED int epoll_wait(int epoll, struct epoll_event *events, int max, int timeout)
{
	uint16_t ready[CLIENTS];
	int count, ready_count, others;

	start();
	if (!fair || epoll != event_loop)
		return next_epoll_wait(epoll, events, max, timeout);
	count_up(TURNS, 1);
	for (int fd; (fd = next_ended_copy()) >= 0; close_without_hooks(fd))
		forget(fd);
	count = promised_events(events, max, &timeout);
	if (count > 0)
		return count;
	count = next_epoll_wait(epoll, events, max, timeout);
	begin_turn(count);
	if (count <= 0)
		return count;
	others = split_events(events, count, ready, &ready_count);
	if (ready_count > 0) {
		count = add_clients(events, others, max, ready, ready_count);
		count = others + remove_rest_events(events + others, count - others);
	}
	return add_accepts(events, others, count, max);
}

ssize_t read(int fd, void *buffer, size_t size)
{
	start();
	if (!must_fail_read(fd, size))
		return next_read(fd, buffer, size);
	count_up(ZERO_READS, 1);
	errno = EAGAIN;
	return -1;
}

ssize_t write(int fd, const void *bytes, size_t size)
{
	ssize_t written = 0;

	start();
	/* A write of a signal handler, for example a fault report, must not wait for the lock. */
	if (size == 0 || !has_turns(fd) || !(belongs_to_client(fd) || descriptors[fd].interest.registered))
		return next_write(fd, bytes, size);
	if (belongs_to_client(fd)) {
		pthread_mutex_lock(&events_lock);
		written = join_write(fd, bytes, size);
		pthread_mutex_unlock(&events_lock);
	}
	if (written == 0)
		written = next_write(fd, bytes, size);
	pthread_mutex_lock(&events_lock);
	record_write(fd, written == (ssize_t)size);
	pthread_mutex_unlock(&events_lock);
	return written;
}

EXPORTED int close(int fd)
{
	int saved = errno;
	bool rest_is_sent_later;

	start();
	rest_is_sent_later = send_held(fd, true);
	forget(fd);
	errno = saved;
	/* If a copy of the descriptor sends the rest, the connection continues, and the next library must not end
	 * it. */
	return rest_is_sent_later ? close_without_hooks(fd) : next_close(fd);
}
