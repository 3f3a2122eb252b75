// SPDX-License-Identifier: GPL-2.0-or-later
/* Sets limits and resets classes of all sockets of the network namespace, as mptcp_throttler.c does at round trips. */
#include "limits.h"

SEC("iter/tcp")
int mptcp_thr_all(struct bpf_iter__tcp *context)
{
    void *common = context->sk_common, *socket = common ? to_tcp_socket(common) : 0;
    __u32 priority;

    if (socket) {
        if (!get_option(socket, SOL_SOCKET, SO_PRIORITY, &priority, sizeof(priority)))
            leave_class(socket, priority);
        set_limit(socket);
    }
    return 0;
}
