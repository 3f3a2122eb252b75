/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Tells Squid that it may write without asking the kernel, since nearly always it may.
 *
 * Before it writes, Squid has epoll(7) wait for EPOLLOUT (Comm::Write). After it has written it is told so once more,
 * and only then cancels the wait: two calls of epoll_ctl(2) and two turns of the event loop for each piece of a tunnel,
 * each request and each answer.
 *
 * So when a program begins to wait for EPOLLOUT of a descriptor that took all of the last write, it gets the event in
 * the next turn, and once more in the turn after it. If it has then written nothing by write(2), or if the kernel took
 * less than it was given, the kernel is asked as usual. The kernel is also asked about writes of a library for the
 * program, as of GnuTLS: without room that library would get EAGAIN, and Squid would end the connection.
 *
 * These events are for what the last turn began. Each client has its share of MOST of them, and as many are for
 * descriptors that are no client's, before the kernel is asked for others' events. Changes are told to the kernel just
 * before that, so what the program cancels in between costs nothing: for example, it stops waiting for an idle
 * connection to the origin and waits for its answer.
 *
 * Only the kernel knows about a descriptor without history here, which may still be connecting. All this applies to the
 * program's event loop (fair_turns.c), and to what it registers there once there are clients.
 */

#define _GNU_SOURCE

#include <errno.h>
#include <string.h>

#include "turns.h"

#define TIMES 2
#define MOST (4 * TURN)
#define ODD (EPOLLET | EPOLLONESHOT | EPOLLEXCLUSIVE | EPOLLWAKEUP)

/* Recursive: a signal handler that reports a fault in here may close descriptors. */
pthread_mutex_t events_lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

/* Each queue links descriptors by next[]; -1 ends it. */
static struct ends {
	int first, last;
} queues[QUEUES] = { { -1, -1 }, { -1, -1 }, { -1, -1 } };

/* Events since the kernel was last asked, per client and of all clients, and each client's limit. */
static int given_to[CLIENTS], given, share = MOST;

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

/* Empty the queue. Returns its first descriptor, and next_of() each that follows; -1 ends it. */
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

/* Register with the kernel what is wanted of *fd*, except what is told without it. Returns as epoll_ctl(2). */
static int tell(int fd)
{
	struct interest *each = &descriptors[fd].interest;
	uint32_t events = each->wants ? each->wanted : 0;
	bool needed;
	int result;

	/* What the kernel already knows does no harm. */
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

/* The kernel may lack memory for a change, or the user may have too many. Try again at the next turn. */
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

/* As epoll_ctl(2) of the event loop, for a change. */
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
		result = tell_kernel(fd, what, event == NULL ? 0 : event->events); /* registered before, or not at all */
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

	return place == 0 ? given_to[0] < MOST : given < MOST && given_to[place] < share;
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

/* Those without room come first the next time, which is at once. If it is no longer known whether a descriptor may be
 * written to, the kernel decides from now on. */
int add_fresh(struct epoll_event *events, int count, int most, int *timeout)
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
			} else if (may_serve(fd) && count < most && descriptors[fd].joined == NULL) {
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
	share = clients > MOST ? 1 : MOST / (clients > 0 ? clients : 1);
	if (count == 0) {
		tell_changes();
		given = 0;
		memset(given_to, 0, sizeof given_to);
	}
	return count;
}

void forget_interest(int fd)
{
	/* A copy of the descriptor would keep it registered: mptcp_copy() makes such, and a child that was just forked
	 * has one. */
	if (descriptors[fd].interest.there)
		tell_kernel(fd, EPOLL_CTL_DEL, 0);
	descriptors[fd].interest = (struct interest){ 0 };
}
