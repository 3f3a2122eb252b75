/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * The elements of a path: each does one thing to a packet. A direction of a path is a chain of them; a packet goes
 * through the chain when it arrives, and leaves at the time that is then in `due`, unless an element lost it.
 *
 * To add an element: a kind with its name, its arguments and two functions, entered in `element_kinds`. An element
 * draws from a generator of its own, so that adding one changes nothing of what the others draw.
 */

#ifndef ELEMENTS_H
#define ELEMENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NANOSECONDS_PER_MICROSECOND 1000

enum fate { PASSES, LOST };

struct packet {
	int64_t due; /* ns of CLOCK_MONOTONIC: when it arrived, moved on by each element that delays it */
};

struct element {
	const struct element_kind *kind;
	uint64_t random; /* state of the generator */
	union {
		struct {
			double probability;
		} uniform;
		struct {
			double p, r, lost_if_bad, lost_if_good;
			bool bad;
		} gemodel;
		struct {
			int64_t least, spread, last; /* ns */
		} delay;
	};
};

struct element_kind {
	const char *name;
	const char *arguments; /* for messages */
	int count;
	/* Returns false where an argument is not what it should be. */
	bool (*make)(struct element *element, char *const *arguments);
	enum fate (*apply)(struct element *element, struct packet *packet);
};

/* Makes an element from its name and arguments, of which there are `count` and maybe more than it needs. Returns how
 * many words were taken, or -1 after a line on stderr that says what is wrong. */
int element_make(struct element *element, char *const *words, int count);

#endif
