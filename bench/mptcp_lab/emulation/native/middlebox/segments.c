/* SPDX-License-Identifier: GPL-2.0-or-later */

#include "segments.h"

#include <string.h>

#define IP_MINIMUM 20
#define TCP_MINIMUM 20
#define PROTOCOL_TCP 6
#define FRAGMENT 0x3fff /* mask of the flag "more fragments" and the offset */
#define OPTION_END 0
#define OPTION_NOP 1
#define OPTION_MPTCP 30

uint16_t get16(const uint8_t *place)
{
	return (uint16_t)(place[0] << 8 | place[1]);
}

void put16(uint8_t *place, uint16_t value)
{
	place[0] = (uint8_t)(value >> 8);
	place[1] = (uint8_t)value;
}

uint32_t get32(const uint8_t *place)
{
	return (uint32_t)get16(place) << 16 | get16(place + 2);
}

void put32(uint8_t *place, uint32_t value)
{
	put16(place, (uint16_t)(value >> 16));
	put16(place + 2, (uint16_t)value);
}

bool segment_read(struct segment *segment, uint8_t *bytes, size_t length)
{
	size_t total;

	if (length < IP_MINIMUM + TCP_MINIMUM || bytes[0] >> 4 != 4 || bytes[9] != PROTOCOL_TCP)
		return false;
	total = get16(bytes + 2);
	segment->bytes = bytes;
	segment->ip = (size_t)(bytes[0] & 0x0f) * 4;
	if (segment->ip < IP_MINIMUM || total > length || total < segment->ip + TCP_MINIMUM ||
	    (get16(bytes + 6) & FRAGMENT) != 0)
		return false;
	segment->tcp = (size_t)(bytes[segment->ip + 12] >> 4) * 4;
	if (segment->tcp < TCP_MINIMUM || total < segment->ip + segment->tcp)
		return false;
	segment->payload = total - segment->ip - segment->tcp;
	return true;
}

size_t segment_length(const struct segment *segment)
{
	return segment->ip + segment->tcp + segment->payload;
}

uint8_t *segment_payload(const struct segment *segment)
{
	return segment->bytes + segment->ip + segment->tcp;
}

uint8_t segment_flags(const struct segment *segment)
{
	return segment->bytes[segment->ip + 13];
}

uint8_t *segment_sequence(const struct segment *segment)
{
	return segment->bytes + segment->ip + 4;
}

uint8_t *segment_acknowledgment(const struct segment *segment)
{
	return segment->bytes + segment->ip + 8;
}

bool segment_has_acknowledgment(const struct segment *segment)
{
	return (segment_flags(segment) & 0x10) != 0;
}

/* Removes the options for which `is_removed` returns true or, with `nop`, replaces them by NOPs. */
static void filter_options(struct segment *segment, bool (*is_removed)(uint8_t kind), bool nop)
{
	uint8_t *options = segment->bytes + segment->ip + TCP_MINIMUM;
	size_t end = segment->tcp - TCP_MINIMUM, kept_length = 0, at = 0, padded;

	while (at < end && options[at] != OPTION_END) {
		size_t length = options[at] == OPTION_NOP ? 1 : at + 1 < end ? options[at + 1] : 0;

		if (length == 0 || (options[at] != OPTION_NOP && length < 2) || at + length > end)
			break; /* malformed: the remaining options are removed */
		if (is_removed(options[at])) {
			if (nop) {
				memset(options + kept_length, OPTION_NOP, length);
				kept_length += length;
			}
		} else {
			memmove(options + kept_length, options + at, length);
			kept_length += length;
		}
		at += length;
	}
	padded = (kept_length + 3) & ~(size_t)3;
	memset(options + kept_length, OPTION_NOP, padded - kept_length);
	memmove(options + padded, segment_payload(segment), segment->payload);
	segment->tcp = TCP_MINIMUM + padded;
}

static bool is_mptcp(uint8_t kind)
{
	return kind == OPTION_MPTCP;
}

static bool is_not_timestamp(uint8_t kind)
{
	return kind != 8; /* 8: time stamps, which RFC 7323 requires in each segment */
}

void segment_without_mptcp(struct segment *segment, bool nop)
{
	filter_options(segment, is_mptcp, nop);
}

void segment_without_extensions(struct segment *segment)
{
	filter_options(segment, is_not_timestamp, false);
}

static uint32_t sum(const uint8_t *bytes, size_t length, uint32_t total)
{
	for (; length > 1; bytes += 2, length -= 2)
		total += get16(bytes);
	return length == 1 ? total + ((uint32_t)bytes[0] << 8) : total;
}

static uint16_t fold_checksum(uint32_t total)
{
	while (total >> 16 != 0)
		total = (total & 0xffff) + (total >> 16);
	return (uint16_t)~total;
}

void segment_finish(struct segment *segment)
{
	uint8_t *ip = segment->bytes, *tcp = segment->bytes + segment->ip;
	size_t length = segment->tcp + segment->payload;

	put16(ip + 2, (uint16_t)segment_length(segment));
	put16(ip + 10, 0);
	put16(ip + 10, fold_checksum(sum(ip, segment->ip, 0)));
	tcp[12] = (uint8_t)((segment->tcp / 4) << 4 | (tcp[12] & 0x0f));
	put16(tcp + 16, 0);
	put16(tcp + 16, fold_checksum(sum(tcp, length, sum(ip + 12, 8, PROTOCOL_TCP + (uint32_t)length))));
}
