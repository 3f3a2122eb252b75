/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * The elements of a path: each element delays or loses packets. A direction of a path is a chain of elements. A packet
 * goes through the chain when it arrives, and leaves at the time that is then in `due`, unless an element lost it.
 *
 * To add an element, add its kind to `element_kinds`: a name, arguments and two functions. Each element has its own
 * random generator, so that a new element does not change the random numbers of the others.
 */

#ifndef ELEMENTS_H
#define ELEMENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NANOSECONDS_PER_MICROSECOND 1000

enum fate { PASSES, LOST };

struct packet {
	int64_t due; /* ns of CLOCK_MONOTONIC: the time of arrival plus the delays of the elements */
};

struct element {
	const struct element_kind *kind;
	uint64_t random; /* state of the random generator */
	union {
		struct {
			double p, r, lost_if_bad, lost_if_good;
			bool bad;
		} gemodel;
		struct {
			int64_t minimum, spread, last; /* ns */
		} delay;
	};
};

struct element_kind {
	const char *name;
	const char *arguments; /* for messages */
	int count;
	/* Returns false if an argument is invalid. */
	bool (*make)(struct element *element, char *const *arguments);
	enum fate (*apply)(struct element *element, struct packet *packet);
};

/* Makes an element from its name and its arguments. There are `count` words, maybe more than the element needs. Returns
 * the number of words that it used, or -1 after printing the error to stderr. */
int element_make(struct element *element, char *const *words, int count);

#endif
