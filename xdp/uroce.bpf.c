/* SPDX-License-Identifier: MIT OR GPL-2.0-only
 *
 * Steers RoCE v2 (UDP destination port 4791) to the AF_XDP socket of its receive queue; everything else, ARP and
 * neighbour discovery among it, goes on to the kernel.
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
#define BPF_MAP_TYPE_XSKMAP 17

struct xdp_md {
	u32 data;
	u32 data_end;
	u32 data_meta;
	u32 ingress_ifindex;
	u32 rx_queue_index;
	u32 egress_ifindex;
};

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

/* One socket a receive queue; the loader sets max_entries to the interface's number of queues. */
struct {
	int (*type)[BPF_MAP_TYPE_XSKMAP];
	int (*key_size)[sizeof(u32)];
	int (*value_size)[sizeof(u32)];
	int (*max_entries)[64];
} xsks SEC(".maps");

INLINE u16 load_be16(const u8 *at)
{
	return (u16)(at[0] << 8 | at[1]);
}

SEC("xdp.frags")
int uroce(struct xdp_md *ctx)
{
	const u8 *data = (const u8 *)(unsigned long)ctx->data;
	const u8 *end = (const u8 *)(unsigned long)ctx->data_end;
	const u8 *ip = data + ETHERNET_BYTES;
	const u8 *udp;
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
		udp = ip + 20;
	} else if (ethertype == ETHERTYPE_IPV6) {
		if (ip + IPV6_BYTES > end)
			return XDP_PASS;
		if (ip[0] >> 4 != 6 || ip[6] != PROTOCOL_UDP)
			return XDP_PASS;
		udp = ip + IPV6_BYTES;
	} else {
		return XDP_PASS;
	}

	if (udp + UDP_BYTES > end || load_be16(udp + 2) != ROCE_V2_PORT)
		return XDP_PASS;
	return bpf_redirect_map(&xsks, ctx->rx_queue_index, XDP_PASS);
}

char _license[] SEC("license") = "Dual MIT/GPL";
