/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * crowd: thousands of tunnels through a proxy, and the origin that trickles into them, for little processor time.
 *
 *     crowd client COUNTERS PROXY PORT TARGET RATE
 *     crowd origin COUNTERS PORT OCTETS
 *     crowd listener COUNTERS PORT
 *
 * The client holds as many tunnels as COUNTERS says are wanted: Multipath TCP to PROXY and PORT, then CONNECT to
 * TARGET (ADDRESS:PORT), at most RATE new ones a second. One that is refused is tried again; one that ended is not, and
 * counts as wanted. Those that are too many it closes, and as many a second as COUNTERS says are to be replaced.
 * The origin sends OCTETS to each connection once a second. The listener stands in a proxy's place, where the proxy is not
 * what is measured: it takes Multipath TCP, answers each request with 200, and sends nothing more.
 *
 * Both divide the second into SLOTS; a connection belongs to the slot of its number, so that work is spread evenly. The
 * client reads a tunnel in its slot only and is not woken by what arrives: a wake-up for each segment would cost
 * more than all the rest. epoll(7) is for what opens, and at the origin for what ends.
 *
 * COUNTERS is a file that holds a `struct counters`, mapped, so that it can be read, and `wanted` and `churn` be set, at any
 * moment.
 * "ready" on stdout: it works. SIGTERM ends it.
 */

#define _GNU_SOURCE

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "process.h"

#define SLOTS 100 /* of a second */
#define TICK (NANOSECONDS / SLOTS)
#define MAX_CONNECTIONS 65536
#define MAX_OPENING 1000 /* not yet answered, at a time */
#define CLOSED_AT_ONCE 20 /* in a slot, of those that are not wanted any more */
#define EVENTS 512
#define BACKLOG 4096
#define FIRST_PORT 10000 /* of the client's first subflows */
#define LAST_PORT 65000
#define LISTENER UINT32_MAX /* number that stands for it in epoll events */
#define PIECE 65536 /* bytes read at once */

struct counters {
	uint64_t wanted;   /* client: set by whoever holds the file */
	uint64_t opened;   /* connect() or accept() was called for it */
	uint64_t standing; /* client: answered with 200, not ended; origin: accepted, not ended */
	uint64_t refused;  /* before they stood */
	uint64_t ended;    /* after they stood */
	uint64_t octets;   /* client: received in tunnels; origin: sent */
	uint64_t skipped;  /* origin: bytes not sent, because the connection had no room for them */
	uint64_t churn;    /* client: tunnels to be replaced a second; set by whoever holds the file */
};

enum state { FREE, CONNECTING, ASKING, STANDING };

struct connection {
	int socket;
	enum state state;
};

static struct counters *counters;
static struct connection connections[MAX_CONNECTIONS];
static uint32_t unused[MAX_CONNECTIONS]; /* numbers of free places, a stack: the lowest on top at first */
static uint32_t unused_count;
static uint32_t opening;
static char piece[PIECE];
static int events;
static int answers; /* the listener */

static void watch(int socket, uint32_t number, uint32_t what, int operation)
{
	struct epoll_event event = {.events = what, .data.u32 = number};

	if (epoll_ctl(events, operation, socket, &event) < 0)
		fail("epoll_ctl");
}

static struct sockaddr_in address(const char *text, const char *port)
{
	struct sockaddr_in result = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};

	if (inet_pton(AF_INET, text, &result.sin_addr) != 1) {
		fprintf(stderr, "%s: not an IPv4 address\n", text);
		exit(1);
	}
	return result;
}

static uint32_t place(int socket, enum state state)
{
	uint32_t number = unused[--unused_count];

	connections[number] = (struct connection){.socket = socket, .state = state};
	counters->opened++;
	return number;
}

static void end(uint32_t number)
{
	struct connection *one = &connections[number];

	if (one->state == STANDING) {
		counters->standing--;
		counters->ended++;
	} else {
		opening--;
		counters->refused++;
	}
	close(one->socket);
	one->state = FREE;
	unused[unused_count++] = number;
}

/* ---- client ---- */

/* Each takes the port after the last one's. By itself connect(2) comes back to a port within seconds, and the entry that
 * a throttler keeps for ten would be the next connection's, too. */
static void take_port(int socket_)
{
	static uint16_t port = FIRST_PORT;
	struct sockaddr_in any = {.sin_family = AF_INET};

	for (int tried = FIRST_PORT; tried <= LAST_PORT; tried++) {
		any.sin_port = htons(port);
		port = port < LAST_PORT ? port + 1 : FIRST_PORT;
		if (bind(socket_, (const struct sockaddr *)&any, sizeof any) == 0)
			return;
		if (errno != EADDRINUSE)
			break;
	}
	fail("bind");
}

static void open_one(const struct sockaddr_in *proxy)
{
	int socket_ = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_MPTCP);

	if (socket_ < 0)
		fail("make an MPTCP socket");
	take_port(socket_);
	if (connect(socket_, (const struct sockaddr *)proxy, sizeof *proxy) < 0 && errno != EINPROGRESS)
		fail("connect");
	opening++;
	watch(socket_, place(socket_, CONNECTING), EPOLLOUT, EPOLL_CTL_ADD);
}

static void read_tunnel(uint32_t number)
{
	ssize_t got;

	do {
		got = recv(connections[number].socket, piece, PIECE, MSG_DONTWAIT);
		if (got > 0)
			counters->octets += (uint64_t)got;
	} while (got == PIECE);
	if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
		end(number);
}

static void go_on(uint32_t number, const char *request)
{
	struct connection *one = &connections[number];
	ssize_t got;

	if (one->state == CONNECTING) {
		/* A request is far smaller than an empty send buffer. */
		if (send(one->socket, request, strlen(request), MSG_NOSIGNAL) != (ssize_t)strlen(request)) {
			end(number);
			return;
		}
		one->state = ASKING;
		watch(one->socket, number, EPOLLIN, EPOLL_CTL_MOD);
		return;
	}
	got = recv(one->socket, piece, PIECE, MSG_DONTWAIT);
	if (got < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (got < 12 || memcmp(piece, "HTTP/1.", 7) != 0 || memcmp(piece + 8, " 200", 4) != 0) {
		end(number);
		return;
	}
	watch(one->socket, number, 0, EPOLL_CTL_DEL);
	one->state = STANDING;
	opening--;
	counters->standing++;
}

/* Close the tunnel that stands and was looked at longest ago. */
static void close_next(void)
{
	static uint32_t number;

	if (counters->standing == 0)
		return;
	while (connections[number].state != STANDING)
		number = (number + 1) % MAX_CONNECTIONS;
	close(connections[number].socket);
	connections[number].state = FREE;
	unused[unused_count++] = number;
	counters->standing--;
	/* The next one that opens takes this place. */
	number = (number + 1) % MAX_CONNECTIONS;
}

static void close_some(void)
{
	for (int closed = 0; closed < CLOSED_AT_ONCE && counters->standing > 0 &&
			     opening + counters->standing + counters->ended > counters->wanted;
	     closed++)
		close_next();
}

/* ---- origin ---- */

static int listen_on(const char *port, int protocol)
{
	struct sockaddr_in any = address("0.0.0.0", port);
	int one = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, protocol);

	if (listener < 0 || setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) < 0 ||
	    bind(listener, (const struct sockaddr *)&any, sizeof any) < 0 || listen(listener, BACKLOG) < 0)
		fail("listen");
	watch(listener, LISTENER, EPOLLIN, EPOLL_CTL_ADD);
	return listener;
}

static void accept_all(int listener)
{
	int socket_;

	while (unused_count > 0 && (socket_ = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
		watch(socket_, place(socket_, STANDING), EPOLLIN | EPOLLRDHUP, EPOLL_CTL_ADD);
		counters->standing++;
	}
}

static void swallow(uint32_t number)
{
	static const char answer[] = "HTTP/1.1 200 OK\r\n\r\n";
	ssize_t got = recv(connections[number].socket, piece, PIECE, MSG_DONTWAIT);

	/* Whether it is sent shows at the client. */
	if (got > 0 && answers)
		send(connections[number].socket, answer, sizeof answer - 1, MSG_NOSIGNAL | MSG_DONTWAIT);
	if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
		end(number);
}

static void trickle(uint32_t number, size_t octets)
{
	ssize_t sent = send(connections[number].socket, piece, octets, MSG_NOSIGNAL | MSG_DONTWAIT);
	uint64_t done = sent > 0 ? (uint64_t)sent : 0;

	/* An error shows as an event, too. */
	counters->octets += done;
	counters->skipped += octets - done;
}

/* ---- both ---- */

int main(int argc, char **argv)
{
	int is_client = argc == 7 && strcmp(argv[1], "client") == 0;
	int is_origin = argc == 5 && strcmp(argv[1], "origin") == 0;
	int is_listener = argc == 4 && strcmp(argv[1], "listener") == 0;
	struct epoll_event happened[EVENTS];
	struct sockaddr_in proxy = {0};
	char request[256] = "";
	int listener = -1;
	size_t octets = 0;
	double rate = 0, may_open = 0, to_close = 0;
	int64_t start, tick = 0;

	if (!is_client && !is_origin && !is_listener) {
		fprintf(stderr, "usage: crowd client COUNTERS PROXY PORT TARGET RATE | origin COUNTERS PORT OCTETS"
				" | listener COUNTERS PORT\n");
		return 2;
	}
	events = begin_process();
	counters = shared_file(argv[2], sizeof *counters);
	while (unused_count < MAX_CONNECTIONS) {
		unused[unused_count] = MAX_CONNECTIONS - 1 - unused_count;
		unused_count++;
	}
	if (is_client) {
		proxy = address(argv[3], argv[4]);
		snprintf(request, sizeof request, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", argv[5], argv[5]);
		rate = atof(argv[6]);
	} else {
		answers = is_listener;
		listener = listen_on(argv[3], is_listener ? IPPROTO_MPTCP : 0);
		octets = is_origin ? (size_t)atol(argv[4]) : 0;
		if (octets > PIECE)
			octets = PIECE;
	}
	print_ready();
	for (start = now();;) {
		int64_t wait = start + (tick + 1) * TICK - now();
		int count = epoll_wait(events, happened, EVENTS, wait > 0 ? (int)(wait / 1000000) + 1 : 0);

		for (int i = 0; i < count; i++) {
			uint32_t number = happened[i].data.u32;

			if (number == LISTENER)
				accept_all(listener);
			else if (connections[number].state == FREE)
				continue;
			else if (is_client)
				go_on(number, request);
			else
				swallow(number);
		}
		for (; start + (tick + 1) * TICK <= now(); tick++) {
			for (uint32_t number = (uint32_t)(tick % SLOTS); number < MAX_CONNECTIONS; number += SLOTS) {
				if (connections[number].state != STANDING)
					continue;
				if (is_client)
					read_tunnel(number);
				else if (is_origin)
					trickle(number, octets);
			}
			if (is_client) {
				close_some();
				for (to_close += (double)counters->churn / SLOTS; to_close >= 1; to_close -= 1)
					close_next();
			}
			if (may_open < rate / 10)
				may_open += rate / SLOTS;
		}
		while (is_client && may_open >= 1 && opening < MAX_OPENING && unused_count > 0 &&
		       opening + counters->standing + counters->ended < counters->wanted) {
			open_one(&proxy);
			may_open -= 1;
		}
	}
}
