/* SPDX-License-Identifier: GPL-2.0-or-later */

#define _GNU_SOURCE

#include "queues.h"

#include <arpa/inet.h>
#include <errno.h>
#include <libmnl/libmnl.h>
#include <libnetfilter_queue/libnetfilter_queue.h>
#include <linux/netfilter.h>
#include <linux/netfilter/nfnetlink_queue.h>
#include <stdalign.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#define BATCH 64
#define MESSAGE 1024             /* bytes per message; a packet's metadata take about 200 */
#define VERDICT 64               /* maximum bytes of a verdict; headers and one attribute take 28 */
#define RECEIVE_BUFFER (64 << 20) /* bytes; each message takes about 1 KB of it */

static struct mnl_socket *channel;
static alignas(8) char incoming[BATCH][MESSAGE];
static alignas(8) char outgoing[BATCH * VERDICT];
static size_t outgoing_length;
static bool failed;

static bool report_error(const char *attempt)
{
	fprintf(stderr, "emulator: %s: %s\n", attempt, strerror(errno));
	failed = true;
	return false;
}

bool queues_open(void)
{
	const int size = RECEIVE_BUFFER;

	channel = mnl_socket_open2(NETLINK_NETFILTER, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (channel == NULL || mnl_socket_bind(channel, 0, MNL_SOCKET_AUTOPID) < 0)
		return report_error("open a netfilter socket");
	if (setsockopt(queues_descriptor(), SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof(size)) != 0)
		return report_error("set the size of the socket's buffer");
	return true;
}

void queues_close(void)
{
	mnl_socket_close(channel);
}

int queues_descriptor(void)
{
	return mnl_socket_get_fd(channel);
}

/* Sends a request and waits for the kernel's acknowledgement. */
static bool configure(struct nlmsghdr *message, const char *attempt)
{
	alignas(8) char answer[4096];
	const struct nlmsghdr *reply = (const struct nlmsghdr *)answer;
	const struct nlmsgerr *error;
	ssize_t length;

	message->nlmsg_flags |= NLM_F_ACK;
	if (mnl_socket_sendto(channel, message, message->nlmsg_len) < 0)
		return report_error(attempt);
	/* The answer exists as soon as the request has been sent, because netlink is synchronous. There is no other
	 * message, because packets are sent to the queues only after "ready". */
	length = recv(queues_descriptor(), answer, sizeof(answer), 0);
	if (length < 0)
		return report_error(attempt);
	if (!mnl_nlmsg_ok(reply, (int)length) || reply->nlmsg_type != NLMSG_ERROR) {
		errno = EPROTO;
		return report_error(attempt);
	}
	error = mnl_nlmsg_get_payload(reply);
	errno = -error->error;
	return errno == 0 || report_error(attempt);
}

bool queues_bind(uint16_t queue)
{
	alignas(8) char buffer[VERDICT * 4];
	struct nlmsghdr *message;

	message = nfq_nlmsg_put(buffer, NFQNL_MSG_CONFIG, queue);
	nfq_nlmsg_cfg_put_cmd(message, AF_UNSPEC, NFQNL_CFG_CMD_BIND);
	if (!configure(message, "bind a queue"))
		return false;
	message = nfq_nlmsg_put(buffer, NFQNL_MSG_CONFIG, queue);
	nfq_nlmsg_cfg_put_params(message, NFQNL_COPY_META, 0);
	nfq_nlmsg_cfg_put_qmaxlen(message, QUEUE_LENGTH);
	return configure(message, "set up a queue");
}

static bool handle_messages(const struct nlmsghdr *message, int length, int64_t time,
		     void (*arrived)(uint16_t, uint32_t, int64_t))
{
	for (; mnl_nlmsg_ok(message, length); message = mnl_nlmsg_next(message, &length)) {
		struct nlattr *attributes[NFQA_MAX + 1] = { NULL };
		const struct nfqnl_msg_packet_hdr *header;
		const struct nfgenmsg *family;

		if (message->nlmsg_type == NLMSG_ERROR) {
			const struct nlmsgerr *error = mnl_nlmsg_get_payload(message);

			/* ENOENT: the kernel itself has dropped the packet, for example because a device went down. */
			errno = -error->error;
			if (errno != ENOENT)
				return report_error("give a verdict");
			continue;
		}
		if (nfq_nlmsg_parse(message, attributes) < 0 || attributes[NFQA_PACKET_HDR] == NULL)
			return report_error("read a packet's metadata");
		family = mnl_nlmsg_get_payload(message);
		header = mnl_attr_get_payload(attributes[NFQA_PACKET_HDR]);
		arrived(ntohs(family->res_id), ntohl(header->packet_id), time);
	}
	return true;
}

bool queues_receive(void (*arrived)(uint16_t queue, uint32_t id, int64_t time), int64_t time)
{
	struct mmsghdr headers[BATCH];
	struct iovec vectors[BATCH];
	int count;

	memset(headers, 0, sizeof(headers));
	for (int i = 0; i < BATCH; i++) {
		vectors[i] = (struct iovec){ .iov_base = incoming[i], .iov_len = MESSAGE };
		headers[i].msg_hdr.msg_iov = &vectors[i];
		headers[i].msg_hdr.msg_iovlen = 1;
	}
	count = recvmmsg(queues_descriptor(), headers, BATCH, MSG_DONTWAIT, NULL);
	/* ENOBUFS: the kernel reports once that it dropped packets that did not fit. It has counted them. */
	if (count < 0 && errno != EAGAIN && errno != EINTR && errno != ENOBUFS)
		return report_error("receive");
	for (int i = 0; i < count; i++) {
		if (headers[i].msg_hdr.msg_flags & MSG_TRUNC) {
			errno = EMSGSIZE;
			return report_error("receive");
		}
		if (!handle_messages((const struct nlmsghdr *)incoming[i], (int)headers[i].msg_len, time, arrived))
			return false;
	}
	return !failed;
}

static void add_verdict(int type, uint16_t queue, uint32_t id, int verdict)
{
	struct nlmsghdr *message;

	if (outgoing_length + VERDICT > sizeof(outgoing) && !queues_flush())
		return;
	message = nfq_nlmsg_put(outgoing + outgoing_length, type, queue);
	nfq_nlmsg_verdict_put(message, (int)id, verdict);
	outgoing_length += message->nlmsg_len; /* a multiple of 4, because an attribute is last */
}

void queues_drop(uint16_t queue, uint32_t id)
{
	add_verdict(NFQNL_MSG_VERDICT, queue, id, NF_DROP);
}

void queues_accept_up_to(uint16_t queue, uint32_t id)
{
	add_verdict(NFQNL_MSG_VERDICT_BATCH, queue, id, NF_ACCEPT);
}

bool queues_flush(void)
{
	size_t length = outgoing_length;

	if (failed)
		return false;
	outgoing_length = 0;
	if (length > 0 && mnl_socket_sendto(channel, outgoing, length) < 0)
		return report_error("send verdicts");
	return true;
}
