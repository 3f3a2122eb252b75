/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * middlebox: changes the TCP segments that a router forwards, as middleboxes do (behaviours.h).
 *
 *     middlebox BEHAVIOUR QUEUE-UP QUEUE-DOWN
 *
 * The kernel puts each forwarded IPv4 packet with TCP, with all its data, into one of two NFQUEUEs
 * (iptables-extensions(8)), and drops the packet when it has been read. The middlebox sends its packets by a raw socket
 * (raw(7)). They pass the hook OUTPUT, where an emulator of delays can receive them. The program prints "ready" when
 * the queues are bound. SIGTERM ends it; it then prints "changed N": N packets did not leave unchanged.
 */

#define _GNU_SOURCE

#include "behaviours.h"

#include <arpa/inet.h>
#include <errno.h>
#include <libmnl/libmnl.h>
#include <libnetfilter_queue/libnetfilter_queue.h>
#include <linux/netfilter.h>
#include <linux/netfilter/nfnetlink_queue.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdalign.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#define NANOSECONDS 1000000000
#define QUEUE_LENGTH 16384
#define RECEIVE_BUFFER (64 << 20)
#define MESSAGE (MAX_PACKET + 4096)

static struct mnl_socket *channel;
static int raw;
static uint16_t queues[2]; /* by way */
static volatile sig_atomic_t ending;
static unsigned long unsent;

static void request_end(int number)
{
	(void)number;
	ending = 1;
}

static bool report_error(const char *attempt)
{
	fprintf(stderr, "middlebox: %s: %s\n", attempt, strerror(errno));
	return false;
}

static int64_t now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (int64_t)time.tv_sec * NANOSECONDS + time.tv_nsec;
}

static void emit(const uint8_t *packet, size_t length)
{
	struct sockaddr_in to = { .sin_family = AF_INET };

	memcpy(&to.sin_addr, packet + 16, 4);
	if (sendto(raw, packet, length, 0, (struct sockaddr *)&to, sizeof(to)) < 0 && unsent++ == 0)
		report_error("send a packet (reported once)");
}

static bool configure(struct nlmsghdr *message, const char *attempt)
{
	alignas(8) char answer[4096];
	const struct nlmsghdr *reply = (const struct nlmsghdr *)answer;
	ssize_t length;

	message->nlmsg_flags |= NLM_F_ACK;
	if (mnl_socket_sendto(channel, message, message->nlmsg_len) < 0)
		return report_error(attempt);
	length = mnl_socket_recvfrom(channel, answer, sizeof(answer));
	if (length < 0 || !mnl_nlmsg_ok(reply, (int)length) || reply->nlmsg_type != NLMSG_ERROR)
		return report_error(attempt);
	errno = -((const struct nlmsgerr *)mnl_nlmsg_get_payload(reply))->error;
	return errno == 0 || report_error(attempt);
}

static bool bind_queue(uint16_t queue)
{
	alignas(8) char buffer[1024];
	struct nlmsghdr *message = nfq_nlmsg_put(buffer, NFQNL_MSG_CONFIG, queue);

	nfq_nlmsg_cfg_put_cmd(message, AF_UNSPEC, NFQNL_CFG_CMD_BIND);
	if (!configure(message, "bind a queue"))
		return false;
	message = nfq_nlmsg_put(buffer, NFQNL_MSG_CONFIG, queue);
	nfq_nlmsg_cfg_put_params(message, NFQNL_COPY_PACKET, MAX_PACKET);
	nfq_nlmsg_cfg_put_qmaxlen(message, QUEUE_LENGTH);
	return configure(message, "set up a queue");
}

static bool drop(uint16_t queue, uint32_t id)
{
	alignas(8) char buffer[256];
	struct nlmsghdr *message = nfq_nlmsg_put(buffer, NFQNL_MSG_VERDICT, queue);

	nfq_nlmsg_verdict_put(message, (int)id, NF_DROP);
	return mnl_socket_sendto(channel, message, message->nlmsg_len) >= 0 || report_error("give a verdict");
}

static int packet_arrived(const struct nlmsghdr *message, void *context)
{
	struct nlattr *attributes[NFQA_MAX + 1] = { NULL };
	const struct nfqnl_msg_packet_hdr *header;
	const struct nfgenmsg *family = mnl_nlmsg_get_payload(message);
	uint16_t queue = ntohs(family->res_id);

	(void)context;
	if (nfq_nlmsg_parse(message, attributes) < 0 || attributes[NFQA_PACKET_HDR] == NULL)
		return MNL_CB_ERROR;
	header = mnl_attr_get_payload(attributes[NFQA_PACKET_HDR]);
	if (!drop(queue, ntohl(header->packet_id)))
		return MNL_CB_ERROR;
	if (attributes[NFQA_PAYLOAD] != NULL)
		behaviour_apply(queue == queues[UP] ? UP : DOWN, mnl_attr_get_payload(attributes[NFQA_PAYLOAD]),
				mnl_attr_get_payload_len(attributes[NFQA_PAYLOAD]), now(), emit);
	return MNL_CB_OK;
}

static bool serve(const sigset_t *signals)
{
	static alignas(8) char incoming[MESSAGE];
	struct pollfd readable = { .fd = mnl_socket_get_fd(channel), .events = POLLIN };

	while (!ending) {
		int64_t time = now(), due;
		struct timespec timeout;
		ssize_t length;

		behaviour_release(time, emit);
		due = behaviour_due();
		if (due != INT64_MAX) {
			due = due > time ? due - time : 0;
			timeout.tv_sec = due / NANOSECONDS;
			timeout.tv_nsec = due % NANOSECONDS;
		}
		if (ppoll(&readable, 1, behaviour_due() == INT64_MAX ? NULL : &timeout, signals) < 0) {
			if (errno == EINTR)
				continue;
			return report_error("wait");
		}
		if (readable.revents == 0)
			continue;
		length = mnl_socket_recvfrom(channel, incoming, sizeof(incoming));
		if (length < 0 && (errno == ENOBUFS || errno == EINTR))
			continue;
		/* ENOENT: the kernel itself has dropped a packet before its verdict, because a device went down. */
		if (length < 0 || (mnl_cb_run(incoming, (size_t)length, 0, 0, packet_arrived, NULL) < 0 && errno != ENOENT))
			return report_error("receive");
	}
	return true;
}

static bool read_queue(const char *text, uint16_t *queue)
{
	char *rest;
	unsigned long number = strtoul(text, &rest, 10);

	*queue = (uint16_t)number;
	return *text != '\0' && *rest == '\0' && number <= UINT16_MAX;
}

int main(int argc, char **argv)
{
	struct sigaction action = { .sa_handler = request_end };
	const int size = RECEIVE_BUFFER;
	sigset_t blocked, signals;

	if (argc != 4 || !read_queue(argv[2], &queues[UP]) || !read_queue(argv[3], &queues[DOWN])) {
		fprintf(stderr, "usage: middlebox BEHAVIOUR QUEUE-UP QUEUE-DOWN\n");
		return EXIT_FAILURE;
	}
	if (!behaviour_choose(argv[1])) {
		fprintf(stderr, "middlebox: no behaviour is called '%s'; there are:", argv[1]);
		for (const char *const *name = behaviour_names(); *name != NULL; name++)
			fprintf(stderr, " %s", *name);
		fputc('\n', stderr);
		return EXIT_FAILURE;
	}
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGTERM);
	sigprocmask(SIG_BLOCK, &blocked, &signals);
	sigaction(SIGTERM, &action, NULL);
	raw = socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_RAW);
	if (raw < 0 || setsockopt(raw, SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof(size)) != 0)
		return report_error("open a raw socket"), EXIT_FAILURE;
	channel = mnl_socket_open2(NETLINK_NETFILTER, SOCK_CLOEXEC);
	if (channel == NULL || mnl_socket_bind(channel, 0, MNL_SOCKET_AUTOPID) < 0 ||
	    setsockopt(mnl_socket_get_fd(channel), SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof(size)) != 0)
		return report_error("open a netfilter socket"), EXIT_FAILURE;
	if (!bind_queue(queues[UP]) || !bind_queue(queues[DOWN]))
		return EXIT_FAILURE;
	puts("ready");
	fflush(stdout);
	if (!serve(&signals))
		return EXIT_FAILURE;
	printf("changed %lu\n", behaviour_changed());
	return EXIT_SUCCESS;
}
