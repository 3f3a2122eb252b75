/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Squid asks before each write whether it may, and nearly always it may: it is told so without a question to the kernel.
 *
 * Before it writes Squid has epoll(7) wait for EPOLLOUT (Comm::Write), after it has written it is told so once more, and
 * only then takes that back: two calls of epoll_ctl(2) and two turns of the event loop for each piece of a tunnel, each
 * request and each answer.
 *
 * So where a program begins to wait for EPOLLOUT of a descriptor that took all of the last write, it has the event in the next
 * turn, and once more in the one after it. If it has written nothing by write(2) then, or if the kernel took less than it
 * was given, the kernel is asked as it always was: so it is of what a library writes for the program, as GnuTLS does, which
 * is given EAGAIN where there is no room, and Squid would end the connection for it. These events are for what the last turn began; each client has his share of MOST of them,
 * and so many are for what is no client's, before the kernel is asked for others'. What the program changes is told to the
 * kernel before that, so that what it takes back in the meantime costs nothing: it stops to wait for an idle connection to the origin, and waits for its answer.
 *
 * A descriptor of which nothing is known (it may still be connecting) is the kernel's to say. What is here is of the program's
 * event loop alone (fair_turns.c), and of what it registers with that once there are clients.
 */

#define _GNU_SOURCE

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/epoll.h>

#include "mptcp_listen.h"

#define TIMES 2
#define MOST (4 * TURN)
#define ODD (EPOLLET | EPOLLONESHOT | EPOLLEXCLUSIVE | EPOLLWAKEUP)

/* Recursive: who reports a fault in here, in a signal's handler, may close what it has. */
pthread_mutex_t events_lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

static struct interest {
	uint32_t wanted, asked; /* of epoll(7): by the program, and of the kernel */
	bool wants, there;	/* whether it is registered: by the program, and with the kernel */
	bool fresh;		/* the program waits for EPOLLOUT, and the kernel does not know */
	bool listed, changed;	/* in fresh_ones[], and in changed_ones[] */
	bool served;		/* has an event in this turn */
	bool rest;		/* the library itself waits for EPOLLOUT */
	uint8_t left;		/* events without a question since the last write, if that was taken whole */
} interests[DESCRIPTORS];
static int fresh_ones[DESCRIPTORS], number_fresh;
static int changed_ones[DESCRIPTORS], number_changed; /* of which the kernel is told before it is asked */
/* Events of clients since the kernel was asked, of each and of all, and how many each may have. */
static int given_to[CLIENTS], given, share = MOST;

/* Have the kernel say what is wanted of *fd*, but for what is told without it. Returns what epoll_ctl(2) does. */
static int tell(int fd)
{
	struct interest *each = &interests[fd];
	uint32_t events = each->wants ? each->wanted : 0;
	bool needed;
	int result;

	/* What it knows already does no harm. */
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

static void tell_later(int fd)
{
	if (!interests[fd].changed)
		changed_ones[number_changed++] = fd;
	interests[fd].changed = true;
}

/* Where the kernel has no memory for it, or the user too many of them, it is tried again at the next turn. */
static void tell_changes(void)
{
	int left = 0;

	for (int i = 0; i < number_changed; i++) {
		int fd = changed_ones[i];

		interests[fd].changed = tell(fd) != 0 && (errno == ENOMEM || errno == ENOSPC);
		if (interests[fd].changed)
			changed_ones[left++] = fd;
	}
	number_changed = left;
}

static void begin_to_wait(int fd)
{
	struct interest *each = &interests[fd];

	each->fresh = true;
	if (!each->listed)
		fresh_ones[number_fresh++] = fd;
	each->listed = true;
}

/* As epoll_ctl(2) of the event loop, for what is not as it was. */
static int change(int fd, bool wants, uint32_t wanted)
{
	struct interest *each = &interests[fd], before = *each;
	uint32_t waited = before.wants ? before.wanted : 0;
	int result;

	each->wants = wants;
	each->wanted = wanted;
	if ((wanted & EPOLLOUT) == 0 || (wanted & ODD) != 0)
		each->fresh = false;
	else if ((waited & EPOLLOUT) == 0 && each->left > 0 && !each->rest)
		begin_to_wait(fd);
	if (each->there) {
		tell_later(fd);
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
	if (what == EPOLL_CTL_ADD && interests[fd].wants)
		errno = EEXIST;
	else if (what != EPOLL_CTL_ADD && !interests[fd].wants)
		result = tell_kernel(fd, what, event == NULL ? 0 : event->events); /* registered before, or not at all */
	else if (what == EPOLL_CTL_DEL)
		result = change(fd, false, 0);
	else
		result = change(fd, true, event->events);
	pthread_mutex_unlock(&events_lock);
	return result;
}

bool is_wanted(int fd)
{
	return interests[fd].wants;
}

bool is_fresh(int fd)
{
	return interests[fd].fresh;
}

bool waits_to_write(int fd)
{
	return interests[fd].wants && (interests[fd].wanted & EPOLLOUT) != 0;
}

void took(int fd, bool all)
{
	interests[fd].left = all && !without[MAY_WRITE] ? TIMES : 0;
	if (interests[fd].left > 0 && waits_to_write(fd) && !interests[fd].rest && (interests[fd].wanted & ODD) == 0)
		begin_to_wait(fd);
}

void wait_for_rest(int fd, bool rest)
{
	if (interests[fd].rest == rest)
		return;
	interests[fd].rest = rest;
	interests[fd].fresh = false;
	tell_later(fd);
}

void serve(int fd, struct epoll_event *event)
{
	int place = place_at(fd);

	*event = (struct epoll_event){ .events = EPOLLOUT, .data.fd = fd };
	interests[fd].served = interests[fd].fresh;
	given += place != 0;
	given_to[place]++;
}

bool may_serve(int fd)
{
	int place = place_at(fd);

	return place == 0 ? given_to[0] < MOST : given < MOST && given_to[place] < share;
}

/* Add the events of fresh ones to *count*; those of which it is not known whether they may write are the kernel's from now
 * on. Where there was no room for all *pending* is set, and the others come first the next time. */
static int serve_fresh(struct epoll_event *events, int count, int most, bool *pending)
{
	static int served[DESCRIPTORS];
	bool seen[CLIENTS] = { false };
	int left = 0, last = 0, clients = 0;

	for (int i = 0; i < number_fresh; i++) {
		int fd = fresh_ones[i];
		struct interest *each = &interests[fd];

		if (each->fresh && !each->served) {
			if (each->left == 0) {
				each->fresh = false;
				tell_later(fd);
			} else if (may_serve(fd) && count < most && !is_held(fd)) {
				serve(fd, &events[count++]);
				each->left--;
			} else {
				*pending = true;
			}
		}
		clients += each->fresh && place_at(fd) != 0 && !seen[place_at(fd)];
		seen[place_at(fd)] |= each->fresh;
		each->listed = each->fresh;
		if (each->fresh && each->served)
			served[last++] = fd;
		else if (each->fresh)
			fresh_ones[left++] = fd;
		each->served = false;
	}
	memcpy(fresh_ones + left, served, last * sizeof *served);
	number_fresh = left + last;
	share = clients > MOST ? 1 : MOST / (clients > 0 ? clients : 1);
	return count;
}

int go_on(struct epoll_event *events, int most, int *timeout)
{
	bool pending = false;
	int count;

	pthread_mutex_lock(&events_lock);
	count = go_on_with_joined(events, most);
	count = serve_fresh(events, count, most, &pending);
	if (count == 0) {
		tell_changes();
		given = 0;
		memset(given_to, 0, sizeof given_to);
	}
	if (pending)
		*timeout = 0;
	pthread_mutex_unlock(&events_lock);
	return count;
}

void forget_interest(int fd)
{
	pthread_mutex_lock(&events_lock);
	/* A copy of the descriptor would keep it in there: late_writes.c has such, and a child that was just forked. */
	if (interests[fd].there)
		tell_kernel(fd, EPOLL_CTL_DEL, 0);
	/* It stays in the lists until they are gone through. */
	interests[fd] = (struct interest){ .listed = interests[fd].listed, .changed = interests[fd].changed };
	forget_joined(fd);
	pthread_mutex_unlock(&events_lock);
}
