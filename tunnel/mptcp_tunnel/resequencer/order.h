// SPDX-License-Identifier: GPL-2.0-or-later
/* In which order the packets of one tunnel are released. No I/O, no clock: times are ns of a monotonic clock.
 *
 * A packet has a number of 16 bits, never 0. What comes after a gap is held, until the gap is filled, is known to be lost, or has
 * been waited for long enough. It is lost once all paths that carried something lately have shown a later number: a path
 * keeps its order. It is waited for as long as the delays of the paths differ, and a little. */
#ifndef ORDER_H
#define ORDER_H

#include <stdbool.h>
#include <stdint.h>

#define WINDOW 1024 /* numbers that may be held; a packet that is further ahead begins anew */
#define HEAD WINDOW /* place at which the list of those that are held begins and ends */
#define PATHS 8
#define LATELY 1000000000ULL /* ns: a path that carried nothing for so long has no say */

struct held {
    uint64_t arrived;
    uint32_t packet; /* whatever the caller knows it by */
    uint16_t before, after; /* places of those that arrived then: HEAD at the ends */
    bool there;
};

struct order {
    uint16_t next; /* number that is released next */
    uint16_t count; /* packets held */
    bool begun;
    uint64_t patience; /* ns that a packet is held at most */
    struct {
        uint64_t seen; /* when it carried something last, 0: never */
        uint16_t newest;
    } paths[PATHS];
    struct held held[WINDOW + 1];
};

/* Called for each packet that is released, in order. */
typedef void (*release_fn)(void *context, uint32_t packet);

void order_begin(struct order *order, uint64_t patience);

/* Take a packet in, and release it and others if that is due. */
void order_take(struct order *order, uint16_t number, unsigned path, uint32_t packet, uint64_t now, release_fn release,
                void *context);

/* Release what has been held long enough; return when that is due again, 0 where nothing is held. */
uint64_t order_expire(struct order *order, uint64_t now, release_fn release, void *context);

#endif
