// SPDX-License-Identifier: GPL-2.0-or-later
/* Splits the UDP packets of a tunnel over paths, and joins what comes by them. mptcp_split runs at the egress of the
 * virtual device to which the tunnel's packets are routed, mptcp_join at the ingress of each uplink. A packet has two
 * pairs of ends: inside, as the tunnel program sees them; outside, as they are on a path. Ends are 18 bytes: an
 * address, IPv4 mapped into IPv6 (RFC 4291, 2.5.5.2), and a port in network order. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <linux/udp.h>

#include "tunnel.h"

MAP(inside, BPF_MAP_TYPE_HASH, struct ends, __u32);
MAP(outside, BPF_MAP_TYPE_HASH, struct ends, struct place);
MAP(tunnels, BPF_MAP_TYPE_ARRAY, __u32, struct tunnel);
MAP(states, BPF_MAP_TYPE_ARRAY, __u32, struct state);

/* What is at the begin of a packet, and where. */
struct headers {
    struct ends ends;
    __u32 network; /* bytes from the begin */
    __u32 udp;
    __u32 id; /* of the IPv4 header, or the lower 16 bits of IPv6's flow label; host order */
    __u8 incoming; /* the packet comes from the remote end */
    __u8 ipv6;
    __u8 first; /* byte of the payload */
};

/* Read the headers of a UDP packet that is no fragment; say whether it is one. */
static inline __attribute__((always_inline)) int read_headers(struct __sk_buff *packet, struct headers *headers)
{
    struct end *from = headers->incoming ? &headers->ends.remote : &headers->ends.local;
    struct end *to = headers->incoming ? &headers->ends.local : &headers->ends.remote;
    __u16 ports[2];

    headers->network = ETH_HLEN;
    if (packet->protocol == NETWORK16(ETH_P_IP)) {
        struct iphdr ip;

        if (load_bytes(packet, ETH_HLEN, &ip, sizeof(ip)) || ip.protocol != IPPROTO_UDP || ip.ihl != 5 ||
            ip.frag_off & NETWORK16(0x3fff))
            return 0;
        from->address[2] = to->address[2] = NETWORK32(0xffff);
        from->address[3] = ip.saddr;
        to->address[3] = ip.daddr;
        headers->id = NETWORK16(ip.id);
        headers->udp = ETH_HLEN + sizeof(ip);
    } else if (packet->protocol == NETWORK16(ETH_P_IPV6)) {
        struct ipv6hdr ip;

        if (load_bytes(packet, ETH_HLEN, &ip, sizeof(ip)) || ip.nexthdr != IPPROTO_UDP)
            return 0;
        __builtin_memcpy(from->address, &ip.saddr, sizeof(ip.saddr));
        __builtin_memcpy(to->address, &ip.daddr, sizeof(ip.daddr));
        headers->id = ip.flow_lbl[1] << 8 | ip.flow_lbl[2];
        headers->ipv6 = 1;
        headers->udp = ETH_HLEN + sizeof(ip);
    } else {
        return 0;
    }
    if (load_bytes(packet, headers->udp, ports, sizeof(ports)))
        return 0;
    from->port = ports[0];
    to->port = ports[1];
    load_bytes(packet, headers->udp + sizeof(struct udphdr), &headers->first, 1);
    return 1;
}

/* Give the packet other ends and another number, which is the identification of IPv4, and the lower 16 bits of the flow
 * label of IPv6; checksums follow. */
static inline __attribute__((always_inline)) int rewrite(struct __sk_buff *packet, const struct headers *headers,
                                                         const struct ends *ends, __u32 id)
{
    const struct end *from_before = headers->incoming ? &headers->ends.remote : &headers->ends.local;
    const struct end *to_before = headers->incoming ? &headers->ends.local : &headers->ends.remote;
    const struct end *from = headers->incoming ? &ends->remote : &ends->local;
    const struct end *to = headers->incoming ? &ends->local : &ends->remote;
    __u32 checksum = headers->udp + __builtin_offsetof(struct udphdr, check);
    __u32 before[9], after[9], both;
    __u16 ports[2] = {from->port, to->port}, number = NETWORK16(id);

    if (headers->ipv6) {
        __builtin_memcpy(before, from_before->address, 16);
        __builtin_memcpy(before + 4, to_before->address, 16);
        __builtin_memcpy(after, from->address, 16);
        __builtin_memcpy(after + 4, to->address, 16);
        if (store_bytes(packet, headers->network + __builtin_offsetof(struct ipv6hdr, saddr), after, 32, 0) ||
            store_bytes(packet, headers->network + __builtin_offsetof(struct ipv6hdr, flow_lbl) + 1, &number, 2,
                        BPF_F_RECOMPUTE_CSUM))
            return -1;
    } else {
        __u16 number_before = NETWORK16(headers->id);
        __u32 at = headers->network + __builtin_offsetof(struct iphdr, check);

        __builtin_memset(before, 0, 32);
        __builtin_memset(after, 0, 32);
        before[0] = from_before->address[3];
        before[1] = to_before->address[3];
        after[0] = from->address[3];
        after[1] = to->address[3];
        both = checksum_difference(before, 8, after, 8, 0);
        if (replace_network_checksum(packet, at, 0, both, 0) ||
            replace_network_checksum(packet, at, number_before, number, 2) ||
            store_bytes(packet, headers->network + __builtin_offsetof(struct iphdr, saddr), after, 8, 0) ||
            store_bytes(packet, headers->network + __builtin_offsetof(struct iphdr, id), &number, 2, 0))
            return -1;
    }
    both = checksum_difference(before, 32, after, 32, 0);
    if (replace_transport_checksum(packet, checksum, 0, both, BPF_F_PSEUDO_HDR | BPF_F_MARK_MANGLED_0))
        return -1;
    before[0] = from_before->port | (__u32)to_before->port << 16;
    after[0] = from->port | (__u32)to->port << 16;
    if (replace_transport_checksum(packet, checksum, before[0], after[0], BPF_F_MARK_MANGLED_0 | 4))
        return -1;
    return store_bytes(packet, headers->udp, ports, sizeof(ports), 0);
}

/* Choose by a virtual queue for each path: the one by which a packet would arrive first, where `tau` bounds what a
 * longer path's delay counts; a path whose queue has room goes before every one without. For a light packet all of the
 * delay counts, and the queue that stands on the path. */
static inline __attribute__((always_inline)) __u32 choose(const struct tunnel *tunnel, struct state *state, __u32 bytes)
{
    __u64 now = now_ns(), least = ~0ULL, least_done = 0;
    __u32 chosen = MOST_PATHS;

    for (__u32 each = 0; each < MOST_PATHS; each++) {
        const struct path *path = &tunnel->paths[each];
        __u64 start, done, cost;

        /* Without the daemon nobody knows what lives. */
        if (!path->interface || (!path->alive && now - tunnel->probed < SILENT))
            continue;
        start = state->paths[each].next_free > now ? state->paths[each].next_free : now;
        done = start + (bytes * path->byte_time >> BYTE_TIME_SHIFT);
        if (bytes < LIGHT)
            cost = start + path->delay + path->queue;
        else
            cost = done + (path->delay < tunnel->tau ? path->delay : tunnel->tau);
        if (start - now > path->room)
            cost += NO_ROOM;
        if (cost < least) {
            least = cost;
            least_done = done;
            chosen = each;
        }
    }
    if (chosen < MOST_PATHS)
        state->paths[chosen].next_free = least_done;
    return chosen;
}

SEC("tc")
int mptcp_split(struct __sk_buff *packet)
{
    struct headers headers = {};
    struct redirection next;
    struct tunnel *tunnel;
    struct state *state;
    struct path *path;
    __u32 *number, chosen;
    __u64 sequence;

    if (!read_headers(packet, &headers))
        return TC_ACT_SHOT;
    number = map_lookup(&inside, &headers.ends);
    if (!number)
        return TC_ACT_SHOT;
    tunnel = map_lookup(&tunnels, number);
    state = map_lookup(&states, number);
    if (!tunnel || !state)
        return TC_ACT_SHOT;
    chosen = choose(tunnel, state, packet->len);
    if (chosen >= MOST_PATHS)
        return TC_ACT_SHOT;
    path = &tunnel->paths[chosen];
    sequence = UNORDERED;
    if (packet->len >= LIGHT) {
        /* Two processors at once may give one number twice: as a packet that is late. */
        sequence = ++state->sequence & 0xffff;
        if (sequence == UNORDERED)
            sequence = ++state->sequence & 0xffff;
    }
    __sync_fetch_and_add(&state->paths[chosen].sent_packets, 1);
    __sync_fetch_and_add(&state->paths[chosen].sent_bytes, packet->len - ETH_HLEN);
    if (rewrite(packet, &headers, &path->outside, sequence))
        return TC_ACT_SHOT;
    next = path->next;
    return redirect_neighbour(path->interface, &next, sizeof(next), 0);
}

SEC("tc")
int mptcp_join(struct __sk_buff *packet)
{
    struct headers headers = {.incoming = 1};
    struct place *place;
    struct tunnel *tunnel;
    struct state *state;
    __u32 chosen, port;
    __u8 address[ETH_ALEN];

    if (!read_headers(packet, &headers))
        return TC_ACT_OK;
    place = map_lookup(&outside, &headers.ends);
    port = NETWORK16(headers.ends.local.port);
    __asm__("" : "+r"(port)); /* the verifier does not see the bound that a change of byte order gives */
    port &= 0xffff;
    if (headers.first == MAGIC && (place || settings.ports[port / 8] >> port % 8 & 1))
        return TC_ACT_SHOT; /* a probe or an answer: the daemon has had its copy */
    if (!place)
        return TC_ACT_OK;
    chosen = place->path;
    __asm__("" : "+r"(chosen)); /* read once: the verifier believes no second reading */
    if (chosen >= MOST_PATHS)
        return TC_ACT_OK;
    tunnel = map_lookup(&tunnels, &place->tunnel);
    state = map_lookup(&states, &place->tunnel);
    if (!tunnel || !state)
        return TC_ACT_OK;
    __sync_fetch_and_add(&state->paths[chosen].received_packets, 1);
    __sync_fetch_and_add(&state->paths[chosen].received_bytes, packet->len - ETH_HLEN);
    for (int each = 0; each < ETH_ALEN; each++)
        address[each] = settings.address[each];
    if (rewrite(packet, &headers, &tunnel->inside, headers.id) ||
        store_bytes(packet, 0, address, ETH_ALEN, 0))
        return TC_ACT_SHOT;
    packet->mark = MARK | chosen;
    return redirect(settings.device, BPF_F_INGRESS);
}
