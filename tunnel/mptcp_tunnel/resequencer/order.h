// SPDX-License-Identifier: GPL-2.0-or-later
/* The order in which a tunnel's packets are released. No I/O, no clock: times are ns of a monotonic clock.
 *
 * A packet has a number of 16 bits, never 0. Packets after a gap are held until the gap is filled, is known to be lost,
 * or has lasted longer than `hold_time`: the difference between the paths' delays plus a margin. A gap is known to be
 * lost once every recently active path has delivered a later number, because a path does not reorder its packets. */
#ifndef ORDER_H
#define ORDER_H

#include <stdbool.h>
#include <stdint.h>

#define WINDOW 1024 /* how far ahead of `next` a packet may be held; a packet further ahead resets the order */
#define HEAD WINDOW /* index of the list's sentinel, before the first and after the last held packet */
#define PATHS 8
#define ACTIVE_NS 1000000000ULL /* a path counts as active for this time after its latest packet */

struct held {
    uint64_t arrived;
    uint32_t packet; /* the caller's own reference */
    uint16_t before, after; /* neighbours by arrival; HEAD at the ends */
    bool in_use;
};

struct order {
    uint16_t next; /* number to release next */
    uint16_t count; /* packets held */
    bool started;
    uint64_t hold_time; /* maximum time for which a packet is held, ns */
    struct {
        uint64_t last_arrival; /* time of the path's latest packet; 0: none yet */
        uint16_t newest; /* number of the path's latest packet */
    } paths[PATHS];
    struct held held[WINDOW + 1];
};

/* Called for each released packet, in order. */
typedef void (*release_fn)(void *context, uint32_t packet);

void order_begin(struct order *order, uint64_t hold_time);

/* Accept a packet that arrived on a path; release the packets that are now due. */
void order_accept(struct order *order, uint16_t number, unsigned path, uint32_t packet, uint64_t now,
                  release_fn release, void *context);

/* Release the packets that were held long enough; return when to call again, 0 if none is held. */
uint64_t order_expire(struct order *order, uint64_t now, release_fn release, void *context);

#endif
