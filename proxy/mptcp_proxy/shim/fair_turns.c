/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Clients take turns: none delays the others by the number of its connections.
 *
 * Squid asks epoll(7) for all descriptors that are ready and serves them one by one, whosever they are, before it asks
 * again (Comm::DoSelect; 5.7 and 6.13). A client that asks without a pause on a thousand connections so makes each
 * turn of the event loop last a thousand requests, and another client's request takes several turns: it has to be
 * accepted, read, sent to the origin, answered. No setting of Squid's changes that.
 *
 * So the connections of each client are in an epoll of their own, which is in Squid's as one descriptor. Where it is
 * ready, Squid is given the client's share of a turn: TURN events by the number of clients that are ready, and one at
 * the least. The kernel goes through the descriptors of an epoll one after the other, so that each of the client's has
 * its turn, and what is left over it reports again the next time, for Squid uses neither EPOLLET nor EPOLLONESHOT. The
 * bound holds beside a single busy client, too: another's connection is seldom ready at the same moment, and would
 * wait for the end of that turn.
 *
 * New connections wait in the order in which they came, and Squid accepts one in a turn (Comm::TcpAcceptor::doAccept),
 * so that a client that opens many keeps another's waiting for as many turns. A listener's event is therefore given
 * several times in a turn while connections wait: Squid's handler is there again as soon as it has accepted one, and
 * takes EAGAIN for nothing. Once they are accepted clients take turns.
 *
 * Why not ask for all that is ready and leave out what is too much: then the kernel looks at each of these in each
 * turn, which cost a quarter of the processor with 720 connections of Multipath TCP.
 *
 * Descriptors that are no client's (listeners, origin servers, pipes) stay in Squid's own epoll. Whose a descriptor is
 * accept(2) says, and close(2) ends it. A client is an IPv4 address or the 64 bits of an IPv6 network, as it is for
 * the throttler. A child that was forked does none of this.
 */

#define _GNU_SOURCE

/* As in mptcp_listen.c: glibc declares these with a transparent union. */
#define accept accept_as_libc_declares_it
#define accept4 accept4_as_libc_declares_it
#include <sys/socket.h>
#undef accept
#undef accept4

#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "mptcp_listen.h"

/* Connections that a listener accepts in a turn, at the most: a power of two. The clients' events of a turn are those of
 * four requests or so: where each is a connection of its own, fewer would let the queue grow. More would make the turn
 * longer. */
#ifndef ACCEPTS
#define ACCEPTS 8
#endif

/* There are no more clients' epolls than this part of the descriptors that the program may have. */
#define PART 16

EXPORTED int accept(int fd, struct sockaddr *address, socklen_t *length);
EXPORTED int accept4(int fd, struct sockaddr *address, socklen_t *length, int flags);
EXPORTED int epoll_ctl(int epoll, int what, int fd, struct epoll_event *event);
EXPORTED int epoll_wait(int epoll, struct epoll_event *events, int most, int timeout);

static int (*real_accept)(int, struct sockaddr *, socklen_t *);
static int (*real_accept4)(int, struct sockaddr *, socklen_t *, int);
static int (*real_epoll_ctl)(int, int, int, struct epoll_event *);
static int (*real_epoll_wait)(int, struct epoll_event *, int, int);

static atomic_bool fair;
static uint64_t salt;
static unsigned int places;

static atomic_ushort place_of[DESCRIPTORS]; /* the client's place, 0: no client's */
static atomic_bool cut; /* the turn has not all that was ready of a client's */
static atomic_int event_loop = -1;	    /* the epoll that the first of a client's descriptors was put into */

static atomic_bool listens[DESCRIPTORS];
static atomic_uint accepts = 1; /* of each listener, in the turn that begins */
static atomic_bool in_vain;	/* one of the last turn's was */

static pthread_mutex_t clients_lock = PTHREAD_MUTEX_INITIALIZER;
static struct client {
	uint64_t first;	     /* whose place it is; others share it */
	int epoll;	     /* 0: none */
	unsigned int number; /* of descriptors */
} clients[CLIENTS];

static void end_turns(void)
{
	fair = false;
}

void resolve_turns(void)
{
	resolve(&real_accept, "accept");
	resolve(&real_accept4, "accept4");
	resolve(&real_epoll_ctl, "epoll_ctl");
	resolve(&real_epoll_wait, "epoll_wait");
}

void begin_turns(void)
{
	fair = turns != NULL && strcmp(turns, "fair") == 0 && pthread_atfork(NULL, NULL, end_turns) == 0;
	if (fair && getrandom(&salt, sizeof salt, GRND_NONBLOCK) != sizeof salt)
		salt = (uintptr_t)&salt;
}

/* ------------------------------------------------------------------------------------------------ whose they are */

/* The 64 bits that a client is known by; false where the address is none of IP's. ::ffff:192.0.2.1 is 192.0.2.1, and so
 * is 64:ff9b::192.0.2.1, behind whose first 64 bits are all clients of a NAT64 (RFC 6052). */
static bool client_of(const struct sockaddr *address, socklen_t length, uint64_t *client)
{
	static const uint8_t nat64[12] = { 0, 0x64, 0xff, 0x9b };
	const uint8_t *six = ((const struct sockaddr_in6 *)address)->sin6_addr.s6_addr;
	uint8_t bits[sizeof *client] = { 0, 0, 0xff, 0xff }; /* no network of IPv6 that is routed begins so */

	if (port_of(address, length) == 0)
		return false;
	if (address->sa_family == AF_INET)
		memcpy(bits + 4, &((const struct sockaddr_in *)address)->sin_addr, 4);
	else if (IN6_IS_ADDR_V4MAPPED(&((const struct sockaddr_in6 *)address)->sin6_addr) ||
		 memcmp(six, nat64, sizeof nat64) == 0)
		memcpy(bits + 4, six + 12, 4);
	else
		memcpy(bits, six, sizeof bits);
	memcpy(client, bits, sizeof bits);
	return true;
}

/* The client's own place, from 1 to places - 1; where all are others', one of these. The lock is held. The mixing is
 * that of MurmurHash3's end, by Austin Appleby, who has put it into the public domain. */
static uint16_t place_for(uint64_t client)
{
	uint16_t unused = 0;

	for (uint16_t place = 1; place < places; place++) {
		if (clients[place].number == 0)
			unused = unused == 0 ? place : unused;
		else if (clients[place].first == client)
			return place;
	}
	if (unused != 0) {
		clients[unused].first = client;
		return unused;
	}
	client ^= salt;
	client = (client ^ client >> 33) * 0xff51afd7ed558ccdULL;
	client = (client ^ client >> 33) * 0xc4ceb9fe1a85ec53ULL;
	return 1 + (client ^ client >> 33) % (places - 1);
}

uint16_t place_at(int fd)
{
	return fd >= 0 && fd < DESCRIPTORS ? atomic_load_explicit(&place_of[fd], memory_order_relaxed) : 0;
}

bool has_turns(int fd)
{
	return fair && fd >= 0 && fd < DESCRIPTORS;
}

bool is_clients(int fd)
{
	return fair && place_at(fd) != 0;
}

void share_place(int fd, int copy)
{
	pthread_mutex_lock(&clients_lock);
	place_of[copy] = place_of[fd];
	clients[place_of[copy]].number++;
	pthread_mutex_unlock(&clients_lock);
}

/* At the first client: the program may raise its limit before. */
static void count_places(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur < 4 * PART)
		end_turns();
	else
		places = limit.rlim_cur / PART < CLIENTS ? limit.rlim_cur / PART : CLIENTS;
}

/* *fd*, or its errno, is what *listener* gave. *room*: what the caller has for the address, of which the kernel may have
 * more to say. */
static int accepted(int listener, int fd, const struct sockaddr *address, const socklen_t *length, socklen_t room)
{
	uint64_t client;

	if (listener >= 0 && listener < DESCRIPTORS)
		listens[listener] = true;
	if (fd < 0)
		in_vain = true;
	if (fd < 0 || fd >= DESCRIPTORS || !client_of(address, *length < room ? *length : room, &client))
		return fd;
	forget_client(fd);
	pthread_mutex_lock(&clients_lock);
	if (places == 0)
		count_places();
	if (fair) {
		place_of[fd] = place_for(client);
		clients[place_of[fd]].number++;
	}
	pthread_mutex_unlock(&clients_lock);
	pthread_mutex_lock(&events_lock);
	took(fd, true);
	pthread_mutex_unlock(&events_lock);
	return fd;
}

/* Where *fd* is none for want of descriptors, Squid would take it that the listener is of no use any more (TcpAcceptor.cc): it
 * is to try again, and, as it does so at once, after a pause. */
static int or_later(int fd)
{
	static atomic_flag said = ATOMIC_FLAG_INIT;
	const struct timespec pause = { .tv_nsec = 1000000 };

	if (fd >= 0 || (errno != EMFILE && errno != ENFILE))
		return fd;
	if (!atomic_flag_test_and_set(&said))
		dprintf(STDERR_FILENO, "mptcp_listen: new clients have to wait, no descriptor is free: %s (said once)\n",
			strerror(errno));
	nanosleep(&pause, NULL);
	errno = EAGAIN;
	return -1;
}

int accept(int fd, struct sockaddr *address, socklen_t *length)
{
	socklen_t room = length != NULL ? *length : 0;
	int got;

	start();
	got = or_later(real_accept(fd, address, length));
	return fair && address != NULL && length != NULL ? accepted(fd, got, address, length, room) : got;
}

int accept4(int fd, struct sockaddr *address, socklen_t *length, int flags)
{
	socklen_t room = length != NULL ? *length : 0;
	int got;

	start();
	got = or_later(real_accept4(fd, address, length, flags));
	return fair && address != NULL && length != NULL ? accepted(fd, got, address, length, room) : got;
}

/* The descriptor is in no client's epoll any more, or never was; the lock is held. Returns the client's epoll if it was
 * the last one, which is to be closed, or 0. */
static int end_ownership(int fd)
{
	struct client *client = &clients[place_of[fd]];
	int epoll = client->epoll;

	place_of[fd] = 0;
	if (--client->number > 0)
		return 0;
	client->epoll = 0;
	return epoll;
}

void forget_client(int fd)
{
	int saved = errno, epoll;

	if (!fair || fd < 0)
		return;
	if (fd == event_loop) {
		for (int each = 0; each < DESCRIPTORS; each++)
			send_held(each, false);
		end_turns();
	}
	if (fd < DESCRIPTORS) {
		listens[fd] = false;
		forget_interest(fd);
	}
	if (place_at(fd) == 0)
		return;
	pthread_mutex_lock(&clients_lock);
	if (place_of[fd] == 0) {
		pthread_mutex_unlock(&clients_lock);
		return;
	}
	epoll = end_ownership(fd);
	pthread_mutex_unlock(&clients_lock);
	if (epoll > 0)
		close(epoll);
	errno = saved;
}

/* --------------------------------------------------------------------------------------------------------- turns */

/* In Squid's epoll a client's own has no descriptor of Squid's, but its place below zero. */
static int mark_of(uint16_t place)
{
	return -1 - place;
}

/* Have an epoll for the client in Squid's, which is *outer*; the lock is held. */
static bool open_client(struct client *client, int outer)
{
	struct epoll_event event = { .events = EPOLLIN, .data.fd = mark_of(client - clients) };
	int epoll = epoll_create1(EPOLL_CLOEXEC);

	/* Standard input was closed; 0 means none here. */
	if (epoll > 0 && real_epoll_ctl(outer, EPOLL_CTL_ADD, epoll, &event) == 0)
		client->epoll = epoll;
	else if (epoll >= 0)
		close(epoll);
	return client->epoll > 0;
}

/* Have an epoll for the client whose descriptor *fd* is, if *outer* is the event loop's; where there can be none it is no
 * client's any more. */
static void open_place(int outer, int fd)
{
	struct client *client;
	int saved = errno, none = -1;

	pthread_mutex_lock(&clients_lock);
	atomic_compare_exchange_strong(&event_loop, &none, outer);
	client = &clients[place_of[fd]];
	if (outer == event_loop && client->epoll == 0 && !open_client(client, outer))
		end_ownership(fd);
	pthread_mutex_unlock(&clients_lock);
	errno = saved;
}

int epoll_ctl(int epoll, int what, int fd, struct epoll_event *event)
{
	start();
	if (fair && place_at(fd) != 0)
		open_place(epoll, fd);
	if (!has_turns(fd) || epoll != event_loop || (event == NULL && what != EPOLL_CTL_DEL))
		return real_epoll_ctl(epoll, what, fd, event);
	return want(what, fd, event);
}

int tell_kernel(int fd, int what, uint32_t events)
{
	struct epoll_event event = { .events = events, .data.fd = fd };
	int epoll;

	pthread_mutex_lock(&clients_lock);
	epoll = place_at(fd) != 0 ? clients[place_at(fd)].epoll : event_loop;
	pthread_mutex_unlock(&clients_lock);
	return real_epoll_ctl(epoll, what, fd, &event);
}

/* Of *count* events leave those that are of no client's epoll, and note the *ready* places. Returns how many are left. */
static int part(struct epoll_event *events, int count, uint16_t ready[CLIENTS], int *found)
{
	int others = 0;

	*found = 0;
	for (int i = 0; i < count; i++) {
		int fd = events[i].data.fd;

		if (fd < -1 && fd >= mark_of(CLIENTS - 1))
			ready[(*found)++] = -1 - fd;
		else
			events[others++] = events[i];
	}
	return others;
}

/* What each of *found* clients has in a turn, where there is *room* for so many events of all of them. */
static int share_of(int found, int room)
{
	int share = TURN / found > 1 ? TURN / found : 1;

	return share * found <= room ? share : room / found;
}

bool turn_was_cut(void)
{
	return cut;
}

/* Add to *count* events those of the *found* clients that are *ready*. Returns how many there are then, *most* at most. */
static int add_clients(struct epoll_event *events, int count, int most, const uint16_t *ready, int found)
{
	int share = share_of(found, most - count);
	bool more_waits = false;

	pthread_mutex_lock(&clients_lock);
	for (int i = 0; i < found && share > 0; i++) {
		int inner = clients[ready[i]].epoll;
		int more = inner > 0 ? real_epoll_wait(inner, events + count, share, 0) : 0;

		count += more > 0 ? more : 0;
		more_waits |= more >= share;
	}
	cut = more_waits;
	pthread_mutex_unlock(&clients_lock);
	return count;
}

/* Add the events by which listeners accept more than one connection: twice as many as in the turn before, while that was
 * not in vain. *others*: how many of *count* events are of no client. */
static int add_accepts(struct epoll_event *events, int others, int count, int most)
{
	bool wait = false;

	for (int i = 0; i < others; i++) {
		int fd = events[i].data.fd;

		if (fd < 0 || fd >= DESCRIPTORS || !listens[fd] || (events[i].events & EPOLLIN) == 0)
			continue;
		wait = true;
		for (unsigned int n = 1; n < accepts && count < most; n++)
			events[count++] = events[i];
	}
	if (!wait)
		accepts = 1;
	else if (accepts < ACCEPTS)
		accepts *= 2;
	return count;
}

int epoll_wait(int epoll, struct epoll_event *events, int most, int timeout)
{
	uint16_t ready[CLIENTS];
	int count, found, others;

	start();
	if (!fair || epoll != event_loop)
		return real_epoll_wait(epoll, events, most, timeout);
	close_ended();
	count = go_on(events, most, &timeout);
	if (count > 0)
		return count;
	count = real_epoll_wait(epoll, events, most, timeout);
	cut = false;
	if (atomic_exchange(&in_vain, false) || count <= 0)
		accepts = 1;
	if (count <= 0)
		return count;
	others = part(events, count, ready, &found);
	if (found > 0) {
		count = add_clients(events, others, most, ready, found);
		count = others + without_rests(events + others, count - others);
	}
	return add_accepts(events, others, count, most);
}
