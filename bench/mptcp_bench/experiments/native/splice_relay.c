/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * splice_relay: does the minimum of a relay. It shows the upper limit of speed.
 *
 *     splice_relay PORT ADDRESS TARGET_PORT
 *
 * Accepts connections on PORT, also by Multipath TCP. For each, opens a TCP connection to ADDRESS and TARGET_PORT,
 * whatever target the client requests, and moves bytes in both directions by splice(2), through pipes, in one thread.
 * It answers a CONNECT at the start of a connection with 200, and does not forward it. It checks nothing, writes no log
 * and changes no header, so it cannot be used as a proxy.
 *
 * The program prints "ready" when it has started, and ends on SIGTERM.
 */

#define _GNU_SOURCE

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <signal.h>
#include <unistd.h>

#include "process.h"

#define BACKLOG 1024
#define MAX_EVENTS 256
#define PIPE_SIZE 65536 /* bytes moved at once, and capacity of a pipe */
#define MAX_TURNS 16    /* moves of one connection before the next connection is served */
#define MAX_HEADER 4096 /* bytes of a CONNECT request */
#define MAX_PAIRS 4096

/* One direction: the pipe holds the bytes that were read from one socket and not yet written to the other. */
struct flow {
	int pipe[2];
	size_t held;
	bool ended; /* the source has closed its direction */
	bool shut;  /* so has the relay, towards the destination */
};

struct pair {
	int socket[2]; /* client, target; -1: not open */
	struct flow flow[2]; /* from client, from target */
	bool again; /* has more to move, although no event will report it */
};

static struct pair pairs[MAX_PAIRS];
static int unused[MAX_PAIRS], unused_count, ready[MAX_PAIRS], ready_count;
static struct addrinfo *target;
static int epoll;

static void watch(int socket, uint32_t number)
{
	/* Edge-triggered: both directions move bytes until there is nothing to read, or no room. */
	struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.u32 = number};

	if (epoll_ctl(epoll, EPOLL_CTL_ADD, socket, &event) < 0)
		fail("epoll_ctl");
}

static void end_pair(int number)
{
	struct pair *pair = &pairs[number];

	for (int side = 0; side < 2; side++) {
		if (pair->socket[side] >= 0)
			close(pair->socket[side]);
		close(pair->flow[side].pipe[0]);
		close(pair->flow[side].pipe[1]);
		pair->socket[side] = -1;
	}
	unused[unused_count++] = number;
}

/* Move as many bytes as possible from one side to the other; false: the connection is broken. */
static bool move(struct pair *pair, int from)
{
	struct flow *flow = &pair->flow[from];
	int source = pair->socket[from], destination = pair->socket[!from];

	for (int turn = 0; turn < MAX_TURNS; turn++) {
		bool moved = false;

		if (!flow->ended && flow->held < PIPE_SIZE) {
			ssize_t got = splice(source, NULL, flow->pipe[1], NULL, PIPE_SIZE - flow->held, SPLICE_F_NONBLOCK | SPLICE_F_MOVE);

			if (got < 0 && errno != EAGAIN && errno != EINTR)
				return false;
			flow->ended = got == 0;
			if (got > 0) {
				flow->held += (size_t)got;
				moved = true;
			}
		}
		if (flow->held > 0) {
			ssize_t put = splice(flow->pipe[0], NULL, destination, NULL, flow->held, SPLICE_F_NONBLOCK | SPLICE_F_MOVE);

			if (put < 0 && errno != EAGAIN && errno != EINTR)
				return false;
			if (put > 0) {
				flow->held -= (size_t)put;
				moved = true;
			}
		}
		if (flow->ended && flow->held == 0 && !flow->shut) {
			shutdown(destination, SHUT_WR);
			flow->shut = true;
		}
		if (!moved)
			return true;
	}
	pair->again = true;
	return true;
}

/* Open the connection to the target when the client has sent data; false: an error. */
static bool begin(int number)
{
	struct pair *pair = &pairs[number];
	static const char granted[] = "HTTP/1.1 200 Connection established\r\n\r\n";
	char head[MAX_HEADER + 1];
	ssize_t got = recv(pair->socket[0], head, MAX_HEADER, MSG_PEEK);
	int yes = 1;

	if (got < 0 && (errno == EAGAIN || errno == EINTR))
		return true;
	if (got <= 0)
		return false;
	head[got] = '\0';
	if (strncmp(head, "CONNECT ", 8) == 0) {
		const char *past = strstr(head, "\r\n\r\n");

		if (past == NULL)
			return got < MAX_HEADER; /* the rest of the request causes another event */
		if (recv(pair->socket[0], head, (size_t)(past - head) + 4, 0) < 0 ||
		    send(pair->socket[0], granted, sizeof granted - 1, MSG_NOSIGNAL) < 0)
			return false;
	}
	pair->socket[1] = socket(target->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP);
	if (pair->socket[1] < 0)
		return false;
	setsockopt(pair->socket[1], IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
	if (connect(pair->socket[1], target->ai_addr, target->ai_addrlen) < 0 && errno != EINPROGRESS)
		return false;
	watch(pair->socket[1], (uint32_t)number);
	return true;
}

static bool connecting(int socket)
{
	struct tcp_info info = {0};
	socklen_t length = sizeof info;

	return getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &length) == 0 && info.tcpi_state == TCP_SYN_SENT;
}

static void handle_event(int number)
{
	struct pair *pair = &pairs[number];

	pair->again = false;
	if (pair->socket[0] < 0)
		return; /* ended by an earlier event */
	if (pair->socket[1] < 0) {
		if (!begin(number))
			end_pair(number);
		return;
	}
	if (connecting(pair->socket[1]))
		return;
	if (!move(pair, 0) || !move(pair, 1) || (pair->flow[0].shut && pair->flow[1].shut))
		end_pair(number);
	else if (pair->again)
		ready[ready_count++] = number;
}

static void accept_all(int listener)
{
	int yes = 1, client;

	while (unused_count > 0 && (client = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
		int number = unused[--unused_count];
		struct pair *pair = &pairs[number];

		*pair = (struct pair){.socket = {client, -1}};
		for (int side = 0; side < 2; side++)
			if (pipe2(pair->flow[side].pipe, O_NONBLOCK | O_CLOEXEC) < 0)
				fail("make a pipe");
		setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
		watch(client, (uint32_t)number);
	}
}

static int listen_on(int port)
{
	struct sockaddr_in6 any = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_ANY_INIT, .sin6_port = htons((uint16_t)port)};
	struct epoll_event event = {.events = EPOLLIN, .data.u32 = MAX_PAIRS};
	int yes = 1, no = 0, listener = socket(AF_INET6, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_MPTCP);

	if (listener < 0)
		listener = socket(AF_INET6, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP);
	if (listener < 0 || setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) < 0 ||
	    setsockopt(listener, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no) < 0 ||
	    bind(listener, (const struct sockaddr *)&any, sizeof any) < 0 || listen(listener, BACKLOG) < 0 ||
	    epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &event) < 0)
		fail("listen");
	return listener;
}

int main(int argc, char **argv)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
	struct epoll_event happened[MAX_EVENTS];
	int listener;

	if (argc != 4 || getaddrinfo(argv[2], argv[3], &hints, &target) != 0) {
		fprintf(stderr, "usage: splice_relay PORT ADDRESS TARGET_PORT\n");
		return 2;
	}
	epoll = begin_process();
	signal(SIGPIPE, SIG_IGN);
	while (unused_count < MAX_PAIRS) {
		unused[unused_count] = MAX_PAIRS - 1 - unused_count;
		unused_count++;
	}
	listener = listen_on(atoi(argv[1]));
	print_ready();
	for (;;) {
		int waiting = ready_count, turn[MAX_PAIRS];
		int count = epoll_wait(epoll, happened, MAX_EVENTS, waiting > 0 ? 0 : -1);

		memcpy(turn, ready, (size_t)waiting * sizeof *turn);
		ready_count = 0;
		for (int i = 0; i < waiting; i++)
			pairs[turn[i]].again = false;
		for (int i = 0; i < count; i++) {
			if (happened[i].data.u32 == MAX_PAIRS)
				accept_all(listener);
			else if (!pairs[happened[i].data.u32].again)
				handle_event((int)happened[i].data.u32);
		}
		for (int i = 0; i < waiting; i++)
			if (!pairs[turn[i]].again)
				handle_event(turn[i]);
	}
}
