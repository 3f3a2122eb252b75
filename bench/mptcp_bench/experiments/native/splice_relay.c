/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * splice_relay: the least that a relay can do, as a limit for those that do more.
 *
 *     splice_relay PORT ADDRESS TARGET_PORT
 *
 * Takes connections on PORT, by Multipath TCP too, opens one by TCP to ADDRESS and TARGET_PORT for each, whoever the client
 * asks for, and moves bytes both ways by splice(2), through pipes, in one thread. Of HTTP it knows one thing: a
 * connection that begins with CONNECT is answered with 200, and that request is not passed on. It checks nothing, writes no
 * log and changes no header: nobody could use it as a proxy.
 *
 * "ready" on stdout: it works. SIGTERM ends it.
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
#define EVENTS 256
#define PIECE 65536  /* bytes moved at once, and what a pipe holds */
#define TURNS 16     /* for one connection, before the others have theirs */
#define HEAD 4096    /* bytes of a request for a tunnel, at the most */
#define MAX_PAIRS 4096

/* One direction: what was taken from a socket and not yet given to the other is in the pipe. */
struct flow {
	int pipe[2];
	size_t held;
	bool ended; /* nothing more comes */
	bool shut;  /* and the other side was told */
};

struct pair {
	int socket[2]; /* client, target; -1: not yet */
	struct flow flow[2]; /* from client, from target */
	bool again; /* has more to move, though no event will say so */
};

static struct pair pairs[MAX_PAIRS];
static int unused[MAX_PAIRS], unused_count, ready[MAX_PAIRS], ready_count;
static struct addrinfo *target;
static int events;

static void watch(int socket, uint32_t number)
{
	/* Once for all that ever happens: both directions go on until there is nothing to be had, or no room. */
	struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.u32 = number};

	if (epoll_ctl(events, EPOLL_CTL_ADD, socket, &event) < 0)
		fail("epoll_ctl");
}

static void end(int number)
{
	struct pair *one = &pairs[number];

	for (int side = 0; side < 2; side++) {
		if (one->socket[side] >= 0)
			close(one->socket[side]);
		close(one->flow[side].pipe[0]);
		close(one->flow[side].pipe[1]);
		one->socket[side] = -1;
	}
	unused[unused_count++] = number;
}

/* Move what can be moved from one side to the other; false: the connection is broken. */
static bool move(struct pair *one, int from)
{
	struct flow *flow = &one->flow[from];
	int source = one->socket[from], goal = one->socket[!from];

	for (int turn = 0; turn < TURNS; turn++) {
		bool moved = false;

		if (!flow->ended && flow->held < PIECE) {
			ssize_t got = splice(source, NULL, flow->pipe[1], NULL, PIECE - flow->held, SPLICE_F_NONBLOCK | SPLICE_F_MOVE);

			if (got < 0 && errno != EAGAIN && errno != EINTR)
				return false;
			flow->ended = got == 0;
			if (got > 0) {
				flow->held += (size_t)got;
				moved = true;
			}
		}
		if (flow->held > 0) {
			ssize_t put = splice(flow->pipe[0], NULL, goal, NULL, flow->held, SPLICE_F_NONBLOCK | SPLICE_F_MOVE);

			if (put < 0 && errno != EAGAIN && errno != EINTR)
				return false;
			if (put > 0) {
				flow->held -= (size_t)put;
				moved = true;
			}
		}
		if (flow->ended && flow->held == 0 && !flow->shut) {
			shutdown(goal, SHUT_WR);
			flow->shut = true;
		}
		if (!moved)
			return true;
	}
	one->again = true;
	return true;
}

/* Open the other connection when the client has said something; false: it cannot be had. */
static bool begin(int number)
{
	struct pair *one = &pairs[number];
	static const char granted[] = "HTTP/1.1 200 Connection established\r\n\r\n";
	char head[HEAD + 1];
	ssize_t got = recv(one->socket[0], head, HEAD, MSG_PEEK);
	int yes = 1;

	if (got < 0 && (errno == EAGAIN || errno == EINTR))
		return true;
	if (got <= 0)
		return false;
	head[got] = '\0';
	if (strncmp(head, "CONNECT ", 8) == 0) {
		const char *past = strstr(head, "\r\n\r\n");

		if (past == NULL)
			return got < HEAD; /* the rest is an event of its own */
		if (recv(one->socket[0], head, (size_t)(past - head) + 4, 0) < 0 ||
		    send(one->socket[0], granted, sizeof granted - 1, MSG_NOSIGNAL) < 0)
			return false;
	}
	one->socket[1] = socket(target->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP);
	if (one->socket[1] < 0)
		return false;
	setsockopt(one->socket[1], IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
	if (connect(one->socket[1], target->ai_addr, target->ai_addrlen) < 0 && errno != EINPROGRESS)
		return false;
	watch(one->socket[1], (uint32_t)number);
	return true;
}

static bool connecting(int socket)
{
	struct tcp_info info = {0};
	socklen_t length = sizeof info;

	return getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &length) == 0 && info.tcpi_state == TCP_SYN_SENT;
}

static void happen(int number)
{
	struct pair *one = &pairs[number];

	one->again = false;
	if (one->socket[0] < 0)
		return; /* ended meanwhile */
	if (one->socket[1] < 0) {
		if (!begin(number))
			end(number);
		return;
	}
	if (connecting(one->socket[1]))
		return;
	if (!move(one, 0) || !move(one, 1) || (one->flow[0].shut && one->flow[1].shut))
		end(number);
	else if (one->again)
		ready[ready_count++] = number;
}

static void accept_all(int listener)
{
	int yes = 1, client;

	while (unused_count > 0 && (client = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
		int number = unused[--unused_count];
		struct pair *one = &pairs[number];

		*one = (struct pair){.socket = {client, -1}};
		for (int side = 0; side < 2; side++)
			if (pipe2(one->flow[side].pipe, O_NONBLOCK | O_CLOEXEC) < 0)
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
	    epoll_ctl(events, EPOLL_CTL_ADD, listener, &event) < 0)
		fail("listen");
	return listener;
}

int main(int argc, char **argv)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
	struct epoll_event happened[EVENTS];
	int listener;

	if (argc != 4 || getaddrinfo(argv[2], argv[3], &hints, &target) != 0) {
		fprintf(stderr, "usage: splice_relay PORT ADDRESS TARGET_PORT\n");
		return 2;
	}
	events = begin_process();
	signal(SIGPIPE, SIG_IGN);
	while (unused_count < MAX_PAIRS) {
		unused[unused_count] = MAX_PAIRS - 1 - unused_count;
		unused_count++;
	}
	listener = listen_on(atoi(argv[1]));
	say_ready();
	for (;;) {
		int waiting = ready_count, turn[MAX_PAIRS];
		int count = epoll_wait(events, happened, EVENTS, waiting > 0 ? 0 : -1);

		memcpy(turn, ready, (size_t)waiting * sizeof *turn);
		ready_count = 0;
		for (int i = 0; i < waiting; i++)
			pairs[turn[i]].again = false;
		for (int i = 0; i < count; i++) {
			if (happened[i].data.u32 == MAX_PAIRS)
				accept_all(listener);
			else if (!pairs[happened[i].data.u32].again)
				happen((int)happened[i].data.u32);
		}
		for (int i = 0; i < waiting; i++)
			if (!pairs[turn[i]].again)
				happen(turn[i]);
	}
}
