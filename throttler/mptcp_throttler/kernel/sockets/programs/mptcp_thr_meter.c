// SPDX-License-Identifier: GPL-2.0-or-later
/* Records the counters of each socket that closes. kernel/bpf.py describes the purpose. */
#include "bpf.h"

struct closed {
    __u64 acked;    /* payload bytes */
    __u64 received; /* payload bytes */
    __u32 family;
    __u32 remote_ip4;
    __u32 remote_ip6[4];
    __u32 remote_port;
    __u32 local_port;
};

MAP(closed, BPF_MAP_TYPE_HASH, __u64, struct closed);

SEC("sockops")
int mptcp_thr_meter(struct bpf_sock_ops *socket)
{
    if (namespace_cookie(socket) != settings.namespace)
        return 1;
    if (socket->op == BPF_SOCK_OPS_STATE_CB && socket->args[1] == BPF_TCP_CLOSE) {
        __u64 cookie = socket_cookie(socket);
        struct closed counters = {
            .acked = socket->bytes_acked,
            .received = socket->bytes_received,
            .family = socket->family,
            .remote_ip4 = socket->remote_ip4,
            .remote_ip6 = {socket->remote_ip6[0], socket->remote_ip6[1], socket->remote_ip6[2], socket->remote_ip6[3]},
            .remote_port = socket->remote_port,
            .local_port = socket->local_port,
        };

        map_update(&closed, &cookie, &counters, BPF_ANY);
    } else if (socket->op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB && is_ours(socket)) {
        set_callbacks(socket, socket->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_STATE_CB_FLAG);
    }
    return 1;
}
