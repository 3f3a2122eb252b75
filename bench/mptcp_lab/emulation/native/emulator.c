/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * emulator: delays and loses the packets that a router forwards, for kernels without netem.
 *
 *     emulator COUNTERS queue NUMBER [ELEMENT ...] [queue NUMBER [ELEMENT ...]]
 *
 * The kernel puts each forwarded packet into an NFQUEUE (iptables-extensions(8)) and keeps its data; the emulator gets
 * only its id. When a packet arrives, the elements of its direction (elements.h) determine whether it is lost, and the
 * time at which it leaves. The emulator gives the verdict at that time. Within a direction these times never decrease,
 * so that the waiting packets form a plain ring, and one batch verdict (linux/netfilter/nfnetlink_queue.h) releases all
 * packets whose time has come.
 *
 * COUNTERS is a file with a `struct counters` for each queue, mapped into memory, so that it can be read at any time.
 * The kernel counts the packets that it drops itself, because the queue or the socket is full, in
 * /proc/net/netfilter/nfnetlink_queue.
 *
 * The program prints "ready" when the queues are bound. SIGTERM ends it; the kernel then drops the waiting packets.
 */

#define _GNU_SOURCE

#include "elements.h"
#include "queues.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define NANOSECONDS 1000000000
#define MAX_DIRECTIONS 2
#define MAX_ELEMENTS 8
#define LATE (1 * 1000000) /* ns */
#define PRIORITY 10        /* of SCHED_FIFO: above all programs without a real-time priority */

struct counters {
	uint64_t seen;
	uint64_t lost;   /* lost by an element, as configured */
	uint64_t passed; /* accepted after their delay */
	uint64_t late;   /* passed packets that left more than LATE after their time */
	uint64_t full;   /* dropped because the ring was full */
};

struct waiting {
	uint32_t id;
	int64_t due;
};

struct direction {
	uint16_t queue;
	struct element elements[MAX_ELEMENTS];
	int element_count;
	struct waiting *ring; /* has QUEUE_LENGTH entries, a power of two */
	uint32_t head, tail;  /* the oldest entry, and the one after the newest; both wrap around */
	struct counters *counters;
};

static struct direction directions[MAX_DIRECTIONS];
static int direction_count;
static volatile sig_atomic_t ending;

static void request_end(int number)
{
	(void)number;
	ending = 1;
}

static int64_t now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (int64_t)time.tv_sec * NANOSECONDS + time.tv_nsec;
}

static struct waiting *slot(struct direction *direction, uint32_t position)
{
	return &direction->ring[position & (QUEUE_LENGTH - 1)];
}

static void packet_arrived(uint16_t queue, uint32_t id, int64_t time)
{
	struct direction *direction = directions;
	struct packet packet = { .due = time };

	while (direction->queue != queue)
		direction++; /* it is always found, because only these queues are bound */
	direction->counters->seen++;
	for (int i = 0; i < direction->element_count; i++) {
		struct element *element = &direction->elements[i];

		if (element->kind->apply(element, &packet) == LOST) {
			direction->counters->lost++;
			queues_drop(queue, id);
			return;
		}
	}
	if (direction->tail - direction->head == QUEUE_LENGTH) {
		direction->counters->full++;
		queues_drop(queue, id);
		return;
	}
	*slot(direction, direction->tail++) = (struct waiting){ .id = id, .due = packet.due };
}

/* Releases the packets that are due. Returns the time at which the next packet is due; INT64_MAX if none waits. */
static int64_t release(struct direction *direction, int64_t time)
{
	uint32_t first = direction->head;

	while (direction->head != direction->tail && slot(direction, direction->head)->due <= time) {
		direction->counters->passed++;
		if (time - slot(direction, direction->head)->due > LATE)
			direction->counters->late++;
		direction->head++;
	}
	/* The batch verdict accepts all packets up to this id. Lost packets among them have already been dropped. */
	if (direction->head != first)
		queues_accept_up_to(direction->queue, slot(direction, direction->head - 1)->id);
	return direction->head == direction->tail ? INT64_MAX : slot(direction, direction->head)->due;
}

static bool map_counters(const char *name)
{
	size_t size = sizeof(struct counters) * (size_t)direction_count;
	int file = open(name, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	struct counters *counters;

	if (file < 0 || ftruncate(file, (off_t)size) != 0) {
		fprintf(stderr, "emulator: create %s: %s\n", name, strerror(errno));
		return false;
	}
	counters = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	close(file);
	if (counters == MAP_FAILED) {
		fprintf(stderr, "emulator: map %s: %s\n", name, strerror(errno));
		return false;
	}
	for (int i = 0; i < direction_count; i++)
		directions[i].counters = &counters[i];
	return true;
}

static bool parse(int count, char *const *words)
{
	while (count >= 2 && strcmp(words[0], "queue") == 0 && direction_count < MAX_DIRECTIONS) {
		struct direction *direction = &directions[direction_count++];
		char *rest;
		unsigned long number = strtoul(words[1], &rest, 10);

		if (*rest != '\0' || number > UINT16_MAX)
			break;
		direction->queue = (uint16_t)number;
		direction->ring = calloc(QUEUE_LENGTH, sizeof(*direction->ring));
		if (direction->ring == NULL) {
			fprintf(stderr, "emulator: no memory for %d packets\n", QUEUE_LENGTH);
			return false;
		}
		count -= 2;
		words += 2;
		while (count > 0 && strcmp(words[0], "queue") != 0) {
			int used_words;

			if (direction->element_count == MAX_ELEMENTS) {
				fprintf(stderr, "emulator: more than %d elements in a row\n", MAX_ELEMENTS);
				return false;
			}
			used_words = element_make(&direction->elements[direction->element_count++], words, count);
			if (used_words < 0)
				return false;
			count -= used_words;
			words += used_words;
		}
	}
	if (count == 0 && direction_count > 0)
		return true;
	fprintf(stderr, "usage: emulator COUNTERS queue NUMBER [ELEMENT ...] [queue NUMBER [ELEMENT ...]]\n");
	return false;
}

/* Requests timers with a precision of 1 ns, and the processor as soon as a timer fires. */
static void set_real_time_priority(void)
{
	struct sched_param parameters = { .sched_priority = PRIORITY };

	prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
	if (sched_setscheduler(0, SCHED_FIFO, &parameters) != 0)
		fprintf(stderr, "emulator: no real-time priority (%s): delays will vary under load\n", strerror(errno));
}

static bool emulate(const sigset_t *signals)
{
	struct pollfd socket = { .fd = queues_descriptor(), .events = POLLIN };

	while (!ending) {
		int64_t time = now(), next = INT64_MAX;
		struct timespec timeout;

		for (int i = 0; i < direction_count; i++) {
			int64_t due = release(&directions[i], time);

			if (due < next)
				next = due;
		}
		if (!queues_flush())
			return false;
		if (next != INT64_MAX) {
			next = next > time ? next - time : 0;
			timeout.tv_sec = next / NANOSECONDS;
			timeout.tv_nsec = next % NANOSECONDS;
		}
		if (ppoll(&socket, 1, next == INT64_MAX ? NULL : &timeout, signals) < 0 && errno != EINTR) {
			fprintf(stderr, "emulator: wait: %s\n", strerror(errno));
			return false;
		}
		if (socket.revents != 0 && !queues_receive(packet_arrived, now()))
			return false;
		socket.revents = 0;
	}
	return true;
}

int main(int argc, char **argv)
{
	struct sigaction action = { .sa_handler = request_end };
	sigset_t blocked, signals;
	bool succeeded;

	if (!parse(argc - 2, argv + 2) || !map_counters(argv[1]))
		return EXIT_FAILURE;
	/* Allow SIGTERM only during the wait, so that it cannot arrive between the check of `ending` and the wait. */
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGTERM);
	sigprocmask(SIG_BLOCK, &blocked, &signals);
	sigaction(SIGTERM, &action, NULL);
	if (!queues_open())
		return EXIT_FAILURE;
	for (int i = 0; i < direction_count; i++)
		if (!queues_bind(directions[i].queue))
			return EXIT_FAILURE;
	set_real_time_priority();
	puts("ready");
	fflush(stdout);
	succeeded = emulate(&signals);
	queues_close();
	for (int i = 0; i < direction_count; i++)
		free(directions[i].ring);
	return succeeded ? EXIT_SUCCESS : EXIT_FAILURE;
}
