/* Unmaps memory in the middle of transfers: WRITE, SEND and READ, the requester's memory ("local") and the responder's ("remote").
   Each must end once, with an error or with a success whose bytes have all arrived, and never with a signal.

       vanish both HOW COUNT             both ends in this process
       vanish serve HOW COUNT PORT       one end
       vanish ADDRESS HOW COUNT PORT     the other

   HOW is "engine": the program sleeps, so that the library's own thread meets the vanished pages; or "blocked": the program
   polls in threads that block every signal, and block them again before each transfer. */
#define _GNU_SOURCE
#include "check.h"
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>

/* More packets than are in flight at once, so that the second half leaves after the call that posts the first. */
enum { SIZE = 1 << 20, HALF = SIZE / 2 };
enum kind { WRITE, SEND, READ, KINDS };
enum side { LOCAL, REMOTE, SIDES };
static const char *const kinds[] = {"WRITE", "SEND", "READ"}, *const sides[] = {"local", "remote"};

static int blocked, count;

/* One end of the transfers, in a thread of its own. */
struct end {
    int is_requester, socket;
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    union ibv_gid gid;
    unsigned random;
    /* A completion that was found while something else was waited for. */
    int has_early;
    struct ibv_wc early;
};

/* What the ends tell each other. */
struct hello {
    union ibv_gid gid;
    uint64_t address;
    uint32_t qpn, rkey;
};

static void put(struct end *end, const void *data, size_t len)
{
    CHECK(send(end->socket, data, len, MSG_NOSIGNAL) == (ssize_t)len);
}

/* A program that polls goes on doing so while it waits for the other end. */
static void take(struct end *end, void *data, size_t len)
{
    size_t have = 0;
    while (have < len) {
        ssize_t got = recv(end->socket, (char *)data + have, len - have, blocked ? MSG_DONTWAIT : 0);
        CHECK(got > 0 || (got < 0 && errno == EAGAIN));
        if (got > 0)
            have += got;
        else if (!end->has_early)
            CHECK((end->has_early = ibv_poll_cq(end->cq, 1, &end->early)) >= 0);
    }
}

static void block_all(void)
{
    sigset_t all;
    sigfillset(&all);
    CHECK(pthread_sigmask(SIG_SETMASK, &all, NULL) == 0);
}

static void spin(struct end *end)
{
    volatile unsigned rounds = rand_r(&end->random) % 200000;
    while (rounds)
        rounds--;
}

static unsigned char byte_at(int transfer, int at)
{
    return (unsigned char)(transfer * 31 + at / 251 + at);
}

static int is_filled(const unsigned char *from, int transfer, int first, int len)
{
    for (int at = 0; at < len; at++)
        if (from[at] != byte_at(transfer, first + at))
            return 0;
    return 1;
}

/* The next completion: sleeping for it, or polling. Notification was asked for. */
static struct ibv_wc completion(struct end *end)
{
    struct ibv_wc wc;
    if (end->has_early) {
        end->has_early = 0;
        return end->early;
    }
    if (blocked)
        return next_completion(end->cq);
    struct pollfd ready = {.fd = end->channel->fd, .events = POLLIN};
    CHECK(poll(&ready, 1, 20000) == 1);
    struct ibv_cq *cq;
    void *context;
    CHECK(ibv_get_cq_event(end->channel, &cq, &context) == 0 && cq == end->cq);
    ibv_ack_cq_events(cq, 1);
    CHECK(ibv_poll_cq(cq, 1, &wc) == 1);
    return wc;
}

/* Takes the second half of the memory away. With `keep` its pages move to another address, where their bytes can be checked. */
static unsigned char *vanish(unsigned char *memory, int keep)
{
    if (!keep) {
        CHECK(munmap(memory + HALF, HALF) == 0);
        return NULL;
    }
    unsigned char *room = mmap(NULL, HALF, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(room != MAP_FAILED);
    CHECK(mremap(memory + HALF, HALF, HALF, MREMAP_MAYMOVE | MREMAP_FIXED, room) == room);
    return room;
}

static int is_hit(enum kind kind, enum side side, enum ibv_wc_status status)
{
    if (side == LOCAL)
        return status == IBV_WC_LOC_PROT_ERR;
    return status == (kind == SEND ? IBV_WC_REM_OP_ERR : IBV_WC_REM_ACCESS_ERR);
}

/* One transfer. Every other time the memory is gone before the first packet is made or taken; else it goes in the middle. */
static enum ibv_wc_status transfer(struct end *end, enum kind kind, enum side side, int number)
{
    if (blocked)
        block_all();
    int goes = (side == LOCAL) == end->is_requester, keep = number % 2;
    unsigned char *memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *moved = NULL;
    CHECK(memory != MAP_FAILED);
    int is_source = (kind == READ) != end->is_requester;
    for (int at = 0; is_source && at < SIZE; at++)
        memory[at] = byte_at(number, at);
    int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    struct ibv_mr *mr = ibv_reg_mr(end->pd, memory, SIZE, access);
    CHECK(mr);
    struct ibv_qp_init_attr init = {
        .send_cq = end->cq, .recv_cq = end->cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
        .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1}};
    struct ibv_qp *qp = ibv_create_qp(end->pd, &init);
    CHECK(qp);
    struct hello own = {end->gid, (uintptr_t)memory, qp->qp_num, mr->rkey}, peer;
    put(end, &own, sizeof own);
    take(end, &peer, sizeof peer);
    to_init(qp);
    connect_to(qp, peer.qpn, &peer.gid);
    /* Before anything can complete: else looking for completions, in this thread, would come first. */
    CHECK(ibv_req_notify_cq(end->cq, 0) == 0);
    struct ibv_sge sge = {(uintptr_t)memory, SIZE, mr->lkey};
    struct ibv_wc wc;
    char status = 0;
    if (end->is_requester) {
        take(end, &status, 1);
        if (goes && !keep)
            vanish(memory, 0);
        struct ibv_send_wr wr = {.wr_id = number, .sg_list = &sge, .num_sge = 1}, *bad;
        wr.opcode = kind == WRITE ? IBV_WR_RDMA_WRITE : kind == SEND ? IBV_WR_SEND : IBV_WR_RDMA_READ;
        wr.wr.rdma.remote_addr = peer.address;
        wr.wr.rdma.rkey = peer.rkey;
        CHECK(ibv_post_send(qp, &wr, &bad) == 0);
        if (goes && keep) {
            spin(end);
            moved = vanish(memory, 1);
        }
        wc = completion(end);
        CHECK(wc.wr_id == (uint64_t)number && wc.qp_num == qp->qp_num);
        status = (char)wc.status;
        put(end, &status, 1);
    } else {
        struct ibv_recv_wr wr = {.wr_id = number, .sg_list = &sge, .num_sge = 1}, *bad;
        if (kind == SEND)
            CHECK(ibv_post_recv(qp, &wr, &bad) == 0);
        if (goes && !keep)
            vanish(memory, 0);
        put(end, &status, 1);
        if (goes && keep) {
            spin(end);
            moved = vanish(memory, 1);
        }
        take(end, &status, 1);
    }
    struct ibv_qp_attr error = {.qp_state = IBV_QPS_ERR};
    int arrived = status == IBV_WC_SUCCESS;
    if (kind == SEND && !end->is_requester) {
        if (status != IBV_WC_SUCCESS)
            CHECK(ibv_modify_qp(qp, &error, IBV_QP_STATE) == 0);
        wc = completion(end);
        CHECK(wc.wr_id == (uint64_t)number);
        /* All may have arrived although the requester failed: an acknowledge came late, and what it would send again was gone. */
        CHECK(!arrived || wc.status == IBV_WC_SUCCESS);
        arrived = wc.status == IBV_WC_SUCCESS;
    }
    if (arrived && !is_source) {
        CHECK(is_filled(memory, number, 0, HALF));
        CHECK(is_filled(moved ? moved : memory + HALF, number, HALF, HALF));
    }
    CHECK(ibv_modify_qp(qp, &error, IBV_QP_STATE) == 0);
    CHECK(!end->has_early && ibv_poll_cq(end->cq, 1, &wc) == 0);
    CHECK(ibv_destroy_qp(qp) == 0);
    CHECK(ibv_dereg_mr(mr) == 0);
    CHECK(munmap(memory, SIZE) == 0);
    CHECK(!moved || munmap(moved, HALF) == 0);
    /* Answers to what is late go to nobody, but an event that was not taken would count for the next transfer. */
    struct pollfd ready = {.fd = end->channel->fd, .events = POLLIN};
    struct ibv_cq *cq;
    void *context;
    while (poll(&ready, 1, 0) == 1) {
        CHECK(ibv_get_cq_event(end->channel, &cq, &context) == 0);
        ibv_ack_cq_events(cq, 1);
    }
    return (enum ibv_wc_status)status;
}

static void *work(void *argument)
{
    struct end *end = argument;
    if (blocked)
        block_all();
    end->context = open_first();
    CHECK(end->pd = ibv_alloc_pd(end->context));
    CHECK(end->channel = ibv_create_comp_channel(end->context));
    CHECK(end->cq = ibv_create_cq(end->context, 16, NULL, end->channel, 0));
    CHECK(ibv_query_gid(end->context, 1, 1, &end->gid) == 0);
    for (enum kind kind = 0; kind < KINDS; kind++) {
        for (enum side side = 0; side < SIDES; side++) {
            int hits = 0, successes = 0, others = 0;
            for (int number = 0; number < count; number++) {
                enum ibv_wc_status status = transfer(end, kind, side, number);
                if (status == IBV_WC_SUCCESS)
                    successes++;
                else if (is_hit(kind, side, status))
                    hits++;
                else
                    others++;
            }
            if (end->is_requester)
                printf("%s %s: %d hit, %d succeeded, %d ended otherwise\n", kinds[kind], sides[side], hits, successes, others);
        }
    }
    CHECK(ibv_destroy_cq(end->cq) == 0 && ibv_destroy_comp_channel(end->channel) == 0);
    CHECK(ibv_dealloc_pd(end->pd) == 0 && ibv_close_device(end->context) == 0);
    return NULL;
}

static int reach(const char *address, int port)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
    int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    CHECK(listener >= 0);
    if (strcmp(address, "serve") != 0) {
        CHECK(inet_pton(AF_INET, address, &to.sin_addr) == 1);
        CHECK(connect(listener, (struct sockaddr *)&to, sizeof to) == 0);
        return listener;
    }
    CHECK(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0);
    CHECK(bind(listener, (struct sockaddr *)&to, sizeof to) == 0 && listen(listener, 1) == 0);
    int peer = accept(listener, NULL, NULL);
    CHECK(peer >= 0);
    close(listener);
    return peer;
}

int main(int argc, char **argv)
{
    CHECK(argc >= 4);
    blocked = strcmp(argv[2], "blocked") == 0;
    count = atoi(argv[3]);
    if (strcmp(argv[1], "both") != 0) {
        CHECK(argc == 5);
        struct end end = {.is_requester = strcmp(argv[1], "serve") != 0, .socket = reach(argv[1], atoi(argv[4])), .random = 1};
        work(&end);
        return 0;
    }
    int pair[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    struct end ends[2] = {{.is_requester = 1, .socket = pair[0], .random = 1}, {.socket = pair[1], .random = 2}};
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        CHECK(pthread_create(&threads[i], NULL, work, &ends[i]) == 0);
    for (int i = 0; i < 2; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    return 0;
}
