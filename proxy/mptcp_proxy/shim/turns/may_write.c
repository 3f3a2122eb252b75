/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Tells Squid that it may write, without asking the kernel, because Squid nearly always may.
 *
 * Before a write, Squid makes epoll(7) wait for EPOLLOUT (Comm::Write). After the write it gets this event once more,
 * and only then cancels the wait. This takes two calls of epoll_ctl(2) and two turns of the event loop for each piece
 * of a tunnel, each request and each answer.
 *
 * So when the program begins to wait for EPOLLOUT of a descriptor, and the kernel took all of the last write to it, the
 * program gets the event in the next turn, and once more in the turn after it. If the program has then written nothing
 * by write(2), or if the kernel took less than all, the kernel is asked as usual. The kernel is also asked about writes
 * that a library such as GnuTLS makes for the program: if the kernel had no room, the library would get EAGAIN, and
 * Squid would end the connection.
 *
 * These events continue what the last turn began. Before the kernel is asked for other events, at most MAX_EVENTS of
 * them are given to clients, each of which has a share, and at most MAX_EVENTS to descriptors that do not belong to a
 * client. Changes are passed to the kernel just before it is asked, so changes that the program cancels in between cost
 * nothing: for example, it stops waiting to write to an idle connection to the origin, and waits for the answer.
 *
 * For a descriptor without an earlier write, only the kernel knows whether it may be written to, because it may still
 * be connecting. All this applies to the program's event loop (fair_turns.c), and to descriptors that are registered
 * there once the first client has connected.
 */

#define _GNU_SOURCE

#include <errno.h>
#include <string.h>

#include "turns.h"

#define TIMES 2
#define MAX_EVENTS (4 * TURN)
#define ODD (EPOLLET | EPOLLONESHOT | EPOLLEXCLUSIVE | EPOLLWAKEUP)

/* The lock is recursive, because a signal handler that reports a fault in this library may close descriptors. */
pthread_mutex_t events_lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

/* Each queue links descriptors by next[]; -1 ends it. */
static struct ends {
	int first, last;
} queues[QUEUES] = { { -1, -1 }, { -1, -1 }, { -1, -1 } };

/* Number of events given since the kernel was last asked, per place and of all clients, and each client's limit. */
static int given_to[CLIENTS], given, share = MAX_EVENTS;

static void append(enum queue queue, int fd)
{
	struct ends *ends = &queues[queue];

	if (descriptors[fd].queued[queue])
		return;
	descriptors[fd].queued[queue] = true;
	descriptors[fd].next[queue] = -1;
	*(ends->first < 0 ? &ends->first : &descriptors[ends->last].next[queue]) = fd;
	ends->last = fd;
}

/* Empty the queue. Return its first descriptor; next_of() returns the following ones; -1 is the end. */
static int take_all(enum queue queue)
{
	int first = queues[queue].first;

	queues[queue].first = -1;
	return first;
}

static int next_of(enum queue queue, int fd)
{
	descriptors[fd].queued[queue] = false;
	return descriptors[fd].next[queue];
}

/* Register with the kernel the events that are wanted of *fd*, except those that are given without asking the kernel.
 * Return the result of epoll_ctl(2). */
static int tell(int fd)
{
	struct interest *each = &descriptors[fd].interest;
	uint32_t events = each->wants ? each->wanted : 0;
	bool needed;
	int result;

	/* If EPOLLOUT is already set in the kernel, it stays set, which saves a call. */
	if (each->fresh && (each->asked & EPOLLOUT) == 0)
		events &= ~EPOLLOUT;
	if (each->rest)
		events |= EPOLLOUT;
	needed = each->rest || (each->wants && (!each->fresh || each->there || (events & ~(EPOLLERR | EPOLLHUP)) != 0));
	if (needed ? each->there && each->asked == events : !each->there)
		return 0;
	result = tell_kernel(fd, !needed ? EPOLL_CTL_DEL : each->there ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, events);
	if (result == 0 || !needed) {
		each->there = needed;
		each->asked = needed ? events : 0;
	}
	return result;
}

/* Pass all changes to the kernel. If it lacks memory for a change, or the user has too many registrations, try again in
 * the next turn. */
static void tell_changes(void)
{
	for (int next, fd = take_all(CHANGED); fd >= 0; fd = next) {
		next = next_of(CHANGED, fd);
		if (tell(fd) != 0 && (errno == ENOMEM || errno == ENOSPC))
			append(CHANGED, fd);
	}
}

static void begin_to_wait(int fd)
{
	descriptors[fd].interest.fresh = true;
	append(FRESH, fd);
}

/* Change what the program wants of *fd*. Return as epoll_ctl(2) does. */
static int change(int fd, bool wants, uint32_t wanted)
{
	struct interest *each = &descriptors[fd].interest, before = *each;
	uint32_t waited = before.wants ? before.wanted : 0;
	int result;

	each->wants = wants;
	each->wanted = wanted;
	if ((wanted & EPOLLOUT) == 0 || (wanted & ODD) != 0)
		each->fresh = false;
	else if ((waited & EPOLLOUT) == 0 && each->left > 0 && !each->rest)
		begin_to_wait(fd);
	if (each->there) {
		append(CHANGED, fd);
		return 0;
	}
	result = tell(fd);
	if (result != 0) {
		each->wants = before.wants;
		each->wanted = before.wanted;
		each->fresh = before.fresh;
	}
	return result;
}

int want(int what, int fd, const struct epoll_event *event)
{
	int result = -1;

	pthread_mutex_lock(&events_lock);
	if (what == EPOLL_CTL_ADD && descriptors[fd].interest.wants)
		errno = EEXIST;
	else if (what != EPOLL_CTL_ADD && !descriptors[fd].interest.wants)
		result = tell_kernel(fd, what, event == NULL ? 0 : event->events); /* registered earlier, or not at all */
	else if (what == EPOLL_CTL_DEL)
		result = change(fd, false, 0);
	else
		result = change(fd, true, event->events);
	pthread_mutex_unlock(&events_lock);
	return result;
}

void took(int fd, bool all)
{
	struct interest *each = &descriptors[fd].interest;

	each->left = all && !without_may_write ? TIMES : 0;
	if (each->left > 0 && waits_to_write(fd) && !each->rest && (each->wanted & ODD) == 0)
		begin_to_wait(fd);
}

void wait_for_rest(int fd, bool rest)
{
	struct interest *each = &descriptors[fd].interest;

	if (each->rest == rest)
		return;
	each->rest = rest;
	each->fresh = false;
	append(CHANGED, fd);
}

bool may_serve(int fd)
{
	int place = place_at(fd);

	return place == 0 ? given_to[0] < MAX_EVENTS : given < MAX_EVENTS && given_to[place] < share;
}

void serve(int fd, struct epoll_event *event)
{
	int place = place_at(fd);

	*event = (struct epoll_event){ .events = EPOLLOUT, .data.fd = fd };
	descriptors[fd].interest.served = descriptors[fd].interest.fresh;
	count_up(PROMISED_WRITES, 1);
	given += place != 0;
	given_to[place]++;
}

/* Events for which there is no room come first in the next turn, which follows at once. If it is no longer known
 * whether a descriptor may be written to, the kernel is asked from now on. */
int add_fresh(struct epoll_event *events, int count, int max, int *timeout)
{
	bool seen[CLIENTS] = { false };
	int clients = 0;

	for (int next, fd = take_all(FRESH); fd >= 0; fd = next) {
		struct interest *each = &descriptors[fd].interest;

		next = next_of(FRESH, fd);
		if (each->fresh && !each->served) {
			if (each->left == 0) {
				each->fresh = false;
				append(CHANGED, fd);
			} else if (may_serve(fd) && count < max && descriptors[fd].joined == NULL) {
				serve(fd, &events[count++]);
				each->left--;
			} else {
				*timeout = 0;
			}
		}
		clients += each->fresh && place_at(fd) != 0 && !seen[place_at(fd)];
		seen[place_at(fd)] |= each->fresh;
		if (each->fresh)
			append(each->served ? SERVED : FRESH, fd);
		each->served = false;
	}
	for (int next, fd = take_all(SERVED); fd >= 0; fd = next) {
		next = next_of(SERVED, fd);
		append(FRESH, fd);
	}
	share = clients > MAX_EVENTS ? 1 : MAX_EVENTS / (clients > 0 ? clients : 1);
	if (count == 0) {
		tell_changes();
		given = 0;
		memset(given_to, 0, sizeof given_to);
	}
	return count;
}

void forget_interest(int fd)
{
	/* A copy of the descriptor would keep it registered. mptcp_copy() makes copies, and a child that was just forked
	 * has one. */
	if (descriptors[fd].interest.there)
		tell_kernel(fd, EPOLL_CTL_DEL, 0);
	descriptors[fd].interest = (struct interest){ 0 };
}
