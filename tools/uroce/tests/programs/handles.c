/* Wrong, stale, foreign and NULL handles, huge sizes and double frees: an error number each, never a crash, never a leak. */
#include "check.h"
#include <stddef.h>
#include <sys/mman.h>
#include <sys/wait.h>

static struct ibv_context *context;
/* The functions that the header's inline ones call through these structures. */
static struct verbs_context *extended;
static struct ibv_cq_ex extended_cq;
static struct ibv_qp_ex extended_qp;
/* Somebody else looks for leaks. */
static int is_counted;

/* Pointers that are none of the library's: NULL, small, high, the stack's, the heap's, and one byte beside a right one. */
static void wrong_pointers(void *right, void **out)
{
    static long somewhere[64];
    out[0] = NULL;
    out[1] = (void *)8;
    out[2] = (void *)~7ul;
    out[3] = out;
    out[4] = somewhere;
    out[5] = (char *)right + 1;
    out[6] = (char *)right + 8;
    out[7] = (char *)right - 8;
}
#define EACH_WRONG(right, variable) \
    void *wrong_[8]; \
    wrong_pointers(right, wrong_); \
    for (int i_ = 0; i_ < 8; i_++) \
        for (void *variable = wrong_[i_], *once_ = wrong_; once_; once_ = NULL)

/* Every exported verb that takes a handle, with a handle that is none of its kind. */
static void refuse_all(void *wrong, int is_context, int is_pd, int is_mr, int is_channel, int is_cq, int is_srq, int is_qp,
                       int is_ah, int is_mw)
{
    struct ibv_context_ops *ops = &context->ops;
    struct ibv_cq *cq;
    void *cq_context;
    if (!is_context) {
        struct ibv_device_attr device;
        union ibv_gid gid;
        struct ibv_gid_entry entry;
        struct ibv_async_event event;
        struct _compat_ibv_port_attr *port = alloca(64);
        uint16_t pkey;
        FAILS(ibv_query_device(wrong, &device), EINVAL);
        FAILS((ibv_query_port)(wrong, 1, port), EINVAL);
        MINUS(ibv_query_gid(wrong, 1, 0, &gid), EINVAL);
        MINUS(ibv_query_pkey(wrong, 1, 0, &pkey), EINVAL);
        MINUS(ibv_get_pkey_index(wrong, 1, 0xffff), EINVAL);
        FAILS(_ibv_query_gid_ex(wrong, 1, 0, &entry, 0, sizeof entry), EINVAL);
        CHECK(_ibv_query_gid_table(wrong, &entry, 1, 0, sizeof entry) == -EINVAL);
        NOTHING(ibv_alloc_pd(wrong), EINVAL);
        NOTHING(ibv_create_comp_channel(wrong), EINVAL);
        NOTHING(ibv_create_cq(wrong, 1, NULL, NULL, 0), EINVAL);
        NOTHING(extended->create_cq_ex(wrong, &(struct ibv_cq_init_attr_ex){.cqe = 1}), EINVAL);
        struct ibv_device_attr_ex wide;
        FAILS(extended->query_device_ex(wrong, NULL, &wide, sizeof wide), EINVAL);
        FAILS(extended->query_port(wrong, 1, (void *)port, 48), EINVAL);
        NOTHING(extended->create_qp_ex(wrong, &(struct ibv_qp_init_attr_ex){0}), EINVAL);
        NOTHING(extended->create_srq_ex(wrong, &(struct ibv_srq_init_attr_ex){0}), EINVAL);
        struct ibv_ah_attr ah;
        MINUS(ibv_init_ah_from_wc(wrong, 1, &(struct ibv_wc){0}, &(struct ibv_grh){0}, &ah), EINVAL);
        MINUS(ibv_get_async_event(wrong, &event), EINVAL);
        MINUS(ibv_close_device(wrong), EINVAL);
    }
    if (!is_pd) {
        char byte;
        struct ibv_srq_init_attr srq = {.attr = {1, 1, 0}};
        struct ibv_qp_init_attr qp = {.qp_type = IBV_QPT_RC};
        struct ibv_ah_attr ah = {.is_global = 1, .port_num = 1};
        struct ibv_wc wc = {0};
        struct ibv_grh grh = {0};
        NOTHING((ibv_reg_mr)(wrong, &byte, 1, 0), EINVAL);
        NOTHING((ibv_reg_mr_iova)(wrong, &byte, 1, 0, 0), EINVAL);
        NOTHING(ibv_reg_mr_iova2(wrong, &byte, 1, 0, 0), EINVAL);
        NOTHING(ibv_reg_dmabuf_mr(wrong, 0, 1, 0, 0, 0), EINVAL);
        NOTHING(ibv_import_mr(wrong, 1), EINVAL);
        NOTHING(ibv_create_srq(wrong, &srq), EINVAL);
        NOTHING(ibv_create_qp(wrong, &qp), EINVAL);
        NOTHING(ibv_create_ah(wrong, &ah), EINVAL);
        NOTHING(ibv_create_ah_from_wc(wrong, &wc, &grh, 1), EINVAL);
        NOTHING(ops->alloc_mw(wrong, IBV_MW_TYPE_1), EINVAL);
        FAILS(ibv_dealloc_pd(wrong), EINVAL);
    }
    if (!is_mr) {
        FAILS(ibv_dereg_mr(wrong), EINVAL);
        MINUS(ibv_rereg_mr(wrong, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0), EINVAL);
    }
    if (!is_channel) {
        MINUS(ibv_get_cq_event(wrong, &cq, &cq_context), EINVAL);
        FAILS(ibv_destroy_comp_channel(wrong), EINVAL);
    }
    if (!is_cq) {
        struct ibv_wc wc;
        MINUS(ops->poll_cq(wrong, 1, &wc), EINVAL);
        FAILS(ops->req_notify_cq(wrong, 0), EINVAL);
        FAILS(ibv_resize_cq(wrong, 1), EINVAL);
        FAILS(ibv_destroy_cq(wrong), EINVAL);
        FAILS(extended_cq.start_poll(wrong, &(struct ibv_poll_cq_attr){0}), EINVAL);
        FAILS(extended_cq.next_poll(wrong), EINVAL);
        extended_cq.end_poll(wrong);
        CHECK(extended_cq.read_opcode(wrong) == 0 && extended_cq.read_byte_len(wrong) == 0);
        CHECK(extended_cq.read_imm_data(wrong) == 0 && extended_cq.read_qp_num(wrong) == 0);
        CHECK(extended_cq.read_src_qp(wrong) == 0 && extended_cq.read_wc_flags(wrong) == 0);
        ibv_ack_cq_events(wrong, 1);
    }
    if (!is_srq) {
        struct ibv_srq_attr attr = {0};
        struct ibv_recv_wr wr = {0}, *bad = NULL;
        FAILS(ibv_query_srq(wrong, &attr), EINVAL);
        FAILS(ibv_modify_srq(wrong, &attr, IBV_SRQ_LIMIT), EINVAL);
        FAILS(ops->post_srq_recv(wrong, &wr, &bad), EINVAL);
        CHECK(bad == &wr);
        FAILS(ibv_destroy_srq(wrong), EINVAL);
        uint32_t number;
        FAILS(extended->get_srq_num(wrong, &number), EINVAL);
    }
    if (!is_qp) {
        struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
        struct ibv_qp_init_attr init;
        struct ibv_send_wr send = {0}, *bad_send = NULL;
        struct ibv_recv_wr receive = {0}, *bad_receive = NULL;
        struct ibv_mw_bind bind = {0};
        FAILS(ibv_modify_qp(wrong, &attr, IBV_QP_STATE), EINVAL);
        FAILS(ibv_query_qp(wrong, &attr, 0, &init), EINVAL);
        FAILS(ops->post_send(wrong, &send, &bad_send), EINVAL);
        CHECK(bad_send == &send);
        FAILS(ops->post_recv(wrong, &receive, &bad_receive), EINVAL);
        CHECK(bad_receive == &receive);
        FAILS(ops->bind_mw(wrong, wrong, &bind), EINVAL);
        NOTHING(ibv_qp_to_qp_ex(wrong), EINVAL);
        FAILS(ibv_attach_mcast(wrong, &(union ibv_gid){0}, 0), EINVAL);
        FAILS(ibv_detach_mcast(wrong, &(union ibv_gid){0}, 0), EINVAL);
        FAILS(ibv_query_ece(wrong, &(struct ibv_ece){0}), EINVAL);
        FAILS(ibv_set_ece(wrong, &(struct ibv_ece){0}), EINVAL);
        extended_qp.wr_start(wrong);
        extended_qp.wr_send(wrong);
        extended_qp.wr_rdma_write(wrong, 1, 2);
        extended_qp.wr_set_sge(wrong, 1, 2, 3);
        extended_qp.wr_set_inline_data(wrong, &init, 1);
        FAILS(extended_qp.wr_complete(wrong), EINVAL);
        extended_qp.wr_abort(wrong);
        FAILS(ibv_destroy_qp(wrong), EINVAL);
    }
    if (!is_ah)
        FAILS(ibv_destroy_ah(wrong), EINVAL);
    if (!is_mw)
        FAILS(ops->dealloc_mw(wrong), EINVAL);
}

struct objects {
    struct ibv_pd *pd;
    struct ibv_mr *mr;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    struct ibv_srq *srq;
    struct ibv_qp *qp;
    struct ibv_ah *ah;
    struct ibv_mw *mw;
};

static char buffer[8192];
static union ibv_gid gid;

/* Takes a copy of the functions, before anything is destroyed. */
static void learn_functions(void)
{
    CHECK(ibv_query_gid(context, 1, 1, &gid) == 0);
    CHECK(extended = verbs_get_ctx(context));
    struct ibv_cq_ex *cq = ibv_create_cq_ex(context, &(struct ibv_cq_init_attr_ex){.cqe = 4});
    struct ibv_pd *pd = ibv_alloc_pd(context);
    CHECK(cq && pd);
    struct ibv_qp_init_attr_ex init = {
        .send_cq = ibv_cq_ex_to_cq(cq),
        .recv_cq = ibv_cq_ex_to_cq(cq),
        .qp_type = IBV_QPT_RC,
        .cap = {1, 1, 1, 1, 0},
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .pd = pd,
        .send_ops_flags = IBV_QP_EX_WITH_SEND,
    };
    struct ibv_qp *qp = ibv_create_qp_ex(context, &init);
    CHECK(qp);
    extended_cq = *cq;
    extended_qp = *ibv_qp_to_qp_ex(qp);
    CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) == 0 && ibv_dealloc_pd(pd) == 0);
}

static struct objects make(void)
{
    struct objects o;
    CHECK(o.pd = ibv_alloc_pd(context));
    CHECK(o.mr = ibv_reg_mr(o.pd, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE));
    CHECK(o.channel = ibv_create_comp_channel(context));
    CHECK(o.cq = ibv_create_cq(context, 8, &o, o.channel, 0));
    struct ibv_srq_init_attr srq = {.attr = {.max_wr = 4, .max_sge = 1}};
    CHECK(o.srq = ibv_create_srq(o.pd, &srq));
    struct ibv_qp_init_attr qp = {
        .send_cq = o.cq, .recv_cq = o.cq, .srq = o.srq, .qp_type = IBV_QPT_RC, .cap = {.max_send_wr = 4, .max_send_sge = 1}};
    CHECK(o.qp = ibv_create_qp(o.pd, &qp));
    struct ibv_ah_attr ah = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid, .sgid_index = 1}};
    CHECK(o.ah = ibv_create_ah(o.pd, &ah));
    CHECK(o.mw = ibv_alloc_mw(o.pd, IBV_MW_TYPE_1));
    return o;
}

static void unmake(struct objects *o)
{
    CHECK(ibv_dealloc_mw(o->mw) == 0);
    CHECK(ibv_destroy_ah(o->ah) == 0);
    CHECK(ibv_destroy_qp(o->qp) == 0);
    CHECK(ibv_destroy_srq(o->srq) == 0);
    CHECK(ibv_destroy_cq(o->cq) == 0);
    CHECK(ibv_destroy_comp_channel(o->channel) == 0);
    CHECK(ibv_dereg_mr(o->mr) == 0);
    CHECK(ibv_dealloc_pd(o->pd) == 0);
}

static void sizes_and_nulls(struct objects *o)
{
    NOTHING((ibv_reg_mr)(o->pd, NULL, 4096, IBV_ACCESS_LOCAL_WRITE), EFAULT);
    NOTHING((ibv_reg_mr)(o->pd, buffer, 0, 0), EINVAL);
    NOTHING((ibv_reg_mr)(o->pd, buffer, SIZE_MAX, 0), EINVAL);
    NOTHING((ibv_reg_mr)(o->pd, buffer, 1ul << 46, 0), EFAULT);
    NOTHING((ibv_reg_mr)(o->pd, buffer, 64, IBV_ACCESS_REMOTE_WRITE), EINVAL);
    NOTHING((ibv_reg_mr)(o->pd, buffer, 64, IBV_ACCESS_ON_DEMAND), EOPNOTSUPP);
    NOTHING((ibv_reg_mr)(o->pd, (void *)"read-only", 9, IBV_ACCESS_LOCAL_WRITE), EFAULT);
    NOTHING(ibv_reg_mr_iova2(o->pd, buffer, 4096, UINT64_MAX - 4, 0), EINVAL);
    NOTHING(ibv_reg_dmabuf_mr(o->pd, 0, 64, 0, 0, 0), EOPNOTSUPP);
    for (long cqe = 0; cqe > -3; cqe--)
        NOTHING(ibv_create_cq(context, (int)cqe, NULL, NULL, 0), EINVAL);
    NOTHING(ibv_create_cq(context, 0x7fffffff, NULL, NULL, 0), EINVAL);
    NOTHING(ibv_create_cq(context, 8, NULL, NULL, context->num_comp_vectors), EINVAL);
    NOTHING(ibv_create_cq(context, 8, NULL, NULL, -1), EINVAL);
    NOTHING(ibv_create_cq(context, 8, NULL, (void *)o->cq, 0), EINVAL);
    for (long cqe = 0; cqe > -3; cqe--)
        FAILS(ibv_resize_cq(o->cq, (int)cqe), EINVAL);
    FAILS(ibv_resize_cq(o->cq, 0x7fffffff), EINVAL);
    CHECK(ibv_resize_cq(o->cq, 100) == 0 && o->cq->cqe == 127);
    NOTHING(extended->create_cq_ex(context, NULL), EINVAL);
    NOTHING(extended->create_qp_ex(context, NULL), EINVAL);
    NOTHING(extended->create_srq_ex(context, NULL), EINVAL);
    FAILS(ibv_query_srq(o->srq, NULL), EINVAL);
    FAILS(ibv_modify_srq(o->srq, NULL, IBV_SRQ_LIMIT), EINVAL);
    FAILS(ibv_modify_srq(o->srq, &(struct ibv_srq_attr){.max_wr = 0xffffffff}, IBV_SRQ_MAX_WR), EINVAL);
    FAILS(ibv_modify_srq(o->srq, &(struct ibv_srq_attr){0}, 1 << 9), EINVAL);
    FAILS(ibv_get_srq_num(o->srq, NULL), EINVAL);
    MINUS(ibv_get_cq_event(o->channel, NULL, NULL), EINVAL);
    MINUS(ibv_get_async_event(context, NULL), EINVAL);
    ibv_ack_async_event(NULL);
    ibv_ack_async_event(&(struct ibv_async_event){.element.qp = (void *)o->cq, .event_type = IBV_EVENT_QP_FATAL});
    struct ibv_wc wc;
    MINUS(ibv_poll_cq(o->cq, -1, &wc), EINVAL);
    MINUS(ibv_poll_cq(o->cq, 1, NULL), EINVAL);
    CHECK(ibv_poll_cq(o->cq, 0, NULL) == 0);
    struct ibv_gid_entry entry;
    CHECK(_ibv_query_gid_table(context, NULL, SIZE_MAX, 0, sizeof entry) == -EINVAL);
    CHECK(_ibv_query_gid_table(context, &entry, 0, 0, sizeof entry) == -EINVAL);
    FAILS(_ibv_query_gid_ex(context, 1, 0, NULL, 0, sizeof entry), EINVAL);
    FAILS(_ibv_query_gid_ex(context, 1, 0xffffffff, &entry, 0, sizeof entry), EINVAL);
    FAILS((ibv_query_port)(context, 1, NULL), EINVAL);
    MINUS(ibv_query_pkey(context, 1, 0x7fffffff, &(__be16){0}), EINVAL);
    MINUS(ibv_init_ah_from_wc(context, 1, NULL, NULL, NULL), EINVAL);
    NOTHING(ibv_create_ah_from_wc(o->pd, NULL, NULL, 1), EINVAL);
    struct ibv_srq_init_attr srq = {.attr = {.max_wr = 0xffffffff, .max_sge = 1}};
    NOTHING(ibv_create_srq(o->pd, &srq), EINVAL);
    srq.attr = (struct ibv_srq_attr){.max_wr = 1, .max_sge = 0xffffffff};
    NOTHING(ibv_create_srq(o->pd, &srq), EINVAL);
    NOTHING(ibv_create_srq(o->pd, NULL), EINVAL);
    struct ibv_qp_init_attr good = {
        .send_cq = o->cq, .recv_cq = o->cq, .qp_type = IBV_QPT_RC, .cap = {1, 1, 1, 1, 0}}, bad = good;
    bad.cap.max_send_wr = 0xffffffff;
    NOTHING(ibv_create_qp(o->pd, &bad), EINVAL);
    bad = good, bad.cap.max_recv_sge = 1000;
    NOTHING(ibv_create_qp(o->pd, &bad), EINVAL);
    bad = good, bad.cap.max_inline_data = 1 << 20;
    NOTHING(ibv_create_qp(o->pd, &bad), EINVAL);
    bad = good, bad.qp_type = 77;
    NOTHING(ibv_create_qp(o->pd, &bad), EINVAL);
    bad = good, bad.qp_type = IBV_QPT_RAW_PACKET;
    NOTHING(ibv_create_qp(o->pd, &bad), EOPNOTSUPP);
    bad = good, bad.send_cq = NULL;
    NOTHING(ibv_create_qp(o->pd, &bad), EINVAL);
    bad = good, bad.srq = (void *)o->cq;
    NOTHING(ibv_create_qp(o->pd, &bad), EINVAL);
    NOTHING(ibv_create_qp(o->pd, NULL), EINVAL);
    struct ibv_ah_attr ah = {.port_num = 1};
    NOTHING(ibv_create_ah(o->pd, &ah), EINVAL);
    ah = (struct ibv_ah_attr){.is_global = 1, .port_num = 1, .grh = {.sgid_index = 200}};
    NOTHING(ibv_create_ah(o->pd, &ah), EINVAL);
    NOTHING(ibv_create_ah(o->pd, NULL), EINVAL);
    NOTHING(ibv_alloc_mw(o->pd, 9), EINVAL);
    FAILS(ibv_query_device(context, NULL), EINVAL);
    MINUS(ibv_query_gid(context, 1, 99, &(union ibv_gid){0}), EINVAL);
    MINUS(ibv_query_gid(context, 1, -1, &(union ibv_gid){0}), EINVAL);
    MINUS(ibv_query_gid(context, 7, 0, &(union ibv_gid){0}), EINVAL);
    FAILS(ibv_modify_qp(o->qp, NULL, 0), EINVAL);
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS};
    FAILS(ibv_modify_qp(o->qp, &attr, IBV_QP_STATE), EINVAL);
    attr.qp_state = 99;
    FAILS(ibv_modify_qp(o->qp, &attr, IBV_QP_STATE), EINVAL);
    FAILS(ibv_modify_qp(o->qp, &attr, IBV_QP_ALT_PATH), EOPNOTSUPP);
    /* No group; and the queue pair is none for datagrams. */
    FAILS(ibv_attach_mcast(o->qp, &(union ibv_gid){0}, 0), EINVAL);
    FAILS(ibv_attach_mcast(o->qp, &(union ibv_gid){.raw = {0xff, 0x0e, [15] = 7}}, 0), EINVAL);
    FAILS(ibv_detach_mcast(o->qp, NULL, 0), EINVAL);
    FAILS(ibv_query_qp(o->qp, NULL, 0, NULL), EINVAL);
    /* Requests: no room, no such queue, lists that cannot be. */
    struct ibv_sge sge = {(uintptr_t)buffer, 8, o->mr->lkey}, many[32] = {{0}};
    struct ibv_recv_wr receive = {.sg_list = &sge, .num_sge = 1}, *bad_receive;
    FAILS(ibv_post_recv(o->qp, &receive, &bad_receive), EINVAL);
    struct ibv_recv_wr second = {.sg_list = many, .num_sge = 32};
    receive.next = &second;
    FAILS(ibv_post_srq_recv(o->srq, &receive, &bad_receive), EINVAL);
    CHECK(bad_receive == &second);
    second = (struct ibv_recv_wr){.sg_list = NULL, .num_sge = 1};
    FAILS(ibv_post_srq_recv(o->srq, &receive, &bad_receive), EINVAL);
    second = (struct ibv_recv_wr){.num_sge = -1};
    FAILS(ibv_post_srq_recv(o->srq, &receive, &bad_receive), EINVAL);
    second = (struct ibv_recv_wr){.num_sge = 0};
    receive.next = NULL;
    CHECK(ibv_post_srq_recv(o->srq, &receive, &bad_receive) == 0);
    FAILS(ibv_post_srq_recv(o->srq, &receive, &bad_receive), ENOMEM);
    CHECK(bad_receive == &receive);
    FAILS(ibv_post_srq_recv(o->srq, NULL, &bad_receive), EINVAL);
    struct ibv_send_wr send = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad_send;
    FAILS(ibv_post_send(o->qp, &send, &bad_send), EINVAL); /* in RESET */
    send.opcode = 55;
    FAILS(ibv_post_send(o->qp, &send, &bad_send), EINVAL);
    send.opcode = IBV_WR_TSO;
    FAILS(ibv_post_send(o->qp, &send, &bad_send), EOPNOTSUPP);
    send.opcode = IBV_WR_BIND_MW;
    send.bind_mw.mw = (void *)o->qp;
    FAILS(ibv_post_send(o->qp, &send, &bad_send), EINVAL);
}

static void busy(struct objects *o)
{
    FAILS(ibv_dealloc_pd(o->pd), EBUSY);
    FAILS(ibv_destroy_cq(o->cq), EBUSY);
    FAILS(ibv_destroy_srq(o->srq), EBUSY);
    FAILS(ibv_destroy_comp_channel(o->channel), EBUSY);
}

/* The number in an object's structure, by which the kernel would know it, is another one while `...` is done. */
#define WITH_ANOTHER_NUMBER(object, ...) \
    do { \
        (object)->handle ^= 0xdeadbeef; \
        __VA_ARGS__; \
        (object)->handle ^= 0xdeadbeef; \
    } while (0)

/* No two objects of a kind have the same number, and with a number that is not its own an object is not found (ENOENT) by
 * any verb that is the kernel's with rdma-core. It is there all the same, and requests go by its address. */
static void other_numbers(struct objects *o)
{
    struct objects more = make();
    CHECK(o->pd->handle != more.pd->handle && o->mr->handle != more.mr->handle && o->cq->handle != more.cq->handle);
    CHECK(o->srq->handle != more.srq->handle && o->qp->handle != more.qp->handle && o->ah->handle != more.ah->handle);
    CHECK(o->mw->handle != more.mw->handle);

    struct ibv_srq_init_attr shared = {.attr = {1, 1, 0}};
    struct ibv_ah_attr address = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid, .sgid_index = 1}};
    struct ibv_qp_init_attr pair = {
        .send_cq = more.cq, .recv_cq = more.cq, .srq = more.srq, .qp_type = IBV_QPT_RC, .cap = {1, 1, 1, 1, 0}};
    WITH_ANOTHER_NUMBER(more.pd, {
        NOTHING((ibv_reg_mr)(more.pd, buffer, 64, 0), ENOENT);
        NOTHING(ibv_alloc_mw(more.pd, IBV_MW_TYPE_1), ENOENT);
        NOTHING(ibv_create_srq(more.pd, &shared), ENOENT);
        NOTHING(ibv_create_ah(more.pd, &address), ENOENT);
        NOTHING(ibv_create_qp(more.pd, &pair), ENOENT);
        FAILS(ibv_dealloc_pd(more.pd), ENOENT);
    });
    WITH_ANOTHER_NUMBER(more.mr, {
        errno = 0;
        CHECK(ibv_rereg_mr(more.mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_CMD);
        CHECK(errno == ENOENT);
        FAILS(ibv_dereg_mr(more.mr), ENOENT);
    });
    WITH_ANOTHER_NUMBER(more.mw, FAILS(ibv_dealloc_mw(more.mw), ENOENT));
    WITH_ANOTHER_NUMBER(more.ah, FAILS(ibv_destroy_ah(more.ah), ENOENT));
    struct ibv_wc wc;
    WITH_ANOTHER_NUMBER(more.cq, {
        NOTHING(ibv_create_qp(more.pd, &pair), ENOENT);
        pair.send_cq = o->cq;
        NOTHING(ibv_create_qp(more.pd, &pair), ENOENT);
        FAILS(ibv_req_notify_cq(more.cq, 0), ENOENT);
        FAILS(ibv_resize_cq(more.cq, 100), ENOENT);
        FAILS(ibv_destroy_cq(more.cq), ENOENT);
        CHECK(ibv_poll_cq(more.cq, 1, &wc) == 0);
    });
    struct ibv_srq_attr limit = {.srq_limit = 1};
    struct ibv_recv_wr receive = {.num_sge = 0}, *bad_receive;
    WITH_ANOTHER_NUMBER(more.srq, {
        NOTHING(ibv_create_qp(more.pd, &pair), ENOENT);
        FAILS(ibv_modify_srq(more.srq, &limit, IBV_SRQ_LIMIT), ENOENT);
        FAILS(ibv_query_srq(more.srq, &limit), ENOENT);
        FAILS(ibv_destroy_srq(more.srq), ENOENT);
        CHECK(ibv_post_srq_recv(more.srq, &receive, &bad_receive) == 0);
    });
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
    WITH_ANOTHER_NUMBER(more.qp, {
        FAILS(ibv_modify_qp(more.qp, &attr, IBV_QP_STATE), ENOENT);
        FAILS(ibv_query_qp(more.qp, &attr, IBV_QP_STATE, &pair), ENOENT);
        FAILS(ibv_attach_mcast(more.qp, &(union ibv_gid){.raw = {0xff, 0x0e, [15] = 7}}, 0), ENOENT);
        FAILS(ibv_detach_mcast(more.qp, &(union ibv_gid){.raw = {0xff, 0x0e, [15] = 7}}, 0), ENOENT);
        FAILS(ibv_destroy_qp(more.qp), ENOENT);
    });
    CHECK(ibv_query_qp(more.qp, &attr, IBV_QP_STATE, &pair) == 0 && attr.qp_state == IBV_QPS_RESET);
    unmake(&more);
}

/* Objects of two contexts are no match, although both are of one device. */
static void foreign_contexts(struct objects *o)
{
    struct ibv_context *ours = context;
    context = open_first();
    struct objects theirs = make();
    struct ibv_qp_init_attr good = {.send_cq = o->cq, .recv_cq = o->cq, .qp_type = IBV_QPT_RC, .cap = {1, 1, 1, 1, 0}};
    struct ibv_qp_init_attr bad = good;
    bad.send_cq = theirs.cq;
    NOTHING(ibv_create_qp(o->pd, &bad), EINVAL);
    bad = good, bad.recv_cq = theirs.cq;
    NOTHING(ibv_create_qp(o->pd, &bad), EINVAL);
    bad = good, bad.srq = theirs.srq;
    NOTHING(ibv_create_qp(o->pd, &bad), EINVAL);
    NOTHING(ibv_create_qp(theirs.pd, &good), EINVAL);
    NOTHING(ibv_create_cq(ours, 8, NULL, theirs.channel, 0), EINVAL);
    errno = 0;
    CHECK(ibv_rereg_mr(o->mr, IBV_REREG_MR_CHANGE_PD, theirs.pd, NULL, 0, 0) == IBV_REREG_MR_ERR_CMD && errno == EINVAL);
    /* Nor is an object one of another context because its structure says so. */
    o->mr->context = context;
    FAILS(ibv_dereg_mr(o->mr), ENOENT);
    o->mr->context = ours;
    unmake(&theirs);
    CHECK(ibv_close_device(context) == 0);
    context = ours;
}

/* Two queue pairs connected to each other, for messages from one to the other. */
struct connection {
    struct ibv_cq *cq;
    struct ibv_qp *a, *b;
};

static struct connection connected(struct objects *o)
{
    struct connection c = {.cq = ibv_create_cq(context, 16, NULL, NULL, 0)};
    CHECK(c.cq);
    struct ibv_qp_init_attr init = {.send_cq = c.cq, .recv_cq = c.cq, .qp_type = IBV_QPT_RC, .cap = {4, 4, 1, 1, 0}};
    CHECK((c.a = ibv_create_qp(o->pd, &init)) && (c.b = ibv_create_qp(o->pd, &init)));
    to_init(c.a), to_init(c.b);
    connect_to(c.a, c.b->qp_num, &gid);
    connect_to(c.b, c.a->qp_num, &gid);
    return c;
}

static void message(struct connection *c, struct objects *o, const char *text)
{
    struct ibv_sge to = {(uintptr_t)buffer, 64, o->mr->lkey}, from = {(uintptr_t)buffer + 4096, 64, o->mr->lkey};
    struct ibv_recv_wr receive = {.wr_id = 1, .sg_list = &to, .num_sge = 1}, *bad_receive;
    struct ibv_send_wr send = {
        .wr_id = 2, .sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED}, *bad_send;
    memset(buffer, 0, 64);
    strcpy(buffer + 4096, text);
    CHECK(ibv_post_recv(c->b, &receive, &bad_receive) == 0 && ibv_post_send(c->a, &send, &bad_send) == 0);
    for (int i = 0; i < 2; i++)
        CHECK(next_completion(c->cq).status == IBV_WC_SUCCESS);
    CHECK(strcmp(buffer, text) == 0);
}

/* In a child everything that was open is dead, and the parent's goes on, while the child lives and after its end. */
static void forked(struct objects *o, void **all)
{
    struct connection c = connected(o);
    message(&c, o, "before the fork");
    int to_child[2], to_parent[2];
    char byte;
    CHECK(pipe(to_child) == 0 && pipe(to_parent) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        struct ibv_wc wc;
        MINUS(ibv_poll_cq(o->cq, 1, &wc), EINVAL);
        for (int i = 0; i < 9; i++)
            refuse_all(all[i], 0, 0, 0, 0, 0, 0, 0, 0, 0);
        /* Through the structures that it has inherited. */
        struct ibv_send_wr send = {.opcode = IBV_WR_SEND}, *bad;
        FAILS(ibv_post_send(c.a, &send, &bad), EINVAL);
        NOTHING(ibv_alloc_pd(context), EINVAL);
        MINUS(ibv_close_device(context), EINVAL);
        CHECK(write(to_parent[1], "", 1) == 1 && read(to_child[0], &byte, 1) == 1);
        struct ibv_context *anew = open_first();
        struct ibv_device_attr attr;
        CHECK(ibv_query_device(anew, &attr) == 0 && ibv_close_device(anew) == 0);
        /* What it has inherited is not its own to free: who counts leaks does not look at another program. */
        if (is_counted)
            execl("/bin/true", "true", (char *)NULL);
        exit(0);
    }
    CHECK(read(to_parent[0], &byte, 1) == 1);
    message(&c, o, "beside the child");
    CHECK(write(to_child[1], "", 1) == 1);
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    struct ibv_wc wc;
    CHECK(ibv_poll_cq(o->cq, 1, &wc) == 0);
    message(&c, o, "after the child's end");
    CHECK(ibv_destroy_qp(c.a) == 0 && ibv_destroy_qp(c.b) == 0 && ibv_destroy_cq(c.cq) == 0);
    for (int i = 0; i < 2; i++)
        CHECK(close(to_child[i]) == 0 && close(to_parent[i]) == 0);
}

static long resident_kib(void)
{
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file && fscanf(file, "%*d %ld", &pages) == 1);
    fclose(file);
    return pages * 4;
}

/* A number of rounds as the argument: where somebody else counts the memory, who needs fewer, and more memory. */
int main(int count, char **words)
{
    int rounds = count > 1 ? atoi(words[1]) : 3000;
    is_counted = count > 1;
    ibv_free_device_list(NULL);
    ibv_free_device_list((void *)buffer);
    struct ibv_device **list = ibv_get_device_list(NULL);
    CHECK(list && list[0] && !list[1]);
    {
        EACH_WRONG(list[0], wrong)
        {
            NOTHING(ibv_open_device(wrong), EINVAL);
            NOTHING(ibv_get_device_name(wrong), EINVAL);
            CHECK(ibv_get_device_guid(wrong) == 0);
        }
    }
    ibv_free_device_list(list);
    ibv_free_device_list(list);

    context = open_first();
    learn_functions();
    struct objects o = make();
    void *all[] = {context, o.pd, o.mr, o.channel, o.cq, o.srq, o.qp, o.ah, o.mw};
    for (int i = 0; i < 9; i++) {
        refuse_all(all[i], i == 0, i == 1, i == 2, i == 3, i == 4, i == 5, i == 6, i == 7, i == 8);
        EACH_WRONG(all[i], wrong) refuse_all(wrong, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    }
    sizes_and_nulls(&o);
    busy(&o);
    other_numbers(&o);
    foreign_contexts(&o);
    forked(&o, all);
    unmake(&o);
    /* All are stale now. */
    for (int i = 1; i < 9; i++)
        refuse_all(all[i], 0, 0, 0, 0, 0, 0, 0, 0, 0);
    struct ibv_wc wc;
    MINUS(ibv_poll_cq(o.cq, 1, &wc), EINVAL); /* through the structure of the destroyed queue */

    /* Nothing is left behind: many rounds take no more memory than some. */
    long before = 0;
    for (int round = 0; round < rounds; round++) {
        struct objects again = make();
        unmake(&again);
        if (round == rounds / 3)
            before = resident_kib();
    }
    CHECK(is_counted || resident_kib() - before < 512);

    /* Closing takes along what is left; everything is stale then, and the device can be opened anew. */
    struct objects left = make();
    CHECK(ibv_close_device(context) == 0);
    struct ibv_context *closed = context;
    context = open_first();
    void *gone[] = {closed, left.pd, left.mr, left.channel, left.cq, left.srq, left.qp, left.ah, left.mw};
    for (int i = 0; i < 9; i++)
        refuse_all(gone[i], 0, 0, 0, 0, 0, 0, 0, 0, 0);
    MINUS(ibv_close_device(closed), EINVAL);
    o = make();
    unmake(&o);
    CHECK(ibv_close_device(context) == 0);
    puts("all handles checked");
    return 0;
}
