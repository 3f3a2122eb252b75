/* SPDX-License-Identifier: GPL-2.0-or-later */

#define _GNU_SOURCE

#include "behaviours.h"
#include "segments.h"

#include <string.h>

#define FLOWS 4096
#define ADDED_UP 0x10000001u
#define ADDED_DOWN 0x20000003u
#define NAT_HOST 77
#define NAT_PORT 0x0400
#define SMALLEST_SPLIT 64
#define REORDERED 10 /* of this number of segments with data, one is overtaken */
#define OVERTAKEN 3  /* number of segments that overtake it */
#define SHORT_ADDRESS "10,77,1,2,"
#define LONG_ADDRESS "192,168,100,200,"

/* Maximum bytes of a packet that leaves the middlebox, by way. A link towards the client may have a larger MTU. */
static const size_t max_bytes[2] = { 1500, 3200 };

/* One TCP connection, which is identified by the client's address and both ports. */
struct flow {
	uint32_t client;
	uint16_t client_port, proxy_port;
	bool used;
	unsigned int data[2];   /* number of segments with data, by way */
	uint32_t changed_after; /* sequence number after the payload that became longer or shorter */
	int32_t grown;          /* bytes by which the payload grew; negative if it shrank */
};

static struct flow flows[FLOWS];
static uint32_t inside_address; /* the address behind the NAT */

static struct {
	uint8_t bytes[MAX_PACKET];
	size_t length;
	int64_t due;
	enum way way;
	int overtaken_by; /* number of segments that overtook it */
} held;

static struct flow *flow_of(enum way way, const struct segment *segment)
{
	const uint8_t *ports = segment->bytes + segment->ip;
	uint32_t client = get32(segment->bytes + (way == UP ? 12 : 16));
	uint16_t client_port = get16(ports + (way == UP ? 0 : 2)), proxy_port = get16(ports + (way == UP ? 2 : 0));
	uint32_t start = (client * 31 + client_port * 7 + proxy_port) % FLOWS;

	for (uint32_t i = 0; i < FLOWS; i++) {
		struct flow *flow = &flows[(start + i) % FLOWS];

		if (flow->used && (segment_flags(segment) & TCP_SYN) && way == UP && flow->client == client &&
		    flow->client_port == client_port && flow->proxy_port == proxy_port)
			memset(flow, 0, sizeof(*flow)); /* a new connection with the ports of an old one */
		if (!flow->used)
			*flow = (struct flow){ client, client_port, proxy_port, true, { 0, 0 }, 0, 0 };
		if (flow->client == client && flow->client_port == client_port && flow->proxy_port == proxy_port)
			return flow;
	}
	memset(flows, 0, sizeof(flows));
	return flow_of(way, segment);
}

static void send_on(struct segment *segment, emit_function emit)
{
	segment_finish(segment);
	emit(segment->bytes, segment_length(segment));
}

static void nothing(enum way way, struct segment *segment, int64_t now, emit_function emit)
{
	(void)way, (void)now;
	send_on(segment, emit);
}

static void nat(enum way way, struct segment *segment, int64_t now, emit_function emit)
{
	uint8_t *address = segment->bytes + (way == UP ? 12 : 16);
	uint8_t *port = segment->bytes + segment->ip + (way == UP ? 0 : 2);

	(void)now;
	if (way == UP) {
		inside_address = get32(address);
		put32(address, (inside_address & ~0xffu) | NAT_HOST);
	} else if (address[3] == NAT_HOST) {
		put32(address, inside_address);
	}
	put16(port, get16(port) ^ NAT_PORT);
	send_on(segment, emit);
}

static void remove_options(bool of_syn, bool nop, struct segment *segment, emit_function emit)
{
	bool syn = (segment_flags(segment) & TCP_SYN) != 0;

	if (of_syn ? syn : !syn && segment->payload > 0)
		segment_without_mptcp(segment, nop);
	send_on(segment, emit);
}

static void remove_syn(enum way way, struct segment *segment, int64_t now, emit_function emit)
{
	(void)way, (void)now;
	remove_options(true, false, segment, emit);
}

static void remove_data(enum way way, struct segment *segment, int64_t now, emit_function emit)
{
	(void)way, (void)now;
	remove_options(false, false, segment, emit);
}

static void nop_syn(enum way way, struct segment *segment, int64_t now, emit_function emit)
{
	(void)way, (void)now;
	remove_options(true, true, segment, emit);
}

static void nop_data(enum way way, struct segment *segment, int64_t now, emit_function emit)
{
	(void)way, (void)now;
	remove_options(false, true, segment, emit);
}

/* Adds a fixed number, without state, as in the paper. SACK blocks are not changed, as in such middleboxes. */
static void sequence(enum way way, struct segment *segment, int64_t now, emit_function emit)
{
	uint8_t *number = segment_sequence(segment), *acknowledged = segment_acknowledgment(segment);

	(void)now;
	put32(number, get32(number) + (way == UP ? ADDED_UP : ADDED_DOWN));
	if (segment_has_acknowledgment(segment))
		put32(acknowledged, get32(acknowledged) - (way == UP ? ADDED_DOWN : ADDED_UP));
	send_on(segment, emit);
}

enum options { OF_BOTH, OF_FIRST, OF_SECOND };

static void split(enum options options, struct segment *segment, emit_function emit)
{
	static uint8_t copy[MAX_PACKET];
	size_t half = segment->payload / 2, length = segment_length(segment);
	struct segment second = *segment;

	if (segment->payload < SMALLEST_SPLIT || (segment_flags(segment) & (TCP_SYN | TCP_RST))) {
		send_on(segment, emit);
		return;
	}
	memcpy(copy, segment->bytes, length);
	second.bytes = copy;
	second.payload -= half;
	memmove(segment_payload(&second), segment_payload(&second) + half, second.payload);
	put32(segment_sequence(&second), get32(segment_sequence(&second)) + (uint32_t)half);
	segment->payload = half;
	segment->bytes[segment->ip + 13] &= (uint8_t)~(TCP_FIN | TCP_PUSH);
	if (options == OF_SECOND)
		segment_without_extensions(segment);
	if (options == OF_FIRST)
		segment_without_extensions(&second);
	send_on(segment, emit);
	send_on(&second, emit);
}

static void split_both(enum way way, struct segment *segment, int64_t now, emit_function emit)
{
	(void)way, (void)now;
	split(OF_BOTH, segment, emit);
}

static void split_first(enum way way, struct segment *segment, int64_t now, emit_function emit)
{
	(void)way, (void)now;
	split(OF_FIRST, segment, emit);
}

static void split_second(enum way way, struct segment *segment, int64_t now, emit_function emit)
{
	(void)way, (void)now;
	split(OF_SECOND, segment, emit);
}

/* The unlikely case of the paper's Figure 4: in each direction, only the second segment with data is split. */
static void split_second_later(enum way way, struct segment *segment, int64_t now, emit_function emit)
{
	(void)now;
	if (segment->payload > 0 && ++flow_of(way, segment)->data[way] == 2)
		split(OF_SECOND, segment, emit);
	else
		send_on(segment, emit);
}

static void send_held(emit_function emit)
{
	size_t length = held.length;

	held.length = 0;
	if (length > 0)
		emit(held.bytes, length);
}

static void hold(enum way way, struct segment *segment, int64_t now)
{
	segment_finish(segment);
	held.length = segment_length(segment);
	memcpy(held.bytes, segment->bytes, held.length);
	held.due = now + HOLD_NANOSECONDS;
	held.way = way;
	held.overtaken_by = 0;
}

static bool follows(enum way way, const struct segment *first, const struct segment *second)
{
	return memcmp(first->bytes + 12, second->bytes + 12, 8) == 0 &&
	       memcmp(first->bytes + first->ip, second->bytes + second->ip, 4) == 0 &&
	       get32(segment_sequence(first)) + first->payload == get32(segment_sequence(second)) &&
	       segment_length(first) + second->payload <= max_bytes[way];
}

/* Combines two consecutive segments to one segment, with the options of the first. */
static void coalesce(enum way way, struct segment *segment, int64_t now, emit_function emit)
{
	struct segment first;
	bool plain = segment->payload > 0 && !(segment_flags(segment) & (TCP_SYN | TCP_FIN | TCP_RST));

	if (plain && held.length > 0 && held.way == way && segment_read(&first, held.bytes, held.length) &&
	    follows(way, &first, segment)) {
		memcpy(segment_payload(&first) + first.payload, segment_payload(segment), segment->payload);
		first.payload += segment->payload;
		memcpy(segment_acknowledgment(&first), segment_acknowledgment(segment), 4);
		held.length = 0;
		send_on(&first, emit);
		return;
	}
	send_held(emit);
	if (plain)
		hold(way, segment, now);
	else
		send_on(segment, emit);
}

/* Translates like a NAT's helper for FTP: an address in the client's payload is replaced by the outside address, which
 * is longer or shorter, and the later sequence numbers are shifted. */
static void translate(const char *from, const char *to, enum way way, struct segment *segment, emit_function emit)
{
	struct flow *flow = flow_of(way, segment);
	size_t old = strlen(from), new = strlen(to);
	uint8_t *number = segment_sequence(segment), *data = segment_payload(segment), *found;

	if (way == DOWN) {
		uint8_t *acknowledged = segment_acknowledgment(segment);

		if (flow->grown != 0 &&
		    (int32_t)(get32(acknowledged) - (flow->changed_after + (uint32_t)flow->grown)) >= 0)
			put32(acknowledged, get32(acknowledged) - (uint32_t)flow->grown);
		send_on(segment, emit);
		return;
	}
	found = memmem(data, segment->payload, from, old);
	if (found != NULL && segment_length(segment) + new - old <= MAX_PACKET &&
	    (flow->grown == 0 || get32(number) + segment->payload == flow->changed_after)) {
		flow->changed_after = get32(number) + (uint32_t)segment->payload;
		flow->grown = (int32_t)new - (int32_t)old;
		memmove(found + new, found + old, (size_t)(data + segment->payload - (found + old)));
		memcpy(found, to, new);
		segment->payload += new - old;
	} else if (flow->grown != 0 && (int32_t)(get32(number) - flow->changed_after) >= 0) {
		put32(number, get32(number) + (uint32_t)flow->grown);
	}
	send_on(segment, emit);
}

static void alg_longer(enum way way, struct segment *segment, int64_t now, emit_function emit)
{
	(void)now;
	translate(SHORT_ADDRESS, LONG_ADDRESS, way, segment, emit);
}

static void alg_shorter(enum way way, struct segment *segment, int64_t now, emit_function emit)
{
	(void)now;
	translate(LONG_ADDRESS, SHORT_ADDRESS, way, segment, emit);
}

static void duplicate(enum way way, struct segment *segment, int64_t now, emit_function emit)
{
	(void)way, (void)now;
	send_on(segment, emit);
	emit(segment->bytes, segment_length(segment));
}

static void reorder(enum way way, struct segment *segment, int64_t now, emit_function emit)
{
	if (held.length == 0 && segment->payload > 0 && ++flow_of(way, segment)->data[way] % REORDERED == 0) {
		hold(way, segment, now);
		return;
	}
	send_on(segment, emit);
	if (held.length > 0 && held.way == way && ++held.overtaken_by == OVERTAKEN)
		send_held(emit);
}

static const struct {
	const char *name;
	void (*apply)(enum way way, struct segment *segment, int64_t now, emit_function emit);
} behaviours[] = {
	{ "nothing", nothing },
	{ "nat", nat },
	{ "remove-syn", remove_syn },
	{ "remove-data", remove_data },
	{ "nop-syn", nop_syn },
	{ "nop-data", nop_data },
	{ "sequence", sequence },
	{ "split-both", split_both },
	{ "split-first", split_first },
	{ "split-second", split_second },
	{ "split-second-later", split_second_later },
	{ "coalesce", coalesce },
	{ "alg-longer", alg_longer },
	{ "alg-shorter", alg_shorter },
	{ "duplicate", duplicate },
	{ "reorder", reorder },
};

#define BEHAVIOURS (sizeof(behaviours) / sizeof(behaviours[0]))

static size_t chosen;
static unsigned long changed;

/* The current packet; the function that gets the results; number of results, and of results equal to the packet. */
static uint8_t original[MAX_PACKET];
static size_t original_length;
static emit_function emit_result;
static unsigned int results, same_results;

bool behaviour_choose(const char *name)
{
	for (chosen = 0; chosen < BEHAVIOURS; chosen++)
		if (strcmp(behaviours[chosen].name, name) == 0)
			return true;
	chosen = 0;
	return false;
}

const char *const *behaviour_names(void)
{
	static const char *names[BEHAVIOURS + 1];

	for (size_t i = 0; i < BEHAVIOURS; i++)
		names[i] = behaviours[i].name;
	return names;
}

static void emit_counted(const uint8_t *packet, size_t length)
{
	results++;
	if (length == original_length && memcmp(packet, original, length) == 0)
		same_results++;
	emit_result(packet, length);
}

void behaviour_apply(enum way way, const uint8_t *packet, size_t length, int64_t now, emit_function emit)
{
	static uint8_t bytes[2 * MAX_PACKET];
	struct segment segment;

	emit_result = emit;
	results = same_results = 0;
	if (length <= MAX_PACKET) {
		memcpy(original, packet, length);
		memcpy(bytes, packet, length);
		original_length = length;
		if (segment_read(&segment, original, length)) {
			/* A checksum of zero has two forms (RFC 1624). Write it in our form, for the comparison. */
			segment_finish(&segment);
			original_length = segment_length(&segment);
			segment_read(&segment, bytes, length);
			behaviours[chosen].apply(way, &segment, now, emit_counted);
		} else {
			emit_counted(packet, length);
		}
	}
	if (results != 1 || same_results != 1)
		changed++;
}

unsigned long behaviour_changed(void)
{
	return changed;
}

int64_t behaviour_due(void)
{
	return held.length > 0 ? held.due : INT64_MAX;
}

void behaviour_release(int64_t now, emit_function emit)
{
	if (held.length > 0 && now >= held.due)
		send_held(emit);
}
