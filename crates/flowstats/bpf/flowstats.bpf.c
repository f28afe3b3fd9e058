/* SPDX-License-Identifier: MIT OR GPL-2.0-only
 *
 * Counts what leaves an interface, per inner flow and segment [egress §5.1.3].
 *
 * This file and the object that is made of it are under MIT or GPL-2.0, as the reader chooses; the
 * rest of Keiro is not under the GPL. The kernel lends the functions that tell of MPTCP only to
 * programs that say they are compatible with the GPL, hence "Dual MIT/GPL" at the end.
 *
 * Attached to the egress of an interface (TCX, or clsact before Linux 6.6), before the queueing
 * discipline. Locally made packets arrive here already encapsulated, and as super-packets that are
 * cut later: what is counted is what the cut packets will have on the wire (wire_len, gso_segs),
 * with link-layer headers. Every packet is counted somewhere, so that the sum over all flows is
 * what the interface itself counts. User space (src/record.rs) reads the same structures.
 */
#include <linux/bpf.h>
#include <linux/types.h>
#include <stdbool.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

#define ETH_P_IP 0x0800
#define ETH_P_IPV6 0x86dd
#define ETH_P_8021Q 0x8100
#define ETH_P_8021AD 0x88a8

#define PROTOCOL_HOP_BY_HOP 0
#define PROTOCOL_IPIP 4
#define PROTOCOL_TCP 6
#define PROTOCOL_UDP 17
#define PROTOCOL_IPV6 41
#define PROTOCOL_ROUTING 43
#define PROTOCOL_FRAGMENT 44
#define PROTOCOL_DESTINATION 60
#define PROTOCOL_SCTP 132

#define SEGMENT_ROUTING 4

#define TCX_NEXT (-1)

/* What most packets are comes first in the program: less of it is fetched. */
#define likely(condition) __builtin_expect(!!(condition), 1)
#define unlikely(condition) __builtin_expect(!!(condition), 0)

/* Nothing is looked for further in. */
#define REACH_BYTES 192
/* As much is pulled into the first part of a buffer that has too little there. */
#define PULL_BYTES 256
/* Extension headers that are passed, of outer and inner header each. */
#define EXTENSIONS_MAX 4
#define VLAN_TAGS_MAX 2

/* A connection's figures are looked up once in so long, and with its last packet: they lie in memory
 * that counting does not touch otherwise. */
#define LOOK_NS 10000000ULL

/* What kind of packets a flow has. */
enum kind {
	KIND_OTHER = 0, /* neither IPv4 nor IPv6, or cut short */
	KIND_V4 = 4,
	KIND_V6 = 6,
};

/* Packets that do not tell their ports: fragments but the first. */
#define FLAG_FRAGMENT 1
/* Flows for which the table had no room. */
#define FLAG_OVERFLOW 2

/* IPv4 in the first four bytes. Words, because bytes would be copied one by one; and not larger ones,
 * because that is how addresses lie in packets. */
struct address {
	__u32 words[4];
};

struct key {
	struct address source;
	struct address destination;
	struct address sid;   /* all zero: none */
	__u16 source_port;    /* network byte order */
	__u16 destination_port;
	__u8 protocol;
	__u8 kind;
	__u8 flags;
	__u8 zero;
};

struct flow {
	__u64 bytes;   /* on the wire */
	__u64 packets; /* on the wire */
	__u64 last_ns; /* CLOCK_MONOTONIC_COARSE at the last packet */
	__u64 looked_ns; /* the same when the socket was looked at; what follows is of then */
	__u64 cookie;  /* socket cookie; 0: no socket */
	__u32 token;   /* MPTCP token; 0: none */
	__u32 srtt_us8; /* smoothed round-trip time, eighths of a microsecond */
	__u32 cwnd;    /* packets */
	__u32 mss;     /* bytes */
	__u32 rate_delivered;   /* packets ... */
	__u32 rate_interval_us; /* ... in this time */
	__u32 segments_out;
	__u32 retransmits;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__type(key, struct key);
	__type(value, struct flow);
} flows SEC(".maps");

/* Packets that could not be counted anywhere: that never happens while `flows` has room for one
 * overflow flow per segment. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct flow);
} lost SEC(".maps");

/* Bytes before the network header: 14 on Ethernet, 0 on tunnels. Set when loaded. */
const volatile __u32 link_header_bytes = 14;

struct ethernet {
	__u8 addresses[12];
	__be16 protocol;
};

struct vlan {
	__be16 tag;
	__be16 protocol;
};

struct ipv4 {
	__u8 version_length;
	__u8 service;
	__be16 length;
	__be16 id;
	__be16 fragment;
	__u8 ttl;
	__u8 protocol;
	__be16 checksum;
	__u32 source;
	__u32 destination;
};

struct ipv6 {
	__be32 version_class_flow;
	__be16 length;
	__u8 next;
	__u8 hop_limit;
	struct address source;
	struct address destination;
};

struct extension {
	__u8 next;
	__u8 eights; /* length behind the first eight bytes; fragments: reserved */
	__u8 type;   /* of routing headers */
	__u8 segments_left;
	__u8 rest[4]; /* of fragments: offset in the first two bytes of the word at 2 */
};

struct ports {
	__be16 source;
	__be16 destination;
};

/* As far as the flags. */
struct tcp {
	struct ports ports;
	__u8 numbers[8];
	__u8 length;
	__u8 flags;
};

#define TCP_FIN 0x01
#define TCP_RST 0x04

/* Where in the packet the program is. */
struct cursor {
	void *data;
	void *end;
	__u32 at;
	bool last; /* of its connection, in this direction */
};

/* The next `bytes` of the packet, and no step; NULL where it is shorter. */
static __always_inline void *peek(struct cursor *c, __u32 bytes)
{
	if (c->at > REACH_BYTES)
		return NULL;
	void *here = c->data + c->at;
	if (here + bytes > c->end)
		return NULL;
	return here;
}

static __always_inline bool is_extension(__u8 next)
{
	return next == PROTOCOL_ROUTING || next == PROTOCOL_FRAGMENT ||
	       next == PROTOCOL_HOP_BY_HOP || next == PROTOCOL_DESTINATION;
}

/* What is behind an IPv6 header: passes extension headers, notes segments and fragments. Gives
 * the protocol, or -1 where the packet is cut short. */
static __always_inline int pass_extensions(struct cursor *c, struct key *key, __u8 next, bool outer)
{
#pragma unroll
	for (int i = 0; i < EXTENSIONS_MAX; i++) {
		if (likely(!is_extension(next)))
			break;
		struct extension *extension = peek(c, sizeof(*extension));
		if (!extension)
			return -1;
		if (next == PROTOCOL_FRAGMENT) {
			__u16 offset = ((__u16)extension->type << 8) | extension->segments_left;
			if (offset & 0xfff8)
				key->flags |= FLAG_FRAGMENT;
			next = extension->next;
			c->at += 8;
			continue;
		}
		__u32 bytes = ((__u32)extension->eights + 1) * 8;
		if (outer && next == PROTOCOL_ROUTING && extension->type == SEGMENT_ROUTING) {
			/* Segment List[0] is the last segment. */
			struct cursor list = *c;
			list.at += 8;
			struct address *segment = peek(&list, sizeof(*segment));
			if (!segment)
				return -1;
			key->sid = *segment;
		}
		next = extension->next;
		c->at += bytes;
	}
	return next;
}

static __always_inline bool read_ports(struct cursor *c, struct key *key)
{
	if (key->protocol != PROTOCOL_TCP && key->protocol != PROTOCOL_UDP &&
	    key->protocol != PROTOCOL_SCTP)
		return true;
	struct ports *ports = peek(c, sizeof(*ports));
	if (!ports)
		return false;
	key->source_port = ports->source;
	key->destination_port = ports->destination;
	if (key->protocol == PROTOCOL_TCP) {
		struct tcp *tcp = peek(c, sizeof(*tcp));
		c->last = tcp && (tcp->flags & (TCP_FIN | TCP_RST));
	}
	return true;
}

/* Not of a fragment but the first, which belongs to no flow that could be named. */
static __always_inline void copy_addresses(struct key *key, const struct ipv6 *ip)
{
	key->source = ip->source;
	key->destination = ip->destination;
}

static __always_inline bool read_v4(struct cursor *c, struct key *key)
{
	struct ipv4 *ip = peek(c, sizeof(*ip));
	if (!ip)
		return false;
	key->kind = KIND_V4;
	key->protocol = ip->protocol;
	if (ip->fragment & bpf_htons(0x1fff)) {
		key->flags |= FLAG_FRAGMENT;
		return true;
	}
	key->source.words[0] = ip->source;
	key->destination.words[0] = ip->destination;
	c->at += (ip->version_length & 15) * 4;
	return read_ports(c, key);
}

static __always_inline bool read_inner_v6(struct cursor *c, struct key *key)
{
	struct ipv6 *ip = peek(c, sizeof(*ip));
	if (!ip)
		return false;
	key->kind = KIND_V6;
	c->at += sizeof(*ip);
	int protocol = pass_extensions(c, key, ip->next, false);
	if (protocol < 0)
		return false;
	key->protocol = protocol;
	if (unlikely(key->flags & FLAG_FRAGMENT))
		return true;
	copy_addresses(key, ip);
	return read_ports(c, key);
}

static __always_inline bool is_zero(const struct address *address)
{
	const __u32 *words = address->words;
	return (words[0] | words[1] | words[2] | words[3]) == 0;
}

/* An IPv6 packet: an ordinary one, or one around another. */
static __always_inline bool read_v6(struct cursor *c, struct key *key)
{
	struct ipv6 *ip = peek(c, sizeof(*ip));
	if (!ip)
		return false;
	key->kind = KIND_V6;
	c->at += sizeof(*ip);
	int protocol = pass_extensions(c, key, ip->next, true);
	if (protocol < 0)
		return false;
	key->protocol = protocol;
	bool inside = protocol == PROTOCOL_IPV6 || protocol == PROTOCOL_IPIP;
	/* With one segment there is no segment routing header: the destination is the segment. */
	if (inside && is_zero(&key->sid))
		key->sid = ip->destination;
	if (unlikely(key->flags & FLAG_FRAGMENT))
		return true;
	if (!inside) {
		copy_addresses(key, ip);
		return read_ports(c, key);
	}
	if (protocol == PROTOCOL_IPV6)
		return read_inner_v6(c, key);
	return read_v4(c, key);
}

/* Whether all that is looked for was in the first part of the buffer. */
static __always_inline bool try_key(struct __sk_buff *skb, struct cursor *c, struct key *key)
{
	c->data = (void *)(long)skb->data;
	c->end = (void *)(long)skb->data_end;
	c->at = link_header_bytes & 31;
	c->last = false;
	__be16 protocol = skb->protocol;
	if (c->at == sizeof(struct ethernet)) {
		struct ethernet *ethernet = c->data;
		if ((void *)(ethernet + 1) > c->end)
			return false;
		protocol = ethernet->protocol;
	}
#pragma unroll
	for (int i = 0; i < VLAN_TAGS_MAX; i++) {
		if (likely(protocol != bpf_htons(ETH_P_8021Q) && protocol != bpf_htons(ETH_P_8021AD)))
			break;
		struct vlan *vlan = peek(c, sizeof(*vlan));
		if (!vlan)
			return false;
		protocol = vlan->protocol;
		c->at += sizeof(*vlan);
	}
	if (protocol == bpf_htons(ETH_P_IPV6))
		return read_v6(c, key);
	if (protocol == bpf_htons(ETH_P_IP))
		return read_v4(c, key);
	return true;
}

/* The headers of what a socket sends are all in the first part of the buffer, and nothing else is:
 * pulling more there would copy the buffer. What is forwarded may have to be pulled. */
static __always_inline void read_key(struct __sk_buff *skb, struct cursor *c, struct key *key)
{
#pragma nounroll
	for (int attempt = 0; attempt < 2; attempt++) {
		__builtin_memset(key, 0, sizeof(*key));
		if (likely(try_key(skb, c, key)) || attempt == 1)
			return;
		__u32 bytes = skb->len;
		if (bpf_skb_pull_data(skb, bytes < PULL_BYTES ? bytes : PULL_BYTES))
			return;
	}
}

/* The field of the kernel's structure that is read; the loader finds where it is. */
struct mptcp_sock {
	__u32 token;
} __attribute__((preserve_access_index));

static __always_inline void read_socket(struct __sk_buff *skb, struct flow *flow, bool mptcp)
{
	struct bpf_sock *socket = skb->sk;
	if (!socket)
		return;
	flow->cookie = bpf_get_socket_cookie(skb);
	if (mptcp) {
		struct mptcp_sock *connection = (void *)bpf_skc_to_mptcp_sock(socket);
		if (connection)
			flow->token = connection->token;
	}
	socket = bpf_sk_fullsock(socket);
	if (!socket)
		return;
	struct bpf_tcp_sock *tcp = bpf_tcp_sock(socket);
	if (!tcp)
		return;
	flow->srtt_us8 = tcp->srtt_us;
	flow->cwnd = tcp->snd_cwnd;
	flow->mss = tcp->mss_cache;
	flow->rate_delivered = tcp->rate_delivered;
	flow->rate_interval_us = tcp->rate_interval_us;
	flow->segments_out = tcp->segs_out;
	flow->retransmits = tcp->total_retrans;
}

/* The flow of a key, made where it is new; one for all of the segment where there is no room. */
static __always_inline struct flow *find(struct key *key)
{
	struct flow *flow = bpf_map_lookup_elem(&flows, key);
	if (likely(flow))
		return flow;
	struct flow fresh = {};
	bpf_map_update_elem(&flows, key, &fresh, BPF_NOEXIST);
	flow = bpf_map_lookup_elem(&flows, key);
	if (flow)
		return flow;
	key->source = key->destination = (struct address){};
	key->source_port = 0;
	key->destination_port = 0;
	key->protocol = 0;
	key->flags = FLAG_OVERFLOW;
	flow = bpf_map_lookup_elem(&flows, key);
	if (flow)
		return flow;
	bpf_map_update_elem(&flows, key, &fresh, BPF_NOEXIST);
	flow = bpf_map_lookup_elem(&flows, key);
	if (flow)
		return flow;
	__u32 first = 0;
	return bpf_map_lookup_elem(&lost, &first);
}

static __always_inline int count(struct __sk_buff *skb, bool mptcp)
{
	struct key key;
	struct cursor c;
	read_key(skb, &c, &key);
	struct flow *flow = find(&key);
	if (!flow)
		return TCX_NEXT;
	__u32 segments = skb->gso_segs;
	__sync_fetch_and_add(&flow->bytes, skb->wire_len);
	__sync_fetch_and_add(&flow->packets, segments > 1 ? segments : 1);
	__u64 now = bpf_ktime_get_coarse_ns();
	flow->last_ns = now;
	bool due = c.last || now - flow->looked_ns >= LOOK_NS;
	if (unlikely(due) && !(key.flags & FLAG_OVERFLOW)) {
		flow->looked_ns = now;
		read_socket(skb, flow, mptcp);
	}
	return TCX_NEXT;
}

/* With MPTCP tokens: Linux 5.19, CAP_PERFMON. */
SEC("classifier/count_mptcp")
int count_mptcp(struct __sk_buff *skb)
{
	return count(skb, true);
}

/* Without. */
SEC("classifier/count_plain")
int count_plain(struct __sk_buff *skb)
{
	return count(skb, false);
}

/* What a run costs that does nothing, which is the measuring itself: for benchmarks. */
SEC("classifier/count_nothing")
int count_nothing(struct __sk_buff *skb)
{
	(void)skb;
	return TCX_NEXT;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
