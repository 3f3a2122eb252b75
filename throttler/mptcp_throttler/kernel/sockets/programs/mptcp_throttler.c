// SPDX-License-Identifier: GPL-2.0-or-later
/* Sets limits and initial options of the sockets that the proxy accepts. kernel/bpf.py describes the purpose. */
#include "limits.h"

#define AF_INET 2
#define MPTCP_OPTION 30
#define MP_JOIN 1 /* subtype, RFC 8684, 3.2 */
/* After this number of data segments, a socket loses the class with which it began. */
#define INITIAL_CLASS_SEGMENTS 31
/* After this number of data segments (450 kB), a socket without our limit may have at least LARGE_BOUND unsent. */
#define SMALL_BOUND_SEGMENTS 310
#define LARGE_BOUND 65536 /* bytes; the same as in shaping/initial_options.py */

struct initial_options {
    __u32 not_sent;       /* TCP_NOTSENT_LOWAT, bytes; in all four members, 0 keeps the kernel's value */
    __u32 initial_window; /* segments */
    __u32 class;          /* handle of the HTB class */
    __u32 rests;          /* 1 if a joining subflow rests from its acceptance on */
};

struct prefix {
    __u32 bits;
    __u32 address[4]; /* IPv4 addresses are mapped into IPv6 */
};

MAP(initial_options, BPF_MAP_TYPE_LPM_TRIE, struct prefix, struct initial_options);

static inline int is_join(struct bpf_sock_ops *socket)
{
    __u8 option[40] = {MPTCP_OPTION};

    /* Read the option of the ACK with which the subflow was accepted. */
    load_header_option(socket, option, sizeof(option), 0);
    return option[2] >> 4 == MP_JOIN;
}

static inline void set_initial_options(struct bpf_sock_ops *socket)
{
    struct prefix key = {.bits = 128};
    struct initial_options *options;
    __u32 no_rate = 0;

    if (socket->family == AF_INET) {
        key.address[2] = __builtin_bswap32(0xffff);
        key.address[3] = socket->remote_ip4;
    } else {
        key.address[0] = socket->remote_ip6[0];
        key.address[1] = socket->remote_ip6[1];
        key.address[2] = socket->remote_ip6[2];
        key.address[3] = socket->remote_ip6[3];
    }
    options = map_lookup(&initial_options, &key);
    if (!options)
        return;
    if (options->not_sent)
        set_option(socket, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &options->not_sent, sizeof(options->not_sent));
    if (options->initial_window)
        set_option(socket, IPPROTO_TCP, TCP_BPF_IW, &options->initial_window, sizeof(options->initial_window));
    if (options->class)
        set_option(socket, SOL_SOCKET, SO_PRIORITY, &options->class, sizeof(options->class));
    if (options->rests && is_join(socket))
        set_option(socket, SOL_SOCKET, SO_MAX_PACING_RATE, &no_rate, sizeof(no_rate));
}

static inline void raise_small_bound(struct bpf_sock_ops *socket)
{
    __u32 bound, large = LARGE_BOUND;

    /* A bound of 0 means the kernel's default. Linux before 6.1 cannot report the bound. */
    if (socket->data_segs_out > SMALL_BOUND_SEGMENTS &&
        !get_option(socket, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &bound, sizeof(bound)) && bound && bound < large)
        set_option(socket, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &large, sizeof(large));
}

static inline void set_user_timeout(struct bpf_sock_ops *socket, __u32 timeout)
{
    set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout, sizeof(timeout));
}

SEC("sockops")
int mptcp_throttler(struct bpf_sock_ops *socket)
{
    struct bpf_sock *tcp = socket->sk;

    if (namespace_cookie(socket) != settings.namespace)
        return 1;
    if (socket->op == BPF_SOCK_OPS_RTO_CB) {
        set_user_timeout(socket, settings.user_timeout);
    } else if (socket->op == BPF_SOCK_OPS_RTT_CB) {
        set_user_timeout(socket, 0);
        if (settings.has_options && tcp && socket->data_segs_out > INITIAL_CLASS_SEGMENTS)
            leave_class(socket, tcp->priority);
        if (!set_limit(socket) && settings.has_options)
            raise_small_bound(socket);
    } else if (socket->op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB && is_ours(socket)) {
        set_callbacks(socket,
                      socket->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_RTT_CB_FLAG | BPF_SOCK_OPS_RTO_CB_FLAG);
        if (settings.has_options && tcp && to_mptcp_socket(tcp))
            set_initial_options(socket);
    }
    return 1;
}
