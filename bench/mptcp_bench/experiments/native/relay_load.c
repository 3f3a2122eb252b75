/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * relay_load: connections to a proxy, or to a web server itself, that ask for something again and again.
 *
 *     relay_load COUNTERS tcp|mptcp ADDRESS PORT CONNECTIONS REQUESTS PREAMBLE REQUEST
 *
 * Opens CONNECTIONS to ADDRESS and PORT, sends PREAMBLE on each (a CONNECT, or nothing) and awaits an answer without a
 * body, then sends REQUEST and reads the answer, at most REQUESTS times on each connection (-1: without end), which is
 * then held as it is; one that is closed meanwhile is opened again, and asks as many again.
 *
 * Each connection asks once as soon as it can, and waits until all have been answered; one that is closed meanwhile is
 * opened again then. So a new connection never waits for those that are there already, and all are used. Then the next
 * request follows the answer at once, and what the first one of a connection took is counted from connect(2).
 *
 * An answer is 200, with Content-Length (RFC 9112, 6.3). A connection that was closed between two answers is opened
 * again; everything else is a failure. A body is read and thrown away.
 *
 * COUNTERS is a file that holds a `struct counters`, mapped, so that it can be read at any moment. "ready" on stdout: it
 * works. SIGTERM ends it.
 */

#define _GNU_SOURCE

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "process.h"

#define MAX_CONNECTIONS 4096
#define MAX_OPENING 50 /* not yet answered for the first time: a listener's queue is short */
#define HEAD 4096      /* bytes of an answer's head, at the most */
#define EVENTS 256
#define PIECE 262144 /* bytes read at once */
#define STEPS 32     /* of the histogram, for each power of two */
#define BUCKETS (60 * STEPS)

struct counters {
	uint64_t octets;   /* of bodies */
	uint64_t answers;  /* complete */
	uint64_t failures; /* another status, a head that makes no sense, an end within an answer, no connection */
	uint64_t opened;   /* connections, those that were opened again among them */
	uint64_t resting;  /* connections that have had all their answers */
	uint64_t standing; /* connections on which an answer to REQUEST has begun, or that rest; opened again: not twice */
	uint64_t late[BUCKETS]; /* answers by the nanoseconds that they took: see bucket() */
};

enum state { CLOSED, CONNECTING, PREAMBLE, IDLE, WAITING_HEAD, WAITING_BODY, RESTING };

struct connection {
	int socket;
	enum state state;
	bool first; /* nothing was answered yet */
	bool stood;
	bool owing; /* a request was lost with a connection: it goes first */
	long asked;
	int64_t due;
	int64_t since; /* connect(2): the first answer of a connection has its handshake in it */
	uint64_t left; /* of the body */
	size_t got;    /* of the head */
	char head[HEAD + 1];
};

static struct counters *counters;
static struct connection connections[MAX_CONNECTIONS];
static int idle[MAX_CONNECTIONS];
static int idle_count, count, opening, unopened;
static bool started; /* all have stood */
static const char *preamble, *request;
static struct addrinfo *goal;
static int protocol, events;
static long requests;
static char piece[PIECE];

/* The first 2 * STEPS buckets are one nanosecond wide, and each STEPS after them twice as wide as those before. */
static unsigned bucket(uint64_t taken)
{
	unsigned shift = 0;

	while (taken >> shift >= 2 * STEPS)
		shift++;
	return shift * STEPS + (unsigned)(taken >> shift);
}

static void open_one(int number)
{
	struct connection *one = &connections[number];
	struct epoll_event event = {.events = EPOLLOUT, .data.u32 = (uint32_t)number};
	int yes = 1;

	one->socket = socket(goal->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, protocol);
	if (one->socket < 0)
		fail("make a socket");
	setsockopt(one->socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
	if (connect(one->socket, goal->ai_addr, goal->ai_addrlen) < 0 && errno != EINPROGRESS)
		fail("connect");
	if (epoll_ctl(events, EPOLL_CTL_ADD, one->socket, &event) < 0)
		fail("epoll_ctl");
	one->state = CONNECTING;
	one->first = true;
	one->since = now();
	opening++;
	counters->opened++;
}

static void close_one(int number)
{
	struct connection *one = &connections[number];

	close(one->socket);
	if (one->first)
		opening--;
	one->state = CLOSED;
}

/* Until all have stood, one that has done so waits without a connection: it is not to be asked for meanwhile. */
static void open_again(int number)
{
	if (started || !connections[number].stood)
		open_one(number);
}

static void failed(int number, const char *why)
{
	static bool said;

	if (!said)
		fprintf(stderr, "%s: %.*s\n", why, (int)strcspn(connections[number].head, "\r\n"), connections[number].head);
	said = true;
	counters->failures++;
	close_one(number);
	/* Not at once: a proxy that refuses would be asked without a pause. */
	usleep(1000);
	open_again(number);
}

/* A server may close a connection between two answers, though the next request is on its way. */
static void closed_between(int number)
{
	if (connections[number].state == IDLE) {
		for (int i = 0; i < idle_count; i++)
			if (idle[i] == number)
				idle[i--] = idle[--idle_count];
	} else if (connections[number].state == RESTING) {
		/* It is to be held: all its answers are asked for anew. */
		connections[number].asked = 0;
		counters->resting--;
	} else {
		connections[number].owing = true;
	}
	close_one(number);
	open_again(number);
}

static void say(int number, const char *what, enum state next)
{
	struct connection *one = &connections[number];

	/* A request is far smaller than an empty send buffer. */
	if (send(one->socket, what, strlen(what), MSG_NOSIGNAL) != (ssize_t)strlen(what)) {
		if (what == request && !one->first)
			closed_between(number);
		else
			failed(number, "not sent, after");
		return;
	}
	one->got = 0;
	one->state = next;
}

static void ask(int number, int64_t due)
{
	connections[number].due = due;
	connections[number].state = WAITING_HEAD;
	say(number, request, WAITING_HEAD);
}

static void stands(int number)
{
	if (!connections[number].stood)
		counters->standing++;
	connections[number].stood = true;
}

/* The connection has nothing to do. */
static void rest(int number)
{
	struct connection *one = &connections[number];
	int64_t since = one->first ? one->since : now();

	if (one->first) {
		one->first = false;
		opening--;
	}
	if (requests >= 0 && one->asked >= requests) {
		one->state = RESTING;
		counters->resting++;
		stands(number);
	} else if (one->owing) {
		one->owing = false;
		ask(number, one->due);
	} else if (one->stood && !started) {
		one->state = IDLE;
		idle[idle_count++] = number;
	} else {
		ask(number, since);
	}
}

static void connected(int number)
{
	struct connection *one = &connections[number];
	struct epoll_event event = {.events = EPOLLIN, .data.u32 = (uint32_t)number};
	int error = 0;
	socklen_t length = sizeof error;

	if (getsockopt(one->socket, SOL_SOCKET, SO_ERROR, &error, &length) < 0 || error != 0) {
		failed(number, "not connected, after");
		return;
	}
	if (epoll_ctl(events, EPOLL_CTL_MOD, one->socket, &event) < 0)
		fail("epoll_ctl");
	if (*preamble != '\0')
		say(number, preamble, PREAMBLE);
	else
		rest(number);
}

static void answered(int number)
{
	struct connection *one = &connections[number];

	counters->answers++;
	counters->late[bucket((uint64_t)(now() - one->due))]++;
	one->asked++;
	rest(number);
}

/* The head is there: what has come of the body counts. */
static void head_read(int number, const char *end)
{
	struct connection *one = &connections[number];
	size_t more = one->got - (size_t)(end - one->head);
	const char *length;

	if (strncmp(one->head, "HTTP/1.", 7) != 0 || strncmp(one->head + 8, " 200", 4) != 0) {
		failed(number, "another answer than 200");
		return;
	}
	if (one->state == PREAMBLE) {
		if (more > 0)
			failed(number, "more than the answer to CONNECT");
		else
			rest(number);
		return;
	}
	stands(number);
	length = strcasestr(one->head, "\r\nContent-Length:");
	if (length == NULL || length >= end || (one->left = strtoull(length + 17, NULL, 10)) < more) {
		failed(number, "no length, or more than that");
		return;
	}
	counters->octets += more;
	one->left -= more;
	one->state = WAITING_BODY;
	if (one->left == 0)
		answered(number);
}

static void readable(int number)
{
	struct connection *one = &connections[number];
	bool body = one->state == WAITING_BODY;
	char *into = body ? piece : one->head + one->got;
	size_t room = body ? (one->left < PIECE ? one->left : PIECE) : HEAD - one->got;
	ssize_t got = recv(one->socket, into, room, 0);

	if (got < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (got <= 0) {
		if (!one->first &&
		    (one->state == IDLE || one->state == RESTING || (one->state == WAITING_HEAD && one->got == 0)))
			closed_between(number);
		else
			failed(number, "ended within an answer, after");
		return;
	}
	if (body) {
		counters->octets += (uint64_t)got;
		one->left -= (uint64_t)got;
		if (one->left == 0)
			answered(number);
		return;
	}
	if (one->state == IDLE || one->state == RESTING) {
		failed(number, "said unasked"); /* nobody asked for anything */
		return;
	}
	one->got += (size_t)got;
	one->head[one->got] = '\0';
	char *end = strstr(one->head, "\r\n\r\n");
	if (end != NULL)
		head_read(number, end + 4);
	else if (one->got == HEAD)
		failed(number, "a head too long");
}

/* All have stood: the first requests that follow an answer. */
static void start(void)
{
	started = true;
	for (int i = 0; i < count; i++)
		if (connections[i].state == CLOSED)
			open_one(i);
	while (idle_count > 0)
		ask(idle[--idle_count], now());
}

int main(int argc, char **argv)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
	struct epoll_event happened[EVENTS];

	if (argc != 9 || (strcmp(argv[2], "tcp") != 0 && strcmp(argv[2], "mptcp") != 0) || atoi(argv[5]) < 1 ||
	    atoi(argv[5]) > MAX_CONNECTIONS || getaddrinfo(argv[3], argv[4], &hints, &goal) != 0) {
		fprintf(stderr, "usage: relay_load COUNTERS tcp|mptcp ADDRESS PORT CONNECTIONS REQUESTS PREAMBLE REQUEST\n");
		return 2;
	}
	events = begin_process();
	counters = shared_file(argv[1], sizeof *counters);
	protocol = strcmp(argv[2], "mptcp") == 0 ? IPPROTO_MPTCP : IPPROTO_TCP;
	unopened = count = atoi(argv[5]);
	requests = atol(argv[6]);
	preamble = argv[7];
	request = argv[8];
	say_ready();
	for (;;) {
		int what;

		while (unopened > 0 && opening < MAX_OPENING)
			open_one(--unopened);
		if (!started && counters->standing == (uint64_t)count)
			start();
		what = epoll_wait(events, happened, EVENTS, 1000);
		for (int i = 0; i < what; i++) {
			int number = (int)happened[i].data.u32;

			if (connections[number].state == CONNECTING)
				connected(number);
			else if (connections[number].state != CLOSED)
				readable(number);
		}
	}
}
