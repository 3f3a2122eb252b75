/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * What middleboxes do to TCP segments: the behaviours of Hesmans et al., "Are TCP Extensions Middlebox-proof?", 2013
 * (MBtest), and two that reorder and duplicate segments. The functions only process bytes, without sockets or clocks.
 */

#ifndef BEHAVIOURS_H
#define BEHAVIOURS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MAX_PACKET 65535
#define HOLD_NANOSECONDS (2 * 1000000)

enum way { UP, DOWN }; /* from the client, to the client */

/* Is called for each packet that leaves the middlebox, with its IPv4 header and correct checksums. */
typedef void (*emit_function)(const uint8_t *packet, size_t length);

/* Chooses the behaviour. Returns false if no behaviour has that name. */
bool behaviour_choose(const char *name);

/* Returns the names of all behaviours, for messages, with NULL at the end. */
const char *const *behaviour_names(void);

/* Applies the behaviour to an IPv4 packet with TCP that arrived at `now`, in ns. */
void behaviour_apply(enum way way, const uint8_t *packet, size_t length, int64_t now, emit_function emit);

/* Returns the latest time in ns at which a held packet must be sent; INT64_MAX if no packet is held. */
int64_t behaviour_due(void);

/* Sends the held packet if its time has come. */
void behaviour_release(int64_t now, emit_function emit);

/* Returns the number of packets that did not leave unchanged: at once, alone and with the same bytes. */
unsigned long behaviour_changed(void);

#endif
