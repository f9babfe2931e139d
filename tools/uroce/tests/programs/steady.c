/* A long conversation by RDMA CM: the client sends numbered messages of 4 KiB, about one a millisecond, and the server sends
   each back: `steady HOST [serve]`. Both compare every byte, and no completion may fail. SIGTERM to the client ends it, and
   SIGTERM to a server that has no client yet. After 100 messages and after all, each prints the memory, the descriptors and
   the threads that it has. */
#include "report.h"
#include <signal.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

enum { WORDS = 512, EARLY = 100 };

static volatile sig_atomic_t is_over, is_waiting;

static void end(int number)
{
    if (is_waiting)
        exit(0);
    is_over = 1;
}

/* The first word is the number; the second is 1 in the last message. */
static void write_message(uint64_t *message, uint64_t number, int is_last)
{
    message[0] = number;
    message[1] = (uint64_t)is_last;
    for (int at = 2; at < WORDS; at++)
        message[at] = number * 0x9e3779b97f4a7c15 + (uint64_t)at;
}

static void check_message(uint64_t *message, uint64_t number)
{
    CHECK(message[0] == number && message[1] <= 1);
    for (int at = 2; at < WORDS; at++)
        CHECK(message[at] == number * 0x9e3779b97f4a7c15 + (uint64_t)at);
}

struct end {
    struct rdma_cm_id *id;
    struct ibv_mr *mr;
    uint64_t out[WORDS], in[WORDS];
};

static void expect(struct end *this)
{
    CHECK(rdma_post_recv(this->id, NULL, this->in, sizeof this->in, this->mr) == 0);
}

static void receive(struct end *this)
{
    struct ibv_wc wc;
    CHECK(rdma_get_recv_comp(this->id, &wc) == 1 && wc.status == IBV_WC_SUCCESS && wc.byte_len == sizeof this->in);
}

static void send_out(struct end *this)
{
    struct ibv_wc wc;
    CHECK(rdma_post_send(this->id, NULL, this->out, sizeof this->out, this->mr, 0) == 0);
    CHECK(rdma_get_send_comp(this->id, &wc) == 1);
    if (wc.status != IBV_WC_SUCCESS)
        fprintf(stderr, "%s\n", ibv_wc_status_str(wc.status));
    CHECK(wc.status == IBV_WC_SUCCESS);
}

static struct end this;

int main(int count, char **words)
{
    int serves = count > 2, is_last = 0;
    struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP, .ai_flags = serves ? RAI_PASSIVE : 0 }, *info;
    struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .sq_sig_all = 1, .cap = { 4, 4, 1, 1, 0 } };
    struct rdma_cm_id *listener = NULL;
    CHECK(signal(SIGTERM, end) != SIG_ERR);
    CHECK(rdma_getaddrinfo(words[1], "7470", &hints, &info) == 0);
    is_waiting = serves;
    if (serves) {
        CHECK(rdma_create_ep(&listener, info, NULL, &init) == 0 && rdma_listen(listener, 1) == 0);
        fputs("listens\n", stderr);
        CHECK(rdma_get_request(listener, &this.id) == 0);
    } else {
        CHECK(rdma_create_ep(&this.id, info, NULL, &init) == 0);
    }
    this.mr = rdma_reg_msgs(this.id, &this, sizeof this);
    CHECK(this.mr);
    expect(&this);
    CHECK((serves ? rdma_accept(this.id, NULL) : rdma_connect(this.id, NULL)) == 0);
    is_waiting = 0;
    for (uint64_t number = 1; !is_last; number++) {
        is_last = !serves && is_over;
        if (serves) {
            receive(&this);
            check_message(this.in, number);
            is_last = (int)this.in[1];
            expect(&this);
        }
        write_message(this.out, number, is_last);
        send_out(&this);
        if (!serves) {
            receive(&this);
            check_message(this.in, number);
            expect(&this);
            usleep(1000);
        }
        if (number == EARLY) {
            report();
            fputs("converses\n", stderr);
        }
        if (is_last) {
            report();
            fprintf(stderr, "%lu messages\n", (unsigned long)number);
        }
    }
    rdma_disconnect(this.id);
    CHECK(rdma_dereg_mr(this.mr) == 0);
    rdma_destroy_ep(this.id);
    if (serves)
        rdma_destroy_ep(listener);
    return 0;
}
