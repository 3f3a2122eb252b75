/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * flood: sends or receives UDP packets at rates that are too high for Python.
 *
 *     flood send LOCAL_PORT ADDRESS PORT BYTES PER_SECOND SECONDS
 *     flood receive PORT
 *
 * Both print the number of packets, and the nanoseconds from the first packet to the last: `send` at its end, `receive`
 * on SIGTERM. They print "ready" when the socket is bound.
 */

#define _GNU_SOURCE

#include <arpa/inet.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#define BATCH 64
#define MAX_BYTES 2048
#define SECOND 1000000000LL
#define BUFFER (8 << 20)

static char data[MAX_BYTES] = { 4 }; /* WireGuard's message type 4: data */
static struct mmsghdr headers[BATCH];
static struct iovec vectors[BATCH];
static long long begin, last;
static volatile sig_atomic_t ending;

static void request_end(int number)
{
	(void)number;
	ending = 1;
}

static long long now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * SECOND + time.tv_nsec;
}

static int bind_port(int port)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
	int size = BUFFER, descriptor = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	if (descriptor < 0 || bind(descriptor, (struct sockaddr *)&address, sizeof(address)) != 0) {
		fprintf(stderr, "flood: bind port %d: %s\n", port, strerror(errno));
		return -1;
	}
	setsockopt(descriptor, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof(size));
	setsockopt(descriptor, SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof(size));
	puts("ready");
	fflush(stdout);
	return descriptor;
}

static void prepare(size_t size, struct sockaddr_in *to)
{
	for (int i = 0; i < BATCH; i++) {
		vectors[i] = (struct iovec){ .iov_base = data, .iov_len = size };
		headers[i].msg_hdr = (struct msghdr){ .msg_iov = &vectors[i], .msg_iovlen = 1 };
		if (to != NULL) {
			headers[i].msg_hdr.msg_name = to;
			headers[i].msg_hdr.msg_namelen = sizeof(*to);
		}
	}
}

/* Sends, each millisecond, the packets that are due. */
static long long send_all(int descriptor, double per_second, double seconds)
{
	long long sent = 0, total = (long long)(per_second * seconds);

	begin = now();
	while (sent < total && !ending) {
		long long due = (long long)((double)(now() - begin) / SECOND * per_second);
		struct timespec pause = { .tv_nsec = 1000000 };

		if (due > total)
			due = total;
		while (sent < due) {
			long long count = due - sent < BATCH ? due - sent : BATCH;
			int done = sendmmsg(descriptor, headers, (unsigned int)count, 0);

			if (done < 0 && errno != ENOBUFS) {
				fprintf(stderr, "flood: send: %s\n", strerror(errno));
				return -1;
			}
			sent += done < 0 ? count : done; /* packets that do not fit into the device's queue are lost */
		}
		last = now();
		nanosleep(&pause, NULL);
	}
	return sent;
}

static long long receive_all(int descriptor)
{
	long long received = 0;

	while (!ending) {
		int count = recvmmsg(descriptor, headers, BATCH, MSG_WAITFORONE, NULL);

		if (count > 0) {
			last = now();
			if (received == 0)
				begin = last;
			received += count;
		} else if (errno != EINTR)
			return -1;
	}
	return received;
}

int main(int argc, char **argv)
{
	struct sigaction action = { .sa_handler = request_end };
	struct sockaddr_in to = { .sin_family = AF_INET };
	long long count;
	int descriptor;

	sigaction(SIGTERM, &action, NULL);
	if (argc == 8 && strcmp(argv[1], "send") == 0 && inet_pton(AF_INET, argv[3], &to.sin_addr) == 1 &&
	    atoi(argv[5]) > 0 && atoi(argv[5]) <= MAX_BYTES) {
		to.sin_port = htons((uint16_t)atoi(argv[4]));
		prepare((size_t)atoi(argv[5]), &to);
		descriptor = bind_port(atoi(argv[2]));
		count = descriptor < 0 ? -1 : send_all(descriptor, atof(argv[6]), atof(argv[7]));
	} else if (argc == 3 && strcmp(argv[1], "receive") == 0) {
		prepare(MAX_BYTES, NULL);
		descriptor = bind_port(atoi(argv[2]));
		count = descriptor < 0 ? -1 : receive_all(descriptor);
	} else {
		fprintf(stderr, "usage: flood send LOCAL_PORT ADDRESS PORT BYTES PER_SECOND SECONDS | receive PORT\n");
		return EXIT_FAILURE;
	}
	printf("%lld %lld\n", count, last - begin);
	return count < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
