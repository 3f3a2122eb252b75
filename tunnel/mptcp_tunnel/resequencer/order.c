// SPDX-License-Identifier: GPL-2.0-or-later
#include "order.h"

#include <string.h>

/* Return how far `number` is ahead of `base`; negative if `number` is before `base`. */
static int ahead(uint16_t number, uint16_t base)
{
    return (int16_t)(number - base);
}

void order_begin(struct order *order, uint64_t hold_time)
{
    memset(order, 0, sizeof(*order));
    order->hold_time = hold_time;
    order->held[HEAD].before = order->held[HEAD].after = HEAD;
}

/* Hold a packet at `place`, as the newest in the list. */
static void hold(struct order *order, uint16_t place, uint32_t packet, uint64_t now)
{
    struct held *head = &order->held[HEAD];

    order->held[place] =
        (struct held){.arrived = now, .packet = packet, .in_use = true, .before = head->before, .after = HEAD};
    order->held[head->before].after = place;
    head->before = place;
    order->count++;
}

static void unlink_held(struct order *order, struct held *held)
{
    order->held[held->before].after = held->after;
    order->held[held->after].before = held->before;
    held->in_use = false;
    order->count--;
}

/* Go to the next number; 0 is not used. */
static void advance(struct order *order)
{
    if (!++order->next)
        order->next = 1;
}

/* Release the next number, and all that follow without a gap. */
static void release_run(struct order *order, release_fn release, void *context)
{
    struct held *held;

    while ((held = &order->held[order->next % WINDOW])->in_use) {
        unlink_held(order, held);
        advance(order);
        release(context, held->packet);
    }
}

/* Count the missing numbers before the first held packet as lost, and release the packets that follow. */
static void skip(struct order *order, release_fn release, void *context)
{
    while (order->count && !order->held[order->next % WINDOW].in_use)
        advance(order);
    release_run(order, release, context);
}

/* Return whether the next number to release is lost: every recently active path has delivered a later number. */
static bool is_lost(const struct order *order, uint64_t now)
{
    for (unsigned path = 0; path < PATHS; path++)
        if (order->paths[path].last_arrival && now - order->paths[path].last_arrival < ACTIVE_NS &&
            ahead(order->paths[path].newest, order->next) <= 0)
            return false;
    return true;
}

void order_accept(struct order *order, uint16_t number, unsigned path, uint32_t packet, uint64_t now,
                  release_fn release, void *context)
{
    int distance = ahead(number, order->next);
    struct held *held;

    if (!order->started || distance >= WINDOW || distance <= -WINDOW) {
        while (order->count)
            skip(order, release, context);
        memset(order->paths, 0, sizeof(order->paths));
        order->started = true;
        order->next = number;
        distance = 0;
    }
    if (path < PATHS) {
        order->paths[path].last_arrival = now;
        order->paths[path].newest = number;
    }
    held = &order->held[number % WINDOW];
    if (distance < 0 || held->in_use) { /* late, or a duplicate */
        release(context, packet);
    } else {
        hold(order, number % WINDOW, packet, now);
        release_run(order, release, context);
    }
    while (order->count && is_lost(order, now))
        skip(order, release, context);
}

uint64_t order_expire(struct order *order, uint64_t now, release_fn release, void *context)
{
    while (order->count) {
        /* The packet that was held longest is not always the next one to release. */
        uint64_t oldest = order->held[order->held[HEAD].after].arrived;

        if (now - oldest < order->hold_time)
            return oldest + order->hold_time;
        skip(order, release, context);
    }
    return 0;
}
