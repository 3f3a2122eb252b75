/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Clients take turns, so that no client can delay the others by the number of its connections.
 *
 * Squid requests all ready descriptors from epoll(7) and serves all of them, regardless of the client, before the next
 * request (Comm::DoSelect; 5.7 and 6.13). So if a client continuously sends requests on a thousand connections, each
 * turn of the event loop serves a thousand requests. Another client's request takes several turns: Squid accepts it,
 * reads it, sends it to the origin, and answers. No setting of Squid changes that.
 *
 * So the library keeps each client's connections in a separate epoll, which is one descriptor in Squid's epoll. When it
 * is ready, Squid gets the client's share of a turn: EVENTS_PER_TURN events divided by the number of ready clients, and
 * at least one. The other events come in the next turns: the kernel reports the descriptors of an epoll in rotation, and
 * Squid uses neither EPOLLET nor EPOLLONESHOT. The limit also applies if only one client is ready, because another client
 * that becomes ready during a long turn would wait for its end.
 *
 * New connections wait in order of arrival, and Squid accepts one per turn (Comm::TcpAcceptor::doAccept). So if a
 * client opens many connections, another client's new connection waits for as many turns. Therefore the library repeats
 * a listener's event in a turn while connections wait: Squid registers its handler again after each accept, and ignores
 * EAGAIN.
 *
 * The library does not fetch all ready events and drop the excess: then the kernel would check all ready connections in
 * each turn, which took a quarter of the processor with 720 connections of Multipath TCP.
 *
 * Descriptors that do not belong to a client (listeners, connections to origin servers, pipes) stay in Squid's own
 * epoll. A descriptor belongs to a client from accept(2) until close(2). A client is an IPv4 address or the first 64
 * bits of an IPv6 address, as for the throttler. In a forked child, this file has no effect.
 */

#define _GNU_SOURCE

#include <errno.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>

#include "turns.h"

/* Maximum number of connections that a listener accepts in a turn; a power of two. A turn has the events of about four
 * requests. If each request comes on a new connection, the queue would grow with a lower limit, and turns would become
 * longer with a higher limit. */
#ifndef MAX_ACCEPTS
#define MAX_ACCEPTS 8
#endif

/* Minimum limit of descriptors per place. A place takes one descriptor. */
#define DESCRIPTORS_PER_PLACE 16

atomic_bool fair;
atomic_int event_loop = -1;
atomic_bool turn_was_cut;

static uint64_t salt; /* random, so that no client can choose with whom it shares a place */
static unsigned int place_count;
static atomic_uint accepts = 1; /* number of accepts per listener in this turn */
static atomic_bool accept_failed; /* an accept of the last turn failed */

static pthread_mutex_t clients_lock = PTHREAD_MUTEX_INITIALIZER;
static struct client {
	uint64_t first_client;	       /* the first client of the place; other clients may share the place */
	int epoll;		       /* 0: none */
	unsigned int descriptor_count; /* number of descriptors of all its clients */
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

/* ----------------------------------------------------------------------------------------- owners of descriptors */

/* ::ffff:192.0.2.1 and 64:ff9b::192.0.2.1 count as 192.0.2.1. All clients behind a NAT64 have the same first 64 bits
 * (RFC 6052). */
bool client_of(const struct sockaddr *address, socklen_t length, uint64_t *client)
{
	static const uint8_t nat64[12] = { 0, 0x64, 0xff, 0x9b };
	const uint8_t *ipv6 = ((const struct sockaddr_in6 *)address)->sin6_addr.s6_addr;
	uint8_t bits[sizeof *client] = { 0, 0, 0xff, 0xff }; /* no routed IPv6 network begins with these bytes */

	if (port_of(address, length) == 0)
		return false;
	if (address->sa_family == AF_INET)
		memcpy(bits + 4, &((const struct sockaddr_in *)address)->sin_addr, 4);
	else if (IN6_IS_ADDR_V4MAPPED(&((const struct sockaddr_in6 *)address)->sin6_addr) ||
		 memcmp(ipv6, nat64, sizeof nat64) == 0)
		memcpy(bits + 4, ipv6 + 12, 4);
	else
		memcpy(bits, ipv6, sizeof bits);
	memcpy(client, bits, sizeof bits);
	return true;
}

/* Return the client's place, from 1 to place_count - 1. If other clients have all places, return a place to share. Call
 * with the lock. The hash is the finalizer of MurmurHash3 by Austin Appleby, who placed it in the public domain. */
static uint16_t place_for(uint64_t client)
{
	uint16_t unused = 0;

	for (uint16_t place = 1; place < place_count; place++) {
		if (clients[place].descriptor_count == 0)
			unused = unused == 0 ? place : unused;
		else if (clients[place].first_client == client)
			return place;
	}
	if (unused != 0) {
		clients[unused].first_client = client;
		return unused;
	}
	client ^= salt;
	client = (client ^ client >> 33) * 0xff51afd7ed558ccdULL;
	client = (client ^ client >> 33) * 0xc4ceb9fe1a85ec53ULL;
	return 1 + (client ^ client >> 33) % (place_count - 1);
}

/* Set place_count. Call this at the first client, because the program may raise its limit before that. */
static void count_places(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur < 4 * DESCRIPTORS_PER_PLACE)
		end_turns();
	else
		place_count = limit.rlim_cur / DESCRIPTORS_PER_PLACE < CLIENTS ?
				      limit.rlim_cur / DESCRIPTORS_PER_PLACE :
				      CLIENTS;
}

void note_accept(int listener, int fd)
{
	if (listener >= 0 && listener < DESCRIPTORS)
		descriptors[listener].is_listener = true;
	if (fd < 0)
		accept_failed = true;
}

void enter_place(int fd, uint64_t client)
{
	pthread_mutex_lock(&clients_lock);
	if (place_count == 0)
		count_places();
	if (fair) {
		descriptors[fd].place = place_for(client);
		clients[descriptors[fd].place].descriptor_count++;
	}
	pthread_mutex_unlock(&clients_lock);
}

void share_place(int fd, int copy)
{
	pthread_mutex_lock(&clients_lock);
	descriptors[copy].place = descriptors[fd].place;
	clients[descriptors[copy].place].descriptor_count++;
	pthread_mutex_unlock(&clients_lock);
}

/* Record that *fd*, which must not be in the client's epoll, no longer belongs to the client. Call with the lock. If it
 * was the client's last descriptor, return the client's epoll, which the caller must close; otherwise return 0. */
static int end_ownership(int fd)
{
	struct client *client = &clients[descriptors[fd].place];
	int epoll = client->epoll;

	descriptors[fd].place = 0;
	if (--client->descriptor_count > 0)
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

/* The data that a client's epoll has in Squid's epoll: not a descriptor, but a negative number for the place. */
static int mark_of_place(uint16_t place)
{
	return -1 - place;
}

/* Open an epoll for the client, and add it to Squid's epoll *outer*. Call with the lock. */
static bool open_client(struct client *client, int outer)
{
	struct epoll_event event = { .events = EPOLLIN, .data.fd = mark_of_place(client - clients) };
	int epoll = epoll_create1(EPOLL_CLOEXEC);

	/* The number may be 0 if standard input was closed, but here 0 means that the client has no epoll. */
	if (epoll > 0 && next_epoll_ctl(outer, EPOLL_CTL_ADD, epoll, &event) == 0)
		client->epoll = epoll;
	else if (epoll >= 0)
		next_close(epoll);
	return client->epoll > 0;
}

void open_place(int outer, int fd)
{
	struct client *client;
	int saved = errno, unset = -1;

	pthread_mutex_lock(&clients_lock);
	atomic_compare_exchange_strong(&event_loop, &unset, outer);
	client = &clients[descriptors[fd].place];
	if (outer == event_loop && client->epoll == 0 && !open_client(client, outer))
		end_ownership(fd);
	pthread_mutex_unlock(&clients_lock);
	errno = saved;
}

int kernel_epoll_ctl(int fd, int operation, uint32_t events)
{
	struct epoll_event event = { .events = events, .data.fd = fd };
	int epoll;

	pthread_mutex_lock(&clients_lock);
	epoll = place_at(fd) != 0 ? clients[place_at(fd)].epoll : event_loop;
	pthread_mutex_unlock(&clients_lock);
	return next_epoll_ctl(epoll, operation, fd, &event);
}

void begin_turn(int count)
{
	turn_was_cut = false;
	if (atomic_exchange(&accept_failed, false) || count <= 0)
		accepts = 1;
}

int split_events(struct epoll_event *events, int count, uint16_t ready[CLIENTS], int *ready_count)
{
	int others = 0;

	*ready_count = 0;
	for (int i = 0; i < count; i++) {
		int fd = events[i].data.fd;

		if (fd < -1 && fd >= mark_of_place(CLIENTS - 1))
			ready[(*ready_count)++] = -1 - fd;
		else
			events[others++] = events[i];
	}
	return others;
}

/* Return how many events each of *ready_count* clients gets in a turn. Together, they get at most *room* events. */
static int share_of(int ready_count, int room)
{
	int share = EVENTS_PER_TURN / ready_count > 1 ? EVENTS_PER_TURN / ready_count : 1;

	return share * ready_count <= room ? share : room / ready_count;
}

int add_clients(struct epoll_event *events, int count, int max, const uint16_t *ready, int ready_count)
{
	int share = share_of(ready_count, max - count);
	bool more_waits = false;

	pthread_mutex_lock(&clients_lock);
	for (int i = 0; i < ready_count && share > 0; i++) {
		int epoll = clients[ready[i]].epoll;
		int more = epoll > 0 ? next_epoll_wait(epoll, events + count, share, 0) : 0;

		count += more > 0 ? more : 0;
		more_waits |= more >= share;
	}
	turn_was_cut = more_waits;
	count_up(CUT_TURNS, more_waits);
	pthread_mutex_unlock(&clients_lock);
	return count;
}

/* While connections wait, allow twice as many accepts as in the previous turn, unless an accept failed. */
int add_accepts(struct epoll_event *events, int others, int count, int max)
{
	bool has_waiting = false;

	for (int i = 0; i < others; i++) {
		int fd = events[i].data.fd;

		if (fd < 0 || fd >= DESCRIPTORS || !descriptors[fd].is_listener || (events[i].events & EPOLLIN) == 0)
			continue;
		has_waiting = true;
		for (unsigned int n = 1; n < accepts && count < max; n++)
			events[count++] = events[i];
	}
	if (!has_waiting)
		accepts = 1;
	else if (accepts < MAX_ACCEPTS)
		accepts *= 2;
	return count;
}
