/* A server that takes one request, ends its listener, and accepts some time later: `late SECONDS HOST [serve]`. Its client
   connects and sends one message, which the server checks; the client prints the seconds that connecting took. */
#include "check.h"
#include <time.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

static const uint64_t sent = 0x6c61746500000001;

/* The next event, which must be `kind`. Returns whose it is. */
static struct rdma_cm_id *next_event(struct rdma_event_channel *channel, enum rdma_cm_event_type kind)
{
    struct rdma_cm_event *event;
    CHECK(rdma_get_cm_event(channel, &event) == 0);
    if (event->event != kind)
        fprintf(stderr, "%s\n", rdma_event_str(event->event));
    CHECK(event->event == kind);
    struct rdma_cm_id *id = event->id;
    CHECK(rdma_ack_cm_event(event) == 0);
    return id;
}

static void serve(struct rdma_addrinfo *info, struct ibv_qp_init_attr init, unsigned seconds)
{
    uint64_t message = 0;
    struct ibv_wc wc;
    struct rdma_event_channel *channel = rdma_create_event_channel();
    struct rdma_cm_id *listener, *id;
    CHECK(channel && rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) == 0);
    CHECK(rdma_bind_addr(listener, info->ai_src_addr) == 0 && rdma_listen(listener, 1) == 0);
    fputs("listens\n", stderr);
    id = next_event(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
    CHECK(rdma_destroy_id(listener) == 0);
    sleep(seconds);
    CHECK(rdma_create_qp(id, NULL, &init) == 0);
    struct ibv_mr *mr = rdma_reg_msgs(id, &message, sizeof message);
    CHECK(mr && rdma_post_recv(id, NULL, &message, sizeof message, mr) == 0 && rdma_accept(id, NULL) == 0);
    CHECK(next_event(channel, RDMA_CM_EVENT_ESTABLISHED) == id);
    CHECK(rdma_get_recv_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS && message == sent);
    CHECK(next_event(channel, RDMA_CM_EVENT_DISCONNECTED) == id && rdma_disconnect(id) == 0);
    CHECK(rdma_dereg_mr(mr) == 0);
    rdma_destroy_qp(id);
    CHECK(rdma_destroy_id(id) == 0);
    rdma_destroy_event_channel(channel);
}

static void ask(struct rdma_addrinfo *info, struct ibv_qp_init_attr init)
{
    uint64_t message = sent;
    struct ibv_wc wc;
    struct rdma_cm_id *id;
    struct timespec begin, end;
    CHECK(rdma_create_ep(&id, info, NULL, &init) == 0);
    struct ibv_mr *mr = rdma_reg_msgs(id, &message, sizeof message);
    clock_gettime(CLOCK_MONOTONIC, &begin);
    CHECK(mr && rdma_connect(id, NULL) == 0);
    clock_gettime(CLOCK_MONOTONIC, &end);
    CHECK(rdma_post_send(id, NULL, &message, sizeof message, mr, 0) == 0);
    CHECK(rdma_get_send_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
    rdma_disconnect(id);
    CHECK(rdma_dereg_mr(mr) == 0);
    rdma_destroy_ep(id);
    printf("%.1f\n", (double)(end.tv_sec - begin.tv_sec) + (double)(end.tv_nsec - begin.tv_nsec) / 1e9);
}

int main(int count, char **words)
{
    CHECK(count >= 3);
    int serves = count > 3;
    struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP, .ai_flags = serves ? RAI_PASSIVE : 0 }, *info;
    struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .sq_sig_all = 1, .cap = { 4, 4, 1, 1, 0 } };
    CHECK(rdma_getaddrinfo(words[2], "7471", &hints, &info) == 0);
    if (serves)
        serve(info, init, (unsigned)atoi(words[1]));
    else
        ask(info, init);
    rdma_freeaddrinfo(info);
    return 0;
}
