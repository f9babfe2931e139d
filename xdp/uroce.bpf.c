/* SPDX-License-Identifier: MIT OR GPL-2.0-only
 *
 * Steers RoCE v2 (UDP destination port 4791) that is for this host to the AF_XDP socket of its receive queue; everything
 * else goes on to the kernel: ARP and neighbour discovery, and RoCE that is forwarded, bridged, broadcast or for a group that
 * nobody has joined, and what is for other programs of this host that have sockets on the same addresses.
 *
 * Looked through: at most one VLAN tag (802.1Q or 802.1ad), IPv4 without options (RoCE v2 has none), IPv6 without
 * extension headers. Passed to the kernel: fragments (only the first one has ports) and whatever is cut short. All
 * offsets are constants: the verifier lets only programs with CAP_PERFMON compute with others.
 *
 * No header is included: the few definitions below are kernel ABI, and this way the program builds on any machine that
 * has clang, whatever kernel headers it has. It loads on 5.18 (the first kernel with xdp.frags) and later.
 */

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define SEC(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))


/* enum xdp_action */
#define XDP_PASS 2
/* enum bpf_map_type */
#define BPF_MAP_TYPE_HASH 1
#define BPF_MAP_TYPE_ARRAY 2
#define BPF_MAP_TYPE_XSKMAP 17

struct xdp_md {
	u32 data;
	u32 data_end;
	u32 data_meta;
	u32 ingress_ifindex;
	u32 rx_queue_index;
	u32 egress_ifindex;
};

/* Helper 1. */
static void *(*const bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
/* Helper 51; the kernel takes its low flag bits as the action for a key that is not in the map. */
static long (*const bpf_redirect_map)(void *map, u64 key, u64 flags) = (void *)51;

#define ETHERTYPE_IPV4 0x0800
#define ETHERTYPE_IPV6 0x86dd
#define ETHERTYPE_8021Q 0x8100
#define ETHERTYPE_8021AD 0x88a8
#define PROTOCOL_UDP 17
#define ROCE_V2_PORT 4791

#define ETHERNET_BYTES 14
#define VLAN_TAG_BYTES 4
#define IPV6_BYTES 40
#define UDP_BYTES 8

/* Bytes from the BTH's start: BTH 12, DETH 8, a management datagram's header 24, then the connection manager's message. */
#define BTH_BYTES 12
#define ATTRIBUTE_AT 36
#define MESSAGE_AT 44
#define MESSAGE_BYTES_MIN 16

/* The queue pair of management datagrams, and attributes of the connection manager's messages (IBTA 12.6, 12.11). */
#define GSI_QPN 1
#define REQ 0x10
#define SIDR_REQ 0x17
#define SIDR_REP 0x18

/* One socket a receive queue; the loader sets max_entries to the interface's number of queues. */
struct {
	int (*type)[BPF_MAP_TYPE_XSKMAP];
	int (*key_size)[sizeof(u32)];
	int (*value_size)[sizeof(u32)];
	int (*max_entries)[64];
} xsks SEC(".maps");

/* An address as it is in packets; an IPv4 one with the prefix ::ffff:0:0/96. */
struct address {
	u32 words[4];
};

/* Where packets for this host may go to: the interface's addresses and the groups that were joined. The loader keeps them up
 * to date; src/link/xdp.rs says how many there can be.
 */
struct {
	int (*type)[BPF_MAP_TYPE_HASH];
	int (*key_size)[sizeof(struct address)];
	int (*value_size)[sizeof(u8)];
	int (*max_entries)[1024];
} addresses SEC(".maps");

/* The slot of the program that has the sockets, 1 to 63, when other programs share the addresses; 0 when none can. */
struct {
	int (*type)[BPF_MAP_TYPE_ARRAY];
	int (*key_size)[sizeof(u32)];
	int (*value_size)[sizeof(u32)];
	int (*max_entries)[1];
} slot SEC(".maps");

/* What a program listens for by RDMA CM: the service's number as it is in packets, and the address, or zeros for any. */
struct service {
	u32 id[2];
	struct address at;
};

/* Requests for connections that are for the program that has the sockets. */
struct {
	int (*type)[BPF_MAP_TYPE_HASH];
	int (*key_size)[sizeof(struct service)];
	int (*value_size)[sizeof(u8)];
	int (*max_entries)[1024];
} services SEC(".maps");

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define IPV4_MAPPED 0xffff0000
#else
#define IPV4_MAPPED 0x0000ffff
#endif

INLINE u16 load_be16(const u8 *at)
{
	return (u16)(at[0] << 8 | at[1]);
}

/* Addresses lie at multiples of four bytes behind the IP header's start. The barrier keeps the compiler from making one load
 * at an offset that is in a register out of those of two branches.
 */
INLINE u32 load_word(const u8 *at)
{
	u32 word = *(const u32 *)at;

	__asm__ volatile("" : "+r"(word));
	return word;
}

/* Whether a packet is for the program with the slot `own`. Numbers of queue pairs and ids of connections have the slot in the
 * lower six of their upper twelve bits. src/link/udp/sharing/selector.rs has the same rules for sockets.
 */
INLINE int is_for(u32 own, const u8 *bth, const u8 *end, const struct address *to)
{
	struct service service = {};
	const u8 *message = bth + MESSAGE_AT;
	u32 qpn, id;
	u16 attribute;

	if (bth + BTH_BYTES > end)
		return 0;
	qpn = (u32)bth[5] << 16 | (u32)bth[6] << 8 | bth[7];
	if (qpn != GSI_QPN)
		return (qpn >> 12 & 63) == own;
	if (message + MESSAGE_BYTES_MIN > end)
		return 0;
	attribute = load_be16(bth + ATTRIBUTE_AT);
	if (attribute != REQ && attribute != SIDR_REQ) {
		/* The id that the receiver chose. */
		id = attribute == SIDR_REP ? load_word(message) : load_word(message + 4);
		return (load_be16((const u8 *)&id) >> 4 & 63) == own;
	}
	service.id[0] = load_word(message + 8);
	service.id[1] = load_word(message + 12);
	if (bpf_map_lookup_elem(&services, &service))
		return 1;
	service.at = *to;
	return bpf_map_lookup_elem(&services, &service) != 0;
}

SEC("xdp.frags")
int uroce(struct xdp_md *ctx)
{
	const u8 *data = (const u8 *)(unsigned long)ctx->data;
	const u8 *end = (const u8 *)(unsigned long)ctx->data_end;
	const u8 *ip = data + ETHERNET_BYTES;
	const u8 *udp;
	struct address to = {};
	const u32 *own;
	u32 first = 0;
	u16 ethertype;

	if (ip > end)
		return XDP_PASS;
	ethertype = load_be16(data + 12);
	if (ethertype == ETHERTYPE_8021Q || ethertype == ETHERTYPE_8021AD) {
		ip += VLAN_TAG_BYTES;
		if (ip > end)
			return XDP_PASS;
		ethertype = load_be16(data + 16);
	}

	if (ethertype == ETHERTYPE_IPV4) {
		if (ip + 20 > end)
			return XDP_PASS;
		/* version 4, five words */
		if (ip[0] != 0x45 || ip[9] != PROTOCOL_UDP)
			return XDP_PASS;
		/* more fragments, or not the first one */
		if (load_be16(ip + 6) & 0x3fff)
			return XDP_PASS;
		to.words[2] = IPV4_MAPPED;
		to.words[3] = load_word(ip + 16);
		udp = ip + 20;
	} else if (ethertype == ETHERTYPE_IPV6) {
		if (ip + IPV6_BYTES > end)
			return XDP_PASS;
		if (ip[0] >> 4 != 6 || ip[6] != PROTOCOL_UDP)
			return XDP_PASS;
		to.words[0] = load_word(ip + 24);
		to.words[1] = load_word(ip + 28);
		to.words[2] = load_word(ip + 32);
		to.words[3] = load_word(ip + 36);
		udp = ip + IPV6_BYTES;
	} else {
		return XDP_PASS;
	}

	if (udp + UDP_BYTES > end || load_be16(udp + 2) != ROCE_V2_PORT)
		return XDP_PASS;
	if (!bpf_map_lookup_elem(&addresses, &to))
		return XDP_PASS;
	own = bpf_map_lookup_elem(&slot, &first);
	if (own && *own && !is_for(*own, udp + UDP_BYTES, end, &to))
		return XDP_PASS;
	return bpf_redirect_map(&xsks, ctx->rx_queue_index, XDP_PASS);
}

char _license[] SEC("license") = "Dual MIT/GPL";
