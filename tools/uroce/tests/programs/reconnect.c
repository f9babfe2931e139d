/* Connects by RDMA CM again and again, each time with a queue pair of its own, and sends one message, which the server
   checks: `reconnect COUNT HOST [serve]`. After a tenth of them and after all it prints the memory, the descriptors and the
   threads that it has. */
#include "report.h"
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

/* Receives the message of the next connection, which must be `expected`. */
static struct rdma_cm_id *serve(struct rdma_cm_id *listener, uint64_t expected)
{
    uint64_t message = 0;
    struct ibv_wc wc;
    struct rdma_cm_id *id;
    CHECK(rdma_get_request(listener, &id) == 0);
    struct ibv_mr *mr = rdma_reg_msgs(id, &message, sizeof message);
    CHECK(mr && rdma_post_recv(id, NULL, &message, sizeof message, mr) == 0 && rdma_accept(id, NULL) == 0);
    CHECK(rdma_get_recv_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS && message == expected);
    rdma_disconnect(id);
    CHECK(rdma_dereg_mr(mr) == 0);
    return id;
}

static struct rdma_cm_id *ask(struct rdma_addrinfo *there, struct ibv_qp_init_attr init, uint64_t message)
{
    struct ibv_wc wc;
    struct rdma_cm_id *id;
    CHECK(rdma_create_ep(&id, there, NULL, &init) == 0);
    struct ibv_mr *mr = rdma_reg_msgs(id, &message, sizeof message);
    CHECK(mr && rdma_connect(id, NULL) == 0 && rdma_post_send(id, NULL, &message, sizeof message, mr, 0) == 0);
    CHECK(rdma_get_send_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
    rdma_disconnect(id);
    CHECK(rdma_dereg_mr(mr) == 0);
    return id;
}

int main(int count, char **words)
{
    CHECK(count >= 3);
    int connections = atoi(words[1]), serves = count > 3;
    struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP, .ai_flags = serves ? RAI_PASSIVE : 0 }, *info;
    struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .sq_sig_all = 1, .cap = { 4, 4, 1, 1, 0 } };
    struct rdma_cm_id *listener = NULL;
    CHECK(rdma_getaddrinfo(words[2], "7471", &hints, &info) == 0);
    if (serves) {
        CHECK(rdma_create_ep(&listener, info, NULL, &init) == 0 && rdma_listen(listener, 16) == 0);
        fputs("listens\n", stderr);
    }
    for (int number = 1; number <= connections; number++) {
        uint64_t message = 77 * (uint64_t)number;
        rdma_destroy_ep(serves ? serve(listener, message) : ask(info, init, message));
        if (number == connections / 10 || number == connections)
            report();
    }
    return 0;
}
