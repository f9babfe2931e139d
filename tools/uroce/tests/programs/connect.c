/* Calls every function of librdmacm: two identifiers of one process connect to each other, send a message and part, by
   events, by calls that wait, with queue pairs of their own, and for datagrams. A line for each function, as offered.c. */
#include "later.h"
#include <netdb.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <unistd.h>

#define WORKS(name, condition) \
    do { \
        CHECK(condition); \
        puts("works " #name); \
    } while (0)

static struct sockaddr_in here;

static struct ibv_qp_init_attr attributes(enum ibv_qp_type type, struct ibv_cq *cq)
{
    struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = type, .sq_sig_all = 1 };
    init.cap.max_send_wr = init.cap.max_recv_wr = 4;
    init.cap.max_send_sge = init.cap.max_recv_sge = 1;
    return init;
}

/* The next event of a channel, which must be of this kind; it is left to the caller. */
static struct rdma_cm_event *next(struct rdma_event_channel *channel, enum rdma_cm_event_type kind)
{
    struct rdma_cm_event *event;
    CHECK(rdma_get_cm_event(channel, &event) == 0);
    if (event->event != kind)
        fprintf(stderr, "%s, status %d; not %s\n", rdma_event_str(event->event), event->status, rdma_event_str(kind));
    CHECK(event->event == kind);
    return event;
}

static void pass(struct rdma_event_channel *channel, enum rdma_cm_event_type kind)
{
    CHECK(rdma_ack_cm_event(next(channel, kind)) == 0);
}

static struct rdma_cm_id *bound(struct rdma_event_channel *channel, enum rdma_port_space space)
{
    struct rdma_cm_id *id;
    CHECK(rdma_create_id(channel, &id, NULL, space) == 0);
    struct sockaddr_in any_port = here;
    any_port.sin_port = 0;
    CHECK(rdma_bind_addr(id, (struct sockaddr *)&any_port) == 0);
    return id;
}

static struct rdma_cm_id *resolved(struct rdma_event_channel *channel, enum rdma_port_space space, uint16_t port)
{
    struct rdma_cm_id *id;
    CHECK(rdma_create_id(channel, &id, &here, space) == 0 && id->context == &here);
    struct sockaddr_in there = here;
    there.sin_port = port;
    CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&there, 1000) == 0);
    pass(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
    CHECK(id->verbs && id->pd && id->pd->context == id->verbs && id->port_num == 1);
    CHECK(rdma_resolve_route(id, 1000) == 0);
    pass(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
    CHECK(id->route.num_paths == 1 && id->route.path_rec);
    return id;
}

/* From a given address a group needs no route. */
static void towards_a_group(void)
{
    struct rdma_event_channel *channel = rdma_create_event_channel();
    struct rdma_cm_id *id;
    struct sockaddr_in group = { .sin_family = AF_INET, .sin_port = htons(7471) };
    CHECK(inet_pton(AF_INET, "239.7.7.7", &group.sin_addr) == 1);
    CHECK(channel && rdma_create_id(channel, &id, NULL, RDMA_PS_UDP) == 0);
    CHECK(rdma_resolve_addr(id, (struct sockaddr *)&here, (struct sockaddr *)&group, 1000) == 0);
    pass(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
    CHECK(rdma_destroy_id(id) == 0);
    rdma_destroy_event_channel(channel);
}

/* The loopback has no device here: who connects there means this host, whose first device it gets. */
static void towards_ourselves(void)
{
    struct rdma_event_channel *channel = rdma_create_event_channel();
    struct rdma_cm_id *id, *second;
    struct sockaddr_in loopback = { .sin_family = AF_INET, .sin_port = htons(7473) };
    loopback.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(channel && rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
    CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&loopback, 1000) == 0);
    pass(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
    struct sockaddr_in *from = (void *)rdma_get_local_addr(id), *to = (void *)rdma_get_peer_addr(id);
    CHECK(id->verbs && from->sin_addr.s_addr == here.sin_addr.s_addr);
    CHECK(to->sin_addr.s_addr == here.sin_addr.s_addr && to->sin_port == loopback.sin_port);
    CHECK(rdma_resolve_route(id, 1000) == 0);
    pass(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);

    /* Its address has the port: nobody else gets that, there or everywhere. */
    CHECK(rdma_create_id(channel, &second, NULL, RDMA_PS_TCP) == 0);
    CHECK(rdma_bind_addr(second, rdma_get_local_addr(id)) < 0 && errno == EADDRINUSE);
    struct sockaddr_in any = { .sin_family = AF_INET, .sin_port = from->sin_port };
    CHECK(rdma_bind_addr(second, (struct sockaddr *)&any) < 0 && errno == EADDRNOTAVAIL);
    CHECK(rdma_destroy_id(second) == 0 && rdma_destroy_id(id) == 0);
    rdma_destroy_event_channel(channel);
}

/* An identifier that stays with its family, on all addresses of it. */
static struct rdma_cm_id *one_family(struct rdma_event_channel *channel, const void *any, int is_only)
{
    struct rdma_cm_id *id;
    CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
    CHECK(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &is_only, sizeof is_only) == 0);
    if (rdma_bind_addr(id, (struct sockaddr *)any) == 0)
        return id;
    /* Not EADDRINUSE: that is for two who want it at one address. */
    CHECK(errno == EADDRNOTAVAIL && rdma_destroy_id(id) == 0);
    return NULL;
}

/* Both families listen at one port, each by itself, as tgtd does; a connection finds its own. */
static void each_family(void)
{
    struct rdma_event_channel *channel = rdma_create_event_channel();
    struct sockaddr_in v4 = { .sin_family = AF_INET, .sin_port = htons(7472) };
    struct sockaddr_in6 v6 = { .sin6_family = AF_INET6, .sin6_port = htons(7472) };
    struct rdma_cm_id *first = one_family(channel, &v4, 1), *second = one_family(channel, &v6, 1);
    CHECK(first && second && one_family(channel, &v4, 0) == NULL);
    CHECK(rdma_listen(first, 4) == 0 && rdma_listen(second, 4) == 0);
    struct rdma_cm_id *client = resolved(channel, RDMA_PS_TCP, v4.sin_port);
    struct rdma_conn_param param = { .qp_num = 0x1234, .retry_count = 7, .rnr_retry_count = 7 };
    CHECK(rdma_connect(client, &param) == 0);
    struct rdma_cm_event *request = next(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
    CHECK(request->listen_id == first);
    struct rdma_cm_id *server = request->id;
    CHECK(rdma_ack_cm_event(request) == 0 && rdma_reject(server, NULL, 0) == 0);
    pass(channel, RDMA_CM_EVENT_REJECTED);
    CHECK(rdma_destroy_id(server) == 0 && rdma_destroy_id(client) == 0);
    CHECK(rdma_destroy_id(second) == 0 && rdma_destroy_id(first) == 0);
    rdma_destroy_event_channel(channel);
}

static void part(struct rdma_event_channel *channel, struct rdma_cm_id *client, struct rdma_cm_id *server)
{
    CHECK(rdma_disconnect(client) == 0);
    int ends = 0;
    while (ends < 2) {
        struct rdma_cm_event *event = next(channel, RDMA_CM_EVENT_DISCONNECTED);
        ends += event->id == client || event->id == server;
        CHECK(rdma_ack_cm_event(event) == 0);
    }
}

/* By events, all on one channel; the client's message arrives at the server. */
static void by_events(void)
{
    static char text[2][64] = { "over a connection that RDMA CM has made" };
    struct rdma_event_channel *channel;
    WORKS(rdma_create_event_channel, (channel = rdma_create_event_channel()) != NULL);
    struct rdma_cm_id *listener = bound(channel, RDMA_PS_TCP);
    WORKS(rdma_create_id, listener != NULL);
    WORKS(rdma_bind_addr, listener->verbs != NULL);
    uint16_t port;
    WORKS(rdma_get_src_port, (port = rdma_get_src_port(listener)) != 0);
    int on = 1;
    uint8_t tos = 0x20;
    WORKS(rdma_set_option, rdma_set_option(listener, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &on, sizeof on) == 0);
    uint8_t timeout = 14;
    CHECK(rdma_set_option(listener, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, 1) == 0);
    CHECK(rdma_set_option(listener, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &on, sizeof on) == 0);
    MINUS(rdma_set_option(listener, RDMA_OPTION_ID, 99, &on, sizeof on), ENOSYS);
    struct rdma_cm_id *none;
    MINUS(rdma_create_id(channel, &none, NULL, RDMA_PS_IPOIB), EOPNOTSUPP);
    struct sockaddr_storage infiniband = { .ss_family = 27 }; /* AF_IB */
    CHECK(rdma_create_id(channel, &none, NULL, RDMA_PS_TCP) == 0);
    MINUS(rdma_bind_addr(none, (struct sockaddr *)&infiniband), EAFNOSUPPORT);
    CHECK(rdma_destroy_id(none) == 0);
    WORKS(rdma_listen, rdma_listen(listener, 4) == 0);
    struct rdma_cm_id *client = resolved(channel, RDMA_PS_TCP, port);
    CHECK(rdma_set_option(client, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, 1) == 0);
    WORKS(rdma_resolve_addr, client->verbs == listener->verbs);
    WORKS(rdma_resolve_route, client->route.path_rec->pkey == 0xffff);
    WORKS(rdma_get_dst_port, rdma_get_dst_port(client) == port);
    struct ibv_pd *pd = ibv_alloc_pd(client->verbs);
    struct ibv_cq *cq = ibv_create_cq(client->verbs, 16, NULL, NULL, 0);
    struct ibv_mr *mr = ibv_reg_mr(pd, text, sizeof text, IBV_ACCESS_LOCAL_WRITE);
    CHECK(pd && cq && mr);
    struct ibv_qp_init_attr init = attributes(IBV_QPT_RC, cq);
    WORKS(rdma_create_qp, rdma_create_qp(client, pd, &init) == 0 && client->qp->state == IBV_QPS_INIT);
    struct ibv_ece ece = { 0 };
    WORKS(rdma_set_local_ece, rdma_set_local_ece(client, &ece) == 0);
    WORKS(rdma_get_remote_ece, rdma_get_remote_ece(client, &ece) == 0 && ece.vendor_id == 0);
    struct rdma_conn_param param = { .private_data = "hello", .private_data_len = 6, .retry_count = 7, .rnr_retry_count = 7 };
    param.responder_resources = 3;
    param.initiator_depth = 2;
    WORKS(rdma_connect, rdma_connect(client, &param) == 0);
    struct rdma_cm_event *event;
    WORKS(rdma_get_cm_event, (event = next(channel, RDMA_CM_EVENT_CONNECT_REQUEST)) != NULL);
    WORKS(rdma_event_str, strcmp(rdma_event_str(event->event), "RDMA_CM_EVENT_CONNECT_REQUEST") == 0);
    struct rdma_cm_id *server = event->id;
    CHECK(event->listen_id == listener && server != client && server->verbs == client->verbs);
    CHECK(event->param.conn.private_data_len == 56 && strcmp(event->param.conn.private_data, "hello") == 0);
    /* What the client has in flight is what the server has resources for, and the reverse. */
    CHECK(event->param.conn.responder_resources == 2 && event->param.conn.initiator_depth == 3);
    CHECK(rdma_get_dst_port(server) == rdma_get_src_port(client));
    WORKS(rdma_ack_cm_event, rdma_ack_cm_event(event) == 0);
    struct ibv_qp_init_attr_ex extended = { .send_cq = cq, .recv_cq = cq, .cap = init.cap, .qp_type = IBV_QPT_RC };
    extended.pd = pd;
    extended.comp_mask = IBV_QP_INIT_ATTR_PD;
    WORKS(rdma_create_qp_ex, rdma_create_qp_ex(server, &extended) == 0 && server->pd == pd);
    struct ibv_sge sge = { .addr = (uintptr_t)text[1], .length = sizeof text[1], .lkey = mr->lkey };
    struct ibv_recv_wr receive = { .wr_id = 2, .sg_list = &sge, .num_sge = 1 }, *bad_receive;
    /* Not aligned, as libiscsi's list and requests are. */
    static char entry[1 + sizeof(struct ibv_sge)], request_bytes[1 + sizeof receive];
    memcpy(entry + 1, receive.sg_list, sizeof(struct ibv_sge));
    receive.sg_list = (struct ibv_sge *)(void *)(entry + 1);
    memcpy(request_bytes + 1, &receive, sizeof receive);
    CHECK(ibv_post_recv(server->qp, (struct ibv_recv_wr *)(void *)(request_bytes + 1), &bad_receive) == 0);
    param.private_data = "welcome";
    param.private_data_len = 8;
    WORKS(rdma_accept, rdma_accept(server, &param) == 0);
    for (int established = 0; established < 2; established++) {
        event = next(channel, RDMA_CM_EVENT_ESTABLISHED);
        if (event->id == client)
            CHECK(event->param.conn.private_data_len == 196 && strcmp(event->param.conn.private_data, "welcome") == 0);
        CHECK(rdma_ack_cm_event(event) == 0);
    }
    WORKS(rdma_notify, rdma_notify(server, IBV_EVENT_COMM_EST) == 0);
    sge.addr = (uintptr_t)text[0];
    struct ibv_send_wr send = { .wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad_send;
    CHECK(ibv_post_send(client->qp, &send, &bad_send) == 0);
    for (int done = 0; done < 2;) {
        struct ibv_wc wc;
        int count = ibv_poll_cq(cq, 1, &wc);
        CHECK(count >= 0 && (count == 0 || wc.status == IBV_WC_SUCCESS));
        done += count;
    }
    CHECK(strcmp(text[0], text[1]) == 0);
    part(channel, client, server);
    WORKS(rdma_disconnect, rdma_disconnect(server) == 0);
    rdma_destroy_qp(client);
    rdma_destroy_qp(server);
    WORKS(rdma_destroy_qp, client->qp == NULL && server->qp == NULL);
    CHECK(rdma_destroy_id(server) == 0);
    WORKS(rdma_destroy_id, rdma_destroy_id(client) == 0);
    MINUS(rdma_destroy_id(client), EINVAL);

    /* A second client is rejected, with a reason of the program's. */
    client = resolved(channel, RDMA_PS_TCP, port);
    init = attributes(IBV_QPT_RC, cq);
    CHECK(rdma_create_qp(client, pd, &init) == 0 && rdma_connect(client, NULL) == 0);
    event = next(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
    WORKS(rdma_reject, rdma_reject(event->id, "no", 3) == 0);
    server = event->id;
    CHECK(rdma_ack_cm_event(event) == 0 && rdma_destroy_id(server) == 0);
    event = next(channel, RDMA_CM_EVENT_REJECTED);
    CHECK(event->status == 28 && strcmp(event->param.conn.private_data, "no") == 0);
    CHECK(rdma_ack_cm_event(event) == 0);
    rdma_destroy_qp(client);
    CHECK(rdma_destroy_id(client) == 0);

    /* A third one moves its queue pair itself, and its events to another channel. */
    client = resolved(channel, RDMA_PS_TCP, port);
    struct rdma_event_channel *other = rdma_create_event_channel();
    WORKS(rdma_migrate_id, rdma_migrate_id(client, other) == 0 && client->channel == other);
    init = attributes(IBV_QPT_RC, cq);
    struct ibv_qp *own = ibv_create_qp(pd, &init);
    struct rdma_conn_param by_number = { .qp_num = own->qp_num, .retry_count = 7, .rnr_retry_count = 7 };
    CHECK(rdma_connect(client, &by_number) == 0);
    event = next(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
    server = event->id;
    CHECK(event->param.conn.qp_num == own->qp_num && rdma_ack_cm_event(event) == 0);
    init = attributes(IBV_QPT_RC, cq);
    CHECK(rdma_create_qp(server, pd, &init) == 0 && rdma_accept(server, NULL) == 0);
    pass(other, RDMA_CM_EVENT_CONNECT_RESPONSE);
    enum ibv_qp_state states[] = { IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS };
    for (int step = 0; step < 3; step++) {
        struct ibv_qp_attr attr = { .qp_state = states[step] };
        int mask;
        CHECK(rdma_init_qp_attr(client, &attr, &mask) == 0 && ibv_modify_qp(own, &attr, mask) == 0);
    }
    WORKS(rdma_init_qp_attr, own->state == IBV_QPS_RTS);
    WORKS(rdma_establish, rdma_establish(client) == 0);
    pass(channel, RDMA_CM_EVENT_ESTABLISHED);
    CHECK(rdma_disconnect(client) == 0);
    pass(other, RDMA_CM_EVENT_DISCONNECTED);
    pass(channel, RDMA_CM_EVENT_DISCONNECTED);
    CHECK(ibv_destroy_qp(own) == 0);
    rdma_destroy_qp(server);
    CHECK(rdma_destroy_id(client) == 0 && rdma_destroy_id(server) == 0);
    rdma_destroy_event_channel(other);

    /* A fourth one is rejected by the function that says more. */
    client = resolved(channel, RDMA_PS_TCP, port);
    by_number.qp_num ^= 1; /* the other one is in time wait */
    CHECK(rdma_connect(client, &by_number) == 0);
    event = next(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
    WORKS(rdma_reject_ece, rdma_reject_ece(event->id, NULL, 0) == 0);
    server = event->id;
    CHECK(rdma_ack_cm_event(event) == 0 && rdma_destroy_id(server) == 0);
    pass(channel, RDMA_CM_EVENT_REJECTED);
    CHECK(rdma_destroy_id(client) == 0 && rdma_destroy_id(listener) == 0);
    CHECK(ibv_dereg_mr(mr) == 0 && ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0);
    rdma_destroy_event_channel(channel);
    puts("works rdma_destroy_event_channel");
}

static char port_text[8];

static void *client_that_waits(void *unused)
{
    char host[INET_ADDRSTRLEN];
    inet_ntop(AF_INET, &here.sin_addr, host, sizeof host);
    struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP }, *info;
    CHECK(rdma_getaddrinfo(host, port_text, &hints, &info) == 0 && info->ai_dst_addr);
    struct ibv_qp_init_attr init = attributes(IBV_QPT_RC, NULL);
    struct rdma_cm_id *id;
    CHECK(rdma_create_ep(&id, info, NULL, &init) == 0 && id->qp && id->send_cq && id->recv_cq && id->pd);
    rdma_freeaddrinfo(info);
    CHECK(rdma_connect(id, NULL) == 0 && id->event->event == RDMA_CM_EVENT_ESTABLISHED);
    CHECK(rdma_disconnect(id) == 0);
    rdma_destroy_ep(id);
    return unused;
}

/* Hints without names are the result, and the name of this host's loopback is all its devices, as libfabric needs it. */
static void without_names(void)
{
    struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP, .ai_family = AF_INET }, *info;
    hints.ai_src_addr = hints.ai_dst_addr = (struct sockaddr *)&here;
    hints.ai_src_len = hints.ai_dst_len = sizeof here;
    CHECK(rdma_getaddrinfo(NULL, NULL, &hints, &info) == 0 && info->ai_family == AF_INET);
    CHECK(info->ai_src_len == sizeof here && memcmp(info->ai_src_addr, &here, sizeof here) == 0);
    CHECK(info->ai_dst_len == sizeof here && memcmp(info->ai_dst_addr, &here, sizeof here) == 0);
    rdma_freeaddrinfo(info);
    MINUS(rdma_getaddrinfo(NULL, NULL, NULL, &info), EINVAL);

    struct rdma_event_channel *channel = rdma_create_event_channel();
    struct rdma_cm_id *listener, *client;
    struct rdma_addrinfo passive = { .ai_flags = RAI_PASSIVE, .ai_family = AF_INET, .ai_port_space = RDMA_PS_TCP };
    CHECK(rdma_getaddrinfo("localhost", NULL, &passive, &info) == 0);
    CHECK(channel && rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) == 0);
    CHECK(rdma_bind_addr(listener, info->ai_src_addr) == 0 && listener->verbs == NULL);
    rdma_freeaddrinfo(info);
    CHECK(rdma_listen(listener, 1) == 0);
    client = resolved(channel, RDMA_PS_TCP, rdma_get_src_port(listener));
    struct ibv_qp_init_attr init = attributes(IBV_QPT_RC, NULL);
    CHECK(rdma_create_qp(client, NULL, &init) == 0 && rdma_connect(client, NULL) == 0);
    struct rdma_cm_event *event = next(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
    struct rdma_cm_id *server = event->id;
    CHECK(event->listen_id == listener && server->verbs == client->verbs && rdma_ack_cm_event(event) == 0);
    CHECK(rdma_reject(server, NULL, 0) == 0);
    pass(channel, RDMA_CM_EVENT_REJECTED);
    rdma_destroy_qp(client);
    CHECK(rdma_destroy_id(server) == 0 && rdma_destroy_id(client) == 0 && rdma_destroy_id(listener) == 0);
    rdma_destroy_event_channel(channel);
}

static struct rdma_event_channel *leaving;
static sem_t acknowledged, destroyed;
static atomic_int came_back;

static void *thread_that_comes_back(void *unused)
{
    pass(leaving, RDMA_CM_EVENT_ADDR_RESOLVED);
    sem_post(&acknowledged);
    sem_wait(&destroyed);
    struct rdma_cm_event *event;
    rdma_get_cm_event(leaving, &event);
    atomic_store(&came_back, 1);
    return unused;
}

/* Who comes back for the next event when another thread has destroyed the channel sleeps, as if it had come before. */
static void leaves_a_thread_behind(void)
{
    struct rdma_cm_id *id;
    pthread_t thread;
    struct rdma_cm_event *event;
    CHECK(sem_init(&acknowledged, 0, 0) == 0 && sem_init(&destroyed, 0, 0) == 0);
    CHECK((leaving = rdma_create_event_channel()) && rdma_create_id(leaving, &id, NULL, RDMA_PS_TCP) == 0);
    CHECK(pthread_create(&thread, NULL, thread_that_comes_back, NULL) == 0);
    CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&here, 1000) == 0);
    sem_wait(&acknowledged);
    CHECK(rdma_destroy_id(id) == 0);
    rdma_destroy_event_channel(leaving);
    MINUS(rdma_get_cm_event(leaving, &event), EINVAL);
    sem_post(&destroyed);
    usleep(100000);
    CHECK(atomic_load(&came_back) == 0);
    /* Who destroyed it itself is told. */
    struct rdma_event_channel *own = rdma_create_event_channel();
    CHECK(own && rdma_create_id(own, &id, NULL, RDMA_PS_TCP) == 0);
    CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&here, 1000) == 0);
    pass(own, RDMA_CM_EVENT_ADDR_RESOLVED);
    CHECK(rdma_destroy_id(id) == 0);
    rdma_destroy_event_channel(own);
    MINUS(rdma_get_cm_event(own, &event), EINVAL);
}

/* By calls that wait: the other end is a thread. */
static void by_waiting(void)
{
    struct rdma_addrinfo hints = { .ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP }, *info;
    char host[INET_ADDRSTRLEN];
    inet_ntop(AF_INET, &here.sin_addr, host, sizeof host);
    WORKS(rdma_getaddrinfo, rdma_getaddrinfo(host, "7471", &hints, &info) == 0 && info->ai_src_addr);
    struct ibv_qp_init_attr init = attributes(IBV_QPT_RC, NULL);
    struct rdma_cm_id *listener, *id;
    WORKS(rdma_create_ep, rdma_create_ep(&listener, info, NULL, &init) == 0 && listener->qp == NULL);
    rdma_freeaddrinfo(info);
    puts("works rdma_freeaddrinfo");
    CHECK(rdma_listen(listener, 0) == 0);
    snprintf(port_text, sizeof port_text, "%d", ntohs(rdma_get_src_port(listener)));
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, client_that_waits, NULL) == 0);
    WORKS(rdma_get_request, rdma_get_request(listener, &id) == 0 && id->qp);
    struct ibv_srq_init_attr srq = { .attr = { .max_wr = 4, .max_sge = 1 } };
    struct ibv_srq_init_attr_ex more = { .attr = { .max_wr = 4, .max_sge = 1 }, .srq_type = IBV_SRQT_BASIC };
    more.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
    WORKS(rdma_create_srq, rdma_create_srq(id, NULL, &srq) == 0 && id->srq);
    rdma_destroy_srq(id);
    WORKS(rdma_destroy_srq, id->srq == NULL);
    WORKS(rdma_create_srq_ex, rdma_create_srq_ex(id, &more) == 0 && id->srq);
    rdma_destroy_srq(id);
    more.srq_type = IBV_SRQT_XRC;
    MINUS(rdma_create_srq_ex(id, &more), EOPNOTSUPP);
    CHECK(rdma_create_srq(id, NULL, &srq) == 0 && id->srq);
    CHECK(rdma_accept(id, NULL) == 0 && id->event->event == RDMA_CM_EVENT_ESTABLISHED);
    CHECK(pthread_join(thread, NULL) == 0);
    rdma_destroy_ep(id);
    rdma_destroy_ep(listener);
    puts("works rdma_destroy_ep");
}

/* Datagrams: the server names its queue pair. Groups are joined and left. */
static void by_datagrams(void)
{
    struct rdma_event_channel *channel = rdma_create_event_channel();
    struct rdma_cm_id *listener = bound(channel, RDMA_PS_UDP);
    CHECK(rdma_listen(listener, 4) == 0);
    struct rdma_cm_id *client = resolved(channel, RDMA_PS_UDP, rdma_get_src_port(listener));
    struct ibv_cq *cq = ibv_create_cq(client->verbs, 16, NULL, NULL, 0);
    struct ibv_qp_init_attr init = attributes(IBV_QPT_UD, cq);
    CHECK(rdma_create_qp(client, NULL, &init) == 0 && client->qp->state == IBV_QPS_RTS);
    struct rdma_conn_param param = { .private_data = "who?", .private_data_len = 5 };
    CHECK(rdma_connect(client, &param) == 0);
    struct rdma_cm_event *event = next(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
    CHECK(event->param.ud.private_data_len == 180 && strcmp(event->param.ud.private_data, "who?") == 0);
    struct rdma_cm_id *server = event->id;
    CHECK(rdma_ack_cm_event(event) == 0);
    init = attributes(IBV_QPT_UD, cq);
    CHECK(rdma_create_qp(server, NULL, &init) == 0 && rdma_accept(server, &param) == 0);
    event = next(channel, RDMA_CM_EVENT_ESTABLISHED);
    CHECK(event->id == client && event->param.ud.qp_num == server->qp->qp_num && event->param.ud.qkey == RDMA_UDP_QKEY);
    CHECK(rdma_ack_cm_event(event) == 0);

    struct sockaddr_in group = { .sin_family = AF_INET };
    inet_pton(AF_INET, "239.5.6.7", &group.sin_addr);
    struct rdma_cm_join_mc_attr_ex join = { .comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS, .addr = (struct sockaddr *)&group };
    WORKS(rdma_join_multicast, rdma_join_multicast(client, (struct sockaddr *)&group, NULL) == 0);
    event = next(channel, RDMA_CM_EVENT_MULTICAST_JOIN);
    CHECK(event->param.ud.qp_num == 0xffffff && event->param.ud.ah_attr.grh.dgid.raw[12] == 239);
    CHECK(rdma_ack_cm_event(event) == 0);
    WORKS(rdma_leave_multicast, rdma_leave_multicast(client, (struct sockaddr *)&group) == 0);
    WORKS(rdma_join_multicast_ex, rdma_join_multicast_ex(client, &join, NULL) == 0);
    pass(channel, RDMA_CM_EVENT_MULTICAST_JOIN);
    CHECK(rdma_leave_multicast(client, (struct sockaddr *)&group) == 0);
    rdma_destroy_qp(client);
    rdma_destroy_qp(server);
    CHECK(rdma_destroy_id(client) == 0 && rdma_destroy_id(server) == 0 && rdma_destroy_id(listener) == 0);
    CHECK(ibv_destroy_cq(cq) == 0);
    rdma_destroy_event_channel(channel);
}

/* Of rdma-core 60. Names are resolved with an event, on a channel or waited for; a program's own event wakes who waits. */
static void later_versions(void)
{
    enum { ADDRINFO_RESOLVED = 16, USER = 18, BY_SUBNET_ADMINISTRATION = 0x10 };
    int (*resolve)(struct rdma_cm_id *, const char *, const char *, const struct rdma_addrinfo *) =
        later("rdma_resolve_addrinfo", "RDMACM_1.4");
    int (*query)(struct rdma_cm_id *, struct rdma_addrinfo **) = later("rdma_query_addrinfo", "RDMACM_1.4");
    int (*write_event)(struct rdma_cm_id *, int, int, uint64_t) = later("rdma_write_cm_event", "RDMACM_1.4");
    struct rdma_event_channel *channel = rdma_create_event_channel();
    struct rdma_cm_id *ids[2];
    CHECK(channel && rdma_create_id(channel, &ids[0], NULL, RDMA_PS_TCP) == 0);
    CHECK(rdma_create_id(NULL, &ids[1], NULL, RDMA_PS_TCP) == 0);
    for (int sync = 0; sync < 2; sync++) {
        struct rdma_cm_id *id = ids[sync];
        struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP }, *info;
        MINUS(query(id, &info), ENOENT);
        CHECK(resolve(id, "127.0.0.1", "7471", &hints) == 0);
        MINUS(resolve(id, "127.0.0.1", "7471", &hints), EBUSY);
        if (sync)
            CHECK(id->event && (int)id->event->event == ADDRINFO_RESOLVED && id->event->id == id);
        else
            pass(channel, (enum rdma_cm_event_type)ADDRINFO_RESOLVED);
        WORKS(rdma_query_addrinfo, query(id, &info) == 0 && info->ai_dst_addr && info->ai_family == AF_INET);
        CHECK(((struct sockaddr_in *)info->ai_dst_addr)->sin_port == htons(7471));
        rdma_freeaddrinfo(info);
        MINUS(query(id, &info), ENOENT);
        hints.ai_flags = RAI_NUMERICHOST;
        MINUS(resolve(id, "no.address", NULL, &hints), ENODATA);
        hints.ai_flags = BY_SUBNET_ADMINISTRATION;
        MINUS(resolve(id, NULL, "7471", &hints), EOPNOTSUPP);
        WORKS(rdma_resolve_addrinfo, resolve(id, "127.0.0.1", "7471", NULL) == 0); /* its result is never fetched */
    }
    pass(channel, (enum rdma_cm_event_type)ADDRINFO_RESOLVED);
    MINUS(write_event(ids[0], RDMA_CM_EVENT_ESTABLISHED, 0, 0), EINVAL);
    CHECK(write_event(ids[0], USER, -7, 0x1122334455667788) == 0);
    struct rdma_cm_event *event = next(channel, (enum rdma_cm_event_type)USER);
    uint64_t word;
    memcpy(&word, &event->param, sizeof word);
    WORKS(rdma_write_cm_event, event->id == ids[0] && event->status == -7 && word == 0x1122334455667788);
    CHECK(strcmp(rdma_event_str(event->event), "RDMA_CM_EVENT_USER") == 0 && rdma_ack_cm_event(event) == 0);
    CHECK(rdma_destroy_id(ids[0]) == 0 && rdma_destroy_id(ids[1]) == 0);
    MINUS(write_event(ids[0], USER, 0, 0), EINVAL);
    rdma_destroy_event_channel(channel);
}

/* Sockets over RDMA are not offered. */
static void sockets(void)
{
    static const char *names[] = {
        "raccept", "rbind", "rclose", "rconnect", "rfcntl", "rgetpeername", "rgetsockname", "rgetsockopt", "riounmap",
        "repoll_create", "repoll_ctl", "repoll_wait", "rlisten", "rpoll", "rselect", "rsetsockopt", "rshutdown", "rsocket",
    };
    static const char *lengths[] = {
        "riomap", "riowrite", "rread", "rreadv", "rrecv", "rrecvfrom", "rrecvmsg", "rsend", "rsendmsg", "rsendto",
        "rwrite", "rwritev",
    };
    for (size_t at = 0; at < sizeof names / sizeof *names; at++) {
        int (*call)(int, int, int) = (int (*)(int, int, int))dlsym(RTLD_DEFAULT, names[at]);
        CHECK(call);
        MINUS(call(0, 0, 0), ENOSYS);
        printf("refused %s\n", names[at]);
    }
    for (size_t at = 0; at < sizeof lengths / sizeof *lengths; at++) {
        ssize_t (*call)(int, int, int) = (ssize_t (*)(int, int, int))dlsym(RTLD_DEFAULT, lengths[at]);
        CHECK(call);
        MINUS(call(0, 0, 0), ENOSYS);
        printf("refused %s\n", lengths[at]);
    }
}

int main(void)
{
    int count;
    struct ibv_context **devices;
    WORKS(rdma_get_devices, (devices = rdma_get_devices(&count)) && count == 1 && devices[1] == NULL);
    union ibv_gid gid;
    for (int index = 0; here.sin_family == 0; index++) {
        CHECK(ibv_query_gid(devices[0], 1, index, &gid) == 0);
        if (gid.raw[10] == 0xff && gid.raw[11] == 0xff && gid.global.subnet_prefix == 0) {
            here.sin_family = AF_INET;
            memcpy(&here.sin_addr, gid.raw + 12, 4);
        }
    }
    rdma_free_devices(devices);
    puts("works rdma_free_devices");
    by_events();
    leaves_a_thread_behind();
    each_family();
    without_names();
    towards_a_group();
    towards_ourselves();
    by_waiting();
    by_datagrams();
    later_versions();
    sockets();
    return 0;
}
