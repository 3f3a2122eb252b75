/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * The kernel's packet queues over netlink: receive packets, give verdicts. There is one socket for all queues. A
 * function that returns false has printed the reason to stderr.
 */

#ifndef QUEUES_H
#define QUEUES_H

#include <stdbool.h>
#include <stdint.h>

/* Maximum number of packets that wait in a queue, a power of two: 0.5 s of full packets at 1.5 Gbit/s. */
#define QUEUE_LENGTH 65536

bool queues_open(void);
bool queues_bind(uint16_t queue);
void queues_close(void);
int queues_descriptor(void);

/* Calls `arrived` with the given time for each packet that the kernel has reported. */
bool queues_receive(void (*arrived)(uint16_t queue, uint32_t id, int64_t time), int64_t time);

/* Verdicts take effect in order, at the next flush or earlier. */
void queues_drop(uint16_t queue, uint32_t id);
void queues_accept_up_to(uint16_t queue, uint32_t id);
bool queues_flush(void);

#endif
