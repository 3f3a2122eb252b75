// SPDX-License-Identifier: GPL-2.0-or-later
/* Splits the UDP packets of a tunnel over paths, and joins them again. mptcp_split runs at the egress of the virtual
 * device to which the tunnel's packets are routed; for the packets of bundles (UDP GSO), it runs at the ingress of that
 * device's other end. mptcp_join runs at the ingress of each uplink. A packet has two pairs of ends (addresses and
 * ports): the inside ends, which the tunnel program uses, and the outside ends, which the packet has on a path. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <linux/udp.h>

#include "tunnel.h"

MAP(inside, BPF_MAP_TYPE_HASH, struct ends, __u32);
MAP(outside, BPF_MAP_TYPE_HASH, struct ends, struct path_key);
MAP(tunnels, BPF_MAP_TYPE_ARRAY, __u32, struct tunnel);
MAP(states, BPF_MAP_TYPE_ARRAY, __u32, struct state);

/* A packet's headers, and their offsets. */
struct headers {
    struct ends ends;
    __u32 network; /* offset of the IP header */
    __u32 udp; /* offset of the UDP header */
    __u32 id; /* identification of the IPv4 header, or the lower 16 bits of IPv6's flow label; host order */
    __u16 fragment; /* flags and fragment offset of the IPv4 header; network order */
    __u8 incoming; /* the packet comes from the remote end */
    __u8 ipv6;
    __u8 service; /* DSCP and ECN */
    __u8 first; /* first byte of an incoming packet's payload */
};

/* Read the headers, which begin at headers->network; return whether the packet is UDP and not a fragment. */
static inline __attribute__((always_inline)) int read_headers(struct __sk_buff *packet, struct headers *headers)
{
    struct end *from = headers->incoming ? &headers->ends.remote : &headers->ends.local;
    struct end *to = headers->incoming ? &headers->ends.local : &headers->ends.remote;
    const struct udphdr *udp;
    struct {
        struct iphdr ip;
        struct udphdr udp;
    } ipv4;
    struct {
        struct ipv6hdr ip;
        struct udphdr udp;
    } ipv6;

    if (packet->protocol == NETWORK16(ETH_P_IP)) {
        if (load_bytes(packet, headers->network, &ipv4, sizeof(ipv4)) || ipv4.ip.protocol != IPPROTO_UDP ||
            ipv4.ip.ihl != 5 || ipv4.ip.frag_off & NETWORK16(0x3fff))
            return 0;
        from->address[2] = to->address[2] = NETWORK32(0xffff);
        from->address[3] = ipv4.ip.saddr;
        to->address[3] = ipv4.ip.daddr;
        headers->id = NETWORK16(ipv4.ip.id);
        headers->fragment = ipv4.ip.frag_off;
        headers->service = ipv4.ip.tos;
        headers->udp = headers->network + sizeof(ipv4.ip);
        udp = &ipv4.udp;
    } else if (packet->protocol == NETWORK16(ETH_P_IPV6)) {
        if (load_bytes(packet, headers->network, &ipv6, sizeof(ipv6)) || ipv6.ip.nexthdr != IPPROTO_UDP)
            return 0;
        __builtin_memcpy(from->address, &ipv6.ip.saddr, sizeof(from->address));
        __builtin_memcpy(to->address, &ipv6.ip.daddr, sizeof(to->address));
        headers->id = ipv6.ip.flow_lbl[1] << 8 | ipv6.ip.flow_lbl[2];
        headers->ipv6 = 1;
        headers->service = ipv6.ip.priority << 4 | ipv6.ip.flow_lbl[0] >> 4;
        headers->udp = headers->network + sizeof(ipv6.ip);
        udp = &ipv6.udp;
    } else {
        return 0;
    }
    from->port = udp->source;
    to->port = udp->dest;
    if (headers->incoming)
        load_bytes(packet, headers->udp + sizeof(*udp), &headers->first, 1);
    return 1;
}

/* Return the number to add to a checksum after these words have changed (RFC 1624). */
static inline __attribute__((always_inline)) __u64 difference(const __u32 *before, const __u32 *after, int words)
{
    __u64 sum = 0;

    for (int each = 0; each < words; each++)
        sum += (__u64)(__u32)~before[each] + after[each];
    return sum;
}

static inline __attribute__((always_inline)) __u32 fold(__u64 sum)
{
    sum = (sum & 0xffffffff) + (sum >> 32);
    return sum + (sum >> 32);
}

/* Set the packet's ends and its number: IPv4's identification, or the lower 16 bits of IPv6's flow label. Update the
 * checksums. An outgoing IPv4 packet gets the don't-fragment bit, because fragments of two packets with the same number
 * would be joined (RFC 6864).
 *
 * If the device has summed the whole packet (CHECKSUM_COMPLETE), that sum must stay correct. IPv4's header checksum
 * compensates for the addresses. IPv6 has no header checksum, so storing addresses changes the sum; l4_csum_replace
 * with the flag BPF_F_PSEUDO_HDR corrects it, because UDP's checksum covers the addresses. Ports and UDP's checksum
 * compensate for each other. */
static inline __attribute__((always_inline)) int rewrite(struct __sk_buff *packet, const struct headers *headers,
                                                         const struct ends *ends, __u32 id)
{
    const struct end *from_before = headers->incoming ? &headers->ends.remote : &headers->ends.local;
    const struct end *to_before = headers->incoming ? &headers->ends.local : &headers->ends.remote;
    const struct end *from = headers->incoming ? &ends->remote : &ends->local;
    const struct end *to = headers->incoming ? &ends->local : &ends->remote;
    __u32 checksum = headers->udp + __builtin_offsetof(struct udphdr, check);
    __u32 ports_before = from_before->port | (__u32)to_before->port << 16, ports = from->port | (__u32)to->port << 16;
    __u64 sum;
    __u16 number = NETWORK16(id), number_before = NETWORK16(headers->id);

    if (headers->ipv6) {
        struct {
            __u32 from[4], to[4];
        } after;

        __builtin_memcpy(after.from, from->address, sizeof(after.from));
        __builtin_memcpy(after.to, to->address, sizeof(after.to));
        sum = difference(from_before->address, after.from, 4) + difference(to_before->address, after.to, 4);
        if (store_bytes(packet, headers->network + __builtin_offsetof(struct ipv6hdr, saddr), &after, sizeof(after),
                        BPF_F_RECOMPUTE_CSUM) ||
            (ports != ports_before && store_bytes(packet, headers->udp, &ports, sizeof(ports), 0)))
            return -1;
        if (number != number_before &&
            store_bytes(packet, headers->network + __builtin_offsetof(struct ipv6hdr, flow_lbl) + 1, &number,
                        sizeof(number), BPF_F_RECOMPUTE_CSUM))
            return -1;
    } else {
        struct {
            __u32 from, to;
            __u16 ports[2]; /* directly after the addresses */
        } after = {from->address[3], to->address[3], {from->port, to->port}};
        __u32 ip_checksum = headers->network + __builtin_offsetof(struct iphdr, check), correction;
        __u16 fragment = headers->incoming ? headers->fragment : headers->fragment | NETWORK16(DONT_FRAGMENT);
        __u16 words[2] = {number, fragment};

        sum = difference(&from_before->address[3], &after.from, 1) + difference(&to_before->address[3], &after.to, 1);
        correction = fold(sum + (__u16)~number_before + number + (__u16)~headers->fragment + fragment);
        if (replace_network_checksum(packet, ip_checksum, 0, correction, 0) ||
            store_bytes(packet, headers->network + __builtin_offsetof(struct iphdr, saddr), &after, sizeof(after), 0))
            return -1;
        if ((number != number_before || fragment != headers->fragment) &&
            store_bytes(packet, headers->network + __builtin_offsetof(struct iphdr, id), words, sizeof(words), 0))
            return -1;
    }
    if (replace_transport_checksum(packet, checksum, 0, fold(sum), BPF_F_PSEUDO_HDR | BPF_F_MARK_MANGLED_0))
        return -1;
    /* A checksum that the device will complete covers only the addresses so far. */
    if (ports == ports_before)
        return 0;
    return replace_transport_checksum(packet, checksum, ports_before, ports, BPF_F_MARK_MANGLED_0 | 4);
}

/* The packet that needs a path. A light packet is small, or marked as expedited. */
struct outgoing {
    struct __sk_buff *packet;
    __u32 bytes;
    __u32 light;
};

/* Choose the path with the lowest cost in the tunnel's mode. Each path has a virtual queue. In MODE_SPILL, a path whose
 * queue has room is better than any path whose queue is full. The queue is the longer of the virtual queue and the
 * queue that the last probe found, because rates are never exact; for a light packet the whole delay counts. In
 * MODE_WEIGHTS, queues are in bytes / share (start-time fair queueing), so that a path that was dead gets at most
 * its share when it is alive again. A copy avoids the path in cb[1]. */
static inline __attribute__((always_inline)) __u32 choose(const struct tunnel *tunnel, struct state *state,
                                                          const struct outgoing *outgoing)
{
    __u64 time = now_ns(), now = tunnel->mode == MODE_WEIGHTS ? state->clock : time;
    __u64 min_cost = ~0ULL, chosen_done = 0;
    __u32 chosen;

    /* The chosen path is in cb[0], because the verifier would check the rest of the program for each value of a local
     * variable. */
    outgoing->packet->cb[0] = MAX_PATHS;
    for (__u32 each = 0; each < MAX_PATHS; each++) {
        const struct path *path = &tunnel->paths[each];
        __u64 start, done, cost;

        if (each >= tunnel->count)
            break;
        /* Without the daemon, every path counts as alive. */
        if (!path->interface || outgoing->packet->cb[1] == (COPY | each) ||
            (!path->alive && time - tunnel->updated < SILENT))
            continue;
        start = state->paths[each].next_free > now ? state->paths[each].next_free : now;
        done = start + (outgoing->bytes * path->byte_time >> BYTE_TIME_SHIFT);
        if (tunnel->mode == MODE_ONE) {
            cost = each;
        } else if (tunnel->mode == MODE_WEIGHTS) {
            cost = start;
        } else if (tunnel->mode == MODE_ORDER) {
            cost = start - now > tunnel->spill ? NO_ROOM + done : each;
        } else {
            __u64 measured_end = tunnel->updated + path->measured_queue;
            __u64 begin = start > measured_end ? start : measured_end;

            if (outgoing->light)
                cost = begin + path->delay;
            else
                cost = begin + (done - start) + (path->delay < tunnel->spill ? path->delay : tunnel->spill);
            if (start - now > path->room)
                cost += NO_ROOM;
        }
        if (cost < min_cost) {
            min_cost = cost;
            chosen_done = done;
            outgoing->packet->cb[0] = each;
        }
    }
    chosen = outgoing->packet->cb[0];
    if (chosen < MAX_PATHS) {
        if (tunnel->max_queue && !outgoing->light && chosen_done > now + tunnel->max_queue &&
            time - tunnel->updated < SILENT)
            return MAX_PATHS;
        state->paths[chosen].next_free = chosen_done;
        if (tunnel->mode == MODE_WEIGHTS)
            state->clock = min_cost;
    }
    return chosen;
}

SEC("tc")
int mptcp_split(struct __sk_buff *packet)
{
    struct headers headers = {.network = ETH_HLEN};
    struct redirection next;
    struct tunnel *tunnel;
    struct state *state;
    struct outgoing outgoing;
    struct path *path;
    __u32 *number, chosen;
    __u64 sequence;

    /* Each packet of a bundle needs its own number and path. The kernel splits the bundle after this hook; its packets
     * arrive at the ingress of the device's other end. */
    if (packet->gso_segs > 1 && packet->ifindex == settings.device)
        return TC_ACT_OK;
    if (!read_headers(packet, &headers))
        return TC_ACT_SHOT;
    number = map_lookup(&inside, &headers.ends);
    if (!number)
        return TC_ACT_SHOT;
    tunnel = map_lookup(&tunnels, number);
    state = map_lookup(&states, number);
    if (!tunnel || !state)
        return TC_ACT_SHOT;
    outgoing.packet = packet;
    outgoing.bytes = packet->len;
    outgoing.light = packet->len < LIGHT || (headers.service & 0xfc) == EXPEDITED;
    chosen = choose(tunnel, state, &outgoing);
    if (chosen >= MAX_PATHS)
        return TC_ACT_SHOT;
    if (outgoing.light && tunnel->duplicate && (packet->cb[1] & ~(MAX_PATHS - 1)) != COPY) {
        /* The copy passes through this program again; cb[1] contains the path that it must avoid. */
        packet->cb[1] = COPY | chosen;
        redirect_clone(packet, settings.device, 0);
        packet->cb[1] = 0;
    }
    path = &tunnel->paths[chosen];
    sequence = UNORDERED;
    if (!outgoing.light) {
        /* Two processors may use the same number; the resequencer then treats one packet as late. */
        sequence = ++state->sequence & 0xffff;
        if (sequence == UNORDERED)
            sequence = ++state->sequence & 0xffff;
    }
    __sync_fetch_and_add(&state->paths[chosen].sent_packets, 1);
    __sync_fetch_and_add(&state->paths[chosen].sent_bytes, packet->len - ETH_HLEN);
    if (rewrite(packet, &headers, &path->outside, sequence))
        return TC_ACT_SHOT;
    if (path->class)
        packet->priority = path->class; /* netfilter does not see a redirected packet */
    next = path->next;
    return redirect_neighbour(path->interface, &next, sizeof(next), 0);
}

/* Join a packet. `headers->network` is the offset of its IP header: 0 on a device without an Ethernet header. */
static inline __attribute__((always_inline)) int join(struct __sk_buff *packet, struct headers *headers)
{
    struct ethhdr ethernet = {.h_proto = packet->protocol};
    struct path_key *key;
    struct tunnel *tunnel;
    struct state *state;
    __u32 chosen, port;

    if (!read_headers(packet, headers))
        return TC_ACT_OK;
    key = map_lookup(&outside, &headers->ends);
    port = NETWORK16(headers->ends.local.port);
    __asm__("" : "+r"(port)); /* the verifier does not see that a swapped number has only 16 bits */
    port &= 0xffff;
    if (headers->first == MAGIC && (key || settings.ports[port / 8] >> port % 8 & 1))
        return TC_ACT_SHOT; /* a probe or an answer: the daemon's packet socket already has its copy */
    if (!key)
        return TC_ACT_OK;
    chosen = key->path;
    __asm__("" : "+r"(chosen)); /* read once: the verifier does not trust a second read */
    if (chosen >= MAX_PATHS)
        return TC_ACT_OK;
    tunnel = map_lookup(&tunnels, &key->tunnel);
    state = map_lookup(&states, &key->tunnel);
    if (!tunnel || !state)
        return TC_ACT_OK;
    if (!tunnel->updated)
        return TC_ACT_SHOT; /* the daemon has set the outside ends of this tunnel, but not yet the inside ends */
    __sync_fetch_and_add(&state->paths[chosen].received_packets, 1);
    __sync_fetch_and_add(&state->paths[chosen].received_bytes, packet->len - headers->network);
    for (int each = 0; each < ETH_ALEN; each++)
        ethernet.h_dest[each] = settings.address[each];
    if (rewrite(packet, headers, &tunnel->inside, headers->id) ||
        (!headers->network && change_head(packet, ETH_HLEN, 0)) ||
        store_bytes(packet, 0, &ethernet, sizeof(ethernet), 0))
        return TC_ACT_SHOT;
    if (headers->id != UNORDERED)
        packet->mark = MARK | chosen;
    return redirect(settings.device, BPF_F_INGRESS);
}

SEC("tc")
int mptcp_join(struct __sk_buff *packet)
{
    struct headers headers = {.incoming = 1, .network = ETH_HLEN};

    return join(packet, &headers);
}

/* For a device whose packets have no Ethernet header: PPP, and mobile modems with raw IP. */
SEC("tc")
int mptcp_join_ip(struct __sk_buff *packet)
{
    struct headers headers = {.incoming = 1, .network = 0};

    return join(packet, &headers);
}
