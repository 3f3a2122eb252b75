/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * What middleboxes do to TCP segments: those of Hesmans et al., "Are TCP Extensions Middlebox-proof?", 2013 (MBtest), and
 * two that reorder and duplicate. Bytes in, bytes out: nothing here knows a socket or a clock.
 */

#ifndef BEHAVIOURS_H
#define BEHAVIOURS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MAX_PACKET 65535
#define HOLD_NANOSECONDS (2 * 1000000)

enum way { UP, DOWN }; /* from the client, to the client */

/* Is called for each packet that leaves the box, whole with its IPv4 header and good checksums. */
typedef void (*emit_function)(const uint8_t *packet, size_t length);

/* Chooses the behaviour; false where none has that name. */
bool behaviour_choose(const char *name);

/* The names of all, for messages; NULL ends them. */
const char *const *behaviour_names(void);

/* Takes an IPv4 packet with TCP that came in at `now`, ns. */
void behaviour_apply(enum way way, const uint8_t *packet, size_t length, int64_t now, emit_function emit);

/* When something that is held has to go at the latest, ns; INT64_MAX where nothing is held. */
int64_t behaviour_due(void);

/* Lets go what is held too long. */
void behaviour_release(int64_t now, emit_function emit);

/* How many packets did not leave as they came: at once, alone and with the same bytes. */
unsigned long behaviour_changed(void);

#endif
