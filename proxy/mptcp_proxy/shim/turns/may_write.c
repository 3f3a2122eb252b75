/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Reports to Squid that it may write, without a request to the kernel, because Squid nearly always may write.
 *
 * Before a write, Squid makes epoll(7) wait for EPOLLOUT (Comm::Write). After the write, it gets this event once more,
 * and only then cancels the wait. This takes two calls of epoll_ctl(2) and two turns of the event loop for each
 * request, each answer, and each piece of a tunnel.
 *
 * When the program begins to wait for EPOLLOUT of a descriptor, and the kernel has accepted all of the last write to
 * it, the library promises the event: the program gets it in the next turn, and once more in the turn after it. If the
 * program has not called write(2) by then, or if the kernel accepts only a part, the library waits for the kernel's
 * event as usual. It also waits if a library such as GnuTLS writes for the program: with a full buffer, that library
 * would get EAGAIN, and Squid would end the connection.
 *
 * Promised events continue the work of the last turn. Before the library requests other events from the kernel, clients
 * get at most MAX_EVENTS promised events, each client its share, and descriptors that do not belong to a client also at
 * most MAX_EVENTS. Registrations in the kernel are updated only before the next request, so a change that the program
 * cancels before that costs nothing. For example, after a write to an idle connection to the origin, the program stops
 * waiting to write, and waits for the answer.
 *
 * For a descriptor without an earlier write, only the kernel knows whether the program may write to it, because it may
 * still be connecting. All this applies only to the program's event loop (fair_turns.c), and to descriptors that are
 * registered there after the first client has connected.
 */

#define _GNU_SOURCE

#include <errno.h>
#include <string.h>

#include "turns.h"

/* How often the program gets EPOLLOUT without a request to the kernel after a write. */
#define PROMISES 2
#define MAX_EVENTS (4 * EVENTS_PER_TURN)
#define UNSUPPORTED_FLAGS (EPOLLET | EPOLLONESHOT | EPOLLEXCLUSIVE | EPOLLWAKEUP)

/* The lock is recursive, because after a fault in this library, a signal handler may close descriptors. */
pthread_mutex_t events_lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

/* First and last descriptor of each queue, which is linked by next[]; -1 is the end. */
static struct ends {
	int first, last;
} queues[QUEUES] = { { -1, -1 }, { -1, -1 }, { -1, -1 } };

/* Numbers of promised events since the last request to the kernel, for each place and for all clients, and the maximum
 * for each client. */
static int events_of_place[CLIENTS], events_of_clients, share = MAX_EVENTS;

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

/* Empty the queue. Return its first descriptor; next_of() returns the following descriptors; -1 is the end. */
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

/* Update the registration of *fd* in the kernel. It has the events that the program or the library waits for, except
 * promised events. Return the result of epoll_ctl(2). */
static int update_kernel(int fd)
{
	struct interest *interest = &descriptors[fd].interest;
	uint32_t events = interest->registered ? interest->events : 0;
	bool needed;
	int result;

	/* If EPOLLOUT is already set in the kernel, it stays set, which saves a call. */
	if (interest->promised && (interest->kernel_events & EPOLLOUT) == 0)
		events &= ~EPOLLOUT;
	if (interest->library_waits)
		events |= EPOLLOUT;
	needed = interest->library_waits ||
		 (interest->registered && (!interest->promised || interest->in_kernel ||
					   (events & ~(EPOLLERR | EPOLLHUP)) != 0));
	if (needed ? interest->in_kernel && interest->kernel_events == events : !interest->in_kernel)
		return 0;
	result = kernel_epoll_ctl(
		fd, !needed ? EPOLL_CTL_DEL : interest->in_kernel ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, events);
	if (result == 0 || !needed) {
		interest->in_kernel = needed;
		interest->kernel_events = needed ? events : 0;
	}
	return result;
}

/* Update the registrations of the queue CHANGED. If the kernel lacks memory, or the user has too many registrations,
 * try again in the next turn. */
static void apply_changes(void)
{
	for (int next, fd = take_all(CHANGED); fd >= 0; fd = next) {
		next = next_of(CHANGED, fd);
		if (update_kernel(fd) != 0 && (errno == ENOMEM || errno == ENOSPC))
			append(CHANGED, fd);
	}
}

static void promise_write(int fd)
{
	descriptors[fd].interest.promised = true;
	append(PROMISED, fd);
}

/* Set whether the program has registered *fd*, and for which events. Return as epoll_ctl(2) does. */
static int set_events(int fd, bool registered, uint32_t events)
{
	struct interest *interest = &descriptors[fd].interest, before = *interest;
	uint32_t waited = before.registered ? before.events : 0;
	int result;

	interest->registered = registered;
	interest->events = events;
	if ((events & EPOLLOUT) == 0 || (events & UNSUPPORTED_FLAGS) != 0)
		interest->promised = false;
	else if ((waited & EPOLLOUT) == 0 && interest->promises_left > 0 && !interest->library_waits)
		promise_write(fd);
	if (interest->in_kernel) {
		append(CHANGED, fd);
		return 0;
	}
	result = update_kernel(fd);
	if (result != 0) {
		interest->registered = before.registered;
		interest->events = before.events;
		interest->promised = before.promised;
	}
	return result;
}

int change_registration(int operation, int fd, const struct epoll_event *event)
{
	int result = -1;

	pthread_mutex_lock(&events_lock);
	if (operation == EPOLL_CTL_ADD && descriptors[fd].interest.registered)
		errno = EEXIST;
	else if (operation != EPOLL_CTL_ADD && !descriptors[fd].interest.registered)
		/* It was registered before the first client connected, or not at all. */
		result = kernel_epoll_ctl(fd, operation, event == NULL ? 0 : event->events);
	else if (operation == EPOLL_CTL_DEL)
		result = set_events(fd, false, 0);
	else
		result = set_events(fd, true, event->events);
	pthread_mutex_unlock(&events_lock);
	return result;
}

void record_write(int fd, bool all)
{
	struct interest *interest = &descriptors[fd].interest;

	interest->promises_left = all && !without_may_write ? PROMISES : 0;
	if (interest->promises_left > 0 && waits_to_write(fd) && !interest->library_waits &&
	    (interest->events & UNSUPPORTED_FLAGS) == 0)
		promise_write(fd);
}

void set_library_waits(int fd, bool waits)
{
	struct interest *interest = &descriptors[fd].interest;

	if (interest->library_waits == waits)
		return;
	interest->library_waits = waits;
	interest->promised = false;
	append(CHANGED, fd);
}

bool may_give_event(int fd)
{
	int place = place_at(fd);

	return place == 0 ? events_of_place[0] < MAX_EVENTS : events_of_clients < MAX_EVENTS && events_of_place[place] < share;
}

void give_write_event(int fd, struct epoll_event *event)
{
	int place = place_at(fd);

	*event = (struct epoll_event){ .events = EPOLLOUT, .data.fd = fd };
	descriptors[fd].interest.event_given = descriptors[fd].interest.promised;
	count_up(PROMISED_WRITES, 1);
	events_of_clients += place != 0;
	events_of_place[place]++;
}

/* Events that do not fit into this turn come first in the next turn, which follows at once. If a descriptor has no
 * promises left, its registration in the kernel gets EPOLLOUT. */
int add_promised(struct epoll_event *events, int count, int max, int *timeout)
{
	bool counted[CLIENTS] = { false };
	int clients = 0;

	for (int next, fd = take_all(PROMISED); fd >= 0; fd = next) {
		struct interest *interest = &descriptors[fd].interest;

		next = next_of(PROMISED, fd);
		if (interest->promised && !interest->event_given) {
			if (interest->promises_left == 0) {
				interest->promised = false;
				append(CHANGED, fd);
			} else if (may_give_event(fd) && count < max && descriptors[fd].joined == NULL) {
				give_write_event(fd, &events[count++]);
				interest->promises_left--;
			} else {
				*timeout = 0;
			}
		}
		clients += interest->promised && place_at(fd) != 0 && !counted[place_at(fd)];
		counted[place_at(fd)] |= interest->promised;
		if (interest->promised)
			append(interest->event_given ? GIVEN : PROMISED, fd);
		interest->event_given = false;
	}
	for (int next, fd = take_all(GIVEN); fd >= 0; fd = next) {
		next = next_of(GIVEN, fd);
		append(PROMISED, fd);
	}
	share = clients > MAX_EVENTS ? 1 : MAX_EVENTS / (clients > 0 ? clients : 1);
	if (count == 0) {
		apply_changes();
		events_of_clients = 0;
		memset(events_of_place, 0, sizeof events_of_place);
	}
	return count;
}

void forget_interest(int fd)
{
	/* Delete the registration in the kernel, because a copy of the descriptor would keep it: mptcp_copy() makes
	 * copies, and a forked child has one until exec. */
	if (descriptors[fd].interest.in_kernel)
		kernel_epoll_ctl(fd, EPOLL_CTL_DEL, 0);
	descriptors[fd].interest = (struct interest){ 0 };
}
