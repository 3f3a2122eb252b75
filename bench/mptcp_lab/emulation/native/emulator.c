/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * emulator: delays and loses the packets that a router forwards, for kernels without netem.
 *
 *     emulator COUNTERS queue NUMBER [ELEMENT ...] [queue NUMBER [ELEMENT ...]]
 *
 * The kernel hands each forwarded packet to an NFQUEUE (iptables-extensions(8)) and keeps it; only its id comes
 * here. A packet's fate and the time at which it leaves are settled when it arrives, by the elements of its direction
 * (elements.h); the verdict is given when that time has come. Order is kept: within a direction the times never
 * decrease, so that what waits is a plain ring, and one batch verdict (linux/netfilter/nfnetlink_queue.h) lets all
 * go whose time has come.
 *
 * COUNTERS is a file that holds a `struct counters` for each queue, mapped, so that it can be read at any moment.
 * What the kernel itself dropped, because the queue or the socket was full, is in /proc/net/netfilter/nfnetlink_queue.
 *
 * "ready" on stdout: the queues are bound. SIGTERM ends it; the kernel then drops what still waits.
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
#define PRIORITY 10        /* of SCHED_FIFO: above everything that is not real time */

struct counters {
	uint64_t seen;
	uint64_t lost;   /* by an element, as asked */
	uint64_t passed; /* verdict given */
	uint64_t late;   /* of these, more than LATE after their time */
	uint64_t full;   /* dropped, for want of room in the ring */
};

struct waiting {
	uint32_t id;
	int64_t due;
};

struct direction {
	uint16_t queue;
	struct element elements[MAX_ELEMENTS];
	int element_count;
	struct waiting *ring; /* QUEUE_LENGTH, a power of two */
	uint32_t head, tail;  /* the oldest, and behind the youngest; they wrap around */
	struct counters *counters;
};

static struct direction directions[MAX_DIRECTIONS];
static int direction_count;
static volatile sig_atomic_t ending;

static void end(int number)
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

static void arrived(uint16_t queue, uint32_t id, int64_t time)
{
	struct direction *direction = directions;
	struct packet packet = { .due = time };

	while (direction->queue != queue)
		direction++; /* bound are these queues only */
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

/* Lets go what is due, and returns when the next is: INT64_MAX for never. */
static int64_t release(struct direction *direction, int64_t time)
{
	uint32_t first = direction->head;

	while (direction->head != direction->tail && slot(direction, direction->head)->due <= time) {
		direction->counters->passed++;
		if (time - slot(direction, direction->head)->due > LATE)
			direction->counters->late++;
		direction->head++;
	}
	/* What was lost in between was dropped before: "all up to this id" are those that pass. */
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
		fprintf(stderr, "emulator: make %s: %s\n", name, strerror(errno));
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
			int taken;

			if (direction->element_count == MAX_ELEMENTS) {
				fprintf(stderr, "emulator: more than %d elements in a row\n", MAX_ELEMENTS);
				return false;
			}
			taken = element_make(&direction->elements[direction->element_count++], words, count);
			if (taken < 0)
				return false;
			count -= taken;
			words += taken;
		}
	}
	if (count == 0 && direction_count > 0)
		return true;
	fprintf(stderr, "usage: emulator COUNTERS queue NUMBER [ELEMENT ...] [queue NUMBER [ELEMENT ...]]\n");
	return false;
}

/* Timers to the nanosecond, and the processor as soon as one fires. */
static void be_punctual(void)
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
		if (socket.revents != 0 && !queues_receive(arrived, now()))
			return false;
		socket.revents = 0;
	}
	return true;
}

int main(int argc, char **argv)
{
	struct sigaction action = { .sa_handler = end };
	sigset_t blocked, signals;
	bool well;

	if (!parse(argc - 2, argv + 2) || !map_counters(argv[1]))
		return EXIT_FAILURE;
	/* A signal counts while we wait, not between looking at `ending` and waiting. */
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGTERM);
	sigprocmask(SIG_BLOCK, &blocked, &signals);
	sigaction(SIGTERM, &action, NULL);
	if (!queues_open())
		return EXIT_FAILURE;
	for (int i = 0; i < direction_count; i++)
		if (!queues_bind(directions[i].queue))
			return EXIT_FAILURE;
	be_punctual();
	puts("ready");
	fflush(stdout);
	well = emulate(&signals);
	queues_close();
	for (int i = 0; i < direction_count; i++)
		free(directions[i].ring);
	return well ? EXIT_SUCCESS : EXIT_FAILURE;
}
