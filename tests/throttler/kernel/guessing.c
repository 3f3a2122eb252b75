/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * An attacker on a client's path: it guesses the HMACs of joins. It runs in its own network namespace.
 *
 * Arguments: the device, a file of SYNs, and the number of SYNs to send per second. In the file, each frame follows its
 * length in 16 bits. The program sees the proxy's SYN/ACK to each SYN, and answers the SYN/ACK with the right acknowledgment
 * number and a wrong HMAC (RFC 8684, section 3.2). It exits at the first failure.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

enum {
	BATCH = 64,
	MAX_SYNS = 65536,
	MAX_FRAME = 2048,
	BUFFER = 1 << 24,
	PROXY_PORT = 3128,
	/* Offsets in a frame of IPv4 without options. GUESS is the size of the frame of a third ACK. */
	IP = ETH_HLEN,
	TCP = IP + 20,
	OPTION = TCP + 20,
	GUESS = OPTION + 24,
	FLAGS = TCP + 13,
	SYN_ACK = 0x12,
};

struct batch {
	struct mmsghdr messages[BATCH];
	struct iovec iovecs[BATCH];
	uint8_t frames[BATCH][MAX_FRAME];
};

static struct iovec syns[MAX_SYNS];
static struct batch received, guesses;

static void fail(const char *operation)
{
	perror(operation);
	exit(1);
}

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static size_t read_syns(const char *path)
{
	FILE *file = fopen(path, "rb");
	uint8_t length[2];
	size_t count = 0;

	if (file == NULL)
		fail(path);
	for (; count < MAX_SYNS && fread(length, sizeof(length), 1, file) == 1; count++) {
		size_t size = (size_t)length[0] << 8 | length[1];
		void *frame = malloc(size);

		if (frame == NULL || fread(frame, size, 1, file) != 1)
			fail(path);
		syns[count] = (struct iovec){.iov_base = frame, .iov_len = size};
	}
	fclose(file);
	return count;
}

static uint32_t word_sum(const uint8_t *data, size_t size)
{
	uint32_t total = 0;

	for (size_t at = 0; at < size; at += 2)
		total += (uint32_t)data[at] << 8 | data[at + 1];
	return total;
}

static void put_checksum(uint8_t *field, uint32_t total)
{
	while (total >> 16)
		total = (total & 0xffff) + (total >> 16);
	field[0] = (uint8_t)(~total >> 8);
	field[1] = (uint8_t)~total;
}

/* Write to *ack* the third ACK for *answer*, a SYN/ACK of the proxy. */
static void write_guess(const uint8_t *answer, uint8_t *ack)
{
	/* IP: version, header size, length, don't fragment, 64 hops, TCP. TCP: header of eleven words, ACK, window. */
	static const uint8_t ip[] = {0x45, 0, 0, GUESS - IP, 0, 0, 0x40, 0, 64, IPPROTO_TCP};
	static const uint8_t header[] = {0xb0, 0x10, 0xff, 0xff};
	/* Kind, size, subtype. The 160 bits of the HMAC stay zero, which is wrong. */
	static const uint8_t option[] = {30, 24, 0x10};
	uint32_t sequence;

	memset(ack, 0, GUESS);
	memcpy(ack, answer + ETH_ALEN, ETH_ALEN);
	memcpy(ack + ETH_ALEN, answer, ETH_ALEN);
	memcpy(ack + IP - 2, answer + IP - 2, 2);
	memcpy(ack + IP, ip, sizeof(ip));
	memcpy(ack + IP + 12, answer + IP + 16, 4);
	memcpy(ack + IP + 16, answer + IP + 12, 4);
	put_checksum(ack + IP + 10, word_sum(ack + IP, 20));
	memcpy(ack + TCP, answer + TCP + 2, 2);
	memcpy(ack + TCP + 2, answer + TCP, 2);
	memcpy(ack + TCP + 4, answer + TCP + 8, 4);
	memcpy(&sequence, answer + TCP + 4, 4);
	sequence = htonl(ntohl(sequence) + 1);
	memcpy(ack + TCP + 8, &sequence, 4);
	memcpy(ack + TCP + 12, header, sizeof(header));
	memcpy(ack + OPTION, option, sizeof(option));
	put_checksum(ack + TCP + 16, word_sum(ack + IP + 12, GUESS - IP - 12) + IPPROTO_TCP + GUESS - TCP);
}

static void prepare(struct batch *batch, size_t size)
{
	for (size_t at = 0; at < BATCH; at++) {
		batch->iovecs[at] = (struct iovec){.iov_base = batch->frames[at], .iov_len = size};
		batch->messages[at].msg_hdr = (struct msghdr){.msg_iov = &batch->iovecs[at], .msg_iovlen = 1};
	}
}

/* Send *messages*, and return how many of them the kernel accepted: fewer if its queue is full. */
static unsigned int send_messages(int raw, struct mmsghdr *messages, unsigned int count)
{
	int sent_count = count ? sendmmsg(raw, messages, count, 0) : 0;

	if (sent_count < 0 && errno != EAGAIN && errno != ENOBUFS)
		fail("send");
	return sent_count < 0 ? 0 : (unsigned int)sent_count;
}

static unsigned int send_syns(int raw, size_t count, uint64_t next, unsigned int batch_count)
{
	struct mmsghdr messages[BATCH] = {0};

	for (unsigned int at = 0; at < batch_count; at++)
		messages[at].msg_hdr = (struct msghdr){.msg_iov = &syns[(next + at) % count], .msg_iovlen = 1};
	return send_messages(raw, messages, batch_count);
}

/* Answer up to BATCH of the received frames. Return their number, or -1 if there are none. */
static int answer_frames(int raw)
{
	int received_count = recvmmsg(raw, received.messages, BATCH, MSG_DONTWAIT, NULL);

	if (received_count < 0 && errno != EAGAIN && errno != EINTR)
		fail("receive");
	for (int at = 0; at < received_count; at++)
		write_guess(received.frames[at], guesses.frames[at]);
	send_messages(raw, guesses.messages, received_count > 0 ? (unsigned int)received_count : 0);
	return received_count;
}

/* Let the socket receive only the proxy's SYN/ACKs over IPv4, not its resets after each guess. */
static void filter(int raw)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_H | BPF_ABS, IP - 2),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ETH_P_IP, 0, 10),
		BPF_STMT(BPF_LD | BPF_B | BPF_ABS, IP),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0x45, 0, 8),
		BPF_STMT(BPF_LD | BPF_B | BPF_ABS, IP + 9),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, IPPROTO_TCP, 0, 6),
		BPF_STMT(BPF_LD | BPF_H | BPF_ABS, TCP),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, PROXY_PORT, 0, 4),
		BPF_STMT(BPF_LD | BPF_B | BPF_ABS, FLAGS),
		BPF_STMT(BPF_ALU | BPF_AND | BPF_K, SYN_ACK),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYN_ACK, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, MAX_FRAME),
		BPF_STMT(BPF_RET | BPF_K, 0),
	};
	struct sock_fprog program = {.len = sizeof(code) / sizeof(code[0]), .filter = code};

	if (setsockopt(raw, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)) < 0)
		fail("filter");
}

static int open_device(const char *name)
{
	struct sockaddr_ll device = {
		.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL), .sll_ifindex = (int)if_nametoindex(name)};
	int raw = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0), on = 1, size = BUFFER;

	if (raw < 0)
		fail("socket");
	filter(raw);
	if (setsockopt(raw, SOL_PACKET, PACKET_IGNORE_OUTGOING, &on, sizeof(on)) < 0 ||
	    setsockopt(raw, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof(size)) < 0 ||
	    bind(raw, (struct sockaddr *)&device, sizeof(device)) < 0)
		fail(name);
	return raw;
}

int main(int argc, char **argv)
{
	double begin, rate;
	uint64_t sent_count = 0;
	size_t count;
	int raw;

	if (argc != 4 || (rate = atof(argv[3])) <= 0 || (count = read_syns(argv[2])) == 0) {
		fprintf(stderr, "usage: %s DEVICE SYNS PER_SECOND\n", argv[0]);
		return 1;
	}
	raw = open_device(argv[1]);
	prepare(&received, MAX_FRAME);
	prepare(&guesses, GUESS);
	begin = now();
	for (;;) {
		uint64_t due = (uint64_t)((now() - begin) * rate) - sent_count;
		unsigned int batch_count = due < BATCH ? (unsigned int)due : BATCH;
		int received_count = answer_frames(raw);

		/* Answers come first, because the proxy's queue of unfinished handshakes is limited. */
		if (received_count < BATCH)
			sent_count += send_syns(raw, count, sent_count, batch_count);
		if (received_count <= 0 && batch_count == 0)
			poll(&(struct pollfd){.fd = raw, .events = POLLIN}, 1, 1);
	}
}
