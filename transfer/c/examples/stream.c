/* Streams over plain verbs: one end sends parts while it computes the next ones, and they come straight into the other's memory.
 * An RC queue pair carries the chunks, as WRITEs with immediate data. It runs on RNICs, and by `uroce run` without them.
 *
 *     stream [options] send
 *     stream [options] fetch HOST
 *
 *   -d DEVICE        the first one unless it is named
 *   -g INDEX         of the GID (0)
 *   -p PORT          of TCP, for the addresses of queue pairs and the messages of streams (18630)
 *   -b BYTES         of a part (1048576)
 *   -l PARTS         (32)
 *   -v VERSION       of the first stream of a connection; each further one has the next (1)
 *   -q CHUNKS        on their way at most (64)
 *   -t MS            how long an end waits for the other (10000)
 *
 * of `send`:
 *   -x US            microseconds for which a part is computed: here, waited (0)
 *   -c BYTES[,...]   lengths of chunks, one after the other for each stream; 0 for the one that the library chooses (0)
 *   -n RECEIVERS     to which it sends, one after the other; then it ends (0: never)
 * of `fetch`:
 *   -n STREAMS       how many, one after the other (1)
 *   -f FILE          keeps what is whole in FILE, and how many bytes that are in FILE.held; fetches only the rest
 *
 * Each end prints an object of JSON a stream. `fetch` compares all bytes that are whole with what they must be
 * (contents_equal).
 *
 *     cc stream.c -luroce_transfer_c -libverbs -o stream
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
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <infiniband/verbs.h>

#include "uroce_stream.h"

enum { PORT_NUMBER = 1, WARM_UP_BYTES = 16 << 20 };
static const uint64_t NAME = 1;

struct options {
    const char *device, *host, *file, *chunks, *port;
    int gid_index, count;
    uint64_t part_bytes, version, compute_ns, patience_ns;
    uint32_t parts, outstanding;
    uint64_t bytes; /* of all parts */
};

struct verbs {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct ibv_mr *region;
    uint8_t *memory; /* of the stream; at the end that sends WARM_UP_BYTES behind it */
    enum ibv_mtu mtu;
    bool is_armed;
};

struct address {
    uint32_t qpn;
    uint32_t mtu;
    uint8_t gid[16];
};

static void fail(const char *what) {
    fprintf(stderr, "stream: %s: %s\n", what, errno ? strerror(errno) : "failed");
    exit(1);
}

static uint64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

/* What the stream has at a place. */
static uint8_t value(uint64_t offset, uint64_t version) {
    uint64_t mixed = (offset + 1) * 0x9e3779b97f4a7c15u + version * 0xbf58476d1ce4e5b9u;
    return (uint8_t)(mixed >> 56);
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
    verbs->mtu = port.active_mtu;
    if (!(verbs->pd = ibv_alloc_pd(verbs->context))) fail("ibv_alloc_pd");
    if (!(verbs->channel = ibv_create_comp_channel(verbs->context))) fail("ibv_create_comp_channel");
    int completions = 3 * (int)options->outstanding;
    if (!(verbs->cq = ibv_create_cq(verbs->context, completions, NULL, verbs->channel, 0))) fail("ibv_create_cq");
    size_t bytes = options->bytes + (options->host ? 0 : WARM_UP_BYTES);
    if (!(verbs->memory = calloc(1, bytes))) fail("memory");
    int access = IBV_ACCESS_LOCAL_WRITE | (options->host ? IBV_ACCESS_REMOTE_WRITE : 0);
    if (!(verbs->region = ibv_reg_mr(verbs->pd, verbs->memory, bytes, access))) fail("ibv_reg_mr");
}

/* A receive takes the immediate data of a chunk, and no bytes. */
static void post_receive(struct verbs *verbs) {
    struct ibv_recv_wr request = {0}, *bad;
    if ((errno = ibv_post_recv(verbs->qp, &request, &bad))) fail("ibv_post_recv");
}

/* Makes a queue pair, tells the peer its address over TCP, learns the peer's, and connects to it. */
static void connect_queue_pair(struct verbs *verbs, const struct options *options, int tcp) {
    struct ibv_qp_init_attr init = {.send_cq = verbs->cq, .recv_cq = verbs->cq, .qp_type = IBV_QPT_RC,
                                    .cap = {options->outstanding, 2 * options->outstanding, 1, 1, 0}};
    if (!(verbs->qp = ibv_create_qp(verbs->pd, &init))) fail("ibv_create_qp");
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = PORT_NUMBER,
                               .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
    int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    if ((errno = ibv_modify_qp(verbs->qp, &attr, mask))) fail("to INIT");
    /* Twice as many as the peer is told: one that is posted a little late then stops nobody. */
    for (uint32_t i = 0; options->host && i < 2 * options->outstanding; i++) post_receive(verbs);
    union ibv_gid gid;
    if (ibv_query_gid(verbs->context, PORT_NUMBER, options->gid_index, &gid)) fail("ibv_query_gid");
    struct address here = {.qpn = htonl(verbs->qp->qp_num), .mtu = htonl(verbs->mtu)}, there;
    memcpy(here.gid, gid.raw, sizeof here.gid);
    if (write(tcp, &here, sizeof here) != sizeof here) fail("telling the address");
    if (recv(tcp, &there, sizeof there, MSG_WAITALL) != sizeof there) fail("learning the peer's address");
    enum ibv_mtu mtu = ntohl(there.mtu) < (uint32_t)verbs->mtu ? (enum ibv_mtu)ntohl(there.mtu) : verbs->mtu;
    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTR, .path_mtu = mtu, .dest_qp_num = ntohl(there.qpn), .max_dest_rd_atomic = 1,
        .min_rnr_timer = 12,
        .ah_attr = {.is_global = 1, .port_num = PORT_NUMBER,
                    .grh = {.sgid_index = (uint8_t)options->gid_index, .hop_limit = 64}}};
    memcpy(attr.ah_attr.grh.dgid.raw, there.gid, sizeof there.gid);
    mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
           IBV_QP_MIN_RNR_TIMER;
    if ((errno = ibv_modify_qp(verbs->qp, &attr, mask))) fail("to RTR");
    /* rnr_retry 7: for as long as it takes. */
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
                                .max_rd_atomic = 1};
    mask = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
    if ((errno = ibv_modify_qp(verbs->qp, &attr, mask))) fail("to RTS");
}

/* Waits for a completion or for events of TCP, at most until a time; returns whether these came. The first call of two asks for
 * an event, so that its caller looks at all completions in between. */
static bool wait_until(struct verbs *verbs, uint64_t until_ns, int tcp, short events) {
    uint64_t now = now_ns(), left_ns = verbs->is_armed && until_ns > now ? until_ns - now : 0;
    /* What nobody expects to take longer. */
    if (left_ns > 1000000000) left_ns = 1000000000;
    if (!verbs->is_armed && (errno = ibv_req_notify_cq(verbs->cq, 0))) fail("ibv_req_notify_cq");
    verbs->is_armed = !verbs->is_armed;
    struct timespec timeout = {(time_t)(left_ns / 1000000000), (long)(left_ns % 1000000000)};
    struct pollfd waits[2] = {{verbs->channel->fd, POLLIN, 0}, {tcp, events, 0}};
    ppoll(waits, 2, &timeout, NULL);
    if (waits[0].revents & POLLIN) {
        struct ibv_cq *cq;
        void *unused;
        if (ibv_get_cq_event(verbs->channel, &cq, &unused)) fail("ibv_get_cq_event");
        ibv_ack_cq_events(cq, 1);
        verbs->is_armed = false;
    }
    return waits[1].revents != 0;
}

/* Reads a message of the peer; returns whether the connection goes on. */
static bool read_message(int tcp, uint8_t message[UROCE_STREAM_MESSAGE_BYTES]) {
    return recv(tcp, message, UROCE_STREAM_MESSAGE_BYTES, MSG_WAITALL) == UROCE_STREAM_MESSAGE_BYTES;
}

static void write_message(int tcp, const uint8_t message[UROCE_STREAM_MESSAGE_BYTES]) {
    /* A peer that has gone is seen when its answer is read. */
    if (send(tcp, message, UROCE_STREAM_MESSAGE_BYTES, MSG_NOSIGNAL) < 0) return;
}

static struct uroce_stream stream_of(const struct options *options, int number) {
    uint64_t *part_bytes = malloc(options->parts * sizeof *part_bytes);
    if (!part_bytes) fail("memory");
    for (uint32_t part = 0; part < options->parts; part++) part_bytes[part] = options->part_bytes;
    return (struct uroce_stream){NAME, options->version + (uint64_t)number, part_bytes, options->parts};
}

static const char *END_NAMES[] = {"goes on", "complete", "failed"};

/* -------------------------------------------------------------------------------------------------- the end that sends */

/* A stream while it is sent. */
struct sending {
    uroce_stream_sender *sender;
    uroce_stream_warm_up *warm_up;
    struct uroce_stream_conditions conditions; /* of the connection, once they are measured */
    struct uroce_stream_part *parts;
    uint64_t chunk_bytes, held, posted, began; /* posted: the bytes up to the last chunk's end */
    bool has_begun, is_chosen;
};

static void post_write(struct verbs *verbs, uint64_t from, struct uroce_stream_post post, enum ibv_wr_opcode opcode) {
    struct ibv_sge sge = {(uintptr_t)(verbs->memory + from), post.bytes, verbs->region->lkey};
    struct ibv_send_wr request = {.sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED}, *bad;
    request.imm_data = htonl(post.immediate);
    request.wr.rdma.remote_addr = post.address;
    request.wr.rdma.rkey = post.rkey;
    if ((errno = ibv_post_send(verbs->qp, &request, &bad))) fail("ibv_post_send");
}

/* Measures what the connection does, with bytes that the receiver does not have yet. */
static void warm_up(struct verbs *verbs, const struct options *options, struct sending *sending) {
    struct uroce_stream_place place;
    uint64_t bytes;
    if (sending->conditions.rate_bps > 0 || !uroce_stream_sender_invited(sending->sender, &place, &sending->held)) return;
    uint64_t longest = options->bytes - sending->held;
    if (longest == 0) return;
    if (longest > WARM_UP_BYTES) longest = WARM_UP_BYTES;
    if (!sending->warm_up) sending->warm_up = uroce_stream_warm_up_new(longest, place.outstanding);
    while ((bytes = uroce_stream_warm_up_poll_post(sending->warm_up, now_ns()))) {
        struct uroce_stream_post post = {0, place.address + sending->held, (uint32_t)bytes, place.rkey, 0};
        post_write(verbs, options->bytes, post, IBV_WR_RDMA_WRITE);
    }
    uroce_stream_warm_up_conditions(sending->warm_up, &sending->conditions);
}

/* Begins once the connection is known, or there is nothing to send. */
static void begin(const struct options *options, struct sending *sending) {
    struct uroce_stream_place place;
    if (!uroce_stream_sender_invited(sending->sender, &place, &sending->held)) return;
    if (sending->conditions.rate_bps <= 0 && sending->held < options->bytes) return;
    sending->conditions.outstanding = place.outstanding;
    sending->is_chosen = sending->chunk_bytes == 0;
    if (sending->is_chosen)
        sending->chunk_bytes =
            uroce_stream_choose(&sending->conditions, sending->parts, options->parts, sending->held);
    char error[512];
    sending->began = now_ns();
    if (uroce_stream_sender_begin(sending->sender, sending->chunk_bytes, sending->began, error, sizeof error)) {
        fprintf(stderr, "stream: %s\n", error);
        exit(1);
    }
    sending->has_begun = true;
    sending->posted = sending->held;
}

/* When the next part has been computed, or never; tells of those that have. */
static uint64_t compute(const struct options *options, struct sending *sending) {
    if (!sending->has_begun) return UROCE_STREAM_NEVER;
    uint64_t since = now_ns() - sending->began;
    uint64_t ready = options->compute_ns ? since / options->compute_ns : options->parts;
    uroce_stream_sender_handle_ready(sending->sender, ready);
    return ready < options->parts ? sending->began + (ready + 1) * options->compute_ns : UROCE_STREAM_NEVER;
}

static void poll_sends(struct verbs *verbs, struct sending *sending) {
    struct ibv_wc completion;
    while (ibv_poll_cq(verbs->cq, 1, &completion) == 1) {
        if (completion.status != IBV_WC_SUCCESS)
            uroce_stream_sender_handle_broken(sending->sender);
        else if (sending->has_begun)
            uroce_stream_sender_handle_completion(sending->sender, now_ns());
        else
            uroce_stream_warm_up_handle_completion(sending->warm_up, now_ns());
    }
}

static void print_sent(const struct options *options, const struct sending *sending, int number, uint64_t ended) {
    char error[512] = "";
    enum uroce_stream_end end = uroce_stream_sender_end(sending->sender, error, sizeof error);
    const struct uroce_stream_conditions *conditions = &sending->conditions;
    uint64_t left = options->bytes - sending->held, chunk = sending->chunk_bytes;
    double ms = conditions->rate_bps > 0 ? 8e3 / conditions->rate_bps : 0; /* a byte takes */
    double compute = (double)(options->parts * options->compute_ns) / 1e6, transfer = (double)left * ms;
    double round_trip = (double)conditions->round_trip_ns / 1e6;
    uint64_t first = chunk > options->part_bytes ? chunk : options->part_bytes;
    double bound = (compute > transfer ? compute : transfer) + (double)(first < left ? first : left) * ms + round_trip;
    double expected = 0, total = 0;
    if (sending->has_begun) {
        expected = (double)uroce_stream_total_ns(conditions, sending->parts, options->parts, sending->held, chunk) / 1e6;
        total = (double)(ended - sending->began) / 1e6;
    }
    printf("{\"stream\": %d, \"end\": \"%s\", \"error\": \"%s\", \"parts\": %u, \"whole_parts\": %zu, \"bytes\": %llu, "
           "\"held\": %llu, \"chunk_bytes\": %llu, \"is_chosen\": %s, \"outstanding\": %llu, \"rate_bps\": %.0f, "
           "\"round_trip_ms\": %.3f, \"compute_ms\": %.3f, \"transfer_ms\": %.3f, \"expected_ms\": %.3f, "
           "\"bound_ms\": %.3f, \"total_ms\": %.3f}\n",
           number, END_NAMES[end], error, options->parts, uroce_stream_sender_whole_parts(sending->sender),
           (unsigned long long)options->bytes, (unsigned long long)sending->held, (unsigned long long)chunk,
           sending->is_chosen ? "true" : "false", (unsigned long long)conditions->outstanding, conditions->rate_bps,
           round_trip, compute, transfer, expected, bound, total);
    fflush(stdout);
}

/* Sends one stream; returns whether another one may follow. */
static bool send_stream(struct verbs *verbs, const struct options *options, struct sending *sending, int number, int tcp) {
    struct uroce_stream stream = stream_of(options, number);
    for (uint64_t at = 0; at < options->bytes; at++) verbs->memory[at] = value(at, stream.version);
    char error[512];
    sending->sender = uroce_stream_sender_new(&stream, options->outstanding, options->patience_ns, now_ns(), error,
                                              sizeof error);
    if (!sending->sender) {
        fprintf(stderr, "stream: %s\n", error);
        exit(1);
    }
    sending->has_begun = false;
    sending->posted = 0;
    enum uroce_stream_end end;
    bool has_message = false, is_over = false;
    for (;;) {
        uint8_t message[UROCE_STREAM_MESSAGE_BYTES];
        struct uroce_stream_post post;
        if (has_message && read_message(tcp, message))
            uroce_stream_sender_handle_message(sending->sender, now_ns(), message, sizeof message);
        else if (has_message)
            is_over = true;
        poll_sends(verbs, sending);
        /* A receiver that has all chunks may be gone before we know: the queue pair tells. */
        if (is_over && sending->posted < options->bytes) uroce_stream_sender_handle_broken(sending->sender);
        warm_up(verbs, options, sending);
        begin(options, sending);
        uint64_t next = compute(options, sending);
        if (uroce_stream_sender_poll_message(sending->sender, message)) write_message(tcp, message);
        while (uroce_stream_sender_poll_post(sending->sender, now_ns(), &post)) {
            post_write(verbs, post.offset, post, IBV_WR_RDMA_WRITE_WITH_IMM);
            sending->posted = post.offset + post.bytes;
        }
        uroce_stream_sender_handle_timeout(sending->sender, now_ns());
        if ((end = uroce_stream_sender_end(sending->sender, NULL, 0))) break;
        uint64_t timeout = uroce_stream_sender_poll_timeout(sending->sender);
        /* It may also invite to the next stream: that waits until this one has ended. */
        short events = sending->has_begun ? POLLRDHUP : POLLIN;
        has_message = wait_until(verbs, next < timeout ? next : timeout, is_over ? -1 : tcp, events);
    }
    /* A peer that has gone before it wanted another stream is no failure. */
    if (sending->has_begun || !is_over) print_sent(options, sending, number, now_ns());
    uroce_stream_sender_free(sending->sender);
    free((void *)stream.part_bytes);
    return end == UROCE_STREAM_COMPLETE;
}

static int send_all(struct verbs *verbs, const struct options *options) {
    int yes = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(options->port))};
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 8)) fail("listening");
    struct uroce_stream_part *parts = malloc(options->parts * sizeof *parts);
    if (!parts) fail("memory");
    for (uint32_t part = 0; part < options->parts; part++)
        parts[part] = (struct uroce_stream_part){(part + 1) * options->compute_ns, options->part_bytes};
    for (int served = 0; options->count == 0 || served < options->count; served++) {
        int tcp = accept(listener, NULL, NULL);
        if (tcp < 0) fail("accept");
        connect_queue_pair(verbs, options, tcp);
        struct sending sending = {.parts = parts};
        const char *chunks = options->chunks;
        int number = 0;
        do {
            char *rest;
            sending.chunk_bytes = strtoull(chunks, &rest, 10);
            chunks = *rest == ',' ? rest + 1 : options->chunks;
        } while (send_stream(verbs, options, &sending, number++, tcp));
        uroce_stream_warm_up_free(sending.warm_up);
        ibv_destroy_qp(verbs->qp);
        close(tcp);
        struct ibv_wc left;
        while (ibv_poll_cq(verbs->cq, 1, &left) == 1) {}
    }
    return 0;
}

/* ------------------------------------------------------------------------------------------------ the end that fetches */

/* Bytes that are kept from one run to the next. */
struct kept {
    int file, count;
    uint64_t bytes;
};

static void open_kept(struct kept *kept, const struct options *options, uint8_t *memory) {
    *kept = (struct kept){-1, -1, 0};
    if (!options->file) return;
    char name[4096], text[32] = "";
    snprintf(name, sizeof name, "%s.held", options->file);
    kept->file = open(options->file, O_RDWR | O_CREAT, 0600);
    kept->count = open(name, O_RDWR | O_CREAT, 0600);
    if (kept->file < 0 || kept->count < 0) fail("opening the file");
    if (pread(kept->count, text, sizeof text - 1, 0) < 0) fail("reading how much is kept");
    kept->bytes = strtoull(text, NULL, 10);
    if (kept->bytes > options->bytes || pread(kept->file, memory, kept->bytes, 0) != (ssize_t)kept->bytes)
        fail("reading what is kept");
}

/* Writes all of it: a disk that becomes full takes a part first. */
static bool write_all(int file, const void *values, size_t bytes, uint64_t at) {
    for (size_t done = 0; done < bytes;) {
        ssize_t more = pwrite(file, (const uint8_t *)values + done, bytes - done, (off_t)(at + done));
        if (more <= 0) return false;
        done += (size_t)more;
    }
    return true;
}

static void keep(struct kept *kept, const uint8_t *memory, uint64_t whole) {
    if (kept->file < 0 || whole == kept->bytes) return;
    /* The bytes first: what is counted is there. */
    size_t more = whole - kept->bytes;
    char text[32];
    int length = snprintf(text, sizeof text, "%llu\n", (unsigned long long)whole);
    if (!write_all(kept->file, memory + kept->bytes, more, kept->bytes) || fdatasync(kept->file) ||
        !write_all(kept->count, text, (size_t)length, 0))
        fail("keeping bytes");
    kept->bytes = whole;
}

static void poll_receives(struct verbs *verbs, uroce_stream_receiver *receiver, uint64_t *fetched) {
    struct ibv_wc completion;
    while (ibv_poll_cq(verbs->cq, 1, &completion) == 1) {
        if (completion.status == IBV_WC_SUCCESS && completion.opcode == IBV_WC_RECV_RDMA_WITH_IMM) {
            *fetched += completion.byte_len;
            uroce_stream_receiver_handle_notification(receiver, now_ns(), ntohl(completion.imm_data), completion.byte_len);
            post_receive(verbs);
        } else {
            uroce_stream_receiver_handle_broken(receiver);
        }
    }
}

/* Fetches one stream; returns how it ended. */
static enum uroce_stream_end fetch_stream(struct verbs *verbs, const struct options *options, int number, int tcp) {
    struct kept kept;
    open_kept(&kept, options, verbs->memory);
    struct uroce_stream stream = stream_of(options, number);
    struct uroce_stream_place place = {(uintptr_t)verbs->memory, verbs->region->rkey, options->outstanding};
    uint64_t began = now_ns(), held = kept.bytes, fetched = 0;
    char error[512] = "";
    uroce_stream_receiver *receiver = uroce_stream_receiver_new(&stream, &place, held, options->patience_ns, began, error,
                                                                sizeof error);
    if (!receiver) {
        fprintf(stderr, "stream: %s\n", error);
        exit(1);
    }
    enum uroce_stream_end end;
    bool has_message = false;
    for (;;) {
        uint8_t message[UROCE_STREAM_MESSAGE_BYTES];
        bool is_there = !has_message || read_message(tcp, message);
        if (has_message && is_there)
            uroce_stream_receiver_handle_message(receiver, now_ns(), message, sizeof message);
        /* What arrived before the peer had gone counts. */
        poll_receives(verbs, receiver, &fetched);
        if (!is_there) uroce_stream_receiver_handle_broken(receiver);
        keep(&kept, verbs->memory, uroce_stream_receiver_whole_bytes(receiver));
        uroce_stream_receiver_handle_timeout(receiver, now_ns());
        if (uroce_stream_receiver_poll_message(receiver, message)) write_message(tcp, message);
        if ((end = uroce_stream_receiver_end(receiver, error, sizeof error))) break;
        has_message = wait_until(verbs, uroce_stream_receiver_poll_timeout(receiver), tcp, POLLIN);
    }
    uint64_t ended = now_ns(), whole = uroce_stream_receiver_whole_bytes(receiver);
    bool is_equal = true;
    for (uint64_t at = 0; at < whole && is_equal; at++) is_equal = verbs->memory[at] == value(at, stream.version);
    printf("{\"stream\": %d, \"end\": \"%s\", \"error\": \"%s\", \"parts\": %u, \"whole_parts\": %zu, \"bytes\": %llu, "
           "\"held\": %llu, \"whole_bytes\": %llu, \"fetched_bytes\": %llu, \"milliseconds\": %.3f, "
           "\"contents_equal\": %s}\n",
           number, END_NAMES[end], error, options->parts, uroce_stream_receiver_whole_parts(receiver),
           (unsigned long long)options->bytes, (unsigned long long)held, (unsigned long long)whole,
           (unsigned long long)fetched, (double)(ended - began) / 1e6, is_equal ? "true" : "false");
    fflush(stdout);
    uroce_stream_receiver_free(receiver);
    free((void *)stream.part_bytes);
    if (kept.file >= 0) close(kept.file), close(kept.count);
    return end;
}

/* Connects to an end that sends, which may begin or be reached a little later. */
static int connect_to(const struct options *options) {
    struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM}, *found;
    if (getaddrinfo(options->host, options->port, &hints, &found)) fail("the host's address");
    uint64_t until = now_ns() + (options->patience_ns ? options->patience_ns : 10000000000u);
    for (;;) {
        int tcp = socket(AF_INET, SOCK_STREAM, 0);
        if (!connect(tcp, found->ai_addr, found->ai_addrlen)) {
            freeaddrinfo(found);
            return tcp;
        }
        if ((errno != ECONNREFUSED && errno != EHOSTUNREACH) || now_ns() > until) fail("connecting");
        close(tcp);
        usleep(20000);
    }
}

static int fetch(struct verbs *verbs, const struct options *options) {
    int tcp = connect_to(options);
    connect_queue_pair(verbs, options, tcp);
    for (int number = 0; number == 0 || number < options->count; number++)
        if (fetch_stream(verbs, options, number, tcp) != UROCE_STREAM_COMPLETE) return 1;
    close(tcp);
    return 0;
}

int main(int argc, char **argv) {
    struct options options = {.port = "18630", .chunks = "0", .part_bytes = 1 << 20, .parts = 32, .version = 1,
                              .outstanding = 64};
    int option;
    while ((option = getopt(argc, argv, "d:g:p:b:l:v:q:t:x:c:n:f:")) != -1) {
        switch (option) {
        case 'd': options.device = optarg; break;
        case 'g': options.gid_index = atoi(optarg); break;
        case 'p': options.port = optarg; break;
        case 'b': options.part_bytes = strtoull(optarg, NULL, 10); break;
        case 'l': options.parts = (uint32_t)strtoul(optarg, NULL, 10); break;
        case 'v': options.version = strtoull(optarg, NULL, 10); break;
        case 'q': options.outstanding = (uint32_t)strtoul(optarg, NULL, 10); break;
        case 't': options.patience_ns = strtoull(optarg, NULL, 10) * 1000000; break;
        case 'x': options.compute_ns = strtoull(optarg, NULL, 10) * 1000; break;
        case 'c': options.chunks = optarg; break;
        case 'n': options.count = atoi(optarg); break;
        case 'f': options.file = optarg; break;
        default: return 2;
        }
    }
    const char *role = optind < argc ? argv[optind] : "";
    options.host = optind + 1 < argc ? argv[optind + 1] : NULL;
    options.bytes = options.part_bytes * options.parts;
    bool sends = !strcmp(role, "send") && !options.host;
    if ((!sends && (strcmp(role, "fetch") || !options.host)) || options.outstanding == 0 || options.bytes == 0) {
        fprintf(stderr, "usage: stream [options] send | stream [options] fetch HOST\n");
        return 2;
    }
    struct verbs verbs = {0};
    open_verbs(&verbs, &options);
    return sends ? send_all(&verbs, &options) : fetch(&verbs, &options);
}
