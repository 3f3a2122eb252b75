/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Clients take turns: none delays the others by the number of its connections.
 *
 * Squid asks epoll(7) for all descriptors that are ready and serves them one by one, whosever they are, before it asks
 * again (Comm::DoSelect; 5.7 and 6.13). So a client that asks without a pause on a thousand connections makes each
 * turn of the event loop last a thousand requests. Another client's request takes several turns: it has to be
 * accepted, read, sent to the origin, answered. No setting of Squid's changes that.
 *
 * So the connections of each client are in an epoll of their own, which is in Squid's as one descriptor. Where it is
 * ready, Squid is given the client's share of a turn: TURN events by the number of clients that are ready, and one at
 * the least. The kernel goes through the descriptors of an epoll one after the other, so that each of the client's has
 * its turn. It reports what is left over the next time, for Squid uses neither EPOLLET nor EPOLLONESHOT. The
 * bound holds beside a single busy client, too: another's connection is seldom ready at the same moment, and would
 * wait for the end of that turn.
 *
 * New connections wait in the order in which they came, and Squid accepts one in a turn (Comm::TcpAcceptor::doAccept),
 * so that a client that opens many keeps another's waiting for as many turns. So a listener's event is
 * given several times in a turn while connections wait: Squid's handler is there again as soon as it has accepted one, and
 * takes EAGAIN for nothing. Once they are accepted clients take turns.
 *
 * Why not ask for all that is ready and leave out what is too much: then the kernel looks at each of these in each
 * turn, which cost a quarter of the processor with 720 connections of Multipath TCP.
 *
 * Descriptors that are no client's (listeners, origin servers, pipes) stay in Squid's own epoll. accept(2) says whose a
 * descriptor is, and close(2) ends that. A client is an IPv4 address or the 64 bits of an IPv6 network, as it is for
 * the throttler. A child that was forked does none of this.
 */

#define _GNU_SOURCE

#include <errno.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>

#include "turns.h"

/* Connections that a listener accepts in a turn, at the most: a power of two. The clients' events of a turn are those of
 * four requests or so: where each is a connection of its own, fewer would let the queue grow. More would make the turn
 * longer. */
#ifndef ACCEPTS
#define ACCEPTS 8
#endif

/* There are no more clients' epolls than this part of the descriptors that the program may have. */
#define PART 16

atomic_bool fair;
atomic_int event_loop = -1;
atomic_bool cut;

static uint64_t salt;
static unsigned int places;
static atomic_uint accepts = 1; /* of each listener, in the turn that begins */
static atomic_bool in_vain;	/* one of the last turn's was */

static pthread_mutex_t clients_lock = PTHREAD_MUTEX_INITIALIZER;
static struct client {
	uint64_t first;	     /* whose place it is; others share it */
	int epoll;	     /* 0: none */
	unsigned int number; /* of descriptors */
} clients[CLIENTS];

void end_turns(void)
{
	fair = false;
}

void start_turns(void)
{
	const char *turns = mptcp_setting("MPTCP_TURNS");

	fair = turns != NULL && strcmp(turns, "fair") == 0 && pthread_atfork(NULL, NULL, end_turns) == 0;
	if (fair && getrandom(&salt, sizeof salt, GRND_NONBLOCK) != sizeof salt)
		salt = (uintptr_t)&salt;
}

/* ------------------------------------------------------------------------------------------------ whose they are */

/* ::ffff:192.0.2.1 is 192.0.2.1, and so is 64:ff9b::192.0.2.1, behind whose first 64 bits are all clients of a NAT64
 * (RFC 6052). */
bool client_of(const struct sockaddr *address, socklen_t length, uint64_t *client)
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

/* At the first client: the program may raise its limit before. */
static void count_places(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur < 4 * PART)
		end_turns();
	else
		places = limit.rlim_cur / PART < CLIENTS ? limit.rlim_cur / PART : CLIENTS;
}

void note_accept(int listener, int fd)
{
	if (listener >= 0 && listener < DESCRIPTORS)
		descriptors[listener].listens = true;
	if (fd < 0)
		in_vain = true;
}

void enter_place(int fd, uint64_t client)
{
	pthread_mutex_lock(&clients_lock);
	if (places == 0)
		count_places();
	if (fair) {
		descriptors[fd].place = place_for(client);
		clients[descriptors[fd].place].number++;
	}
	pthread_mutex_unlock(&clients_lock);
}

void share_place(int fd, int copy)
{
	pthread_mutex_lock(&clients_lock);
	descriptors[copy].place = descriptors[fd].place;
	clients[descriptors[copy].place].number++;
	pthread_mutex_unlock(&clients_lock);
}

/* The descriptor is in no client's epoll any more, or never was; the lock is held. Returns the client's epoll if it was
 * the last one, which is to be closed, or 0. */
static int end_ownership(int fd)
{
	struct client *client = &clients[descriptors[fd].place];
	int epoll = client->epoll;

	descriptors[fd].place = 0;
	if (--client->number > 0)
		return 0;
	client->epoll = 0;
	return epoll;
}

void leave_place(int fd)
{
	int epoll = 0;

	if (place_at(fd) == 0)
		return;
	pthread_mutex_lock(&clients_lock);
	if (descriptors[fd].place != 0)
		epoll = end_ownership(fd);
	pthread_mutex_unlock(&clients_lock);
	if (epoll > 0)
		next_close(epoll);
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
	if (epoll > 0 && next_epoll_ctl(outer, EPOLL_CTL_ADD, epoll, &event) == 0)
		client->epoll = epoll;
	else if (epoll >= 0)
		next_close(epoll);
	return client->epoll > 0;
}

void open_place(int outer, int fd)
{
	struct client *client;
	int saved = errno, none = -1;

	pthread_mutex_lock(&clients_lock);
	atomic_compare_exchange_strong(&event_loop, &none, outer);
	client = &clients[descriptors[fd].place];
	if (outer == event_loop && client->epoll == 0 && !open_client(client, outer))
		end_ownership(fd);
	pthread_mutex_unlock(&clients_lock);
	errno = saved;
}

int tell_kernel(int fd, int what, uint32_t events)
{
	struct epoll_event event = { .events = events, .data.fd = fd };
	int epoll;

	pthread_mutex_lock(&clients_lock);
	epoll = place_at(fd) != 0 ? clients[place_at(fd)].epoll : event_loop;
	pthread_mutex_unlock(&clients_lock);
	return next_epoll_ctl(epoll, what, fd, &event);
}

void begin_turn(int count)
{
	cut = false;
	if (atomic_exchange(&in_vain, false) || count <= 0)
		accepts = 1;
}

int part(struct epoll_event *events, int count, uint16_t ready[CLIENTS], int *found)
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

int add_clients(struct epoll_event *events, int count, int most, const uint16_t *ready, int found)
{
	int share = share_of(found, most - count);
	bool more_waits = false;

	pthread_mutex_lock(&clients_lock);
	for (int i = 0; i < found && share > 0; i++) {
		int inner = clients[ready[i]].epoll;
		int more = inner > 0 ? next_epoll_wait(inner, events + count, share, 0) : 0;

		count += more > 0 ? more : 0;
		more_waits |= more >= share;
	}
	cut = more_waits;
	count_up(CUT_TURNS, more_waits);
	pthread_mutex_unlock(&clients_lock);
	return count;
}

/* Twice as many as in the turn before, while that was not in vain. */
int add_accepts(struct epoll_event *events, int others, int count, int most)
{
	bool wait = false;

	for (int i = 0; i < others; i++) {
		int fd = events[i].data.fd;

		if (fd < 0 || fd >= DESCRIPTORS || !descriptors[fd].listens || (events[i].events & EPOLLIN) == 0)
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
