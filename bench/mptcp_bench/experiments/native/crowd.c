/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * crowd: thousands of tunnels through a proxy, and the origin that sends slowly into them, with little processor time.
 *
 *     crowd client COUNTERS PROXY PORT TARGET RATE
 *     crowd origin COUNTERS PORT OCTETS
 *
 * The client keeps as many tunnels open as `wanted` in COUNTERS: Multipath TCP to PROXY and PORT, then CONNECT to TARGET
 * (ADDRESS:PORT), at most RATE new tunnels per second. A refused tunnel is tried again. A tunnel that the proxy ended is
 * not replaced, and still counts as wanted. The client closes excess tunnels, and replaces `churn` tunnels per second.
 * The origin sends OCTETS to each connection once a second. It also accepts Multipath TCP and answers each request with
 * 200, so that it can replace a proxy that is not measured.
 *
 * Each second has SLOTS; a connection is served in the slot of its number, which spreads the work evenly. The client
 * reads a tunnel only in its slot, because a wake-up for each segment would cost more than all other work. epoll(7)
 * watches connections while they open and, at the origin, until they end.
 *
 * COUNTERS is a file with a mapped `struct counters`: other programs read it, and set `wanted` and `churn`, at any time.
 * "ready" on stdout means that the program works. SIGTERM ends it.
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

#define SLOTS 100 /* slots per second */
#define TICK (NANOSECONDS / SLOTS)
#define MAX_CONNECTIONS 65536
#define MAX_OPENING 1000 /* requests without an answer at the same time */
#define MAX_CLOSED 20 /* excess tunnels closed per slot */
#define EVENTS 512
#define BACKLOG 4096
#define FIRST_PORT 10000 /* range of the client's first subflows */
#define LAST_PORT 65000
#define LISTENER UINT32_MAX /* number of the listening socket in epoll events */
#define BLOCK 65536 /* maximum bytes per read */

struct counters {
	uint64_t wanted;  /* client: set by another program */
	uint64_t opened;  /* connections for which connect() or accept() was called */
	uint64_t open;    /* client: answered with 200, not ended; origin: accepted, not ended */
	uint64_t ended;   /* connections that ended after they were open */
	uint64_t octets;  /* client: received in tunnels; origin: sent */
	uint64_t churn;   /* client: tunnels to replace per second; set by another program */
};

enum state { FREE, CONNECTING, REQUESTED, OPEN };

struct connection {
	int socket;
	enum state state;
};

static struct counters *counters;
static struct connection connections[MAX_CONNECTIONS];
static uint32_t unused[MAX_CONNECTIONS]; /* stack of free numbers, initially with the lowest on top */
static uint32_t unused_count;
static uint32_t opening;
static char block[BLOCK];
static int epoll;

static void watch(int socket, uint32_t number, uint32_t events, int operation)
{
	struct epoll_event event = {.events = events, .data.u32 = number};

	if (epoll_ctl(epoll, operation, socket, &event) < 0)
		fail("epoll_ctl");
}

static struct sockaddr_in address(const char *text, const char *port)
{
	struct sockaddr_in result = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};

	if (inet_pton(AF_INET, text, &result.sin_addr) != 1)
		fail(text);
	return result;
}

static uint32_t add(int socket, enum state state)
{
	uint32_t number = unused[--unused_count];

	connections[number] = (struct connection){.socket = socket, .state = state};
	counters->opened++;
	return number;
}

static void end(uint32_t number)
{
	struct connection *connection = &connections[number];

	if (connection->state == OPEN) {
		counters->open--;
		counters->ended++;
	} else {
		opening--;
	}
	close(connection->socket);
	connection->state = FREE;
	unused[unused_count++] = number;
}

/* ---- client ---- */

/* Each connection uses the next port. Without this, connect(2) would reuse a port within seconds, and a throttler's entry
 * of the old connection, which it keeps for ten seconds, would apply to the new one. */
static void bind_next_port(int socket_)
{
	static uint16_t port = FIRST_PORT;
	struct sockaddr_in any = {.sin_family = AF_INET};

	for (int attempt = FIRST_PORT; attempt <= LAST_PORT; attempt++) {
		any.sin_port = htons(port);
		port = port < LAST_PORT ? port + 1 : FIRST_PORT;
		if (bind(socket_, (const struct sockaddr *)&any, sizeof any) == 0)
			return;
		if (errno != EADDRINUSE)
			break;
	}
	fail("bind");
}

static void open_tunnel(const struct sockaddr_in *proxy)
{
	int socket_ = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_MPTCP);

	if (socket_ < 0)
		fail("create an MPTCP socket");
	bind_next_port(socket_);
	if (connect(socket_, (const struct sockaddr *)proxy, sizeof *proxy) < 0 && errno != EINPROGRESS)
		fail("connect");
	opening++;
	watch(socket_, add(socket_, CONNECTING), EPOLLOUT, EPOLL_CTL_ADD);
}

static void read_tunnel(uint32_t number)
{
	ssize_t length;

	do {
		length = recv(connections[number].socket, block, BLOCK, MSG_DONTWAIT);
		if (length > 0)
			counters->octets += (uint64_t)length;
	} while (length == BLOCK);
	if (length == 0 || (length < 0 && errno != EAGAIN && errno != EINTR))
		end(number);
}

static void advance(uint32_t number, const char *request)
{
	struct connection *connection = &connections[number];
	ssize_t length;

	if (connection->state == CONNECTING) {
		/* A request is far smaller than an empty send buffer, so send(2) takes it whole. */
		if (send(connection->socket, request, strlen(request), MSG_NOSIGNAL) != (ssize_t)strlen(request)) {
			end(number);
			return;
		}
		connection->state = REQUESTED;
		watch(connection->socket, number, EPOLLIN, EPOLL_CTL_MOD);
		return;
	}
	length = recv(connection->socket, block, BLOCK, MSG_DONTWAIT);
	if (length < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (length < 12 || memcmp(block, "HTTP/1.", 7) != 0 || memcmp(block + 8, " 200", 4) != 0) {
		end(number);
		return;
	}
	watch(connection->socket, number, 0, EPOLL_CTL_DEL);
	connection->state = OPEN;
	opening--;
	counters->open++;
}

/* Close the next open tunnel in the order of the numbers, so that the oldest is closed first. */
static void close_next(void)
{
	static uint32_t number;

	if (counters->open == 0)
		return;
	while (connections[number].state != OPEN)
		number = (number + 1) % MAX_CONNECTIONS;
	end(number);
	counters->ended--;
	/* The next tunnel that opens gets this number. */
	number = (number + 1) % MAX_CONNECTIONS;
}

static void close_excess(void)
{
	for (int count = 0; count < MAX_CLOSED && counters->open > 0 &&
			     opening + counters->open + counters->ended > counters->wanted;
	     count++)
		close_next();
}

/* ---- origin ---- */

static int listen_on(const char *port)
{
	struct sockaddr_in any = address("0.0.0.0", port);
	int one = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_MPTCP);

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
		watch(socket_, add(socket_, OPEN), EPOLLIN | EPOLLRDHUP, EPOLL_CTL_ADD);
		counters->open++;
	}
}

static void receive(uint32_t number)
{
	static const char answer[] = "HTTP/1.1 200 OK\r\n\r\n";
	ssize_t length = recv(connections[number].socket, block, BLOCK, MSG_DONTWAIT);

	/* The client notices if the answer is not sent. */
	if (length > 0)
		send(connections[number].socket, answer, sizeof answer - 1, MSG_NOSIGNAL | MSG_DONTWAIT);
	if (length == 0 || (length < 0 && errno != EAGAIN && errno != EINTR))
		end(number);
}

static void trickle(uint32_t number, size_t octets)
{
	ssize_t sent = send(connections[number].socket, block, octets, MSG_NOSIGNAL | MSG_DONTWAIT);

	/* epoll also reports errors. */
	if (sent > 0)
		counters->octets += (uint64_t)sent;
}

/* ---- client and origin ---- */

int main(int argc, char **argv)
{
	int is_client = argc == 7 && strcmp(argv[1], "client") == 0;
	int is_origin = argc == 5 && strcmp(argv[1], "origin") == 0;
	struct epoll_event ready[EVENTS];
	struct sockaddr_in proxy = {0};
	char request[256] = "";
	int listener = -1;
	size_t octets = 0;
	double rate = 0, may_open = 0, to_close = 0;
	int64_t start, tick = 0;

	if (!is_client && !is_origin) {
		fprintf(stderr, "usage: crowd client COUNTERS PROXY PORT TARGET RATE | origin COUNTERS PORT OCTETS\n");
		return 2;
	}
	epoll = begin_process();
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
		listener = listen_on(argv[3]);
		octets = (size_t)atol(argv[4]);
		if (octets > BLOCK)
			octets = BLOCK;
	}
	print_ready();
	for (start = now();;) {
		int64_t wait = start + (tick + 1) * TICK - now();
		int count = epoll_wait(epoll, ready, EVENTS, wait > 0 ? (int)(wait / 1000000) + 1 : 0);

		for (int i = 0; i < count; i++) {
			uint32_t number = ready[i].data.u32;

			if (number == LISTENER)
				accept_all(listener);
			else if (connections[number].state == FREE)
				continue;
			else if (is_client)
				advance(number, request);
			else
				receive(number);
		}
		for (; start + (tick + 1) * TICK <= now(); tick++) {
			for (uint32_t number = (uint32_t)(tick % SLOTS); number < MAX_CONNECTIONS; number += SLOTS) {
				if (connections[number].state != OPEN)
					continue;
				if (is_client)
					read_tunnel(number);
				else if (octets > 0)
					trickle(number, octets);
			}
			if (is_client) {
				close_excess();
				for (to_close += (double)counters->churn / SLOTS; to_close >= 1; to_close -= 1)
					close_next();
			}
			if (may_open < rate / 10)
				may_open += rate / SLOTS;
		}
		while (is_client && may_open >= 1 && opening < MAX_OPENING && unused_count > 0 &&
		       opening + counters->open + counters->ended < counters->wanted) {
			open_tunnel(&proxy);
			may_open -= 1;
		}
	}
}
