/* What the C programs share: checks that say where they failed, and two queue pairs of one device connected to each other. */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <arpa/inet.h>
#include <infiniband/verbs.h>

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #condition, errno); \
            exit(1); \
        } \
    } while (0)

/* A call that returns an error number. */
#define FAILS(call, number) \
    do { \
        errno = 0; \
        int result_ = (call); \
        if (result_ != (number) || errno != (number)) { \
            fprintf(stderr, "%s:%d: %s gave %d, errno %d\n", __FILE__, __LINE__, #call, result_, errno); \
            exit(1); \
        } \
    } while (0)

/* A call that returns -1 with errno. */
#define MINUS(call, number) \
    do { \
        errno = 0; \
        int result_ = (call); \
        if (result_ != -1 || errno != (number)) { \
            fprintf(stderr, "%s:%d: %s gave %d, errno %d\n", __FILE__, __LINE__, #call, result_, errno); \
            exit(1); \
        } \
    } while (0)

/* A call that returns NULL with errno. */
#define NOTHING(call, number) \
    do { \
        errno = 0; \
        void *result_ = (void *)(call); \
        if (result_ != NULL || errno != (number)) { \
            fprintf(stderr, "%s:%d: %s gave %p, errno %d\n", __FILE__, __LINE__, #call, result_, errno); \
            exit(1); \
        } \
    } while (0)

static inline struct ibv_context *open_first(void)
{
    int count = 0;
    struct ibv_device **list = ibv_get_device_list(&count);
    CHECK(list && count == 1);
    struct ibv_context *context = ibv_open_device(list[0]);
    CHECK(context);
    ibv_free_device_list(list);
    return context;
}

/* Brings a queue pair to RTS, with the peer's number: 0 for none yet. GID index 1 is the IPv4 address. */
static inline void to_init(struct ibv_qp *qp)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 0x1234};
    int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
    attr.qp_access_flags =
        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |
        1 << 8; /* IBV_ACCESS_FLUSH_GLOBAL, of rdma-core 45 */
    mask |= qp->qp_type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS;
    CHECK(ibv_modify_qp(qp, &attr, mask) == 0);
}

static inline void connect_to(struct ibv_qp *qp, uint32_t peer, union ibv_gid *gid)
{
    int rc = qp->qp_type == IBV_QPT_RC, ud = qp->qp_type == IBV_QPT_UD;
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = peer,
        .rq_psn = 77,
        .max_dest_rd_atomic = 4,
        .min_rnr_timer = 12,
        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = *gid, .sgid_index = 1, .hop_limit = 1}},
    };
    int mask = IBV_QP_STATE;
    if (!ud)
        mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    if (rc)
        mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    CHECK(ibv_modify_qp(qp, &attr, mask) == 0);
    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTS, .sq_psn = 77, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 4};
    mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
    if (rc)
        mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    CHECK(ibv_modify_qp(qp, &attr, mask) == 0);
    CHECK(qp->state == IBV_QPS_RTS);
}

/* The next completion; it must come within some seconds. */
static inline struct ibv_wc next_completion(struct ibv_cq *cq)
{
    struct ibv_wc wc;
    for (int tries = 0; tries < 200000; tries++) {
        int count = ibv_poll_cq(cq, 1, &wc);
        CHECK(count >= 0);
        if (count == 1)
            return wc;
        usleep(20);
    }
    fprintf(stderr, "no completion came\n");
    exit(1);
}

#endif
