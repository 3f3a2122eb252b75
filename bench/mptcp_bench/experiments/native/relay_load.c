/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * relay_load: connections to a proxy, or to a web server, that repeat one HTTP request.
 *
 *     relay_load COUNTERS tcp|mptcp ADDRESS PORT CONNECTIONS REQUESTS PREAMBLE REQUEST
 *
 * Opens CONNECTIONS to ADDRESS and PORT, sends PREAMBLE on each (a CONNECT, or nothing) and awaits an answer without a
 * body. Then sends REQUEST and reads the answer, up to REQUESTS times per connection (-1: no limit). After that, the
 * connection stays open and idle. If the server closes it, it is reopened and its count starts at 0.
 *
 * There are two phases. First, each connection sends one request, and then waits until all connections have had an
 * answer; a connection that is closed in this phase is reopened at the start of the second one. So no new connection
 * competes with established ones. Second, each answer is followed at once by the next request. The first latency of a
 * connection includes its handshake: it is measured from connect(2).
 *
 * An answer has the status 200 and Content-Length (RFC 9112, 6.3). A status other than 200, a missing Content-Length,
 * or an end within an answer counts as a failure. A connection that was closed between two answers is reopened. Bodies
 * are read and discarded.
 *
 * COUNTERS is a file with a `struct counters`, mapped into memory, so that other programs can read it at any time. The
 * program prints "ready" when it has started, and ends on SIGTERM.
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
#define MAX_OPENING 50 /* connections that wait for their first answer, because listen queues are short */
#define MAX_HEADER 4096 /* bytes */
#define MAX_EVENTS 256
#define MAX_READ 262144 /* bytes */
#define STEPS 32        /* buckets of the histogram for each power of two */
#define BUCKETS (60 * STEPS)

struct counters {
	uint64_t octets;   /* of bodies */
	uint64_t answers;  /* complete answers */
	uint64_t failures; /* another status, an invalid header, an end within an answer, a failed connect */
	uint64_t opened;   /* connections, including reopened ones */
	uint64_t answered; /* connections that have received (part of) an answer; a reopened one is counted once */
	uint64_t latency[BUCKETS]; /* answers by their latency in nanoseconds: see bucket() */
};

enum state { CLOSED, CONNECTING, PREAMBLE, IDLE, WAITING_HEADER, WAITING_BODY, FINISHED };

struct connection {
	int socket;
	enum state state;
	bool awaits_first_answer; /* no answer on this socket yet */
	bool answered_once;
	bool must_resend; /* a request was lost with the earlier connection */
	long answers;
	int64_t request_time;
	int64_t connect_time;
	uint64_t body_left;
	size_t header_size;
	char header[MAX_HEADER + 1];
};

static struct counters *counters;
static struct connection connections[MAX_CONNECTIONS];
static int idle[MAX_CONNECTIONS];
static int idle_count, count, opening, to_open;
static bool second_phase;
static const char *preamble, *request;
static struct addrinfo *server;
static int protocol, epoll;
static long requests;
static char buffer[MAX_READ];

/* The first 2 * STEPS buckets are one nanosecond wide, and each further STEPS twice as wide as the previous ones. */
static unsigned bucket(uint64_t latency)
{
	unsigned shift = 0;

	while (latency >> shift >= 2 * STEPS)
		shift++;
	return shift * STEPS + (unsigned)(latency >> shift);
}

static void open_connection(int number)
{
	struct connection *connection = &connections[number];
	struct epoll_event event = {.events = EPOLLOUT, .data.u32 = (uint32_t)number};
	int yes = 1;

	connection->socket = socket(server->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, protocol);
	if (connection->socket < 0)
		fail("socket");
	setsockopt(connection->socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
	if (connect(connection->socket, server->ai_addr, server->ai_addrlen) < 0 && errno != EINPROGRESS)
		fail("connect");
	if (epoll_ctl(epoll, EPOLL_CTL_ADD, connection->socket, &event) < 0)
		fail("epoll_ctl");
	connection->state = CONNECTING;
	connection->awaits_first_answer = true;
	connection->connect_time = now();
	opening++;
	counters->opened++;
}

static void close_connection(int number)
{
	struct connection *connection = &connections[number];

	close(connection->socket);
	if (connection->awaits_first_answer)
		opening--;
	connection->state = CLOSED;
}

/* In the first phase, do not reopen a connection that already had its answer. */
static void reopen(int number)
{
	if (second_phase || !connections[number].answered_once)
		open_connection(number);
}

static void failed(int number, const char *reason)
{
	static bool printed;

	if (!printed)
		fprintf(stderr, "%s: %.*s\n", reason, (int)strcspn(connections[number].header, "\r\n"), connections[number].header);
	printed = true;
	counters->failures++;
	close_connection(number);
	/* Pause, or a proxy that refuses would be flooded with connections. */
	usleep(1000);
	reopen(number);
}

/* A server may close a connection between two answers, while the next request is on its way. */
static void closed_between_answers(int number)
{
	if (connections[number].state == IDLE) {
		for (int i = 0; i < idle_count; i++)
			if (idle[i] == number)
				idle[i--] = idle[--idle_count];
	} else if (connections[number].state == FINISHED) {
		/* It was to stay open, so start over with its requests. */
		connections[number].answers = 0;
	} else {
		connections[number].must_resend = true;
	}
	close_connection(number);
	reopen(number);
}

static void send_text(int number, const char *text, enum state next)
{
	struct connection *connection = &connections[number];

	/* A request is far smaller than an empty send buffer, so send(2) takes it whole. */
	if (send(connection->socket, text, strlen(text), MSG_NOSIGNAL) != (ssize_t)strlen(text)) {
		if (text == request && !connection->awaits_first_answer)
			closed_between_answers(number);
		else
			failed(number, "cannot send; last header");
		return;
	}
	connection->header_size = 0;
	connection->state = next;
}

static void send_request(int number, int64_t request_time)
{
	connections[number].request_time = request_time;
	connections[number].state = WAITING_HEADER;
	send_text(number, request, WAITING_HEADER);
}

static void count_first_answer(int number)
{
	if (!connections[number].answered_once)
		counters->answered++;
	connections[number].answered_once = true;
}

/* Send the connection's next request, if it has one. */
static void next_step(int number)
{
	struct connection *connection = &connections[number];
	int64_t since = connection->awaits_first_answer ? connection->connect_time : now();

	if (connection->awaits_first_answer) {
		connection->awaits_first_answer = false;
		opening--;
	}
	if (requests >= 0 && connection->answers >= requests) {
		connection->state = FINISHED;
		count_first_answer(number);
	} else if (connection->must_resend) {
		connection->must_resend = false;
		send_request(number, connection->request_time);
	} else if (connection->answered_once && !second_phase) {
		connection->state = IDLE;
		idle[idle_count++] = number;
	} else {
		send_request(number, since);
	}
}

static void connected(int number)
{
	struct connection *connection = &connections[number];
	struct epoll_event event = {.events = EPOLLIN, .data.u32 = (uint32_t)number};
	int error = 0;
	socklen_t length = sizeof error;

	if (getsockopt(connection->socket, SOL_SOCKET, SO_ERROR, &error, &length) < 0 || error != 0) {
		failed(number, "cannot connect; last header");
		return;
	}
	if (epoll_ctl(epoll, EPOLL_CTL_MOD, connection->socket, &event) < 0)
		fail("epoll_ctl");
	if (*preamble != '\0')
		send_text(number, preamble, PREAMBLE);
	else
		next_step(number);
}

static void answered(int number)
{
	struct connection *connection = &connections[number];

	counters->answers++;
	counters->latency[bucket((uint64_t)(now() - connection->request_time))]++;
	connection->answers++;
	next_step(number);
}

/* The header is complete. Count the part of the body that was read with it. */
static void header_read(int number, const char *end)
{
	struct connection *connection = &connections[number];
	size_t body_size = connection->header_size - (size_t)(end - connection->header);
	const char *length;

	if (strncmp(connection->header, "HTTP/1.", 7) != 0 || strncmp(connection->header + 8, " 200", 4) != 0) {
		failed(number, "status is not 200");
		return;
	}
	if (connection->state == PREAMBLE) {
		if (body_size > 0)
			failed(number, "data after the answer to CONNECT");
		else
			next_step(number);
		return;
	}
	count_first_answer(number);
	length = strcasestr(connection->header, "\r\nContent-Length:");
	if (length == NULL || length >= end || (connection->body_left = strtoull(length + 17, NULL, 10)) < body_size) {
		failed(number, "no Content-Length, or a longer body");
		return;
	}
	counters->octets += body_size;
	connection->body_left -= body_size;
	connection->state = WAITING_BODY;
	if (connection->body_left == 0)
		answered(number);
}

static void readable(int number)
{
	struct connection *connection = &connections[number];
	bool body = connection->state == WAITING_BODY;
	char *into = body ? buffer : connection->header + connection->header_size;
	size_t wanted = connection->body_left < MAX_READ ? connection->body_left : MAX_READ;
	size_t room = body ? wanted : MAX_HEADER - connection->header_size;
	ssize_t got = recv(connection->socket, into, room, 0);

	if (got < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (got <= 0) {
		if (!connection->awaits_first_answer &&
		    (connection->state == IDLE || connection->state == FINISHED ||
		     (connection->state == WAITING_HEADER && connection->header_size == 0)))
			closed_between_answers(number);
		else
			failed(number, "ended within an answer; last header");
		return;
	}
	if (body) {
		counters->octets += (uint64_t)got;
		connection->body_left -= (uint64_t)got;
		if (connection->body_left == 0)
			answered(number);
		return;
	}
	if (connection->state == IDLE || connection->state == FINISHED) {
		failed(number, "data without a request");
		return;
	}
	connection->header_size += (size_t)got;
	connection->header[connection->header_size] = '\0';
	char *end = strstr(connection->header, "\r\n\r\n");
	if (end != NULL)
		header_read(number, end + 4);
	else if (connection->header_size == MAX_HEADER)
		failed(number, "header too long");
}

/* All connections have had an answer. */
static void begin_second_phase(void)
{
	second_phase = true;
	for (int i = 0; i < count; i++)
		if (connections[i].state == CLOSED)
			open_connection(i);
	while (idle_count > 0)
		send_request(idle[--idle_count], now());
}

int main(int argc, char **argv)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
	struct epoll_event events[MAX_EVENTS];

	if (argc != 9 || (strcmp(argv[2], "tcp") != 0 && strcmp(argv[2], "mptcp") != 0) || atoi(argv[5]) < 1 ||
	    atoi(argv[5]) > MAX_CONNECTIONS || getaddrinfo(argv[3], argv[4], &hints, &server) != 0) {
		fprintf(stderr, "usage: relay_load COUNTERS tcp|mptcp ADDRESS PORT CONNECTIONS REQUESTS PREAMBLE REQUEST\n");
		return 2;
	}
	epoll = begin_process();
	counters = shared_file(argv[1], sizeof *counters);
	protocol = strcmp(argv[2], "mptcp") == 0 ? IPPROTO_MPTCP : IPPROTO_TCP;
	to_open = count = atoi(argv[5]);
	requests = atol(argv[6]);
	preamble = argv[7];
	request = argv[8];
	print_ready();
	for (;;) {
		int ready;

		while (to_open > 0 && opening < MAX_OPENING)
			open_connection(--to_open);
		if (!second_phase && counters->answered == (uint64_t)count)
			begin_second_phase();
		ready = epoll_wait(epoll, events, MAX_EVENTS, 1000);
		for (int i = 0; i < ready; i++) {
			int number = (int)events[i].data.u32;

			if (connections[number].state == CONNECTING)
				connected(number);
			else if (connections[number].state != CLOSED)
				readable(number);
		}
	}
}
