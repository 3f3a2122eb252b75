// SPDX-License-Identifier: GPL-2.0-or-later
/* Puts TCP_NOTSENT_LOWAT of every TCP socket of the network namespace into a map. */
#include "bpf.h"

MAP(found, BPF_MAP_TYPE_HASH, __u64, __u32);

SEC("iter/tcp")
int mptcp_test(struct bpf_iter__tcp *context)
{
    void *common = context->sk_common, *socket = common ? to_tcp_socket(common) : 0;
    __u32 not_sent;

    if (socket) {
        __u64 cookie = socket_cookie(socket);

        get_option(socket, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &not_sent, sizeof(not_sent));
        map_update(&found, &cookie, &not_sent, BPF_ANY);
    }
    return 0;
}
