/* One thread posts requests that bind windows to a region, while another changes, ends and makes the region. The posts fail,
   since the queue pair is not connected, or since the region has gone; but all of them return. */
#include "check.h"
#include <pthread.h>
#include <stdatomic.h>

enum { ROUNDS = 20000, SIZE = 4096 };
enum { ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND };
static char memory[2][SIZE];
static _Atomic(struct ibv_mr *) region;
static atomic_int done;
static struct ibv_qp *qp;
static struct ibv_mw *window;

static void *post(void *unused)
{
    long posts = 0;
    for (; !done; posts++) {
        struct ibv_send_wr wr = {.opcode = IBV_WR_BIND_MW}, *bad = NULL;
        wr.bind_mw.mw = window;
        wr.bind_mw.rkey = window->rkey;
        wr.bind_mw.bind_info.mr = region;
        wr.bind_mw.bind_info.length = SIZE;
        CHECK(ibv_post_send(qp, &wr, &bad) != 0 && bad == &wr);
    }
    CHECK(posts > 0);
    return NULL;
}

int main(void)
{
    alarm(60);
    struct ibv_context *context = open_first();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
    CHECK(pd && cq && (window = ibv_alloc_mw(pd, IBV_MW_TYPE_2)));
    struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = {1, 1, 1, 1, 0}};
    CHECK(qp = ibv_create_qp(pd, &init));
    struct ibv_mr *mr = ibv_reg_mr(pd, memory[0], SIZE, ACCESS);
    CHECK(mr);
    region = mr;
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, post, NULL) == 0);
    for (int round = 0; round < ROUNDS; round++) {
        CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, ACCESS) == 0);
        CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, memory[round % 2], SIZE, 0) == 0);
        CHECK(ibv_dereg_mr(mr) == 0);
        CHECK(mr = ibv_reg_mr(pd, memory[0], SIZE, ACCESS));
        region = mr;
    }
    done = 1;
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(ibv_dereg_mr(mr) == 0 && ibv_dealloc_mw(window) == 0 && ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0);
    CHECK(ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
    puts("all returned");
    return 0;
}
