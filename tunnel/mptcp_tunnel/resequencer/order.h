// SPDX-License-Identifier: GPL-2.0-or-later
/* The order in which a tunnel's packets are released. No I/O, no clock: times are ns of a monotonic clock.
 *
 * A packet has a number of 16 bits, never 0. Packets after a gap are held until the gap is filled, is known to be lost,
 * or has lasted longer than the patience: the difference of the paths' delays, and a little. It is lost once every path
 * that carried something lately has shown a later number, because a path keeps its order. */
#ifndef ORDER_H
#define ORDER_H

#include <stdbool.h>
#include <stdint.h>

#define WINDOW 1024 /* numbers that may be held; a packet further ahead starts over */
#define HEAD WINDOW /* place where the list of held packets begins and ends */
#define PATHS 8
#define LATELY 1000000000ULL /* ns: a path that carried nothing for this long does not count */

struct held {
    uint64_t arrived;
    uint32_t packet; /* the caller's own reference */
    uint16_t before, after; /* neighbours by arrival; HEAD at the ends */
    bool there;
};

struct order {
    uint16_t next; /* number to release next */
    uint16_t count; /* packets held */
    bool begun;
    uint64_t patience; /* ns that a packet is held at most */
    struct {
        uint64_t seen; /* when it last carried something; 0: never */
        uint16_t newest;
    } paths[PATHS];
    struct held held[WINDOW + 1];
};

/* Called for each released packet, in order. */
typedef void (*release_fn)(void *context, uint32_t packet);

void order_begin(struct order *order, uint64_t patience);

/* Take a packet; release it and others that are due. */
void order_take(struct order *order, uint16_t number, unsigned path, uint32_t packet, uint64_t now, release_fn release,
                void *context);

/* Release the packets held long enough; return when to call again, 0 if none is held. */
uint64_t order_expire(struct order *order, uint64_t now, release_fn release, void *context);

#endif
