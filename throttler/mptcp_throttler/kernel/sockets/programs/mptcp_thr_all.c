// SPDX-License-Identifier: GPL-2.0-or-later
/* Does for all TCP sockets of the network namespace at once what mptcp_throttler.c does at each round trip. */
#include "limits.h"

SEC("iter/tcp")
int mptcp_thr_all(struct bpf_iter__tcp *context)
{
    void *plain = context->sk_common, *socket = plain ? to_tcp_socket(plain) : 0;
    __u32 priority;

    if (socket) {
        if (!get_option(socket, SOL_SOCKET, SO_PRIORITY, &priority, sizeof(priority)))
            leave_class(socket, priority);
        set_limit(socket);
    }
    return 0;
}
