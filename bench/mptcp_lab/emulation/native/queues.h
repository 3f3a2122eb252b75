/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * The kernel's packet queues over netlink: what arrived, and verdicts. One socket for all queues; functions that
 * return false have said why on stderr.
 */

#ifndef QUEUES_H
#define QUEUES_H

#include <stdbool.h>
#include <stdint.h>

/* Packets that may wait in a queue, a power of two: 0.5 s of full packets at 1.5 Gbit/s. */
#define QUEUE_LENGTH 65536

bool queues_open(void);
bool queues_bind(uint16_t queue);
void queues_close(void);
int queues_descriptor(void);

/* Calls `arrived` for each packet that the kernel told of, with the time that is given. */
bool queues_receive(void (*arrived)(uint16_t queue, uint32_t id, int64_t time), int64_t time);

/* Verdicts take effect, in order, with the next flush or earlier. */
void queues_drop(uint16_t queue, uint32_t id);
void queues_accept_up_to(uint16_t queue, uint32_t id);
bool queues_flush(void);

#endif
