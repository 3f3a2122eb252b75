/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Read and change an IPv4 packet with a TCP segment (RFC 791, RFC 9293, options of RFC 8684).
 */

#ifndef SEGMENTS_H
#define SEGMENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_PUSH 0x08

struct segment {
	uint8_t *bytes;       /* the packet, starting with its IP header */
	size_t ip, tcp;       /* lengths of the headers in bytes */
	size_t payload;
};

/* Returns false if the bytes are not a complete IPv4 packet with TCP. */
bool segment_read(struct segment *segment, uint8_t *bytes, size_t length);

size_t segment_length(const struct segment *segment);
uint8_t *segment_payload(const struct segment *segment);
uint8_t segment_flags(const struct segment *segment);
uint32_t get32(const uint8_t *place);
void put32(uint8_t *place, uint32_t value);
uint16_t get16(const uint8_t *place);
void put16(uint8_t *place, uint16_t value);
uint8_t *segment_sequence(const struct segment *segment);
uint8_t *segment_acknowledgment(const struct segment *segment);
bool segment_has_acknowledgment(const struct segment *segment);

/* Removes every option of Multipath TCP or, with `nop`, overwrites it with NOPs. */
void segment_without_mptcp(struct segment *segment, bool nop);
/* Removes all options except time stamps, which every segment of a connection has. */
void segment_without_extensions(struct segment *segment);
/* Sets the lengths and checksums in the headers after a change. */
void segment_finish(struct segment *segment);

#endif
