// SPDX-License-Identifier: GPL-2.0-or-later
/* Shared by the BPF programs: the kernel's helpers (bpf-helpers(7)), maps, and the settings, which the throttler writes
 * before it loads a program. Each program is one object file, loaded by libbpf; see kernel/bpf.py. */
#include <linux/bpf.h>
#include <linux/in.h>

#define SEC(name) __attribute__((section(name), used))
#define HELPER(number) __attribute__((kernel_helper(BPF_FUNC_##number)))

/* Constants of the C library, whose headers cannot be included together with the kernel's. */
#define SOL_SOCKET 1
#define SO_SNDBUF 7
#define SO_PRIORITY 12
#define SO_MAX_PACING_RATE 47
#define TCP_CONGESTION 13
#define TCP_USER_TIMEOUT 18
#define TCP_NOTSENT_LOWAT 25

/* A map that the throttler creates; only its name and types matter here (BTF-defined maps of libbpf). */
#define MAP(name, kind, key_type, value_type)                                                                          \
    struct {                                                                                                           \
        int (*type)[kind];                                                                                             \
        key_type *key;                                                                                                 \
        value_type *value;                                                                                             \
    } name SEC(".maps")

void *map_lookup(void *map, const void *key) HELPER(map_lookup_elem);
long map_update(void *map, const void *key, const void *value, __u64 flags) HELPER(map_update_elem);
__u64 socket_cookie(void *context) HELPER(get_socket_cookie);
__u64 namespace_cookie(void *context) HELPER(get_netns_cookie);
long set_option(void *context, int level, int name, const void *value, int bytes) HELPER(setsockopt);
long get_option(void *context, int level, int name, void *value, int bytes) HELPER(getsockopt);
long set_callbacks(struct bpf_sock_ops *socket, int flags) HELPER(sock_ops_cb_flags_set);
long load_header_option(struct bpf_sock_ops *socket, void *option, __u32 bytes, __u64 flags) HELPER(load_hdr_opt);
void *to_mptcp_socket(void *socket) HELPER(skc_to_mptcp_sock);
void *to_tcp_socket(void *socket) HELPER(skc_to_tcp_sock);

/* Set by program_constants() of kernel/bpf.py. They are constant in a loaded program, so the verifier skips code that
 * they make unreachable. */
struct settings {
    __u64 namespace;     /* cookie of the network namespace whose sockets are handled */
    __u32 user_timeout;  /* TCP_USER_TIMEOUT of a socket that retransmits, ms */
    __u32 qdisc;         /* handle of the HTB qdisc; its lower half is 0 */
    __u32 has_options;   /* whether subflows get initial options: no if the kernel cannot tell them from plain TCP */
    __u8 ports[1 << 13]; /* bit n: connections accepted on port n are ours */
};
const volatile struct settings settings SEC(".rodata.settings") = {0};

char gpl[] SEC("license") = "GPL";

/* The context of an iterator of TCP sockets, one for each socket (net/ipv4/tcp_ipv4.c of the kernel). */
struct bpf_iter__tcp {
    __bpf_md_ptr(void *, meta);
    __bpf_md_ptr(void *, sk_common);
};

/* Return whether a connection was accepted on one of our ports. */
static inline int is_ours(struct bpf_sock_ops *socket)
{
    __u32 port = socket->local_port & 0xffff;

    return settings.ports[port / 8] >> port % 8 & 1;
}
