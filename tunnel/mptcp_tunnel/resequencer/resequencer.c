// SPDX-License-Identifier: GPL-2.0-or-later
/* resequencer QUEUE: releases packets of a netfilter queue in the order of their numbers (IPv4's identification, or the
 * lower 16 bits of IPv6's flow label). Each UDP flow has its own order. A line "ADDRESS PORT MICROSECONDS" on stdin
 * names a tunnel's far end, and how long its packets may be held. The program ends when stdin ends. The kernel's side
 * is nfnetlink_queue (linux/netfilter/nfnetlink_queue.h). */
#include "order.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/netfilter.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netfilter/nfnetlink_queue.h>
#include <linux/netlink.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define FLOWS 2048
#define BUCKETS 4096
#define BATCH 64
#define MESSAGE_BYTES 512 /* the kernel copies only the headers */
#define HEADER_BYTES 64
#define MAX_QUEUED 4096 /* packets that wait for a verdict */
/* Pause after a batch, ns, in which packets accumulate, because a wake-up costs more than a packet. It exceeds 2 ms, so
 * that the acknowledgements of a download do not look like one train, which ends the slow start of cubic (tcp_cubic.c)
 * before the download uses the second path. */
#define PAUSE 3000000ULL
#define BURST 16 /* after more packets, the pause is PAUSE / 3, because the receiver's buffer must hold all of them */
#define UNORDERED 0 /* number of a packet that is never held (kernel/programs/tunnel.h) */
#define HOLD_TIME 50000000ULL /* ns that packets of a tunnel without a line on stdin are held */

struct end {
    uint8_t address[16]; /* IPv4 mapped into IPv6 */
    uint16_t port; /* network order */
};

struct flow {
    struct end end; /* the far end */
    struct flow *next; /* next flow in the same bucket */
    bool holds; /* this flow is in holding[] */
    struct order order;
};

static struct flow *buckets[BUCKETS];
static unsigned flow_count;
static struct flow *holding[FLOWS]; /* flows with held packets */
static unsigned holding_count;
static int netlink;
static uint16_t queue;

/* A batch of verdicts. */
static char verdicts[BATCH * 64];
static size_t verdict_bytes;

static uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void fail(const char *action)
{
    perror(action);
    exit(1);
}

static void flush_verdicts(void)
{
    if (verdict_bytes && send(netlink, verdicts, verdict_bytes, 0) < 0 && errno != EAGAIN)
        fail("send verdicts");
    verdict_bytes = 0;
}

static void append_attribute(struct nlmsghdr *message, uint16_t type, const void *data, size_t bytes)
{
    struct nlattr *attribute = (void *)((char *)message + NLMSG_ALIGN(message->nlmsg_len));

    attribute->nla_type = type;
    attribute->nla_len = (uint16_t)(NLA_HDRLEN + bytes);
    memcpy((char *)attribute + NLA_HDRLEN, data, bytes);
    message->nlmsg_len = (uint32_t)(NLMSG_ALIGN(message->nlmsg_len) + NLA_ALIGN(attribute->nla_len));
}

static struct nlmsghdr *begin_message(void *buffer, uint16_t type, uint16_t flags)
{
    struct nlmsghdr *message = buffer;
    struct nfgenmsg *header;

    memset(buffer, 0, NLMSG_SPACE(sizeof(*header)));
    message->nlmsg_len = NLMSG_LENGTH(sizeof(*header));
    message->nlmsg_type = (uint16_t)(NFNL_SUBSYS_QUEUE << 8 | type);
    message->nlmsg_flags = (uint16_t)(NLM_F_REQUEST | flags);
    header = NLMSG_DATA(message);
    header->nfgen_family = AF_UNSPEC;
    header->version = NFNETLINK_V0;
    header->res_id = htons(queue);
    return message;
}

static void release_packet(void *context, uint32_t packet)
{
    struct nfqnl_msg_verdict_hdr verdict = {.verdict = htonl(NF_ACCEPT), .id = htonl(packet)};
    struct nlmsghdr *message;

    (void)context;
    if (verdict_bytes + 64 > sizeof(verdicts))
        flush_verdicts();
    message = begin_message(verdicts + verdict_bytes, NFQNL_MSG_VERDICT, 0);
    append_attribute(message, NFQA_VERDICT_HDR, &verdict, sizeof(verdict));
    verdict_bytes += NLMSG_ALIGN(message->nlmsg_len);
}

/* Return the flow with that far end; NULL if it is new and the table is full. */
static struct flow *flow_of(const struct end *end)
{
    uint32_t hash = end->port;
    struct flow **bucket, *flow;

    for (unsigned each = 0; each < sizeof(end->address); each++)
        hash = hash * 31 + end->address[each];
    bucket = &buckets[hash % BUCKETS];
    for (flow = *bucket; flow; flow = flow->next)
        if (flow->end.port == end->port && !memcmp(flow->end.address, end->address, sizeof(end->address)))
            return flow;
    if (flow_count == FLOWS || !(flow = calloc(1, sizeof(*flow))))
        return NULL;
    flow_count++;
    flow->end = *end;
    flow->next = *bucket;
    order_begin(&flow->order, HOLD_TIME);
    return *bucket = flow;
}

/* Set the address of an end to an IPv4 address, mapped into IPv6. */
static void map_address(struct end *end, const void *address)
{
    memset(end->address, 0, 10);
    memset(end->address + 10, 0xff, 2);
    memcpy(end->address + 12, address, 4);
}

/* Return a UDP packet's number, and set *source; return UNORDERED for any other packet. */
static uint16_t number_of(const uint8_t *packet, size_t bytes, struct end *source)
{
    if (bytes >= 28 && packet[0] == 0x45 && packet[9] == IPPROTO_UDP) {
        map_address(source, packet + 12);
        memcpy(&source->port, packet + 20, 2);
        return (uint16_t)(packet[4] << 8 | packet[5]);
    }
    if (bytes >= 48 && packet[0] >> 4 == 6 && packet[6] == IPPROTO_UDP) {
        memcpy(source->address, packet + 8, 16);
        memcpy(&source->port, packet + 40, 2);
        return (uint16_t)(packet[2] << 8 | packet[3]);
    }
    return UNORDERED;
}

/* Release the packets of all flows that were held long enough; return when to call again, 0 if none is held. */
static uint64_t expire_all(uint64_t now)
{
    uint64_t deadline = 0;

    for (unsigned each = 0; each < holding_count;) {
        uint64_t next = order_expire(&holding[each]->order, now, release_packet, NULL);

        if (!next) {
            holding[each]->holds = false;
            holding[each] = holding[--holding_count];
            continue;
        }
        if (!deadline || next < deadline)
            deadline = next;
        each++;
    }
    return deadline;
}

/* Pass a packet of the queue to its flow's order, or release it if it has no order. */
static void process_packet(const struct nlmsghdr *message, uint64_t now)
{
    const struct nlattr *attribute = (const void *)((const char *)NLMSG_DATA(message) + NLMSG_ALIGN(sizeof(struct nfgenmsg)));
    int remaining = (int)message->nlmsg_len - (int)NLMSG_SPACE(sizeof(struct nfgenmsg));
    const struct nfqnl_msg_packet_hdr *header = NULL;
    const uint8_t *packet = NULL;
    uint32_t mark = 0;
    size_t bytes = 0;
    uint16_t number;
    struct end source;
    struct flow *flow;

    while (remaining >= (int)NLA_HDRLEN && attribute->nla_len >= NLA_HDRLEN && attribute->nla_len <= remaining) {
        const void *data = (const char *)attribute + NLA_HDRLEN;

        switch (attribute->nla_type & NLA_TYPE_MASK) {
        case NFQA_PACKET_HDR:
            header = data;
            break;
        case NFQA_MARK:
            mark = ntohl(*(const uint32_t *)data);
            break;
        case NFQA_PAYLOAD:
            packet = data;
            bytes = attribute->nla_len - NLA_HDRLEN;
            break;
        }
        remaining -= NLA_ALIGN(attribute->nla_len);
        attribute = (const void *)((const char *)attribute + NLA_ALIGN(attribute->nla_len));
    }
    if (!header)
        return;
    number = packet ? number_of(packet, bytes, &source) : UNORDERED;
    flow = number == UNORDERED ? NULL : flow_of(&source);
    if (!flow) {
        release_packet(NULL, ntohl(header->packet_id));
        return;
    }
    order_accept(&flow->order, number, mark & 7, ntohl(header->packet_id), now, release_packet, NULL);
    if (flow->order.count && !flow->holds) {
        flow->holds = true;
        holding[holding_count++] = flow;
    }
}

static void configure(void)
{
    char buffer[256];
    struct nfqnl_msg_config_cmd bind_queue = {.command = NFQNL_CFG_CMD_BIND};
    struct nfqnl_msg_config_params copy = {.copy_range = htonl(HEADER_BYTES), .copy_mode = NFQNL_COPY_PACKET};
    uint32_t length = htonl(MAX_QUEUED), flags = htonl(NFQA_CFG_F_FAIL_OPEN | NFQA_CFG_F_GSO);
    struct nlmsghdr *message = begin_message(buffer, NFQNL_MSG_CONFIG, NLM_F_ACK);
    char answer[1024];
    ssize_t received;

    append_attribute(message, NFQA_CFG_CMD, &bind_queue, sizeof(bind_queue));
    if (send(netlink, buffer, message->nlmsg_len, 0) < 0)
        fail("bind the queue");
    received = recv(netlink, answer, sizeof(answer), 0);
    if (received >= (ssize_t)NLMSG_LENGTH(sizeof(int))) {
        errno = -*(int *)NLMSG_DATA((struct nlmsghdr *)answer);
        if (errno)
            fail("bind the queue");
    }
    message = begin_message(buffer, NFQNL_MSG_CONFIG, 0);
    append_attribute(message, NFQA_CFG_PARAMS, &copy, sizeof(copy));
    append_attribute(message, NFQA_CFG_QUEUE_MAXLEN, &length, sizeof(length));
    append_attribute(message, NFQA_CFG_FLAGS, &flags, sizeof(flags));
    append_attribute(message, NFQA_CFG_MASK, &flags, sizeof(flags));
    if (send(netlink, buffer, message->nlmsg_len, 0) < 0)
        fail("configure the queue");
}

/* Read the tunnels' hold times from stdin; return whether stdin has ended. */
static bool read_hold_times(void)
{
    static char line[256];
    static size_t line_bytes;
    ssize_t received = read(STDIN_FILENO, line + line_bytes, sizeof(line) - 1 - line_bytes);
    char *end, address[64];
    unsigned port;
    unsigned long long microseconds;

    if (received <= 0)
        return received < 0 && errno == EAGAIN ? false : true;
    line_bytes += (size_t)received;
    line[line_bytes] = 0;
    while ((end = strchr(line, '\n'))) {
        struct end far_end;
        struct in_addr four;
        struct flow *flow;
        bool valid;

        *end = 0;
        valid = sscanf(line, "%63s %u %llu", address, &port, &microseconds) == 3;
        far_end.port = htons((uint16_t)port);
        if (valid && inet_pton(AF_INET, address, &four) == 1)
            map_address(&far_end, &four);
        else
            valid = valid && inet_pton(AF_INET6, address, far_end.address) == 1;
        if (valid && (flow = flow_of(&far_end)))
            flow->order.hold_time = microseconds * 1000;
        line_bytes -= (size_t)(end + 1 - line);
        memmove(line, end + 1, line_bytes + 1);
    }
    if (line_bytes == sizeof(line) - 1)
        line_bytes = 0;
    return false;
}

int main(int count, char **arguments)
{
    static char buffers[BATCH][MESSAGE_BYTES];
    struct mmsghdr messages[BATCH];
    struct iovec pieces[BATCH];
    struct sockaddr_nl local = {.nl_family = AF_NETLINK};
    int buffer_bytes = 4 << 20;
    unsigned burst = 0; /* packets since the last pause */

    if (count != 2)
        return fprintf(stderr, "usage: resequencer QUEUE\n"), 2;
    queue = (uint16_t)atoi(arguments[1]);
    netlink = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_NETFILTER);
    if (netlink < 0 || bind(netlink, (struct sockaddr *)&local, sizeof(local)))
        fail("open netlink");
    setsockopt(netlink, SOL_SOCKET, SO_RCVBUFFORCE, &buffer_bytes, sizeof(buffer_bytes));
    configure();
    for (int each = 0; each < BATCH; each++) {
        pieces[each] = (struct iovec){buffers[each], MESSAGE_BYTES};
        messages[each] = (struct mmsghdr){.msg_hdr = {.msg_iov = &pieces[each], .msg_iovlen = 1}};
    }
    for (uint64_t deadline = 0;;) {
        struct pollfd waits[] = {{.fd = netlink, .events = POLLIN}, {.fd = STDIN_FILENO, .events = POLLIN}};
        uint64_t now = now_ns();
        struct timespec pause = {0};
        int received = 0;
        bool ended;

        if (deadline > now)
            pause = (struct timespec){(time_t)((deadline - now) / 1000000000), (long)((deadline - now) % 1000000000)};
        if (ppoll(waits, 2, deadline ? &pause : NULL, NULL) < 0 && errno != EINTR)
            fail("poll");
        ended = waits[1].revents && read_hold_times();
        now = now_ns();
        if (waits[0].revents) {
            received = recvmmsg(netlink, messages, BATCH, MSG_DONTWAIT, NULL);
            for (int each = 0; each < received; each++) {
                struct nlmsghdr *message = (void *)buffers[each];

                if (message->nlmsg_type == (NFNL_SUBSYS_QUEUE << 8 | NFQNL_MSG_PACKET))
                    process_packet(message, now);
            }
            burst += received > 0 ? (unsigned)received : 0;
        }
        /* The kernel drops packets that are still in the queue at exit. */
        deadline = expire_all(ended ? UINT64_MAX : now);
        flush_verdicts();
        if (ended)
            return 0;
        if (received > 0 && received < BATCH && (!deadline || deadline > now)) {
            uint64_t pause_ns = burst > BURST ? PAUSE / 3 : PAUSE;

            if (deadline && deadline - now < pause_ns)
                pause_ns = deadline - now;
            nanosleep(&(struct timespec){.tv_nsec = (long)pause_ns}, NULL);
            burst = 0;
        }
    }
}
