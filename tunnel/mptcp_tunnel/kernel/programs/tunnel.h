// SPDX-License-Identifier: GPL-2.0-or-later
/* Structures that the programs share with the daemon (kernel/programs.py): the values of maps, and the settings that
 * the daemon writes before it loads the programs. Structures have no padding between fields, because the daemon packs
 * them field by field. */
#define SEC(name) __attribute__((section(name), used))
#define HELPER(number) __attribute__((kernel_helper(BPF_FUNC_##number)))
#define MAP(name, kind, key_type, value_type)                                                                          \
    struct {                                                                                                           \
        int (*type)[kind];                                                                                             \
        key_type *key;                                                                                                 \
        value_type *value;                                                                                             \
    } name SEC(".maps")

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define NETWORK16(number) ((__u16)__builtin_bswap16(number))
#define NETWORK32(number) ((__u32)__builtin_bswap32(number))
#else
#define NETWORK16(number) ((__u16)(number))
#define NETWORK32(number) ((__u32)(number))
#endif

#define MAX_PATHS 8
#define MAGIC 0xf4                /* first byte of probes and answers: neither WireGuard's nor OpenVPN's */
#define MARK 0x4d540000           /* mark of joined packets that are resequenced; the path is in the lower bits */
#define COPY 0x4d540000           /* in cb[1] of a copied packet; the original's path is in the lower bits */
#define BYTE_TIME_SHIFT 10        /* byte_time is in ns / 1024 */
#define LIGHT 300                 /* bytes with the Ethernet header: a smaller packet is light */
#define EXPEDITED 0xb8            /* DSCP 46 (RFC 3246) in the type-of-service byte: counts as light */
#define DONT_FRAGMENT 0x4000      /* bit in the IPv4 header's field that also has the fragment's offset */
#define UNORDERED 0               /* sequence number of light packets, which the receiver does not put in order */
#define NO_ROOM (1ULL << 62)      /* added to the cost of a path whose virtual queue is full */
#define SILENT 5000000000ULL      /* ns: if the daemon wrote nothing for this time, every path counts as alive */

enum mode {
    MODE_SPILL,   /* the path on which the packet is expected to arrive first; for packets that are not light, at most
                   * tunnel.spill of a path's delay counts */
    MODE_ORDER,   /* the first path whose virtual queue is at most tunnel.spill */
    MODE_WEIGHTS, /* bytes by fixed shares */
    MODE_ONE,     /* the first path that is alive */
};

/* An address, IPv4 mapped into IPv6 (RFC 4291, 2.5.5.2), and a port in network order: 18 bytes, and padding. */
struct end {
    __u32 address[4];
    __u16 port;
    __u16 unused;
};

struct ends {
    struct end local;
    struct end remote;
};

struct path_key {
    __u32 tunnel;
    __u32 path;
};

/* struct bpf_redir_neigh: the next hop. */
struct redirection {
    __u32 family;
    __u32 address[4];
};

/* A path, set by the daemon. */
struct path {
    struct ends outside;
    struct redirection next;
    __u32 interface;         /* index of the uplink; 0: the path does not exist */
    __u32 alive;
    __u32 class; /* HTB class on that interface, major and minor number; 0: its qdisc chooses the class */
    __u64 byte_time; /* ns / 1024 per byte; in MODE_WEIGHTS, 1024 / the path's share */
    __u64 delay;     /* ns in excess of the path with the smallest delay */
    __u64 room;      /* ns that its virtual queue may hold */
    __u64 measured_queue; /* ns that the last probe waited in the path's queues; valid at tunnel.updated */
};

struct tunnel {
    struct ends inside;
    __u64 spill;     /* ns; MODE_SPILL: at most this much of a path's delay counts; MODE_ORDER: if the virtual queue of
                      * a path is longer, the next path is used */
    __u64 max_queue; /* ns; packets that are not light are dropped if a path's virtual queue is longer; 0: no limit */
    __u64 updated;   /* ns, CLOCK_MONOTONIC: when the daemon last wrote this structure */
    __u32 mode;      /* enum mode */
    __u32 duplicate; /* whether light packets are sent on two paths */
    __u64 count;     /* number of paths in use; the programs read no others, because each would cost a cache miss */
    struct path paths[MAX_PATHS];
};

/* Virtual queue and counters of a path, set by the programs. */
struct path_state {
    __u64 next_free; /* ns, CLOCK_MONOTONIC, or in MODE_WEIGHTS state.clock: when its virtual queue is empty */
    __u64 sent_packets;
    __u64 sent_bytes;
    __u64 received_packets;
    __u64 received_bytes;
};

struct state {
    __u64 sequence;
    __u64 clock; /* MODE_WEIGHTS: virtual time (start-time fair queueing), in bytes / share: the last packet's start */
    struct path_state paths[MAX_PATHS];
};

struct settings {
    __u32 device;     /* the virtual device; joined packets enter its ingress */
    __u8 address[8];  /* its MAC address */
    __u8 ports[1 << 13]; /* bit n: a tunnel program on this host uses port n */
};
const volatile struct settings settings SEC(".rodata.settings") = {0};

char gpl[] SEC("license") = "GPL";

void *map_lookup(void *map, const void *key) HELPER(map_lookup_elem);
__u64 now_ns(void) HELPER(ktime_get_ns);
long load_bytes(const void *packet, __u32 offset, void *to, __u32 bytes) HELPER(skb_load_bytes);
long store_bytes(void *packet, __u32 offset, const void *from, __u32 bytes, __u64 flags) HELPER(skb_store_bytes);
long replace_network_checksum(void *packet, __u32 at, __u64 from, __u64 to, __u64 flags) HELPER(l3_csum_replace);
long replace_transport_checksum(void *packet, __u32 at, __u64 from, __u64 to, __u64 flags) HELPER(l4_csum_replace);
long change_head(void *packet, __u32 bytes, __u64 flags) HELPER(skb_change_head);
long redirect_clone(void *packet, __u32 interface, __u64 flags) HELPER(clone_redirect);
long redirect(__u32 interface, __u64 flags) HELPER(redirect);
long redirect_neighbour(__u32 interface, const void *next, int bytes, __u64 flags) HELPER(redirect_neigh);
