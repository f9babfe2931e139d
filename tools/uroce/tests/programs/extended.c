/* The extended verbs, and events, on queue pairs of one program that are connected to each other over one device. */
#include "check.h"
#include <fcntl.h>
#include <pthread.h>

static struct ibv_context *context;
static struct ibv_pd *pd;
static union ibv_gid gid;
static char *memory;
static struct ibv_mr *mr;
#define BYTES 65536

static void queries(void)
{
    struct ibv_device_attr_ex device;
    CHECK(ibv_query_device_ex(context, NULL, &device) == 0);
    CHECK(device.orig_attr.max_qp > 1000 && device.phys_port_cnt_ex == 1 && device.odp_caps.general_caps == 0);
    CHECK(ibv_query_device_ex(context, &(struct ibv_query_device_ex_input){.comp_mask = 1}, &device) == EINVAL);
    struct ibv_port_attr port;
    CHECK(ibv_query_port(context, 1, &port) == 0);
    CHECK(port.state == IBV_PORT_ACTIVE && port.link_layer == IBV_LINK_LAYER_ETHERNET && port.active_mtu == IBV_MTU_1024);
    FAILS(ibv_query_port(context, 2, &port), EINVAL);
    struct ibv_gid_entry entries[16], entry;
    ssize_t count = ibv_query_gid_table(context, entries, 16, 0);
    CHECK(count == port.gid_tbl_len && count >= 2);
    for (ssize_t i = 0; i < count; i++) {
        union ibv_gid plain;
        CHECK(entries[i].gid_type == IBV_GID_TYPE_ROCE_V2 && entries[i].gid_index == i && entries[i].ndev_ifindex > 0);
        CHECK(ibv_query_gid_ex(context, 1, i, &entry, 0) == 0 && memcmp(&entry, &entries[i], sizeof entry) == 0);
        CHECK(ibv_query_gid(context, 1, i, &plain) == 0 && memcmp(&plain, &entry.gid, 16) == 0);
    }
    CHECK(ibv_query_gid_table(context, entries, 1, 0) == -EINVAL);
    FAILS(ibv_query_gid_ex(context, 1, 0, &entry, 1), EOPNOTSUPP);
    /* What is not offered says so, through each inline function. */
    NOTHING(ibv_open_xrcd(context, &(struct ibv_xrcd_init_attr){0}), EOPNOTSUPP);
    NOTHING(ibv_alloc_dm(context, &(struct ibv_alloc_dm_attr){0}), EOPNOTSUPP);
    NOTHING(ibv_create_wq(context, &(struct ibv_wq_init_attr){0}), EOPNOTSUPP);
    NOTHING(ibv_create_counters(context, &(struct ibv_counters_init_attr){0}), EOPNOTSUPP);
    CHECK(ibv_advise_mr(pd, 0, 0, NULL, 0) == EOPNOTSUPP);
    NOTHING(ibv_create_cq_ex(context, &(struct ibv_cq_init_attr_ex){.cqe = 4, .wc_flags = IBV_WC_EX_WITH_CVLAN}), EOPNOTSUPP);
    CHECK(strcmp(ibv_wc_status_str(IBV_WC_RETRY_EXC_ERR), "transport retry counter exceeded") == 0);
    CHECK(strcmp(ibv_wc_status_str(999), "unknown") == 0 && strcmp(ibv_wc_status_str(-1), "unknown") == 0);
    CHECK(ibv_rate_to_mbps(mbps_to_ibv_rate(103125)) == 103125 && ibv_rate_to_mult(IBV_RATE_100_GBPS) == 40);
}

/* Of rdma-core 45 and later. */
#define WITH_FLUSH (1 << 11)
#define FLUSHED 8
#define FLUSHES 14
enum { GLOBAL = 1, PERSISTENT = 2, RANGE = 0, REGION = 1 };
struct qp_with_flush {
    struct ibv_qp_ex qp;
    void (*wr_flush)(struct ibv_qp_ex *, uint32_t, uint64_t, size_t, uint8_t, uint8_t);
};

static void flush(struct ibv_qp_ex *qp, uint64_t wr_id, void *at, size_t length, uint8_t type, uint8_t level)
{
    qp->wr_id = wr_id, qp->wr_flags = IBV_SEND_SIGNALED;
    ((struct qp_with_flush *)qp)->wr_flush(qp, mr->rkey, (uintptr_t)at, length, type, level);
}

static struct ibv_qp_ex *make_qp(struct ibv_cq_ex *cq, enum ibv_qp_type type, struct ibv_srq *srq)
{
    struct ibv_qp_init_attr_ex init = {
        .send_cq = ibv_cq_ex_to_cq(cq),
        .recv_cq = ibv_cq_ex_to_cq(cq),
        .srq = srq,
        .qp_type = type,
        .cap = {16, 16, 4, 4, 64},
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .pd = pd,
        .send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_SEND_WITH_IMM |
                          (type == IBV_QPT_RC ? IBV_QP_EX_WITH_ATOMIC_WRITE | WITH_FLUSH : 0),
    };
    struct ibv_qp *qp = ibv_create_qp_ex(context, &init);
    CHECK(qp);
    to_init(qp);
    return ibv_qp_to_qp_ex(qp);
}

/* Waits for a completion through the extended interface. The caller ends the poll. */
static void begin_poll(struct ibv_cq_ex *cq)
{
    struct ibv_poll_cq_attr attr = {0};
    int tries = 0, result;
    while ((result = ibv_start_poll(cq, &attr)) == ENOENT && tries++ < 200000)
        usleep(20);
    CHECK(result == 0);
}

/* The next completion must be of `wr_id` and a success. */
static void expect(struct ibv_cq_ex *cq, uint64_t wr_id, enum ibv_wc_opcode opcode, uint32_t bytes, uint32_t immediate)
{
    begin_poll(cq);
    if (cq->status != IBV_WC_SUCCESS || cq->wr_id != wr_id || ibv_wc_read_opcode(cq) != opcode) {
        fprintf(stderr, "request %lu: status %d of %lu, opcode %d\n", wr_id, cq->status, cq->wr_id, ibv_wc_read_opcode(cq));
        exit(1);
    }
    if (bytes)
        CHECK(ibv_wc_read_byte_len(cq) == bytes);
    if (immediate)
        CHECK((ibv_wc_read_wc_flags(cq) & IBV_WC_WITH_IMM) && ntohl(ibv_wc_read_imm_data(cq)) == immediate);
    CHECK(ibv_wc_read_vendor_err(cq) == 0 && ibv_wc_read_slid(cq) == 0 && ibv_wc_read_sl(cq) == 0);
    CHECK(ibv_wc_read_qp_num(cq) > 1);
    ibv_end_poll(cq);
}

static void receive(struct ibv_qp *qp, uint64_t wr_id, char *to, uint32_t bytes)
{
    struct ibv_sge sge = {(uintptr_t)to, bytes, mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = wr_id, .sg_list = &sge, .num_sge = 1}, *bad;
    CHECK(ibv_post_recv(qp, &wr, &bad) == 0);
}

static void work_requests(void)
{
    struct ibv_cq_init_attr_ex init = {.cqe = 64, .wc_flags = IBV_WC_STANDARD_FLAGS};
    struct ibv_cq_ex *cq = ibv_create_cq_ex(context, &init);
    CHECK(cq);
    struct ibv_qp_ex *a = make_qp(cq, IBV_QPT_RC, NULL), *b = make_qp(cq, IBV_QPT_RC, NULL);
    connect_to(&a->qp_base, b->qp_base.qp_num, &gid);
    connect_to(&b->qp_base, a->qp_base.qp_num, &gid);
    char *to = memory + BYTES / 2;
    for (int i = 0; i < BYTES / 2; i++)
        memory[i] = i * 7;

    /* Three requests at once: a write of all, a write of two parts, a SEND with inline data. */
    receive(&b->qp_base, 10, to + 20000, 100);
    ibv_wr_start(a);
    a->wr_id = 1, a->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_rdma_write(a, mr->rkey, (uintptr_t)to);
    ibv_wr_set_sge(a, mr->lkey, (uintptr_t)memory, 10000);
    a->wr_id = 2, a->wr_flags = 0;
    ibv_wr_rdma_write(a, mr->rkey, (uintptr_t)to + 10000);
    struct ibv_sge parts[2] = {{(uintptr_t)memory + 3, 11, mr->lkey}, {(uintptr_t)memory + 100, 2000, mr->lkey}};
    ibv_wr_set_sge_list(a, 2, parts);
    a->wr_id = 3, a->wr_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
    ibv_wr_send_imm(a, htonl(0xabcd));
    struct ibv_data_buf bufs[2] = {{"hello ", 6}, {"world", 5}};
    ibv_wr_set_inline_data_list(a, 2, bufs);
    CHECK(ibv_wr_complete(a) == 0);
    struct ibv_wc wc;
    int seen = 0;
    for (int i = 0; i < 3; i++) {
        wc = next_completion(ibv_cq_ex_to_cq(cq));
        CHECK(wc.status == IBV_WC_SUCCESS);
        seen |= 1 << wc.wr_id;
        if (wc.wr_id == 10)
            CHECK(wc.opcode == IBV_WC_RECV && wc.byte_len == 11 && wc.wc_flags == IBV_WC_WITH_IMM &&
                  ntohl(wc.imm_data) == 0xabcd && wc.qp_num == b->qp_base.qp_num);
    }
    CHECK(seen == (1 << 1 | 1 << 3 | 1 << 10));
    CHECK(memcmp(to, memory, 10000) == 0 && memcmp(to + 10000, memory + 3, 11) == 0);
    CHECK(memcmp(to + 10011, memory + 100, 2000) == 0 && memcmp(to + 20000, "hello world", 11) == 0);

    /* READ and atomics. */
    ibv_wr_start(a);
    a->wr_id = 4, a->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_rdma_read(a, mr->rkey, (uintptr_t)memory);
    ibv_wr_set_sge(a, mr->lkey, (uintptr_t)to + 21000, 5000);
    CHECK(ibv_wr_complete(a) == 0);
    expect(cq, 4, IBV_WC_RDMA_READ, 5000, 0);
    CHECK(memcmp(to + 21000, memory, 5000) == 0);
    uint64_t *cell = (uint64_t *)(to + 30000), *old = (uint64_t *)(to + 30008);
    *cell = 40;
    ibv_wr_start(a);
    a->wr_id = 5;
    ibv_wr_atomic_fetch_add(a, mr->rkey, (uintptr_t)cell, 2);
    ibv_wr_set_sge(a, mr->lkey, (uintptr_t)old, 8);
    CHECK(ibv_wr_complete(a) == 0);
    expect(cq, 5, IBV_WC_FETCH_ADD, 8, 0);
    CHECK(*cell == 42 && *old == 40);
    ibv_wr_start(a);
    a->wr_id = 6;
    ibv_wr_atomic_cmp_swp(a, mr->rkey, (uintptr_t)cell, 42, 99);
    ibv_wr_set_sge(a, mr->lkey, (uintptr_t)old, 8);
    CHECK(ibv_wr_complete(a) == 0);
    expect(cq, 6, IBV_WC_COMP_SWAP, 8, 0);
    CHECK(*cell == 99 && *old == 42);

    /* ATOMIC WRITE and FLUSH, by both ways of posting. */
    struct ibv_device_attr_ex device;
    CHECK(ibv_query_device_ex(context, NULL, &device) == 0);
    CHECK((device.device_cap_flags_ex >> 38 & 7) == 5);
    uint64_t value = 0x1122334455667788;
    ibv_wr_start(a);
    a->wr_id = 40, a->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_atomic_write(a, mr->rkey, (uintptr_t)cell, &value);
    value = 0;
    flush(a, 41, cell, 8, GLOBAL, RANGE);
    flush(a, 42, NULL, 0, GLOBAL, REGION);
    CHECK(ibv_wr_complete(a) == 0);
    expect(cq, 40, IBV_WC_ATOMIC_WRITE, 0, 0);
    expect(cq, 41, FLUSHED, 0, 0);
    expect(cq, 42, FLUSHED, 0, 0);
    CHECK(*cell == 0x1122334455667788);
    *old = 7;
    struct ibv_sge word = {(uintptr_t)old, 8, mr->lkey};
    struct ibv_send_wr wr = {.wr_id = 43, .sg_list = &word, .num_sge = 1, .opcode = IBV_WR_ATOMIC_WRITE,
                             .send_flags = IBV_SEND_SIGNALED, .wr.rdma = {(uintptr_t)cell, mr->rkey}}, *bad_wr;
    CHECK(ibv_post_send(&a->qp_base, &wr, &bad_wr) == 0);
    expect(cq, 43, IBV_WC_ATOMIC_WRITE, 0, 0);
    CHECK(*cell == 7);
    wr.opcode = FLUSHES;
    CHECK(ibv_post_send(&a->qp_base, &wr, &bad_wr) == EOPNOTSUPP && bad_wr == &wr);
    wr.opcode = IBV_WR_ATOMIC_WRITE, word.length = 4;
    CHECK(ibv_post_send(&a->qp_base, &wr, &bad_wr) == EINVAL);
    for (int wrong = 0; wrong < 4; wrong++) {
        ibv_wr_start(a);
        if (wrong == 3)
            ibv_wr_atomic_write(a, mr->rkey, (uintptr_t)cell, NULL);
        else
            flush(a, 44, cell, 8, (uint8_t[]){0, 4, GLOBAL}[wrong], (uint8_t[]){RANGE, RANGE, 2}[wrong]);
        CHECK(ibv_wr_complete(a) == EINVAL);
    }
    NOTHING(ibv_reg_mr(pd, memory, 4096, IBV_ACCESS_LOCAL_WRITE | 1 << 9 /* IBV_ACCESS_FLUSH_PERSISTENT */), EOPNOTSUPP);

    /* WRITE with immediate, seen by the peer through the extended interface. */
    receive(&b->qp_base, 11, to, 0);
    ibv_wr_start(a);
    a->wr_id = 7, a->wr_flags = 0;
    ibv_wr_rdma_write_imm(a, mr->rkey, (uintptr_t)to, htonl(0x77));
    ibv_wr_set_sge(a, mr->lkey, (uintptr_t)memory, 5);
    CHECK(ibv_wr_complete(a) == 0);
    expect(cq, 11, IBV_WC_RECV_RDMA_WITH_IMM, 5, 0x77);

    /* A window of type 2: bound, written through, invalidated by the peer's SEND, and then refused. */
    struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
    CHECK(mw);
    uint32_t rkey = ibv_inc_rkey(mw->rkey);
    struct ibv_mw_bind_info info = {mr, (uintptr_t)to, 64, IBV_ACCESS_REMOTE_WRITE};
    ibv_wr_start(b);
    b->wr_id = 20, b->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_bind_mw(b, mw, rkey, &info);
    CHECK(ibv_wr_complete(b) == 0);
    expect(cq, 20, IBV_WC_BIND_MW, 0, 0);
    CHECK(mw->rkey == rkey);
    FAILS(ibv_dereg_mr(mr), EBUSY);
    receive(&b->qp_base, 12, to + 1000, 10);
    ibv_wr_start(a);
    a->wr_id = 21, a->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_rdma_write(a, rkey, (uintptr_t)to);
    ibv_wr_set_sge(a, mr->lkey, (uintptr_t)memory, 64);
    CHECK(ibv_wr_complete(a) == 0);
    expect(cq, 21, IBV_WC_RDMA_WRITE, 0, 0);
    ibv_wr_start(a);
    a->wr_id = 22, a->wr_flags = 0;
    ibv_wr_send_inv(a, rkey);
    CHECK(ibv_wr_complete(a) == 0);
    wc = next_completion(ibv_cq_ex_to_cq(cq));
    CHECK(wc.wr_id == 12 && wc.wc_flags == IBV_WC_WITH_INV && wc.invalidated_rkey == rkey);
    CHECK(ibv_dealloc_mw(mw) == 0);

    /* A window of type 1, by ibv_bind_mw; then bound to nothing. */
    CHECK(mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1));
    struct ibv_mw_bind bind = {.wr_id = 30, .send_flags = IBV_SEND_SIGNALED, .bind_info = info};
    rkey = mw->rkey;
    CHECK(ibv_bind_mw(&b->qp_base, mw, &bind) == 0);
    CHECK(mw->rkey == ibv_inc_rkey(rkey));
    expect(cq, 30, IBV_WC_BIND_MW, 0, 0);
    bind = (struct ibv_mw_bind){.wr_id = 31, .send_flags = IBV_SEND_SIGNALED};
    CHECK(ibv_bind_mw(&b->qp_base, mw, &bind) == 0);
    expect(cq, 31, IBV_WC_BIND_MW, 0, 0);
    CHECK(ibv_dealloc_mw(mw) == 0);

    /* What is wrong is said at the end, and nothing is posted. */
    ibv_wr_start(a);
    a->wr_id = 40;
    ibv_wr_rdma_write(a, mr->rkey, (uintptr_t)to);
    ibv_wr_set_inline_data(a, memory, 65);
    FAILS(ibv_wr_complete(a), EINVAL);
    ibv_wr_start(a);
    ibv_wr_send_tso(a, memory, 1, 1);
    FAILS(ibv_wr_complete(a), EOPNOTSUPP);
    ibv_wr_start(a);
    ibv_wr_set_sge(a, mr->lkey, 0, 0);
    FAILS(ibv_wr_complete(a), EINVAL);
    ibv_wr_start(a);
    ibv_wr_send(a);
    ibv_wr_abort(a);
    CHECK(ibv_start_poll(cq, &(struct ibv_poll_cq_attr){0}) == ENOENT);

    /* What was set is what is asked back. */
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr qp_init;
    CHECK(ibv_query_qp(&a->qp_base, &attr, 0, &qp_init) == 0);
    CHECK(attr.qp_state == IBV_QPS_RTS && attr.dest_qp_num == b->qp_base.qp_num && attr.path_mtu == IBV_MTU_1024);
    CHECK(attr.timeout == 14 && attr.ah_attr.grh.sgid_index == 1 && attr.cap.max_inline_data == 64);
    CHECK(qp_init.qp_type == IBV_QPT_RC && qp_init.send_cq == ibv_cq_ex_to_cq(cq) && qp_init.cap.max_send_wr == 16);

    /* Re-registration: other memory, with keys of its own; or nothing is changed. */
    struct ibv_mr *moved = ibv_reg_mr(pd, memory, 100, IBV_ACCESS_LOCAL_WRITE);
    CHECK(moved);
    rkey = moved->rkey;
    CHECK(ibv_rereg_mr(moved, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, memory + 4096, 200, 0) == 0);
    CHECK(moved->addr == memory + 4096 && moved->length == 200 && moved->rkey != rkey && moved->pd == pd);
    /* Arguments that do not go together are one error, what the region refuses is another. */
    CHECK(ibv_rereg_mr(moved, 1 << 9, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT);
    CHECK(ibv_rereg_mr(moved, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, NULL, 4096, 0) == IBV_REREG_MR_ERR_INPUT);
    CHECK(ibv_rereg_mr(moved, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, memory, 0, 0) == IBV_REREG_MR_ERR_INPUT);
    CHECK(ibv_rereg_mr(moved, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, memory, 100, IBV_ACCESS_LOCAL_WRITE) ==
          IBV_REREG_MR_ERR_INPUT);
    CHECK(ibv_rereg_mr(moved, 0, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_CMD);
    CHECK(ibv_rereg_mr(moved, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, (void *)4096, 100, 0) == IBV_REREG_MR_ERR_CMD);
    CHECK(ibv_rereg_mr(moved, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, memory, SIZE_MAX, 0) == IBV_REREG_MR_ERR_CMD);
    CHECK(ibv_rereg_mr(moved, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_REMOTE_WRITE) == IBV_REREG_MR_ERR_CMD);
    CHECK(moved->addr == memory + 4096 && moved->length == 200);
    ibv_wr_start(a);
    a->wr_id = 49, a->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_rdma_write(a, mr->rkey, (uintptr_t)to);
    ibv_wr_set_sge(a, moved->lkey, (uintptr_t)memory + 4096, 200);
    CHECK(ibv_wr_complete(a) == 0);
    expect(cq, 49, IBV_WC_RDMA_WRITE, 0, 0);
    CHECK(memcmp(to, memory + 4096, 200) == 0 && ibv_dereg_mr(moved) == 0);

    /* Without remote writes a write is refused. */
    CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE) == 0);
    ibv_wr_start(a);
    a->wr_id = 50, a->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_rdma_write(a, mr->rkey, (uintptr_t)to);
    ibv_wr_set_sge(a, mr->lkey, (uintptr_t)memory, 64);
    CHECK(ibv_wr_complete(a) == 0);
    wc = next_completion(ibv_cq_ex_to_cq(cq));
    CHECK(wc.wr_id == 50 && wc.status == IBV_WC_REM_ACCESS_ERR);

    /* Both ends went to the error state; an event says so of the one that has no completion for it, and nothing else. */
    struct ibv_async_event event;
    CHECK(poll(&(struct pollfd){.fd = context->async_fd, .events = POLLIN}, 1, 5000) == 1);
    CHECK(ibv_get_async_event(context, &event) == 0);
    CHECK(event.event_type == IBV_EVENT_QP_ACCESS_ERR && event.element.qp == &b->qp_base);
    ibv_ack_async_event(&event);
    CHECK(poll(&(struct pollfd){.fd = context->async_fd, .events = POLLIN}, 1, 0) == 0);
    CHECK(ibv_query_qp(&a->qp_base, &attr, IBV_QP_STATE, &qp_init) == 0 && attr.qp_state == IBV_QPS_ERR);
    CHECK(ibv_destroy_qp(&a->qp_base) == 0 && ibv_destroy_qp(&b->qp_base) == 0);
    CHECK(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) == 0);
    int all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |
              IBV_ACCESS_MW_BIND;
    CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, all) == 0);
}

/* A datagram, its sender's address, and an answer along it. */
static void datagrams(void)
{
    struct ibv_cq_init_attr_ex init = {.cqe = 64};
    struct ibv_cq_ex *cq = ibv_create_cq_ex(context, &init);
    struct ibv_qp_ex *a = make_qp(cq, IBV_QPT_UD, NULL), *b = make_qp(cq, IBV_QPT_UD, NULL);
    connect_to(&a->qp_base, 0, &gid);
    connect_to(&b->qp_base, 0, &gid);
    struct ibv_ah_attr attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid, .sgid_index = 1, .traffic_class = 32}};
    struct ibv_ah *ah = ibv_create_ah(pd, &attr);
    CHECK(ah);
    receive(&b->qp_base, 1, memory, 140);
    ibv_wr_start(a);
    a->wr_id = 2, a->wr_flags = IBV_SEND_INLINE;
    ibv_wr_send_imm(a, htonl(5));
    ibv_wr_set_ud_addr(a, ah, b->qp_base.qp_num, 0x1234);
    ibv_wr_set_inline_data(a, "question", 8);
    CHECK(ibv_wr_complete(a) == 0);
    struct ibv_wc wc = next_completion(ibv_cq_ex_to_cq(cq));
    CHECK(wc.wr_id == 1 && wc.byte_len == 48 && wc.wc_flags == (IBV_WC_GRH | IBV_WC_WITH_IMM));
    CHECK(wc.src_qp == a->qp_base.qp_num && memcmp(memory + 40, "question", 8) == 0);
    CHECK(wc.sl == 0xa); /* IPv4, as mlx5 has it */
    struct ibv_ah_attr back;
    CHECK(ibv_init_ah_from_wc(context, 1, &wc, (struct ibv_grh *)memory, &back) == 0);
    CHECK(back.grh.sgid_index == 1 && memcmp(&back.grh.dgid, &gid, 16) == 0 && back.grh.traffic_class == 32);
    CHECK(back.sl == 0); /* which is no service level */
    struct ibv_ah *answer = ibv_create_ah_from_wc(pd, &wc, (struct ibv_grh *)memory, 1);
    CHECK(answer);
    receive(&a->qp_base, 3, memory + 200, 140);
    struct ibv_sge sge = {(uintptr_t)memory + 40, 8, mr->lkey};
    struct ibv_send_wr wr = {
        .wr_id = 4,
        .sg_list = &sge,
        .num_sge = 1,
        .opcode = IBV_WR_SEND,
        .wr.ud = {.ah = answer, .remote_qpn = wc.src_qp, .remote_qkey = 0x1234}}, *bad;
    CHECK(ibv_post_send(&b->qp_base, &wr, &bad) == 0);
    wc = next_completion(ibv_cq_ex_to_cq(cq));
    CHECK(wc.wr_id == 3 && memcmp(memory + 240, "question", 8) == 0);
    CHECK(ibv_destroy_ah(answer) == 0);
    FAILS(ibv_post_send(&b->qp_base, &wr, &bad), EINVAL); /* its address handle is gone */

    /* The same over IPv6, and the extended interface reads it. */
    attr.grh.sgid_index = 0;
    CHECK(ibv_query_gid(context, 1, 0, &attr.grh.dgid) == 0);
    wr.wr.ud.ah = ibv_create_ah(pd, &attr);
    CHECK(wr.wr.ud.ah);
    receive(&a->qp_base, 5, memory + 200, 140);
    CHECK(ibv_post_send(&b->qp_base, &wr, &bad) == 0);
    begin_poll(cq);
    CHECK(cq->wr_id == 5 && cq->status == IBV_WC_SUCCESS && ibv_wc_read_sl(cq) == 0x9);
    ibv_end_poll(cq);
    CHECK(ibv_destroy_ah(wr.wr.ud.ah) == 0);
    CHECK(ibv_destroy_ah(ah) == 0);
    CHECK(ibv_destroy_qp(&a->qp_base) == 0 && ibv_destroy_qp(&b->qp_base) == 0);
    CHECK(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) == 0);
}

static void *acknowledge_late(void *cq)
{
    usleep(100000);
    ibv_ack_cq_events(cq, 2);
    return NULL;
}

/* A shared receive queue with its limit, and a completion channel with what waits for it. */
static void events(void)
{
    struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
    CHECK(channel);
    struct ibv_cq *cq = ibv_create_cq(context, 16, (void *)0x55, channel, 0);
    struct ibv_cq *quiet = ibv_create_cq(context, 16, NULL, NULL, 0);
    CHECK(cq && quiet && cq->channel == channel && cq->cqe >= 16);
    struct ibv_srq_init_attr_ex srq_init = {
        .attr = {.max_wr = 4, .max_sge = 2}, .comp_mask = IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_TYPE, .pd = pd};
    struct ibv_srq *srq = ibv_create_srq_ex(context, &srq_init);
    CHECK(srq);
    uint32_t number;
    CHECK(ibv_get_srq_num(srq, &number) == 0 && number > 0);
    struct ibv_qp_init_attr init = {
        .send_cq = quiet, .recv_cq = cq, .srq = srq, .qp_type = IBV_QPT_RC, .cap = {4, 0, 1, 0, 0}};
    struct ibv_qp *a = ibv_create_qp(pd, &init), *b = ibv_create_qp(pd, &init);
    CHECK(a && b);
    NOTHING(ibv_qp_to_qp_ex(a), EOPNOTSUPP);
    to_init(a), to_init(b);
    connect_to(a, b->qp_num, &gid);
    connect_to(b, a->qp_num, &gid);
    struct ibv_sge sge = {(uintptr_t)memory, 64, mr->lkey};
    struct ibv_recv_wr receive_wr = {.sg_list = &sge, .num_sge = 1}, *bad_receive;
    for (int i = 0; i < 3; i++)
        CHECK(ibv_post_srq_recv(srq, &receive_wr, &bad_receive) == 0);
    struct ibv_srq_attr srq_attr = {.srq_limit = 2};
    CHECK(ibv_modify_srq(srq, &srq_attr, IBV_SRQ_LIMIT) == 0);
    srq_attr.max_wr = 2;
    FAILS(ibv_modify_srq(srq, &srq_attr, IBV_SRQ_MAX_WR), EINVAL); /* three are posted */
    srq_attr.max_wr = 8;
    CHECK(ibv_modify_srq(srq, &srq_attr, IBV_SRQ_MAX_WR) == 0);
    CHECK(ibv_query_srq(srq, &srq_attr) == 0 && srq_attr.max_wr == 8 && srq_attr.srq_limit == 2 && srq_attr.max_sge == 2);

    CHECK(ibv_req_notify_cq(cq, 1) == 0); /* solicited only */
    struct ibv_send_wr wr = {.opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED}, *bad;
    CHECK(ibv_post_send(a, &wr, &bad) == 0);
    CHECK(next_completion(quiet).status == IBV_WC_SUCCESS);
    struct pollfd pollfd = {.fd = channel->fd, .events = POLLIN};
    CHECK(poll(&pollfd, 1, 50) == 0);
    wr.send_flags |= IBV_SEND_SOLICITED;
    CHECK(ibv_post_send(a, &wr, &bad) == 0);
    CHECK(poll(&pollfd, 1, 5000) == 1);
    struct ibv_cq *which;
    void *its_context;
    CHECK(ibv_get_cq_event(channel, &which, &its_context) == 0 && which == cq && its_context == (void *)0x55);
    CHECK(poll(&pollfd, 1, 0) == 0);
    /* Without waiting, when the program wants that. */
    CHECK(fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK) == 0);
    MINUS(ibv_get_cq_event(channel, &which, &its_context), EAGAIN);
    /* Solicited or not, once for each asking. */
    CHECK(ibv_req_notify_cq(cq, 0) == 0);
    wr.send_flags = IBV_SEND_SIGNALED;
    CHECK(ibv_post_send(a, &wr, &bad) == 0);
    CHECK(poll(&pollfd, 1, 5000) == 1);
    CHECK(ibv_get_cq_event(channel, &which, &its_context) == 0);

    /* Fewer than two are left. */
    struct ibv_async_event event;
    CHECK(poll(&(struct pollfd){.fd = context->async_fd, .events = POLLIN}, 1, 5000) == 1);
    CHECK(ibv_get_async_event(context, &event) == 0);
    CHECK(event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED && event.element.srq == srq);
    ibv_ack_async_event(&event);

    struct ibv_qp_attr error = {.qp_state = IBV_QPS_ERR};
    CHECK(ibv_modify_qp(b, &error, IBV_QP_STATE) == 0);
    CHECK(poll(&(struct pollfd){.fd = context->async_fd, .events = POLLIN}, 1, 5000) == 1);
    CHECK(ibv_get_async_event(context, &event) == 0);
    CHECK(event.event_type == IBV_EVENT_QP_LAST_WQE_REACHED && event.element.qp == b);
    ibv_ack_async_event(&event);
    CHECK(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0 && ibv_destroy_srq(srq) == 0);
    /* Both events were taken; destruction waits until they are acknowledged. */
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, acknowledge_late, cq) == 0);
    CHECK(ibv_destroy_cq(cq) == 0);
    pthread_join(thread, NULL);
    CHECK(ibv_destroy_cq(quiet) == 0 && ibv_destroy_comp_channel(channel) == 0);
}

/* Another size: as many completions as there are stay, in their order, and there are never fewer places. */
static void resizing(void)
{
    struct ibv_cq *cq = ibv_create_cq(context, 2, NULL, NULL, 0);
    struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = {4, 8, 1, 1, 0}};
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    CHECK(cq && qp && ibv_resize_cq(cq, 8) == 0 && cq->cqe == 15);
    to_init(qp);
    struct ibv_qp_attr error = {.qp_state = IBV_QPS_ERR}, reset = {.qp_state = IBV_QPS_RESET};
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 5; i++)
            receive(qp, i, memory, 10);
        CHECK(ibv_modify_qp(qp, &error, IBV_QP_STATE) == 0);
        FAILS(ibv_resize_cq(cq, 3), EINVAL);
        CHECK(cq->cqe == 15 && ibv_resize_cq(cq, 5) == 0 && cq->cqe == 7);
        struct ibv_wc wc;
        for (int i = 0; i < 3; i++)
            CHECK(ibv_poll_cq(cq, 1, &wc) == 1 && wc.wr_id == (uint64_t)i && wc.status == IBV_WC_WR_FLUSH_ERR);
        /* The other two go with the reset: what the queue pair does anew must not be taken for them. */
        CHECK(ibv_modify_qp(qp, &reset, IBV_QP_STATE) == 0 && ibv_poll_cq(cq, 1, &wc) == 0);
        CHECK(ibv_resize_cq(cq, 8) == 0);
        to_init(qp);
    }
    CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0);
}

/* Two contexts of one device share its link, and the first one's end does not hurt the second. */
static void two_contexts(void)
{
    struct ibv_context *other = open_first();
    struct ibv_pd *its = ibv_alloc_pd(other);
    CHECK(its);
    errno = 0;
    CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, its, NULL, 0, 0) == IBV_REREG_MR_ERR_CMD && errno == EINVAL);
    CHECK(ibv_close_device(other) == 0);
}

int main(void)
{
    context = open_first();
    CHECK(ibv_query_gid(context, 1, 1, &gid) == 0);
    CHECK(pd = ibv_alloc_pd(context));
    CHECK(memory = aligned_alloc(4096, BYTES));
    CHECK(mr = ibv_reg_mr(pd, memory, BYTES,
                          IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                              IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND | 1 << 8 /* IBV_ACCESS_FLUSH_GLOBAL */));
    queries();
    work_requests();
    datagrams();
    events();
    resizing();
    two_contexts();
    CHECK(ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
    puts("all extended verbs checked");
    return 0;
}
