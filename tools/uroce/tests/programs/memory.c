/* Regions and windows beyond the plain ones, used by two queue pairs of one program that are connected to each other. */
#include "later.h"
#include <time.h>

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static union ibv_gid gid;
static char *memory;
static struct ibv_mr *mr;
#define BYTES 65536
#define REMOTE (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)
#define ALL (IBV_ACCESS_LOCAL_WRITE | REMOTE | IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND)

struct pair {
    struct ibv_qp *a, *b;
};

static struct pair connected(struct ibv_pd *domain)
{
    struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = {8, 8, 2, 2, 0}};
    struct pair pair = {ibv_create_qp(domain, &init), ibv_create_qp(domain, &init)};
    CHECK(pair.a && pair.b);
    to_init(pair.a), to_init(pair.b);
    connect_to(pair.a, pair.b->qp_num, &gid);
    connect_to(pair.b, pair.a->qp_num, &gid);
    return pair;
}

static void destroy(struct pair pair)
{
    CHECK(ibv_destroy_qp(pair.a) == 0 && ibv_destroy_qp(pair.b) == 0);
}

/* Does one request, and returns how it ended. */
static enum ibv_wc_status done(struct ibv_qp *qp, struct ibv_send_wr *wr)
{
    struct ibv_send_wr *bad;
    wr->send_flags = IBV_SEND_SIGNALED;
    CHECK(ibv_post_send(qp, wr, &bad) == 0);
    return next_completion(cq).status;
}

static enum ibv_wc_status transfer(struct ibv_qp *qp, enum ibv_wr_opcode opcode, uint64_t local, uint32_t lkey,
                                   uint32_t bytes, uint64_t remote, uint32_t rkey)
{
    struct ibv_sge sge = {local, bytes, lkey};
    struct ibv_send_wr wr = {.opcode = opcode, .sg_list = &sge, .num_sge = 1, .wr.rdma = {remote, rkey}};
    return done(qp, &wr);
}

static enum ibv_wc_status bound(struct ibv_qp *qp, struct ibv_mw *mw, uint32_t rkey, struct ibv_mr *region, void *at,
                                uint64_t bytes, unsigned access)
{
    struct ibv_send_wr wr = {
        .opcode = IBV_WR_BIND_MW, .bind_mw = {mw, rkey, {region, (uintptr_t)at, bytes, access}}};
    return done(qp, &wr);
}

/* Of the key that a type 2 window shall have the lower 8 bits are the program's, and the others do not count. */
static void window_keys(void)
{
    struct pair pair = connected(pd);
    struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
    CHECK(mw);
    uint32_t index = mw->rkey & ~0xffu, key = index | 0x42;
    char *to = memory + BYTES / 2;
    CHECK(bound(pair.b, mw, 0xabcdef42, mr, to, 100, REMOTE) == IBV_WC_SUCCESS);
    memset(memory, 7, 100);
    CHECK(transfer(pair.a, IBV_WR_RDMA_WRITE, (uintptr_t)memory, mr->lkey, 100, (uintptr_t)to, key) == IBV_WC_SUCCESS);
    CHECK(memcmp(memory, to, 100) == 0);
    CHECK(mw->rkey == key);
    /* Invalidated, and bound again, whatever the program has written into its structure. */
    struct ibv_send_wr invalidate = {.opcode = IBV_WR_LOCAL_INV, .invalidate_rkey = key};
    CHECK(done(pair.b, &invalidate) == IBV_WC_SUCCESS);
    mw->rkey = 0xabcdef42;
    CHECK(bound(pair.b, mw, 0x43, mr, to, 100, REMOTE) == IBV_WC_SUCCESS);
    memset(memory, 9, 100);
    key = index | 0x43;
    CHECK(transfer(pair.a, IBV_WR_RDMA_WRITE, (uintptr_t)memory, mr->lkey, 100, (uintptr_t)to, key) == IBV_WC_SUCCESS);
    CHECK(memcmp(memory, to, 100) == 0);
    destroy(pair);
    CHECK(ibv_dealloc_mw(mw) == 0);

    /* Bound to nothing, with a region and without: a type 2 window is not invalidated so. */
    for (int with = 0; with < 2; with++) {
        pair = connected(pd);
        CHECK(mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2));
        CHECK(bound(pair.b, mw, 1, with ? mr : NULL, with ? memory : NULL, 0, REMOTE) == IBV_WC_MW_BIND_ERR);
        destroy(pair);
        CHECK(ibv_dealloc_mw(mw) == 0);
    }
}

/* Zero-based regions and windows: their first byte has the address 0, in local requests too. */
static void zero_based(void)
{
    char *to = memory + BYTES / 2;
    struct pair pair = connected(pd);
    struct ibv_mr *region = ibv_reg_mr(pd, to, 8192, ALL | IBV_ACCESS_ZERO_BASED);
    CHECK(region && region->addr == to);
    for (int i = 0; i < 8192; i++)
        memory[i] = i * 11;
    CHECK(transfer(pair.a, IBV_WR_RDMA_WRITE, (uintptr_t)memory, mr->lkey, 8192, 0, region->rkey) == IBV_WC_SUCCESS);
    CHECK(memcmp(memory, to, 8192) == 0);
    /* Read back from the middle into its own beginning: both ends by offsets. */
    CHECK(transfer(pair.a, IBV_WR_RDMA_READ, 0, region->lkey, 4000, 4100, region->rkey) == IBV_WC_SUCCESS);
    CHECK(memcmp(to, memory + 4100, 4000) == 0);
    CHECK(transfer(pair.a, IBV_WR_RDMA_READ, 0, region->lkey, 2, 8191, region->rkey) == IBV_WC_REM_ACCESS_ERR);
    destroy(pair);
    pair = connected(pd);
    CHECK(transfer(pair.a, IBV_WR_RDMA_WRITE, (uintptr_t)memory, mr->lkey, 8, (uintptr_t)to, region->rkey) ==
          IBV_WC_REM_ACCESS_ERR);
    destroy(pair);
    /* No window is bound to it. */
    pair = connected(pd);
    struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
    CHECK(mw && bound(pair.b, mw, 1, region, NULL, 100, REMOTE) == IBV_WC_MW_BIND_ERR);
    CHECK(ibv_dealloc_mw(mw) == 0);
    destroy(pair);
    CHECK(ibv_dereg_mr(region) == 0);

    for (int type = IBV_MW_TYPE_1; type <= IBV_MW_TYPE_2; type++) {
        pair = connected(pd);
        CHECK(mw = ibv_alloc_mw(pd, type));
        uint32_t key = ibv_inc_rkey(mw->rkey);
        unsigned access = REMOTE | IBV_ACCESS_ZERO_BASED;
        if (type == IBV_MW_TYPE_1) {
            struct ibv_mw_bind bind = {
                .send_flags = IBV_SEND_SIGNALED, .bind_info = {mr, (uintptr_t)to + 100, 200, access}};
            CHECK(ibv_bind_mw(pair.b, mw, &bind) == 0 && next_completion(cq).status == IBV_WC_SUCCESS);
        } else
            CHECK(bound(pair.b, mw, key, mr, to + 100, 200, access) == IBV_WC_SUCCESS);
        memset(to, 0, 400);
        memset(memory, type, 200);
        CHECK(transfer(pair.a, IBV_WR_RDMA_WRITE, (uintptr_t)memory, mr->lkey, 200, 0, key) == IBV_WC_SUCCESS);
        CHECK(to[99] == 0 && to[100] == type && to[299] == type && to[300] == 0);
        CHECK(transfer(pair.a, IBV_WR_RDMA_WRITE, (uintptr_t)memory, mr->lkey, 2, 199, key) == IBV_WC_REM_ACCESS_ERR);
        CHECK(to[300] == 0);
        CHECK(ibv_dealloc_mw(mw) == 0);
        destroy(pair);
    }
}

/* What is unknown is refused, what is known and not offered too; what a device may ignore is ignored. */
static void access_flags(void)
{
    NOTHING((ibv_reg_mr)(pd, memory, 100, IBV_ACCESS_LOCAL_WRITE | 1 << 10), EINVAL);
    NOTHING(ibv_reg_mr_iova2(pd, memory, 100, 0, 1u << 31), EINVAL);
    NOTHING((ibv_reg_mr)(pd, memory, 100, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ON_DEMAND), EOPNOTSUPP);
    struct ibv_mr *region = ibv_reg_mr_iova2(pd, memory, 100, 0, IBV_ACCESS_LOCAL_WRITE | 1 << 25);
    CHECK(region && ibv_dereg_mr(region) == 0);
    struct pair pair = connected(pd);
    struct ibv_mw *one = ibv_alloc_mw(pd, IBV_MW_TYPE_1), *two = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
    CHECK(one && two);
    struct ibv_mw_bind bind = {.bind_info = {mr, (uintptr_t)memory, 100, REMOTE | 1 << 10}};
    FAILS(ibv_bind_mw(pair.a, one, &bind), EINVAL);
    bind.bind_info.mw_access_flags = REMOTE | IBV_ACCESS_ON_DEMAND;
    FAILS(ibv_bind_mw(pair.a, one, &bind), EOPNOTSUPP);
    struct ibv_send_wr wr = {.opcode = IBV_WR_BIND_MW, .bind_mw = {two, 1, bind.bind_info}}, *bad;
    FAILS(ibv_post_send(pair.a, &wr, &bad), EOPNOTSUPP);
    CHECK(bad == &wr);
    CHECK(bound(pair.a, two, 1, mr, memory, 100, REMOTE | 1 << 25) == IBV_WC_SUCCESS);
    destroy(pair);
    CHECK(ibv_dealloc_mw(one) == 0 && ibv_dealloc_mw(two) == 0);
}

/* A region of no memory: reads as zeros and takes what is written away, at any address, for local requests. */
static void no_memory(void)
{
    struct ibv_mr *null = ibv_alloc_null_mr(pd);
    CHECK(null && null->pd == pd && null->addr == NULL && null->length == SIZE_MAX);
    struct pair pair = connected(pd);
    char *to = memory + BYTES / 2;
    memset(to, 5, 4000);
    CHECK(transfer(pair.a, IBV_WR_RDMA_WRITE, 0x123456789000, null->lkey, 3000, (uintptr_t)to, mr->rkey) == IBV_WC_SUCCESS);
    for (int i = 0; i < 4000; i++)
        CHECK(to[i] == (i < 3000 ? 0 : 5));
    CHECK(transfer(pair.a, IBV_WR_RDMA_READ, 0, null->lkey, 4000, (uintptr_t)to, mr->rkey) == IBV_WC_SUCCESS);
    /* One half of a message into memory, the other one nowhere. */
    memset(memory, 1, 2000);
    memset(to, 2, 2000);
    struct ibv_sge parts[2] = {{0, 500, null->lkey}, {(uintptr_t)memory + 500, 500, mr->lkey}};
    struct ibv_send_wr wr = {
        .opcode = IBV_WR_RDMA_READ, .sg_list = parts, .num_sge = 2, .wr.rdma = {(uintptr_t)to, mr->rkey}};
    CHECK(done(pair.a, &wr) == IBV_WC_SUCCESS);
    for (int i = 0; i < 2000; i++)
        CHECK(memory[i] == (i >= 500 && i < 1000 ? 2 : 1));
    CHECK(ibv_rereg_mr(null, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, memory, 100, 0) == IBV_REREG_MR_ERR_INPUT);
    /* It has no R_Key, and the L_Key is none. */
    CHECK(transfer(pair.a, IBV_WR_RDMA_READ, (uintptr_t)memory, mr->lkey, 8, 0, null->lkey) == IBV_WC_REM_ACCESS_ERR);
    destroy(pair);
    CHECK(ibv_dereg_mr(null) == 0);
}

/* Of rdma-core 59 and later; Debian 12's header has none of it. */
struct ibv_buf;
struct mr_init_attr {
    size_t length;
    int access;
    uint64_t comp_mask, iova;
    void *addr;
    int fd;
    uint64_t fd_offset;
    void *dmah;
    struct ibv_buf *buf;
};
enum { MASK_IOVA = 1, MASK_ADDR = 2, MASK_FD = 4, MASK_DMAH = 16, MASK_BUF = 32 };

static void buffers(void)
{
    struct ibv_mr *(*reg_mr_ex)(struct ibv_pd *, struct mr_init_attr *) = later("ibv_reg_mr_ex", "IBVERBS_1.15");
    void *(*alloc_buf)(struct ibv_pd *, size_t, struct ibv_buf **) = later("ibv_alloc_buf", "IBVERBS_1.17");
    void (*free_buf)(struct ibv_buf *) = later("ibv_free_buf", "IBVERBS_1.17");
    struct ibv_mr *(*reg_buf_mr)(struct ibv_pd *, struct ibv_buf *, void *, size_t, int) =
        later("ibv_reg_buf_mr", "IBVERBS_1.17");
    int (*export)(struct ibv_buf *) = later("ibv_export_buf_dmabuf_fd", "IBVERBS_1.18");
    char *to = memory + BYTES / 2;
    struct pair pair = connected(pd);

    struct mr_init_attr attr = {.length = 1000, .access = ALL, .comp_mask = MASK_ADDR, .addr = to};
    struct ibv_mr *region = reg_mr_ex(pd, &attr);
    CHECK(region && region->addr == to && region->length == 1000 && region->pd == pd);
    memset(memory, 3, 1000);
    CHECK(transfer(pair.a, IBV_WR_RDMA_WRITE, (uintptr_t)memory, mr->lkey, 1000, (uintptr_t)to, region->rkey) == IBV_WC_SUCCESS);
    CHECK(memcmp(memory, to, 1000) == 0 && ibv_dereg_mr(region) == 0);
    attr.comp_mask |= MASK_IOVA, attr.iova = 0x7000;
    CHECK(region = reg_mr_ex(pd, &attr));
    memset(memory, 4, 1000);
    CHECK(transfer(pair.a, IBV_WR_RDMA_WRITE, (uintptr_t)memory, mr->lkey, 1000, 0x7000, region->rkey) == IBV_WC_SUCCESS);
    CHECK(memcmp(memory, to, 1000) == 0 && ibv_dereg_mr(region) == 0);
    for (int mask = 0; mask <= (MASK_ADDR | MASK_FD); mask += MASK_ADDR | MASK_FD) {
        attr.comp_mask = mask;
        NOTHING(reg_mr_ex(pd, &attr), EINVAL); /* neither, and both */
    }
    attr.comp_mask = MASK_FD;
    NOTHING(reg_mr_ex(pd, &attr), EOPNOTSUPP);
    attr.comp_mask = MASK_ADDR | MASK_DMAH;
    NOTHING(reg_mr_ex(pd, &attr), EOPNOTSUPP);
    NOTHING(reg_mr_ex(pd, NULL), EINVAL);

    struct ibv_buf *buf;
    char *bytes = alloc_buf(pd, 10000, &buf);
    CHECK(bytes && buf && (uintptr_t)bytes % 4096 == 0 && bytes[0] == 0 && bytes[9999] == 0);
    NOTHING(alloc_buf(pd, 0, &buf), EINVAL);
    FAILS(ibv_dealloc_pd(pd), EBUSY);
    CHECK(region = reg_buf_mr(pd, buf, bytes + 1000, 9000, ALL));
    memset(memory, 6, 9000);
    CHECK(transfer(pair.a, IBV_WR_RDMA_WRITE, (uintptr_t)memory, mr->lkey, 9000, (uintptr_t)bytes + 1000, region->rkey) ==
          IBV_WC_SUCCESS);
    CHECK(bytes[999] == 0 && memcmp(memory, bytes + 1000, 9000) == 0);
    NOTHING(reg_buf_mr(pd, buf, bytes + 1001, 9000, ALL), EINVAL);
    NOTHING(reg_buf_mr(pd, buf, bytes - 1, 1, ALL), EINVAL);
    struct ibv_pd *other = ibv_alloc_pd(context);
    NOTHING(reg_buf_mr(other, buf, bytes, 1, ALL), EINVAL);
    attr = (struct mr_init_attr){.length = 10, .access = ALL, .comp_mask = MASK_ADDR | MASK_BUF, .addr = bytes, .buf = buf};
    struct ibv_mr *second = reg_mr_ex(pd, &attr);
    CHECK(second && ibv_dereg_mr(second) == 0);
    attr.length = 10001;
    NOTHING(reg_mr_ex(pd, &attr), EINVAL);
    MINUS(export(buf), ENODATA);
    /* Gone before its region: an access error. */
    free_buf(buf);
    MINUS(export(buf), EINVAL);
    CHECK(transfer(pair.a, IBV_WR_RDMA_READ, (uintptr_t)memory, mr->lkey, 8, (uintptr_t)bytes + 1000, region->rkey) ==
          IBV_WC_REM_ACCESS_ERR);
    CHECK(ibv_dereg_mr(region) == 0 && ibv_dealloc_pd(other) == 0);
    destroy(pair);
}

/* Another handle of the same domain: whatever is made with it works with what was made with that. */
static void parent_domains(void)
{
    struct ibv_td *td = ibv_alloc_td(context, &(struct ibv_td_init_attr){0});
    CHECK(td && td->context == context);
    NOTHING(ibv_alloc_td(context, &(struct ibv_td_init_attr){.comp_mask = 1}), EOPNOTSUPP);
    struct ibv_parent_domain_init_attr attr = {.pd = pd, .td = td};
    struct ibv_pd *parent = ibv_alloc_parent_domain(context, &attr);
    CHECK(parent && parent != pd && parent->context == context);
    attr.comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS;
    NOTHING(ibv_alloc_parent_domain(context, &attr), EOPNOTSUPP);
    attr = (struct ibv_parent_domain_init_attr){0};
    NOTHING(ibv_alloc_parent_domain(context, &attr), EINVAL);
    attr.pd = pd;
    struct ibv_pd *without = ibv_alloc_parent_domain(context, &attr);
    CHECK(without && ibv_dealloc_pd(without) == 0);
    FAILS(ibv_dealloc_td(td), EBUSY);
    FAILS(ibv_dealloc_pd(pd), EBUSY);

    struct ibv_mr *region = ibv_reg_mr(parent, memory, 4096, ALL);
    struct ibv_mw *mw = ibv_alloc_mw(parent, IBV_MW_TYPE_2);
    struct ibv_ah_attr ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid, .sgid_index = 1}};
    struct ibv_ah *ah = ibv_create_ah(parent, &ah_attr);
    struct ibv_srq_init_attr srq_init = {.attr = {.max_wr = 4, .max_sge = 1}};
    struct ibv_srq *srq = ibv_create_srq(parent, &srq_init);
    struct ibv_cq_ex *its_cq = ibv_create_cq_ex(context, &(struct ibv_cq_init_attr_ex){
        .cqe = 4, .comp_mask = IBV_CQ_INIT_ATTR_MASK_PD, .parent_domain = parent});
    CHECK(region && region->pd == parent && mw && ah && srq && its_cq);
    struct pair pair = connected(parent);
    CHECK(pair.a->pd == parent);
    CHECK(bound(pair.b, mw, 1, mr, memory + 8192, 100, REMOTE) == IBV_WC_SUCCESS);
    memset(memory, 8, 100);
    uint32_t key = (mw->rkey & ~0xffu) | 1;
    CHECK(transfer(pair.a, IBV_WR_RDMA_WRITE, (uintptr_t)memory, region->lkey, 100, (uintptr_t)memory + 8192, key) ==
          IBV_WC_SUCCESS);
    CHECK(memcmp(memory, memory + 8192, 100) == 0);
    FAILS(ibv_dealloc_pd(parent), EBUSY);
    CHECK(ibv_dealloc_mw(mw) == 0 && ibv_destroy_ah(ah) == 0 && ibv_destroy_srq(srq) == 0 && ibv_dereg_mr(region) == 0);
    destroy(pair);
    FAILS(ibv_dealloc_pd(parent), EBUSY);
    CHECK(ibv_destroy_cq(ibv_cq_ex_to_cq(its_cq)) == 0);
    CHECK(ibv_dealloc_pd(parent) == 0 && ibv_dealloc_td(td) == 0);
    FAILS(ibv_dealloc_td(td), EINVAL);
}

/* Inline data as long as a queue pair was made for: taken at the call, whatever becomes of the program's memory. */
static void inline_data(void)
{
    struct ibv_cq *plain = cq;
    CHECK(cq = ibv_create_cq(context, 64, NULL, NULL, 0));
    struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = {40, 8, 2, 2, 1025}};
    NOTHING(ibv_create_qp(pd, &init), EINVAL);
    init.cap.max_inline_data = 1024;
    struct pair pair = {ibv_create_qp(pd, &init), ibv_create_qp(pd, &init)};
    CHECK(pair.a && pair.b && init.cap.max_inline_data == 1024);
    to_init(pair.a), to_init(pair.b);
    connect_to(pair.a, pair.b->qp_num, &gid);
    connect_to(pair.b, pair.a->qp_num, &gid);
    char *to = memory + BYTES / 2, *from = memory;
    /* More at once than the queue holds, twice: each of another length, and the memory is overwritten at once. */
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 31; i++) {
            int bytes = 1024 - i * 33, split = bytes / 3;
            memset(from, 'a' + i, bytes);
            struct ibv_sge parts[2] = {{(uintptr_t)from, split, 0}, {(uintptr_t)from + split, bytes - split, 0}};
            struct ibv_send_wr wr = {.wr_id = i, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED,
                                     .sg_list = parts, .num_sge = 2, .wr.rdma = {(uintptr_t)to + i * 1024, mr->rkey}}, *bad;
            CHECK(ibv_post_send(pair.a, &wr, &bad) == 0);
            memset(from, 0, bytes);
        }
        for (int i = 0; i < 31; i++)
            CHECK(next_completion(cq).status == IBV_WC_SUCCESS);
        for (int i = 0; i < 31; i++) {
            for (int byte = 0; byte < 1024 - i * 33; byte++)
                CHECK(to[i * 1024 + byte] == 'a' + i);
            memset(to + i * 1024, 0, 1024);
        }
    }
    struct ibv_sge long_one = {(uintptr_t)from, 1025, 0};
    struct ibv_send_wr wr = {.opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_INLINE, .sg_list = &long_one, .num_sge = 1,
                             .wr.rdma = {(uintptr_t)to, mr->rkey}}, *bad;
    FAILS(ibv_post_send(pair.a, &wr, &bad), EINVAL);
    destroy(pair);
    CHECK(ibv_destroy_cq(cq) == 0);
    cq = plain;
}

static uint64_t wall_ns(void)
{
    struct timespec now;
    CHECK(clock_gettime(CLOCK_REALTIME, &now) == 0);
    return now.tv_sec * 1000000000ull + now.tv_nsec;
}

/* Completions say when they were reported, by a clock that can be asked; and promises of the program's are taken. */
static void times_and_vectors(void)
{
    struct ibv_device_attr_ex device;
    CHECK(ibv_query_device_ex(context, NULL, &device) == 0);
    CHECK(device.completion_timestamp_mask == UINT64_MAX && device.hca_core_clock == 1000000); /* kHz */
    struct ibv_cq_init_attr_ex init = {
        .cqe = 16,
        .wc_flags = IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK,
        .comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS,
        .flags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN,
        .comp_vector = context->num_comp_vectors - 1,
    };
    CHECK(context->num_comp_vectors == sysconf(_SC_NPROCESSORS_ONLN));
    struct ibv_cq_ex *timed = ibv_create_cq_ex(context, &init);
    CHECK(timed);
    init.comp_vector++;
    NOTHING(ibv_create_cq_ex(context, &init), EINVAL);
    struct ibv_cq *plain = cq;
    cq = ibv_cq_ex_to_cq(timed);
    struct pair pair = connected(pd);
    uint64_t last = 0;
    for (int i = 0; i < 3; i++) {
        struct ibv_values_ex before = {.comp_mask = IBV_VALUES_MASK_RAW_CLOCK}, after = before;
        CHECK(ibv_query_rt_values_ex(context, &before) == 0 && before.comp_mask == IBV_VALUES_MASK_RAW_CLOCK);
        uint64_t wall = wall_ns();
        struct ibv_sge sge = {(uintptr_t)memory, 100, mr->lkey};
        struct ibv_send_wr wr = {.opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED, .sg_list = &sge, .num_sge = 1,
                                 .wr.rdma = {(uintptr_t)memory + 8192, mr->rkey}}, *bad;
        CHECK(ibv_post_send(pair.a, &wr, &bad) == 0);
        int tries = 0, result;
        while ((result = ibv_start_poll(timed, &(struct ibv_poll_cq_attr){0})) == ENOENT && tries++ < 200000)
            usleep(20);
        CHECK(result == 0 && timed->status == IBV_WC_SUCCESS);
        uint64_t ticks = ibv_wc_read_completion_ts(timed), ns = ibv_wc_read_completion_wallclock_ns(timed);
        ibv_end_poll(timed);
        CHECK(ibv_query_rt_values_ex(context, &after) == 0);
        CHECK(ticks >= (uint64_t)before.raw_clock.tv_nsec && ticks <= (uint64_t)after.raw_clock.tv_nsec && ticks > last);
        /* The clock is the wall's as it was when the device was opened. */
        CHECK(ns + 1000000000 > wall && ns < wall_ns() + 1000000000);
        last = ticks;
        usleep(1000);
    }
    FAILS(ibv_query_rt_values_ex(context, &(struct ibv_values_ex){.comp_mask = 2}), EOPNOTSUPP);
    destroy(pair);
    CHECK(ibv_destroy_cq(cq) == 0);
    cq = plain;
}

/* A WRITE whose completion nobody polls yet: the device's own thread brings it. */
static void write_unpolled(struct pair pair, uint64_t wr_id)
{
    struct ibv_sge sge = {(uintptr_t)memory, 100, mr->lkey};
    struct ibv_send_wr wr = {.wr_id = wr_id, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED, .sg_list = &sge,
                             .num_sge = 1, .wr.rdma = {(uintptr_t)memory + 8192, mr->rkey}}, *bad;
    CHECK(ibv_post_send(pair.a, &wr, &bad) == 0);
    usleep(20000);
}

/* A queue of one holds two, as RNICs' do: ib_send_lat -e leaves one in it. */
static void one_more(void)
{
    struct ibv_cq *plain = cq;
    CHECK(cq = ibv_create_cq(context, 1, NULL, NULL, 0));
    struct pair pair = connected(pd);
    for (int i = 0; i < 2; i++)
        write_unpolled(pair, i);
    struct ibv_wc wc;
    int count = 0;
    for (int tries = 0; tries < 1000 && count < 2; tries++) {
        if (ibv_poll_cq(cq, 1, &wc) == 1)
            CHECK(wc.wr_id == (uint64_t)count++ && wc.status == IBV_WC_SUCCESS);
        else
            usleep(1000);
    }
    CHECK(count == 2);
    destroy(pair);
    CHECK(ibv_destroy_cq(cq) == 0);
    cq = plain;
}

/* A full queue of this kind loses its oldest completions, and the queue pair goes on. */
static void overrun(void)
{
    enum { ROOM = 4, REQUESTS = 16 };
    struct ibv_cq_init_attr_ex init = {
        .cqe = ROOM,
        .wc_flags = IBV_WC_STANDARD_FLAGS,
        .comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS,
        .flags = IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN,
    };
    struct ibv_cq *plain = cq;
    CHECK(cq = ibv_cq_ex_to_cq(ibv_create_cq_ex(context, &init)));
    struct pair pair = connected(pd);
    for (int i = 0; i < REQUESTS; i++)
        write_unpolled(pair, i);
    struct ibv_wc wcs[REQUESTS];
    int count = 0, got;
    for (int tries = 0; tries < 1000 && (count == 0 || wcs[count - 1].wr_id != REQUESTS - 1); tries++) {
        CHECK((got = ibv_poll_cq(cq, REQUESTS - count, wcs + count)) >= 0);
        count += got;
        usleep(got ? 0 : 1000);
    }
    CHECK(count > 0 && count < REQUESTS);
    CHECK(wcs[count - 1].wr_id == REQUESTS - 1 && wcs[count - 1].status == IBV_WC_SUCCESS);
    struct ibv_qp_attr state;
    CHECK(ibv_query_qp(pair.a, &state, IBV_QP_STATE, &(struct ibv_qp_init_attr){}) == 0 && state.qp_state == IBV_QPS_RTS);
    destroy(pair);
    CHECK(ibv_destroy_cq(cq) == 0);
    cq = plain;
}

/* The next event about the device, within some seconds. It is acknowledged, and its object can be destroyed. */
static struct ibv_async_event next_event(void)
{
    struct ibv_async_event event;
    CHECK(poll(&(struct pollfd){.fd = context->async_fd, .events = POLLIN}, 1, 10000) == 1);
    CHECK(ibv_get_async_event(context, &event) == 0);
    ibv_ack_async_event(&event);
    return event;
}

/* A full queue of the ordinary kind is in error, and so are both queue pairs that complete into it. */
static void overflow(void)
{
    enum { ROOM = 3, REQUESTS = 16 };
    struct ibv_cq *plain = cq;
    CHECK(cq = ibv_create_cq(context, ROOM, NULL, NULL, 0));
    struct pair pair = connected(pd);
    CHECK(poll(&(struct pollfd){.fd = context->async_fd, .events = POLLIN}, 1, 0) == 0);
    for (int i = 0; i < REQUESTS; i++)
        write_unpolled(pair, i);
    struct ibv_async_event event = next_event();
    CHECK(event.event_type == IBV_EVENT_CQ_ERR && event.element.cq == cq);
    struct ibv_qp *failed[2];
    for (int i = 0; i < 2; i++) {
        event = next_event();
        CHECK(event.event_type == IBV_EVENT_QP_FATAL);
        failed[i] = event.element.qp;
        struct ibv_qp_attr state;
        CHECK(ibv_query_qp(failed[i], &state, IBV_QP_STATE, &(struct ibv_qp_init_attr){}) == 0);
        CHECK(state.qp_state == IBV_QPS_ERR);
    }
    CHECK((failed[0] == pair.a && failed[1] == pair.b) || (failed[0] == pair.b && failed[1] == pair.a));
    CHECK(poll(&(struct pollfd){.fd = context->async_fd, .events = POLLIN}, 1, 0) == 0);
    /* What came before the one that was lost can be polled. */
    struct ibv_wc wcs[REQUESTS];
    int count = ibv_poll_cq(cq, REQUESTS, wcs);
    CHECK(count >= ROOM && count < REQUESTS);
    for (int i = 0; i < count; i++)
        CHECK(wcs[i].wr_id == (uint64_t)i && wcs[i].status == IBV_WC_SUCCESS);
    CHECK(ibv_poll_cq(cq, 1, wcs) == 0);
    destroy(pair);
    CHECK(ibv_destroy_cq(cq) == 0);
    cq = plain;
}

int main(void)
{
    context = open_first();
    CHECK(ibv_query_gid(context, 1, 1, &gid) == 0);
    CHECK(pd = ibv_alloc_pd(context));
    CHECK(cq = ibv_create_cq(context, 64, NULL, NULL, 0));
    CHECK(memory = aligned_alloc(4096, BYTES));
    CHECK(mr = ibv_reg_mr(pd, memory, BYTES, ALL));
    window_keys();
    zero_based();
    access_flags();
    no_memory();
    buffers();
    parent_domains();
    times_and_vectors();
    one_more();
    overrun();
    overflow();
    inline_data();
    CHECK(ibv_dereg_mr(mr) == 0 && ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0);
    CHECK(ibv_close_device(context) == 0);
    free(memory);
    puts("all memory checked");
    return 0;
}
