// SPDX-License-Identifier: GPL-2.0-or-later
/* Limits of single sockets, for the two programs that set them: one when a socket gets acknowledgements, the other on
 * all sockets at once. */
#include "bpf.h"

struct limit {
    __u32 rate;             /* SO_MAX_PACING_RATE, bytes/s; 0: the socket rests */
    __u32 not_sent;         /* TCP_NOTSENT_LOWAT, bytes; 0: the kernel's default */
    __u32 half_send_buffer; /* SO_SNDBUF, bytes, which the kernel doubles; 0: the buffer stays unchanged */
};

MAP(limits, BPF_MAP_TYPE_HASH, __u64, struct limit);

/* A socket that rested gets a pacing rate only when data are acknowledged, but sends no data without a rate. So switch
 * the socket to BBR, which sets a rate when it starts, and then back to its former congestion control. */
static inline void restart_congestion_control(void *socket)
{
    char before[16], reno[4] = {'r', 'e', 'n', 'o'}, bbr[4] = {'b', 'b', 'r', 0};

    if (get_option(socket, IPPROTO_TCP, TCP_CONGESTION, before, sizeof(before)))
        return;
    set_option(socket, IPPROTO_TCP, TCP_CONGESTION, reno, sizeof(reno));
    set_option(socket, IPPROTO_TCP, TCP_CONGESTION, bbr, sizeof(bbr));
    set_option(socket, IPPROTO_TCP, TCP_CONGESTION, before, sizeof(before));
}

/* Set the limits that the map has for a socket; return whether the map has limits for it. */
static inline int set_limit(void *socket)
{
    __u64 cookie = socket_cookie(socket);
    struct limit *limit = map_lookup(&limits, &cookie);
    __u32 rate, send_buffer;

    if (!limit)
        return 0;
    if (get_option(socket, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof(rate)))
        rate = ~0;
    set_option(socket, SOL_SOCKET, SO_MAX_PACING_RATE, &limit->rate, sizeof(limit->rate));
    set_option(socket, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &limit->not_sent, sizeof(limit->not_sent));
    if (rate == 0 && limit->rate != 0)
        restart_congestion_control(socket);
    /* Never make a send buffer smaller. Linux before 6.1 does not report its size, so it stays unchanged there. */
    if (limit->half_send_buffer && !get_option(socket, SOL_SOCKET, SO_SNDBUF, &send_buffer, sizeof(send_buffer)) &&
        send_buffer < 2 * limit->half_send_buffer)
        set_option(socket, SOL_SOCKET, SO_SNDBUF, &limit->half_send_buffer, sizeof(limit->half_send_buffer));
    return 1;
}

/* Reset the SO_PRIORITY of a socket if it names a class of our qdisc. */
static inline void leave_class(void *socket, __u32 priority)
{
    __u32 no_class = 0;

    if ((priority & 0xffff0000) == settings.qdisc)
        set_option(socket, SOL_SOCKET, SO_PRIORITY, &no_class, sizeof(no_class));
}
