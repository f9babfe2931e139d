/* Deadline mode over plain verbs: one end serves an object, the other fetches it by a deadline, over unreliable datagram
 * queue pairs. It runs on RNICs, and by `uroce run` without them.
 *
 *     deadline [options] serve
 *     deadline [options] fetch HOST
 *
 *   -d DEVICE        the first one unless it is named
 *   -g INDEX         of the GID (0)
 *   -p PORT          of TCP, for the addresses of queue pairs (18620)
 *   -b BYTES         of the object (4194304)
 *   -k BYTES         of a block (65536)
 *   -v VERSION       (1)
 *   -r PER_MILLE     repair symbols for a thousand (0)
 *   -t MS[,MS...]    deadlines, one after the other for each request (1000)
 *   -q PER_MILLE     of requests, so many of a thousand are to be whole: deadlines by what earlier ones took, -t until
 *                    eight are known
 *   -n REQUESTS      how often it is fetched (1)
 *   -f FILE          keeps whole blocks in FILE, and which these are in FILE.map; fetches only what is missing there
 *
 * `fetch` prints an object of JSON a request. It counts the symbols that arrive by the places of their bytes, and compares
 * what must be whole by that with what the library says is whole (exact), and the bytes of whole blocks with what they
 * must be (contents_equal).
 *
 *     cc deadline.c -luroce_transfer_c -libverbs -o deadline
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <infiniband/verbs.h>

#include "uroce_deadline.h"

enum { RECEIVES = 1024, SENDS = 256, GRH_BYTES = 40, DATA_HEADER_BYTES = 40, PORT_NUMBER = 1 };
static const uint32_t Q_KEY = 0x11111111;
static const uint64_t OBJECT = 1;

struct options {
    const char *device, *host, *file, *deadlines, *port;
    int gid_index, requests;
    uint64_t bytes, version;
    uint32_t block_bytes;
    uint16_t repair_per_mille, whole_per_mille;
};

struct verbs {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct ibv_ah *ah;
    struct ibv_mr *region;
    uint8_t *memory;
    size_t datagram_bytes, slot_bytes;
    uint32_t peer_qpn;
    int unused[SENDS], unused_count;
};

struct address {
    uint32_t qpn;
    uint8_t gid[16];
};

static void fail(const char *what) {
    fprintf(stderr, "deadline: %s: %s\n", what, errno ? strerror(errno) : "failed");
    exit(1);
}

static uint64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

/* What the object has at a place. */
static uint8_t value(uint64_t offset, uint64_t version) {
    uint64_t mixed = (offset + 1) * 0x9e3779b97f4a7c15u + version * 0xbf58476d1ce4e5b9u;
    return (uint8_t)(mixed >> 56);
}

static void post_receive(struct verbs *verbs, int slot) {
    struct ibv_sge sge = {(uintptr_t)(verbs->memory + (size_t)slot * verbs->slot_bytes), (uint32_t)verbs->slot_bytes,
                          verbs->region->lkey};
    struct ibv_recv_wr request = {.wr_id = (uint64_t)slot, .sg_list = &sge, .num_sge = 1}, *bad;
    if ((errno = ibv_post_recv(verbs->qp, &request, &bad))) fail("ibv_post_recv");
}

static uint8_t *send_slot(struct verbs *verbs, int slot) {
    return verbs->memory + (size_t)(RECEIVES + slot) * verbs->slot_bytes;
}

static void post_send(struct verbs *verbs, int slot, size_t bytes) {
    struct ibv_sge sge = {(uintptr_t)send_slot(verbs, slot), (uint32_t)bytes, verbs->region->lkey};
    struct ibv_send_wr request = {.wr_id = (uint64_t)(RECEIVES + slot), .sg_list = &sge, .num_sge = 1,
                                  .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED}, *bad;
    request.wr.ud.ah = verbs->ah;
    request.wr.ud.remote_qpn = verbs->peer_qpn;
    request.wr.ud.remote_qkey = Q_KEY;
    if ((errno = ibv_post_send(verbs->qp, &request, &bad))) fail("ibv_post_send");
}

static void open_verbs(struct verbs *verbs, const struct options *options) {
    struct ibv_device **devices = ibv_get_device_list(NULL);
    if (!devices || !devices[0]) fail("there is no device");
    struct ibv_device *device = NULL;
    for (int i = 0; devices[i]; i++)
        if (!device && (!options->device || !strcmp(options->device, ibv_get_device_name(devices[i])))) device = devices[i];
    if (!device || !(verbs->context = ibv_open_device(device))) fail("opening the device");
    ibv_free_device_list(devices);
    struct ibv_port_attr port;
    if ((errno = ibv_query_port(verbs->context, PORT_NUMBER, &port))) fail("ibv_query_port");
    verbs->datagram_bytes = (size_t)128 << port.active_mtu;
    verbs->slot_bytes = GRH_BYTES + verbs->datagram_bytes;
    if (!(verbs->pd = ibv_alloc_pd(verbs->context))) fail("ibv_alloc_pd");
    if (!(verbs->channel = ibv_create_comp_channel(verbs->context))) fail("ibv_create_comp_channel");
    if (!(verbs->cq = ibv_create_cq(verbs->context, RECEIVES + SENDS, NULL, verbs->channel, 0))) fail("ibv_create_cq");
    size_t bytes = (RECEIVES + SENDS) * verbs->slot_bytes;
    if (!(verbs->memory = calloc(1, bytes))) fail("memory");
    if (!(verbs->region = ibv_reg_mr(verbs->pd, verbs->memory, bytes, IBV_ACCESS_LOCAL_WRITE))) fail("ibv_reg_mr");
    struct ibv_qp_init_attr init = {.send_cq = verbs->cq, .recv_cq = verbs->cq, .qp_type = IBV_QPT_UD,
                                    .cap = {SENDS, RECEIVES, 1, 1, 0}};
    if (!(verbs->qp = ibv_create_qp(verbs->pd, &init))) fail("ibv_create_qp");
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = PORT_NUMBER, .qkey = Q_KEY};
    int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
    if ((errno = ibv_modify_qp(verbs->qp, &attr, mask))) fail("to INIT");
    for (int slot = 0; slot < RECEIVES; slot++) post_receive(verbs, slot);
    attr.qp_state = IBV_QPS_RTR;
    if ((errno = ibv_modify_qp(verbs->qp, &attr, IBV_QP_STATE))) fail("to RTR");
    attr.qp_state = IBV_QPS_RTS;
    if ((errno = ibv_modify_qp(verbs->qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN))) fail("to RTS");
    for (int slot = 0; slot < SENDS; slot++) verbs->unused[verbs->unused_count++] = slot;
}

/* Tells the peer our address over TCP, and learns its. */
static void exchange(struct verbs *verbs, const struct options *options, int tcp) {
    union ibv_gid gid;
    if (ibv_query_gid(verbs->context, PORT_NUMBER, options->gid_index, &gid)) fail("ibv_query_gid");
    struct address here = {.qpn = htonl(verbs->qp->qp_num)}, there;
    memcpy(here.gid, gid.raw, sizeof here.gid);
    if (write(tcp, &here, sizeof here) != sizeof here) fail("telling the address");
    if (recv(tcp, &there, sizeof there, MSG_WAITALL) != sizeof there) fail("learning the peer's address");
    verbs->peer_qpn = ntohl(there.qpn);
    struct ibv_ah_attr attr = {.is_global = 1, .port_num = PORT_NUMBER,
                               .grh = {.sgid_index = (uint8_t)options->gid_index, .hop_limit = 64}};
    memcpy(attr.grh.dgid.raw, there.gid, sizeof there.gid);
    if (verbs->ah) ibv_destroy_ah(verbs->ah);
    if (!(verbs->ah = ibv_create_ah(verbs->pd, &attr))) fail("ibv_create_ah");
}

/* Waits for a completion, at most until a time; returns whether `also` can be read. */
static bool wait_until(struct verbs *verbs, uint64_t until_ns, int also) {
    if ((errno = ibv_req_notify_cq(verbs->cq, 0))) fail("ibv_req_notify_cq");
    uint64_t now = now_ns();
    uint64_t left_ns = until_ns > now ? until_ns - now : 0;
    struct timespec timeout = {(time_t)(left_ns / 1000000000), (long)(left_ns % 1000000000)};
    struct pollfd waits[2] = {{verbs->channel->fd, POLLIN, 0}, {also, POLLIN, 0}};
    ppoll(waits, also >= 0 ? 2 : 1, &timeout, NULL);
    if (waits[0].revents & POLLIN) {
        struct ibv_cq *cq;
        void *unused;
        if (ibv_get_cq_event(verbs->channel, &cq, &unused)) fail("ibv_get_cq_event");
        ibv_ack_cq_events(cq, 1);
    }
    return waits[1].revents != 0;
}

/* The next datagram that has arrived, until its slot is posted again; NULL for none. */
static const uint8_t *poll_datagram(struct verbs *verbs, size_t *bytes, int *slot) {
    struct ibv_wc completion;
    while (ibv_poll_cq(verbs->cq, 1, &completion) == 1) {
        if (completion.wr_id >= RECEIVES) {
            verbs->unused[verbs->unused_count++] = (int)completion.wr_id - RECEIVES;
        } else if (completion.status == IBV_WC_SUCCESS && completion.byte_len >= GRH_BYTES) {
            *slot = (int)completion.wr_id;
            *bytes = completion.byte_len - GRH_BYTES;
            return verbs->memory + (size_t)*slot * verbs->slot_bytes + GRH_BYTES;
        } else {
            errno = 0;
            fail("a receive");
        }
    }
    return NULL;
}

/* ------------------------------------------------------------------------------------------------ the end that serves */

static void serve_peer(struct verbs *verbs, const struct options *options, const void *values, int tcp) {
    uint8_t seed[32];
    if (getrandom(seed, sizeof seed, 0) != sizeof seed) fail("getrandom");
    uroce_deadline_sender *sender = uroce_deadline_sender_new(seed, verbs->datagram_bytes);
    struct uroce_deadline_object object = {OBJECT, options->version, options->block_bytes, values, options->bytes};
    errno = 0;
    if (uroce_deadline_sender_offer(sender, &object)) fail("offering the object: its blocks cannot be");
    bool is_there = true;
    while (is_there || uroce_deadline_sender_requests(sender) > 0) {
        size_t bytes;
        int slot;
        const uint8_t *datagram;
        while ((datagram = poll_datagram(verbs, &bytes, &slot))) {
            uroce_deadline_sender_handle_datagram(sender, now_ns(), datagram, bytes);
            post_receive(verbs, slot);
        }
        uroce_deadline_sender_handle_timeout(sender, now_ns());
        while (verbs->unused_count > 0) {
            int unused = verbs->unused[verbs->unused_count - 1];
            bytes = uroce_deadline_sender_poll_transmit(sender, now_ns(), send_slot(verbs, unused), verbs->datagram_bytes);
            if (bytes == 0) break;
            verbs->unused_count--;
            post_send(verbs, unused, bytes);
        }
        uint64_t until = uroce_deadline_sender_poll_timeout(sender), longest = now_ns() + 1000000000;
        /* With all slots in use, a completion comes first. */
        if (until > longest || verbs->unused_count == 0) until = longest;
        if (wait_until(verbs, until, is_there ? tcp : -1)) {
            char byte;
            is_there = recv(tcp, &byte, 1, MSG_DONTWAIT) > 0;
        }
    }
    uroce_deadline_sender_free(sender);
}

static void serve(struct verbs *verbs, const struct options *options) {
    uint8_t *values = malloc(options->bytes);
    if (!values) fail("memory");
    for (uint64_t at = 0; at < options->bytes; at++) values[at] = value(at, options->version);
    int yes = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(options->port))};
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 8)) fail("listening");
    for (;;) {
        int tcp = accept(listener, NULL, NULL);
        if (tcp < 0) fail("accept");
        exchange(verbs, options, tcp);
        serve_peer(verbs, options, values, tcp);
        close(tcp);
    }
}

/* ---------------------------------------------------------------------------------------------- the end that fetches */

/* Which symbols have arrived, by the places of bytes in datagrams alone (docs/EXTENSIONS.md). */
struct oracle {
    uint64_t request, version;
    uint32_t blocks, symbols_max;
    uint8_t *symbols;    /* a byte for each symbol of each block, repair symbols too */
    uint32_t *count;     /* how many of a block */
    uint64_t datagrams;
};

static uint64_t big_endian(const uint8_t *at, int bytes) {
    uint64_t number = 0;
    for (int i = 0; i < bytes; i++) number = number << 8 | at[i];
    return number;
}

static void oracle_sees(struct oracle *oracle, const uint8_t *datagram, size_t bytes) {
    if (bytes <= DATA_HEADER_BYTES || memcmp(datagram, "uDL1\2", 5) || big_endian(datagram + 8, 8) != oracle->request ||
        big_endian(datagram + 16, 8) != oracle->version)
        return;
    uint64_t block = big_endian(datagram + 28, 4), symbol = big_endian(datagram + 32, 4);
    if (block >= oracle->blocks || symbol >= oracle->symbols_max) return;
    oracle->datagrams++;
    uint8_t *seen = oracle->symbols + block * oracle->symbols_max + symbol;
    oracle->count[block] += !*seen;
    *seen = 1;
}

/* Blocks that are kept from one run to the next. */
struct kept {
    int file, map;
    uint8_t *is_whole; /* a byte for each block */
};

/* Writes all of it: a disk that becomes full takes a part first. */
static bool write_all(int file, const void *values, size_t bytes, uint64_t at) {
    for (size_t done = 0; done < bytes;) {
        ssize_t more = pwrite(file, (const uint8_t *)values + done, bytes - done, (off_t)(at + done));
        if (more <= 0) return false;
        done += (size_t)more;
    }
    return true;
}

static void keep(struct kept *kept, const struct options *options, uint32_t block, const void *values, size_t bytes) {
    kept->is_whole[block] = '1';
    if (kept->file < 0) return;
    /* The bytes first: a block that the map has is whole. */
    if (!write_all(kept->file, values, bytes, (uint64_t)block * options->block_bytes) || fdatasync(kept->file) ||
        !write_all(kept->map, "1", 1, block))
        fail("keeping a block");
}

static void open_kept(struct kept *kept, const struct options *options, uint32_t blocks) {
    kept->file = kept->map = -1;
    if (!(kept->is_whole = malloc(blocks))) fail("memory");
    memset(kept->is_whole, '0', blocks);
    if (!options->file) return;
    char map[4096];
    snprintf(map, sizeof map, "%s.map", options->file);
    kept->file = open(options->file, O_RDWR | O_CREAT, 0600);
    kept->map = open(map, O_RDWR | O_CREAT, 0600);
    if (kept->file < 0 || kept->map < 0) fail("opening the file");
    if (pread(kept->map, kept->is_whole, blocks, 0) < 0) fail("reading the map");
}

static const char *END_NAMES[] = {"goes on", "complete", "deadline", "cancelled", "failed"};

/* Fetches what is missing once; returns how it ended. */
static enum uroce_deadline_end fetch_once(struct verbs *verbs, const struct options *options, struct kept *kept,
                                          int number, uint64_t deadline_ns, uroce_deadline_history *history) {
    uint32_t blocks = (uint32_t)((options->bytes + options->block_bytes - 1) / options->block_bytes);
    struct uroce_deadline_run *runs = calloc(blocks, sizeof *runs);
    size_t run_count = 0;
    uint32_t wanted = 0;
    for (uint32_t block = 0; block < blocks; block++) {
        if (kept->is_whole[block] == '1') continue;
        wanted++;
        if (run_count && runs[run_count - 1].first + runs[run_count - 1].count == block) runs[run_count - 1].count++;
        else runs[run_count++] = (struct uroce_deadline_run){block, 1};
    }
    uint16_t symbol_bytes = (uint16_t)((verbs->datagram_bytes - DATA_HEADER_BYTES) / 64 * 64);
    if (symbol_bytes > 4032) symbol_bytes = 4032;
    uint32_t symbols = (options->block_bytes + symbol_bytes - 1u) / symbol_bytes;
    struct oracle oracle = {.version = options->version, .blocks = blocks, .symbols_max = 2 * symbols};
    oracle.symbols = calloc(blocks, oracle.symbols_max);
    oracle.count = calloc(blocks, sizeof *oracle.count);
    if (getrandom(&oracle.request, sizeof oracle.request, 0) != sizeof oracle.request) fail("getrandom");
    uint64_t began = now_ns(), deadline = began + deadline_ns;
    struct uroce_deadline_request request = {OBJECT, options->version, options->bytes, options->block_bytes, symbol_bytes,
                                             options->repair_per_mille, deadline, 0, runs, run_count};
    char error[512] = "";
    uroce_deadline_receiver *receiver = uroce_deadline_receiver_new(oracle.request, &request, began, error, sizeof error);
    if (!receiver) {
        fprintf(stderr, "deadline: the request cannot be: %s\n", error);
        exit(1);
    }
    enum uroce_deadline_end end;
    uint64_t ended = 0;
    for (;;) {
        size_t bytes;
        int slot;
        const uint8_t *datagram;
        while ((datagram = poll_datagram(verbs, &bytes, &slot))) {
            uint64_t now = now_ns();
            if (now < deadline && !uroce_deadline_receiver_end(receiver, NULL, 0)) oracle_sees(&oracle, datagram, bytes);
            uroce_deadline_receiver_handle_datagram(receiver, now, datagram, bytes);
            post_receive(verbs, slot);
        }
        uroce_deadline_receiver_handle_timeout(receiver, now_ns());
        uint32_t block;
        while (uroce_deadline_receiver_poll_block(receiver, &block)) {
            const void *values = uroce_deadline_receiver_block(receiver, block, &bytes);
            keep(kept, options, block, values, bytes);
        }
        while (verbs->unused_count > 0) {
            int unused = verbs->unused[verbs->unused_count - 1];
            bytes = uroce_deadline_receiver_poll_transmit(receiver, now_ns(), send_slot(verbs, unused),
                                                          verbs->datagram_bytes);
            if (bytes == 0) break;
            verbs->unused_count--;
            post_send(verbs, unused, bytes);
        }
        end = uroce_deadline_receiver_end(receiver, error, sizeof error);
        if (end && !ended) ended = now_ns();
        /* Its last words have gone. */
        if (end && uroce_deadline_receiver_poll_timeout(receiver) == UROCE_DEADLINE_NEVER) break;
        uint64_t until = uroce_deadline_receiver_poll_timeout(receiver), longest = now_ns() + 100000000;
        wait_until(verbs, until < longest && verbs->unused_count > 0 ? until : longest, -1);
    }
    uint32_t seen_blocks, whole = 0;
    const uint64_t *bitmap = uroce_deadline_receiver_whole(receiver, &seen_blocks);
    bool is_exact = seen_blocks == blocks, is_equal = true;
    for (uint32_t block = 0; block < blocks; block++) {
        size_t length, expected = options->bytes - (uint64_t)block * options->block_bytes;
        if (expected > options->block_bytes) expected = options->block_bytes;
        bool is_whole = bitmap[block / 64] >> block % 64 & 1;
        const uint8_t *values = uroce_deadline_receiver_block(receiver, block, &length);
        bool must_be = oracle.count[block] >= (expected + symbol_bytes - 1) / symbol_bytes;
        is_exact = is_exact && is_whole == must_be && is_whole == (values != NULL);
        whole += is_whole;
        if (!values) continue;
        is_equal = is_equal && length == expected;
        for (size_t at = 0; at < length && is_equal; at++)
            is_equal = values[at] == value((uint64_t)block * options->block_bytes + at, options->version);
    }
    if (history) uroce_deadline_history_record(history, receiver, ended - began);
    printf("{\"request\": %d, \"deadline_ms\": %.3f, \"end\": \"%s\", \"error\": \"%s\", \"blocks\": %u, \"wanted\": %u, \"whole\": %u, "
           "\"datagrams\": %llu, \"milliseconds\": %.3f, \"exact\": %s, \"contents_equal\": %s}\n",
           number, (double)deadline_ns / 1e6, END_NAMES[end], error, blocks, wanted, whole, (unsigned long long)oracle.datagrams,
           (double)(ended - began) / 1e6, is_exact ? "true" : "false", is_equal ? "true" : "false");
    fflush(stdout);
    uroce_deadline_receiver_free(receiver);
    free(oracle.symbols);
    free(oracle.count);
    free(runs);
    return end;
}

static int connect_to(const struct options *options) {
    struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM}, *found;
    if (getaddrinfo(options->host, options->port, &hints, &found)) fail("the host's address");
    int tcp = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(tcp, found->ai_addr, found->ai_addrlen)) fail("connecting");
    freeaddrinfo(found);
    return tcp;
}

static int fetch(struct verbs *verbs, const struct options *options) {
    uint32_t blocks = (uint32_t)((options->bytes + options->block_bytes - 1) / options->block_bytes);
    int tcp = connect_to(options);
    exchange(verbs, options, tcp);
    const char *deadlines = options->deadlines;
    uroce_deadline_history *history = options->whole_per_mille ? uroce_deadline_history_new(options->whole_per_mille) : NULL;
    bool has_failed = false;
    for (int number = 0; number < options->requests; number++) {
        struct kept kept;
        open_kept(&kept, options, blocks);
        char *rest;
        uint64_t deadline_ns = strtoull(deadlines, &rest, 10) * 1000000;
        uint64_t by_history = history ? uroce_deadline_history_deadline(history, options->bytes) : 0;
        if (by_history) deadline_ns = by_history;
        has_failed |= fetch_once(verbs, options, &kept, number, deadline_ns, history) == UROCE_DEADLINE_FAILED;
        deadlines = *rest == ',' ? rest + 1 : options->deadlines;
        free(kept.is_whole);
        if (kept.file >= 0) close(kept.file), close(kept.map);
    }
    uroce_deadline_history_free(history);
    close(tcp);
    return has_failed;
}

int main(int argc, char **argv) {
    struct options options = {.port = "18620", .deadlines = "1000", .requests = 1, .bytes = 4 << 20, .version = 1,
                              .block_bytes = 64 << 10};
    int option;
    while ((option = getopt(argc, argv, "d:g:p:b:k:v:r:t:q:n:f:")) != -1) {
        switch (option) {
        case 'd': options.device = optarg; break;
        case 'g': options.gid_index = atoi(optarg); break;
        case 'p': options.port = optarg; break;
        case 'b': options.bytes = strtoull(optarg, NULL, 10); break;
        case 'k': options.block_bytes = (uint32_t)strtoul(optarg, NULL, 10); break;
        case 'v': options.version = strtoull(optarg, NULL, 10); break;
        case 'r': options.repair_per_mille = (uint16_t)atoi(optarg); break;
        case 't': options.deadlines = optarg; break;
        case 'q': options.whole_per_mille = (uint16_t)atoi(optarg); break;
        case 'n': options.requests = atoi(optarg); break;
        case 'f': options.file = optarg; break;
        default: return 2;
        }
    }
    const char *role = optind < argc ? argv[optind] : "";
    options.host = optind + 1 < argc ? argv[optind + 1] : NULL;
    bool serves = !strcmp(role, "serve");
    if (!serves && (strcmp(role, "fetch") || !options.host)) {
        fprintf(stderr, "usage: deadline [options] serve | deadline [options] fetch HOST\n");
        return 2;
    }
    struct verbs verbs = {0};
    open_verbs(&verbs, &options);
    if (serves) serve(&verbs, &options);
    return fetch(&verbs, &options);
}
