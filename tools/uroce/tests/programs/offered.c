/* Calls every function that the library exports. A line for each: "works NAME" when it did what it is for, "refused NAME" when
   it said EOPNOTSUPP, as rdma-core's does where a provider has no such operation. Anything else ends the program. */
#include "later.h"
#include <fcntl.h>
#include <signal.h>

/* Exported, and declared in headers that Debian does not install, or in those of librdmacm. */
extern int ibv_read_sysfs_file(const char *, const char *, char *, size_t);
extern const char *ibv_get_sysfs_path(void);
extern int ibv_dontfork_range(void *, size_t), ibv_dofork_range(void *, size_t);
extern void ibv_copy_ah_attr_from_kern(struct ibv_ah_attr *, void *), ibv_copy_qp_attr_from_kern(struct ibv_qp_attr *, void *);
extern void ibv_copy_path_rec_from_kern(void *, void *), ibv_copy_path_rec_to_kern(void *, void *);
extern int ibv_query_gid_type(struct ibv_context *, uint8_t, unsigned, int *);

#define WORKS(name, condition) \
    do { \
        CHECK(condition); \
        puts("works " #name); \
    } while (0)

/* Functions that return an error number, NULL, or nothing; errno says so too. */
#define REFUSED(name, call) \
    do { \
        FAILS(call, EOPNOTSUPP); \
        puts("refused " #name); \
    } while (0)
#define REFUSED_POINTER(name, call) \
    do { \
        NOTHING(call, EOPNOTSUPP); \
        puts("refused " #name); \
    } while (0)
#define REFUSED_VOID(name, call) \
    do { \
        errno = 0; \
        call; \
        CHECK(errno == EOPNOTSUPP); \
        puts("refused " #name); \
    } while (0)

/* What providers for hardware call, and nobody else. */
static const char *of_providers[] = {
    "execute_ioctl", "ibv_cmd_advise_mr", "ibv_cmd_alloc_dm", "ibv_cmd_alloc_mw", "ibv_cmd_alloc_pd",
    "ibv_cmd_attach_mcast", "ibv_cmd_close_xrcd", "ibv_cmd_create_ah", "ibv_cmd_create_counters", "ibv_cmd_create_cq",
    "ibv_cmd_create_cq_ex", "ibv_cmd_create_cq_ex2", "ibv_cmd_create_flow", "ibv_cmd_create_flow_action_esp", "ibv_cmd_create_qp",
    "ibv_cmd_create_qp_ex", "ibv_cmd_create_qp_ex2", "ibv_cmd_create_rwq_ind_table", "ibv_cmd_create_srq",
    "ibv_cmd_create_srq_ex", "ibv_cmd_create_wq", "ibv_cmd_dealloc_mw", "ibv_cmd_dealloc_pd", "ibv_cmd_dereg_mr",
    "ibv_cmd_destroy_ah", "ibv_cmd_destroy_counters", "ibv_cmd_destroy_cq", "ibv_cmd_destroy_flow",
    "ibv_cmd_destroy_flow_action", "ibv_cmd_destroy_qp", "ibv_cmd_destroy_rwq_ind_table", "ibv_cmd_destroy_srq",
    "ibv_cmd_destroy_wq", "ibv_cmd_detach_mcast", "ibv_cmd_free_dm", "ibv_cmd_get_context", "ibv_cmd_modify_cq",
    "ibv_cmd_modify_flow_action_esp", "ibv_cmd_modify_qp", "ibv_cmd_modify_qp_ex", "ibv_cmd_modify_srq",
    "ibv_cmd_modify_wq", "ibv_cmd_open_qp", "ibv_cmd_open_xrcd", "ibv_cmd_poll_cq", "ibv_cmd_post_recv",
    "ibv_cmd_post_send", "ibv_cmd_post_srq_recv", "ibv_cmd_query_context", "ibv_cmd_query_device_any",
    "ibv_cmd_query_mr", "ibv_cmd_query_port", "ibv_cmd_query_qp", "ibv_cmd_query_srq", "ibv_cmd_read_counters",
    "ibv_cmd_reg_dm_mr", "ibv_cmd_reg_dmabuf_mr", "ibv_cmd_reg_mr", "ibv_cmd_req_notify_cq", "ibv_cmd_rereg_mr",
    "ibv_cmd_resize_cq", "verbs_init_cq",
};

static struct ibv_device *device;
static struct ibv_context *context;
static union ibv_gid gid;
static char memory[8192];

/* Of rdma-core 59 and later. What is not offered is called without arguments. */
static void later_versions(void)
{
    static const struct {
        const char *name, *version;
    } numbers[] = {
        {"ibv_dealloc_dmah", "IBVERBS_1.15"}, {"_ibv_query_comp_cntr_caps", "IBVERBS_1.18"},
        {"ibv_destroy_comp_cntr", "IBVERBS_1.18"}, {"ibv_inc_comp_cntr", "IBVERBS_1.18"},
        {"ibv_inc_err_comp_cntr", "IBVERBS_1.18"}, {"ibv_qp_attach_comp_cntr", "IBVERBS_1.18"},
        {"ibv_read_comp_cntr", "IBVERBS_1.18"}, {"ibv_read_err_comp_cntr", "IBVERBS_1.18"},
        {"ibv_set_comp_cntr", "IBVERBS_1.18"}, {"ibv_set_err_comp_cntr", "IBVERBS_1.18"},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        int (*function)(void) = later(numbers[i].name, numbers[i].version);
        FAILS(function(), EOPNOTSUPP);
        printf("refused %s\n", numbers[i].name);
    }
    REFUSED_POINTER(ibv_alloc_dmah, ((void *(*)(void))later("ibv_alloc_dmah", "IBVERBS_1.15"))());
    REFUSED_POINTER(ibv_create_comp_cntr, ((void *(*)(void))later("ibv_create_comp_cntr", "IBVERBS_1.18"))());
    MINUS(((int (*)(void *))later("ibv_dm_export_dmabuf_fd", "IBVERBS_1.16"))(NULL), EOPNOTSUPP);
    puts("refused ibv_dm_export_dmabuf_fd");
    int (*query_speed)(struct ibv_context *, uint32_t, uint64_t *) = later("ibv_query_port_speed", "IBVERBS_1.16");
    uint64_t speed = 0;
    WORKS(ibv_query_port_speed, query_speed(context, 1, &speed) == 0 && speed >= 25);
    FAILS(query_speed(context, 2, &speed), EINVAL);
    FAILS(query_speed(context, 1, NULL), EINVAL);
}

static void *private(const char *name)
{
    void *found = dlvsym(RTLD_DEFAULT, name, "IBVERBS_PRIVATE_34");
    if (!found)
        fprintf(stderr, "there is no %s\n", name);
    CHECK(found);
    return found;
}

static void providers(void)
{
    for (size_t i = 0; i < sizeof of_providers / sizeof *of_providers; i++) {
        int (*function)(void) = (int (*)(void))private(of_providers[i]);
        FAILS(function(), EOPNOTSUPP);
        printf("refused %s\n", of_providers[i]);
    }
    void *(*allocate)(void *, int, size_t, void *, uint32_t) = private("_verbs_init_and_alloc_context");
    REFUSED_POINTER(_verbs_init_and_alloc_context, allocate(device, -1, 1024, NULL, 0));
    struct ibv_context *(*open)(struct ibv_device *, void *) = private("verbs_open_device");
    struct ibv_context *another = open(device, NULL);
    WORKS(verbs_open_device, another && ibv_close_device(another) == 0);
    /* Announcements, settings and logs are taken, and nothing comes of them. */
    ((void (*)(const void *))private("verbs_register_driver_34"))(NULL);
    puts("works verbs_register_driver_34");
    ((void (*)(void *, const void *))private("verbs_set_ops"))(NULL, NULL);
    puts("works verbs_set_ops");
    ((void (*)(void *))private("verbs_uninit_context"))(NULL);
    puts("works verbs_uninit_context");
    ((void (*)(void *, uint32_t, const char *, ...))private("__verbs_log"))(NULL, 0, "%s\n", "log");
    puts("works __verbs_log");
    WORKS(__ioctl_final_num_attrs, ((unsigned (*)(unsigned, void *))private("__ioctl_final_num_attrs"))(3, NULL) == 0);
    WORKS(verbs_allow_disassociate_destroy, *(char *)private("verbs_allow_disassociate_destroy") == 0);
    /* There is no folder of the device in sysfs. */
    char text[16];
    int (*read_file)(char *, size_t, void *, const char *, ...) = private("ibv_read_ibdev_sysfs_file");
    errno = 0;
    WORKS(ibv_read_ibdev_sysfs_file, read_file(text, sizeof text, device, "board_id") == -1 && errno == ENOENT);
    /* The only one that later programs cannot be linked with: it has no default version. */
    void (*of_old)(const char *, void *) = (void (*)(const char *, void *))dlvsym(RTLD_DEFAULT, "ibv_register_driver", "IBVERBS_1.1");
    CHECK(of_old);
    of_old("none", NULL);
    puts("works ibv_register_driver");
}

static void devices(void)
{
    int count = 0;
    struct ibv_device **list = ibv_get_device_list(&count);
    WORKS(ibv_get_device_list, list && count == 1);
    device = list[0];
    ibv_free_device_list(list);
    puts("works ibv_free_device_list");
    WORKS(ibv_get_device_name, strlen(ibv_get_device_name(device)) > 0);
    WORKS(ibv_get_device_guid, ibv_get_device_guid(device) != 0);
    WORKS(ibv_get_device_index, ibv_get_device_index(device) > 0);
    WORKS(ibv_node_type_str, strcmp(ibv_node_type_str(device->node_type), "InfiniBand channel adapter") == 0);
    WORKS(ibv_fork_init, ibv_fork_init() == 0);
    WORKS(ibv_is_fork_initialized, ibv_is_fork_initialized() == IBV_FORK_UNNEEDED);
    WORKS(ibv_dontfork_range, ibv_dontfork_range(memory, sizeof memory) == 0);
    WORKS(ibv_dofork_range, ibv_dofork_range(memory, sizeof memory) == 0);
    WORKS(ibv_get_sysfs_path, strcmp(ibv_get_sysfs_path(), "/sys") == 0);
    char text[64];
    WORKS(ibv_read_sysfs_file, ibv_read_sysfs_file("/proc/sys/kernel", "ostype", text, sizeof text) == 5);
    CHECK(strcmp(text, "Linux") == 0);
    REFUSED_POINTER(ibv_import_device, ibv_import_device(0));
}

static void queries(void)
{
    WORKS(ibv_open_device, context = ibv_open_device(device));
    struct ibv_device_attr attr;
    WORKS(ibv_query_device, ibv_query_device(context, &attr) == 0 && attr.phys_port_cnt == 1);
    struct ibv_port_attr port;
    WORKS(ibv_query_port, (ibv_query_port)(context, 1, (void *)&port) == 0 && port.state == IBV_PORT_ACTIVE);
    WORKS(ibv_port_state_str, strcmp(ibv_port_state_str(port.state), "ACTIVE") == 0);
    WORKS(ibv_query_gid, ibv_query_gid(context, 1, 1, &gid) == 0);
    struct ibv_gid_entry entries[16];
    WORKS(_ibv_query_gid_ex, _ibv_query_gid_ex(context, 1, 1, entries, 0, sizeof *entries) == 0);
    CHECK(memcmp(&entries[0].gid, &gid, sizeof gid) == 0);
    WORKS(_ibv_query_gid_table, _ibv_query_gid_table(context, entries, 16, 0, sizeof *entries) >= 2);
    int type;
    WORKS(ibv_query_gid_type, ibv_query_gid_type(context, 1, 1, &type) == 0 && type == 1);
    __be16 key;
    WORKS(ibv_query_pkey, ibv_query_pkey(context, 1, 0, &key) == 0 && key == 0xffff);
    WORKS(ibv_get_pkey_index, ibv_get_pkey_index(context, 1, key) == 0);
    uint8_t mac[6];
    uint16_t vid;
    REFUSED(ibv_resolve_eth_l2_from_gid, ibv_resolve_eth_l2_from_gid(context, &(struct ibv_ah_attr){0}, mac, &vid));
    REFUSED_POINTER(ibv_import_pd, ibv_import_pd(context, 1));
    REFUSED_POINTER(ibv_import_dm, ibv_import_dm(context, 1));
    REFUSED_VOID(ibv_unimport_dm, ibv_unimport_dm(NULL));
}

/* Names and numbers that need no device. */
static void translations(void)
{
    WORKS(ibv_wc_status_str, strcmp(ibv_wc_status_str(IBV_WC_SUCCESS), "success") == 0);
    WORKS(ibv_event_type_str, strcmp(ibv_event_type_str(IBV_EVENT_CQ_ERR), "CQ error") == 0);
    WORKS(ibv_rate_to_mult, ibv_rate_to_mult(IBV_RATE_10_GBPS) == 4);
    WORKS(mult_to_ibv_rate, mult_to_ibv_rate(4) == IBV_RATE_10_GBPS);
    WORKS(ibv_rate_to_mbps, ibv_rate_to_mbps(IBV_RATE_10_GBPS) == 10000);
    WORKS(mbps_to_ibv_rate, mbps_to_ibv_rate(10000) == IBV_RATE_10_GBPS);
    /* The kernel's structures begin with 16 bytes of GID here, and with the mask and the state there. */
    unsigned char kernel[256] = {0xaa, 0xbb};
    struct ibv_ah_attr address = {0};
    ibv_copy_ah_attr_from_kern(&address, kernel);
    WORKS(ibv_copy_ah_attr_from_kern, address.grh.dgid.raw[0] == 0xaa && address.grh.dgid.raw[1] == 0xbb);
    struct ibv_qp_attr qp = {0};
    kernel[12] = IBV_MTU_2048;
    ibv_copy_qp_attr_from_kern(&qp, kernel);
    WORKS(ibv_copy_qp_attr_from_kern, qp.path_mtu == IBV_MTU_2048);
    unsigned char path[128] = {0}, back[128] = {0};
    ibv_copy_path_rec_from_kern(path, kernel);
    WORKS(ibv_copy_path_rec_from_kern, path[0] == 0xaa);
    ibv_copy_path_rec_to_kern(back, path);
    WORKS(ibv_copy_path_rec_to_kern, memcmp(back, kernel, 13) == 0);
}

/* Everything else, as a program uses it: two queue pairs, a message with an event, an error with an event. */
static void objects(void)
{
    struct ibv_pd *pd;
    WORKS(ibv_alloc_pd, pd = ibv_alloc_pd(context));
    struct ibv_mr *mr, *second;
    WORKS(ibv_reg_mr, mr = (ibv_reg_mr)(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE));
    WORKS(ibv_reg_mr_iova, (second = (ibv_reg_mr_iova)(pd, memory, 64, 0x1000, 0)));
    WORKS(ibv_dereg_mr, ibv_dereg_mr(second) == 0);
    WORKS(ibv_reg_mr_iova2, (second = ibv_reg_mr_iova2(pd, memory, 64, 0x1000, IBV_ACCESS_RELAXED_ORDERING)));
    CHECK(ibv_dereg_mr(second) == 0);
    /* programs/memory.c has more of these four. */
    struct {
        size_t length;
        int access;
        uint64_t comp_mask, iova;
        void *addr;
        uint64_t rest[4];
    } attr = {.length = 64, .comp_mask = 2, .addr = memory};
    struct ibv_mr *(*reg_mr_ex)(struct ibv_pd *, void *) = later("ibv_reg_mr_ex", "IBVERBS_1.15");
    WORKS(ibv_reg_mr_ex, (second = reg_mr_ex(pd, &attr)) && ibv_dereg_mr(second) == 0);
    void *(*alloc_buf)(struct ibv_pd *, size_t, void **) = later("ibv_alloc_buf", "IBVERBS_1.17"), *buf, *bytes;
    WORKS(ibv_alloc_buf, bytes = alloc_buf(pd, 4096, &buf));
    struct ibv_mr *(*reg_buf_mr)(struct ibv_pd *, void *, void *, size_t, int) = later("ibv_reg_buf_mr", "IBVERBS_1.17");
    WORKS(ibv_reg_buf_mr, (second = reg_buf_mr(pd, buf, bytes, 4096, 0)) && ibv_dereg_mr(second) == 0);
    MINUS(((int (*)(void *))later("ibv_export_buf_dmabuf_fd", "IBVERBS_1.18"))(buf), ENODATA); /* it is plain memory */
    puts("works ibv_export_buf_dmabuf_fd");
    ((void (*)(void *))later("ibv_free_buf", "IBVERBS_1.17"))(buf);
    puts("works ibv_free_buf");
    WORKS(ibv_rereg_mr, ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE) == 0);
    REFUSED_POINTER(ibv_reg_dmabuf_mr, ibv_reg_dmabuf_mr(pd, 0, 64, 0, 0, 0));
    REFUSED_POINTER(ibv_import_mr, ibv_import_mr(pd, 1));
    REFUSED_VOID(ibv_unimport_mr, ibv_unimport_mr(mr));
    REFUSED_VOID(ibv_unimport_pd, ibv_unimport_pd(pd));
    struct ibv_comp_channel *channel;
    WORKS(ibv_create_comp_channel, channel = ibv_create_comp_channel(context));
    struct ibv_cq *cq;
    WORKS(ibv_create_cq, cq = ibv_create_cq(context, 4, NULL, channel, 0));
    WORKS(ibv_resize_cq, ibv_resize_cq(cq, 16) == 0 && cq->cqe == 31);
    struct ibv_srq_init_attr srq_init = {.attr = {.max_wr = 4, .max_sge = 1}};
    struct ibv_srq *srq;
    WORKS(ibv_create_srq, srq = ibv_create_srq(pd, &srq_init));
    WORKS(ibv_modify_srq, ibv_modify_srq(srq, &(struct ibv_srq_attr){.srq_limit = 1}, IBV_SRQ_LIMIT) == 0);
    struct ibv_srq_attr srq_attr;
    WORKS(ibv_query_srq, ibv_query_srq(srq, &srq_attr) == 0 && srq_attr.max_wr == 4 && srq_attr.srq_limit == 1);
    struct ibv_qp_init_attr init = {
        .send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = IBV_QPT_RC, .cap = {4, 0, 1, 0, 0}};
    struct ibv_qp *a, *b;
    WORKS(ibv_create_qp, (a = ibv_create_qp(pd, &init)) && (b = ibv_create_qp(pd, &init)));
    to_init(a), to_init(b);
    connect_to(a, b->qp_num, &gid);
    connect_to(b, a->qp_num, &gid);
    puts("works ibv_modify_qp");
    struct ibv_qp_attr qp_attr;
    WORKS(ibv_query_qp, ibv_query_qp(a, &qp_attr, IBV_QP_STATE, &init) == 0 && qp_attr.qp_state == IBV_QPS_RTS);
    WORKS(ibv_query_qp_data_in_order, ibv_query_qp_data_in_order(a, IBV_WR_RDMA_WRITE, 0) == 0);
    errno = 0;
    CHECK(!ibv_qp_to_qp_ex(a) && errno == EOPNOTSUPP); /* it was not made for that */
    struct ibv_qp_init_attr_ex wide = {
        .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = {1, 1, 1, 1, 0}, .pd = pd,
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .send_ops_flags = IBV_QP_EX_WITH_SEND};
    struct ibv_qp *c = ibv_create_qp_ex(context, &wide);
    WORKS(ibv_qp_to_qp_ex, c && ibv_qp_to_qp_ex(c));
    WORKS(ibv_destroy_qp, ibv_destroy_qp(c) == 0);
    REFUSED(ibv_query_ece, ibv_query_ece(a, &(struct ibv_ece){0}));
    REFUSED(ibv_set_ece, ibv_set_ece(a, &(struct ibv_ece){0}));
    struct ibv_qp_init_attr for_groups = {.send_cq = cq, .recv_cq = cq, .cap = {1, 1, 1, 1, 0}, .qp_type = IBV_QPT_UD};
    struct ibv_qp *d = ibv_create_qp(pd, &for_groups);
    union ibv_gid group = {.raw = {0xff, 0x0e, [15] = 1}};
    WORKS(ibv_attach_mcast, d && ibv_attach_mcast(d, &group, 0) == 0);
    WORKS(ibv_detach_mcast, ibv_detach_mcast(d, &group, 0) == 0 && ibv_detach_mcast(d, &group, 0) == EINVAL);
    CHECK(ibv_destroy_qp(d) == 0);

    struct ibv_sge sge = {(uintptr_t)memory, 64, mr->lkey};
    struct ibv_recv_wr receive = {.sg_list = &sge, .num_sge = 1}, *bad_receive;
    struct ibv_send_wr send = {.opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED}, *bad;
    CHECK(ibv_post_srq_recv(srq, &receive, &bad_receive) == 0 && ibv_req_notify_cq(cq, 0) == 0);
    CHECK(ibv_post_send(a, &send, &bad) == 0);
    struct ibv_cq *which;
    void *its_context;
    WORKS(ibv_get_cq_event, ibv_get_cq_event(channel, &which, &its_context) == 0 && which == cq);
    ibv_ack_cq_events(cq, 1);
    puts("works ibv_ack_cq_events");
    CHECK(next_completion(cq).status == IBV_WC_SUCCESS && next_completion(cq).status == IBV_WC_SUCCESS);
    /* One receive was left and is taken: the limit. */
    struct ibv_async_event event;
    WORKS(ibv_get_async_event, ibv_get_async_event(context, &event) == 0);
    CHECK(event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED && event.element.srq == srq);
    ibv_ack_async_event(&event);
    puts("works ibv_ack_async_event");
    CHECK(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0);
    WORKS(ibv_destroy_srq, ibv_destroy_srq(srq) == 0);

    /* A datagram, whose sender is answered. */
    struct ibv_ah_attr ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid, .sgid_index = 1}};
    struct ibv_ah *ah, *answer;
    WORKS(ibv_create_ah, ah = ibv_create_ah(pd, &ah_attr));
    init = (struct ibv_qp_init_attr){.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_UD, .cap = {1, 1, 1, 1, 0}};
    CHECK(a = ibv_create_qp(pd, &init));
    to_init(a);
    connect_to(a, 0, &gid);
    sge.length = 100;
    CHECK(ibv_post_recv(a, &receive, &bad_receive) == 0);
    send.wr.ud.ah = ah, send.wr.ud.remote_qpn = a->qp_num, send.wr.ud.remote_qkey = 0x1234;
    send.send_flags = 0;
    CHECK(ibv_post_send(a, &send, &bad) == 0);
    struct ibv_wc wc = next_completion(cq);
    struct ibv_grh *grh = (struct ibv_grh *)memory;
    WORKS(ibv_init_ah_from_wc, ibv_init_ah_from_wc(context, 1, &wc, grh, &ah_attr) == 0 && ah_attr.grh.sgid_index == 1);
    WORKS(ibv_create_ah_from_wc, answer = ibv_create_ah_from_wc(pd, &wc, grh, 1));
    WORKS(ibv_destroy_ah, ibv_destroy_ah(ah) == 0 && ibv_destroy_ah(answer) == 0);
    CHECK(ibv_destroy_qp(a) == 0);
    WORKS(ibv_destroy_cq, ibv_destroy_cq(cq) == 0);
    WORKS(ibv_destroy_comp_channel, ibv_destroy_comp_channel(channel) == 0);
    CHECK(ibv_dereg_mr(mr) == 0);
    WORKS(ibv_dealloc_pd, ibv_dealloc_pd(pd) == 0);
    WORKS(ibv_close_device, ibv_close_device(context) == 0);
}

static void on_signal(int number)
{
    (void)number;
}

extern void (*__sysv_signal(int, void (*)(int)))(int);

/* What is in place of the C library's, with memory registered: the handler and the mask are the program's, as far as it sees. */
static void signals(void)
{
    context = open_first();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, 0);
    CHECK(pd && mr);
    struct sigaction action = {.sa_handler = on_signal}, old;
    WORKS(sigaction, sigaction(SIGSEGV, &action, &old) == 0 && old.sa_handler == SIG_DFL);
    WORKS(signal, signal(SIGSEGV, SIG_IGN) == on_signal);
    CHECK(sigaction(SIGSEGV, NULL, &old) == 0 && old.sa_handler == SIG_IGN && old.sa_flags == SA_RESTART);
    CHECK(raise(SIGSEGV) == 0);
    WORKS(__sysv_signal, __sysv_signal(SIGSEGV, on_signal) == SIG_IGN && raise(SIGSEGV) == 0);
    CHECK(sigaction(SIGSEGV, NULL, &old) == 0 && old.sa_handler == SIG_DFL);
    sigset_t all, before, now;
    sigfillset(&all);
    WORKS(sigprocmask, sigprocmask(SIG_BLOCK, &all, &before) == 0 && !sigismember(&before, SIGUSR1));
    WORKS(pthread_sigmask, pthread_sigmask(SIG_SETMASK, &before, &now) == 0 && sigismember(&now, SIGUSR1));
    CHECK(!sigismember(&now, SIGSEGV) && !sigismember(&now, SIGBUS) && !sigismember(&now, SIGKILL));
    errno = 0;
    CHECK(pthread_sigmask(99, &all, NULL) == EINVAL && errno == 0);
    CHECK(sigprocmask(99, &all, NULL) == -1 && errno == EINVAL);
    CHECK(sigaction(SIGKILL, &action, NULL) == -1 && errno == EINVAL && signal(SIGKILL, on_signal) == SIG_ERR);
    CHECK(ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
}

int main(void)
{
    devices();
    providers();
    queries();
    later_versions();
    translations();
    objects();
    signals();
    return 0;
}
