/* verbs-agent: a scripted verbs program. It takes one command a line and answers each with one line,
 *
 *     ok [WORD=VALUE …]        or        err TEXT [errno=N]
 *
 * so that a test can drive one end of a conversation, or both, step by step. It knows nothing but libibverbs.
 *
 *     verbs-agent -l PORT           serves TCP connections, each in a process of its own that shares nothing with the others
 *     verbs-agent -c HOST:PORT      connects and serves that connection
 *     verbs-agent -s                serves standard input and output
 *     -d DEVICE                     the device to open; otherwise the first there is
 *
 * Numbers are decimal, or hexadecimal after 0x. Handles (PD, MR, …) are small numbers, counted for each kind from 0, never
 * used again. NAME=VALUE arguments and flags may come in any order; those in [] may be left out. ACCESS is a number or names
 * joined by commas: local_write, remote_write, remote_read, remote_atomic, mw_bind, zero_based, on_demand,
 * relaxed_ordering. Offsets and lengths are in bytes, MTUs too.
 *
 *     hello                                          version, process id, device
 *     devices                                        names=NAME,…
 *     device                                         what ibv_query_device says
 *     port                                           state, MTUs, size of the GID table, violations counted
 *     gid INDEX                                      gid=32 hex digits
 *     pd                                             pd=
 *     mr LEN ACCESS [pd=] [of=MR off=N]              mr= addr= lkey= rkey= (zeroed memory, or a part of another's)
 *     dereg MR                                       ends the registration, keeps the memory
 *     fill MR OFF LEN SEED                           the pattern below
 *     check MR OFF LEN SEED                          equal=1, or equal=0 at=OFF want= have=
 *     hash MR OFF LEN                                hash=16 hex digits (FNV-1a)
 *     read MR OFF LEN                                data=hex (at most 4096 bytes)
 *     write MR OFF HEX
 *     cq N [events]                                  cq=
 *     arm CQ [solicited] / event CQ TIMEOUT_MS       fired=0|1
 *     srq MAX_WR MAX_SGE [pd=] [limit=]              srq=
 *     srq_limit SRQ LIMIT / srq_state SRQ            arms the limit event / max_wr= max_sge= limit=
 *     qp rc|uc|ud SEND RECV SGE INLINE [pd=] [cq=] [rcq=] [srq=] [sig_all]     qp= qpn= send= recv= sge= inline=
 *     init QP [access=] [qkey=] [port=1] [pkey=0]
 *     rtr QP gid= dqpn= psn= mtu= [rd_atomic=1] [rnr_timer=12] [sgid=1] [hop=64] [tclass=0] [flow=0] [port=1]
 *     rts QP psn= [timeout=17] [retry=7] [rnr_retry=7] [rd_atomic=1]            (for ud: rtr takes no arguments)
 *     modify QP [state=reset|init|rtr|rts|sqd|sqe|err] …        only what is named, under the names above; psn= is rq_psn= or
 *                                                               sq_psn=, rd_atomic= is dest_rd_atomic= or max_rd_atomic=; besides
 *                                                               cur_state=, sqd_notify=0|1, mig_state=0|1|2, cap_send=, alt= (a GID),
 *                                                               rate_limit=; mask= (a number) replaces the mask that these make
 *     qp_state QP                                    all that ibv_query_qp says: state= rq_psn= sq_psn= dqpn= …
 *     ah GID [pd=] [sgid=1] [hop=64] [tclass=0] [flow=0] [port=1]               ah=
 *     post_send QP OP [wr_id=0] [sge=MR:OFF:LEN[:LKEY]]… [signaled] [solicited] [fence] [inline] [ip_csum] [count=1] [stride=0]
 *               [rstride=0]
 *         OP: send, send_imm imm=, send_inv inv=, write addr= rkey=, write_imm addr= rkey= imm=, read addr= rkey=,
 *             cas addr= rkey= compare= swap=, fadd addr= rkey= add=, local_inv inv=, tso, driver1, and for ud: ah= qpn= qkey=
 *         bind_mw mw= mr= off= len= access= [new_rkey=]      answers rkey= (by default the next one of the window)
 *         count posts that many, each with wr_id one higher, local offsets stride higher and addr rstride higher
 *     post_recv QP [wr_id=0] [sge=…]… [count=1] [stride=0]
 *     post_srq_recv SRQ …                            as post_recv
 *     poll CQ N TIMEOUT_MS                           n= and for each wc=WR_ID,STATUS,OPCODE,BYTES,FLAGS,IMM_OR_RKEY,SRC_QP,VENDOR_ERR,QPN
 *         IMM_OR_RKEY of a receive: the immediate data in host order when FLAGS has 2, otherwise the key field as the device left it
 *     mw 1|2 [pd=]                                   mw= rkey=
 *     bind QP MW mr= off= len= access= [wr_id=0]     ibv_bind_mw, for type 1; rkey=
 *     async TIMEOUT_MS                               event=NUMBER name=…, or event=none
 *     destroy pd|mr|cq|srq|qp|ah|mw HANDLE
 *     sleep MS / quit
 *
 * The pattern: byte i is byte i%8, little-endian, of SplitMix64's output number i/8 from the seed, where i is the offset in
 * the region.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MAX_HANDLES = 4096, MAX_WORDS = 256, MAX_SGE = 32, MAX_READ = 4096 };

/* ---- the answer, and the way out of a command that cannot be done ---- */

static char *answer;
static size_t answer_length, answer_room;
static jmp_buf out_of_command;

static void vsay(const char *format, va_list list) {
  for (;;) {
    va_list again;
    va_copy(again, list);
    int n = vsnprintf(answer + answer_length, answer_room - answer_length, format, again);
    va_end(again);
    if (n >= 0 && (size_t)n < answer_room - answer_length) {
      answer_length += (size_t)n;
      return;
    }
    answer_room = answer_room * 2 + 4096;
    answer = realloc(answer, answer_room);
    if (!answer)
      abort();
  }
}

__attribute__((format(printf, 1, 2))) static void say(const char *format, ...) {
  va_list list;
  va_start(list, format);
  vsay(format, list);
  va_end(list);
}

__attribute__((format(printf, 1, 2), noreturn)) static void fail(const char *format, ...) {
  answer_length = 0;
  say("err ");
  va_list list;
  va_start(list, format);
  vsay(format, list);
  va_end(list);
  longjmp(out_of_command, 1);
}

/* A verbs call failed; verbs give the errno as their result, or −1 and errno, or NULL and errno. */
__attribute__((noreturn)) static void fail_errno(const char *what, int code) {
  if (code <= 0)
    code = errno;
  fail("%s: %s errno=%d", what, strerror(code), code);
}

/* ---- the command's words ---- */

static char *words[MAX_WORDS]; /* positional, words[0] is the verb */
static char *named[MAX_WORDS]; /* NAME=VALUE and flags */
static int word_count, named_count;

static bool is_flag(const char *word) {
  static const char *const flags[] = {"signaled", "solicited", "fence", "inline", "ip_csum", "events", "sig_all", 0};
  for (int i = 0; flags[i]; i++)
    if (!strcmp(word, flags[i]))
      return true;
  return false;
}

static void split(char *line) {
  word_count = named_count = 0;
  char *rest;
  for (char *word = strtok_r(line, " \t\r\n", &rest); word; word = strtok_r(0, " \t\r\n", &rest)) {
    bool extra = word_count > 0 && (strchr(word, '=') || is_flag(word));
    if ((extra ? named_count : word_count) == MAX_WORDS)
      fail("more than %d words", MAX_WORDS);
    if (extra)
      named[named_count++] = word;
    else
      words[word_count++] = word;
  }
}

static uint64_t number_of(const char *text, const char *what) {
  char *end;
  errno = 0;
  uint64_t value = strtoull(text, &end, 0);
  if (!*text || *end || errno || *text == '-')
    fail("%s: %s is no number", what, text);
  return value;
}

static char *word(int index, const char *what) {
  if (index >= word_count)
    fail("%s: %s is missing", words[0], what);
  return words[index];
}

static uint64_t number(int index, const char *what) { return number_of(word(index, what), what); }

static char *value(const char *name) {
  size_t length = strlen(name);
  for (int i = 0; i < named_count; i++)
    if (!strncmp(named[i], name, length) && named[i][length] == '=')
      return named[i] + length + 1;
  return 0;
}

static bool flag(const char *name) {
  for (int i = 0; i < named_count; i++)
    if (!strcmp(named[i], name))
      return true;
  return false;
}

static uint64_t value_or(const char *name, uint64_t otherwise) {
  char *text = value(name);
  return text ? number_of(text, name) : otherwise;
}

static uint64_t value_of(const char *name) {
  char *text = value(name);
  if (!text)
    fail("%s: %s= is missing", words[0], name);
  return number_of(text, name);
}

static int access_of(const char *text) {
  static const struct {
    const char *name;
    int bit;
  } bits[] = {{"local_write", IBV_ACCESS_LOCAL_WRITE},
              {"remote_write", IBV_ACCESS_REMOTE_WRITE},
              {"remote_read", IBV_ACCESS_REMOTE_READ},
              {"remote_atomic", IBV_ACCESS_REMOTE_ATOMIC},
              {"mw_bind", IBV_ACCESS_MW_BIND},
              {"zero_based", IBV_ACCESS_ZERO_BASED},
              {"on_demand", IBV_ACCESS_ON_DEMAND},
              {"relaxed_ordering", IBV_ACCESS_RELAXED_ORDERING}};
  if (*text >= '0' && *text <= '9')
    return (int)number_of(text, "access");
  int access = 0;
  char copy[256], *rest;
  snprintf(copy, sizeof copy, "%s", text);
  for (char *name = strtok_r(copy, ",", &rest); name; name = strtok_r(0, ",", &rest)) {
    size_t i = 0;
    while (i < sizeof bits / sizeof *bits && strcmp(bits[i].name, name))
      i++;
    if (i == sizeof bits / sizeof *bits)
      fail("no access called %s", name);
    access |= bits[i].bit;
  }
  return access;
}

static int hex_digit(char c) {
  return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static void hex_bytes(const char *text, uint8_t *to, size_t length, const char *what) {
  if (strlen(text) != 2 * length)
    fail("%s: %zu hex digits are wanted", what, 2 * length);
  for (size_t i = 0; i < length; i++) {
    int high = hex_digit(text[2 * i]), low = hex_digit(text[2 * i + 1]);
    if (high < 0 || low < 0)
      fail("%s: not hexadecimal", what);
    to[i] = (uint8_t)(high << 4 | low);
  }
}

/* ---- objects ---- */

struct region {
  struct ibv_mr *mr; /* 0 after dereg */
  uint8_t *memory;
  size_t length;
  size_t mapped; /* 0 when the memory is another region's */
};
struct queue {
  struct ibv_cq *cq;
  struct ibv_comp_channel *channel;
};
struct window {
  struct ibv_mw *mw;
  uint32_t rkey;
};
struct table {
  const char *kind;
  void *slots[MAX_HANDLES];
  unsigned count;
};
static struct table pds = {.kind = "pd"}, mrs = {.kind = "mr"}, cqs = {.kind = "cq"}, srqs = {.kind = "srq"},
                    qps = {.kind = "qp"}, ahs = {.kind = "ah"}, mws = {.kind = "mw"};

static const char *wanted_device;
static struct ibv_context *context;

static unsigned keep(struct table *table, void *object) {
  if (table->count == MAX_HANDLES)
    fail("no more %s handles", table->kind);
  table->slots[table->count] = object;
  return table->count++;
}

static void *held(struct table *table, uint64_t handle) {
  if (handle >= table->count || !table->slots[handle])
    fail("no %s %llu", table->kind, (unsigned long long)handle);
  return table->slots[handle];
}

static void *allocate(size_t size) {
  void *memory = calloc(1, size);
  if (!memory)
    fail("out of memory");
  return memory;
}

static struct ibv_context *device(void) {
  if (context)
    return context;
  int count = 0;
  struct ibv_device **list = ibv_get_device_list(&count);
  struct ibv_device *found = 0;
  for (int i = 0; list && i < count && !found; i++)
    if (!wanted_device || !strcmp(ibv_get_device_name(list[i]), wanted_device))
      found = list[i];
  if (found)
    context = ibv_open_device(found);
  int code = errno;
  if (list)
    ibv_free_device_list(list);
  if (!found)
    fail("no device %s among %d", wanted_device ? wanted_device : "", count);
  if (!context)
    fail_errno("ibv_open_device", code);
  fcntl(context->async_fd, F_SETFL, fcntl(context->async_fd, F_GETFL) | O_NONBLOCK);
  return context;
}

/* The PD named by pd=, by default the first, made if there is none. */
static struct ibv_pd *domain(void) {
  if (!value("pd") && !pds.count) {
    struct ibv_pd *pd = ibv_alloc_pd(device());
    if (!pd)
      fail_errno("ibv_alloc_pd", 0);
    keep(&pds, pd);
  }
  return held(&pds, value_or("pd", 0));
}

static struct region *region(uint64_t handle) { return held(&mrs, handle); }

/* A range of a region's memory that is really there. */
static uint8_t *range(struct region *r, uint64_t offset, uint64_t length) {
  if (offset > r->length || length > r->length - offset)
    fail("%llu+%llu is outside the region of %zu bytes", (unsigned long long)offset, (unsigned long long)length, r->length);
  return r->memory + offset;
}

static uint64_t pattern_word(uint64_t seed, uint64_t index) {
  uint64_t z = seed + 0x9e3779b97f4a7c15u * (index + 1);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

static uint8_t pattern_byte(uint64_t seed, uint64_t offset) {
  return (uint8_t)(pattern_word(seed, offset / 8) >> (offset % 8 * 8));
}

static double seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- commands ---- */

static void do_hello(void) {
  say("ok verbs-agent=1 pid=%d device=%s", (int)getpid(), ibv_get_device_name(device()->device));
}

static void do_devices(void) {
  int count = 0;
  struct ibv_device **list = ibv_get_device_list(&count);
  say("ok names=");
  for (int i = 0; list && i < count; i++)
    say("%s%s", i ? "," : "", ibv_get_device_name(list[i]));
  if (list)
    ibv_free_device_list(list);
}

static void do_device(void) {
  struct ibv_device_attr a;
  int code = ibv_query_device(device(), &a);
  if (code)
    fail_errno("ibv_query_device", code);
  say("ok name=%s max_qp=%d max_qp_wr=%d max_sge=%d max_cqe=%d max_mr_size=0x%llx max_qp_rd_atom=%d max_qp_init_rd_atom=%d "
      "atomic_cap=%d max_mw=%d max_srq=%d max_srq_wr=%d max_ah=%d caps=0x%x vendor_id=0x%x fw=%s page_size_cap=0x%llx "
      "vendor_part_id=%d hw_ver=%d max_sge_rd=%d max_cq=%d max_mr=%d max_pd=%d max_res_rd_atom=%d max_ee=%d max_rdd=%d "
      "max_raw_ethy_qp=%d max_mcast_grp=%d max_mcast_qp_attach=%d max_fmr=%d max_srq_sge=%d max_pkeys=%d "
      "local_ca_ack_delay=%d phys_port_cnt=%d",
      ibv_get_device_name(device()->device), a.max_qp, a.max_qp_wr, a.max_sge, a.max_cqe, (unsigned long long)a.max_mr_size,
      a.max_qp_rd_atom, a.max_qp_init_rd_atom, a.atomic_cap, a.max_mw, a.max_srq, a.max_srq_wr, a.max_ah,
      a.device_cap_flags, a.vendor_id, *a.fw_ver ? a.fw_ver : "-", (unsigned long long)a.page_size_cap, a.vendor_part_id,
      a.hw_ver, a.max_sge_rd, a.max_cq, a.max_mr, a.max_pd, a.max_res_rd_atom, a.max_ee, a.max_rdd, a.max_raw_ethy_qp,
      a.max_mcast_grp, a.max_mcast_qp_attach, a.max_fmr, a.max_srq_sge, a.max_pkeys, a.local_ca_ack_delay, a.phys_port_cnt);
}

static void do_port(void) {
  struct ibv_port_attr a;
  int code = ibv_query_port(device(), 1, &a);
  if (code)
    fail_errno("ibv_query_port", code);
  say("ok state=%d active_mtu=%d max_mtu=%d gids=%d pkeys=%d max_msg=%u link_layer=%d bad_pkey=%u qkey_viol=%u", a.state,
      128 << a.active_mtu, 128 << a.max_mtu, a.gid_tbl_len, a.pkey_tbl_len, a.max_msg_sz, a.link_layer, a.bad_pkey_cntr,
      a.qkey_viol_cntr);
}

static void do_gid(void) {
  union ibv_gid gid;
  int code = ibv_query_gid(device(), 1, (int)number(1, "index"), &gid);
  if (code)
    fail_errno("ibv_query_gid", code);
  say("ok gid=");
  for (int i = 0; i < 16; i++)
    say("%02x", gid.raw[i]);
}

static void do_pd(void) {
  struct ibv_pd *pd = ibv_alloc_pd(device());
  if (!pd)
    fail_errno("ibv_alloc_pd", 0);
  say("ok pd=%u", keep(&pds, pd));
}

static void do_mr(void) {
  uint64_t length = number(1, "length");
  int access = access_of(word(2, "access"));
  struct ibv_pd *pd = domain();
  struct region *r = allocate(sizeof *r);
  r->length = length;
  if (value("of")) {
    r->memory = range(region(value_of("of")), value_or("off", 0), length);
  } else {
    r->mapped = length ? length : 1;
    r->memory = mmap(0, r->mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (r->memory == MAP_FAILED) {
      free(r);
      fail_errno("mmap", 0);
    }
  }
  r->mr = ibv_reg_mr(pd, r->memory, length, access);
  if (!r->mr) {
    int code = errno;
    if (r->mapped)
      munmap(r->memory, r->mapped);
    free(r);
    fail_errno("ibv_reg_mr", code);
  }
  say("ok mr=%u addr=0x%llx lkey=0x%x rkey=0x%x", keep(&mrs, r), (unsigned long long)(uintptr_t)r->memory, r->mr->lkey, r->mr->rkey);
}

static void do_dereg(void) {
  struct region *r = region(number(1, "mr"));
  if (!r->mr)
    fail("not registered");
  int code = ibv_dereg_mr(r->mr);
  if (code)
    fail_errno("ibv_dereg_mr", code);
  r->mr = 0;
  say("ok");
}

static void do_fill(void) {
  uint64_t offset = number(2, "offset"), length = number(3, "length"), seed = number(4, "seed");
  uint8_t *p = range(region(number(1, "mr")), offset, length);
  for (uint64_t i = 0; i < length; i++)
    p[i] = pattern_byte(seed, offset + i);
  say("ok");
}

static void do_check(void) {
  uint64_t offset = number(2, "offset"), length = number(3, "length"), seed = number(4, "seed");
  volatile uint8_t *p = range(region(number(1, "mr")), offset, length);
  for (uint64_t i = 0; i < length; i++) {
    uint8_t have = p[i], want = pattern_byte(seed, offset + i);
    if (have != want) {
      say("ok equal=0 at=%llu want=0x%02x have=0x%02x", (unsigned long long)(offset + i), want, have);
      return;
    }
  }
  say("ok equal=1");
}

static void do_hash(void) {
  uint64_t length = number(3, "length"), hash = 0xcbf29ce484222325u;
  volatile uint8_t *p = range(region(number(1, "mr")), number(2, "offset"), length);
  for (uint64_t i = 0; i < length; i++)
    hash = (hash ^ p[i]) * 0x100000001b3u;
  say("ok hash=%016llx", (unsigned long long)hash);
}

static void do_read(void) {
  uint64_t length = number(3, "length");
  if (length > MAX_READ)
    fail("at most %d bytes", MAX_READ);
  volatile uint8_t *p = range(region(number(1, "mr")), number(2, "offset"), length);
  say("ok data=");
  for (uint64_t i = 0; i < length; i++)
    say("%02x", p[i]);
}

static void do_write(void) {
  char *hex = word(3, "bytes");
  size_t length = strlen(hex) / 2;
  hex_bytes(hex, range(region(number(1, "mr")), number(2, "offset"), length), length, "bytes");
  say("ok");
}

static void do_cq(void) {
  struct queue *q = allocate(sizeof *q);
  if (flag("events")) {
    q->channel = ibv_create_comp_channel(device());
    if (!q->channel) {
      free(q);
      fail_errno("ibv_create_comp_channel", 0);
    }
    fcntl(q->channel->fd, F_SETFL, fcntl(q->channel->fd, F_GETFL) | O_NONBLOCK);
  }
  q->cq = ibv_create_cq(device(), (int)number(1, "entries"), 0, q->channel, 0);
  if (!q->cq) {
    int code = errno;
    if (q->channel)
      ibv_destroy_comp_channel(q->channel);
    free(q);
    fail_errno("ibv_create_cq", code);
  }
  say("ok cq=%u entries=%d", keep(&cqs, q), q->cq->cqe);
}

static void do_arm(void) {
  struct queue *q = held(&cqs, number(1, "cq"));
  int code = ibv_req_notify_cq(q->cq, flag("solicited"));
  if (code)
    fail_errno("ibv_req_notify_cq", code);
  say("ok");
}

static void do_event(void) {
  struct queue *q = held(&cqs, number(1, "cq"));
  if (!q->channel)
    fail("cq without events");
  struct pollfd p = {.fd = q->channel->fd, .events = POLLIN};
  if (poll(&p, 1, (int)number(2, "timeout")) <= 0) {
    say("ok fired=0");
    return;
  }
  struct ibv_cq *cq;
  void *unused;
  if (ibv_get_cq_event(q->channel, &cq, &unused))
    fail_errno("ibv_get_cq_event", 0);
  ibv_ack_cq_events(cq, 1);
  say("ok fired=1");
}

static void do_srq(void) {
  struct ibv_srq_init_attr a = {.attr = {.max_wr = (uint32_t)number(1, "max_wr"), .max_sge = (uint32_t)number(2, "max_sge")}};
  struct ibv_srq *srq = ibv_create_srq(domain(), &a);
  if (!srq)
    fail_errno("ibv_create_srq", 0);
  unsigned handle = keep(&srqs, srq);
  if (value("limit")) {
    struct ibv_srq_attr limit = {.srq_limit = (uint32_t)value_of("limit")};
    int code = ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT);
    if (code)
      fail_errno("ibv_modify_srq", code);
  }
  say("ok srq=%u max_wr=%u max_sge=%u", handle, a.attr.max_wr, a.attr.max_sge);
}

static void do_srq_limit(void) {
  struct ibv_srq_attr a = {.srq_limit = (uint32_t)number(2, "limit")};
  int code = ibv_modify_srq(held(&srqs, number(1, "srq")), &a, IBV_SRQ_LIMIT);
  if (code)
    fail_errno("ibv_modify_srq", code);
  say("ok");
}

static void do_srq_state(void) {
  struct ibv_srq_attr a = {0};
  int code = ibv_query_srq(held(&srqs, number(1, "srq")), &a);
  if (code)
    fail_errno("ibv_query_srq", code);
  say("ok max_wr=%u max_sge=%u limit=%u", a.max_wr, a.max_sge, a.srq_limit);
}

static void do_qp(void) {
  char *type = word(1, "type");
  struct ibv_qp_init_attr a = {.sq_sig_all = flag("sig_all"),
                               .cap = {.max_send_wr = (uint32_t)number(2, "send"),
                                       .max_recv_wr = (uint32_t)number(3, "recv"),
                                       .max_send_sge = (uint32_t)number(4, "sge"),
                                       .max_recv_sge = (uint32_t)number(4, "sge"),
                                       .max_inline_data = (uint32_t)number(5, "inline")}};
  if (!strcmp(type, "rc"))
    a.qp_type = IBV_QPT_RC;
  else if (!strcmp(type, "uc"))
    a.qp_type = IBV_QPT_UC;
  else if (!strcmp(type, "ud"))
    a.qp_type = IBV_QPT_UD;
  else
    fail("no type %s", type);
  uint64_t cq = value_or("cq", 0);
  a.send_cq = ((struct queue *)held(&cqs, cq))->cq;
  a.recv_cq = ((struct queue *)held(&cqs, value_or("rcq", cq)))->cq;
  if (value("srq"))
    a.srq = held(&srqs, value_of("srq"));
  struct ibv_qp *qp = ibv_create_qp(domain(), &a);
  if (!qp)
    fail_errno("ibv_create_qp", 0);
  say("ok qp=%u qpn=0x%x send=%u recv=%u sge=%u inline=%u", keep(&qps, qp), qp->qp_num, a.cap.max_send_wr, a.cap.max_recv_wr,
      a.cap.max_send_sge, a.cap.max_inline_data);
}

static const char *const state_names[] = {"reset", "init", "rtr", "rts", "sqd", "sqe", "err"};

static enum ibv_qp_state state_of(const char *name) {
  for (unsigned i = 0; i < sizeof state_names / sizeof *state_names; i++)
    if (!strcmp(state_names[i], name))
      return (enum ibv_qp_state)i;
  fail("no state %s", name);
}

static struct ibv_ah_attr address(const char *gid) {
  struct ibv_ah_attr a = {.is_global = 1,
                          .port_num = (uint8_t)value_or("port", 1),
                          .grh = {.sgid_index = (uint8_t)value_or("sgid", 1),
                                  .hop_limit = (uint8_t)value_or("hop", 64),
                                  .traffic_class = (uint8_t)value_or("tclass", 0),
                                  .flow_label = (uint32_t)value_or("flow", 0)}};
  hex_bytes(gid, a.grh.dgid.raw, 16, "gid");
  return a;
}

static enum ibv_mtu mtu_of(uint64_t bytes) {
  for (int mtu = IBV_MTU_256; mtu <= IBV_MTU_4096; mtu++)
    if (bytes == (uint64_t)128 << mtu)
      return (enum ibv_mtu)mtu;
  fail("no path MTU of %llu", (unsigned long long)bytes);
}

static void modify(struct ibv_qp *qp, struct ibv_qp_attr *a, int mask) {
  int code = ibv_modify_qp(qp, a, mask);
  if (code)
    fail_errno("ibv_modify_qp", code);
  say("ok");
}

static void do_init(void) {
  struct ibv_qp *qp = held(&qps, number(1, "qp"));
  struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .pkey_index = (uint16_t)value_or("pkey", 0), .port_num = (uint8_t)value_or("port", 1)};
  int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
  if (qp->qp_type == IBV_QPT_UD) {
    a.qkey = (uint32_t)value_or("qkey", 0x11111111);
    mask |= IBV_QP_QKEY;
  } else {
    a.qp_access_flags = value("access") ? (unsigned)access_of(value("access")) : 0;
    mask |= IBV_QP_ACCESS_FLAGS;
  }
  modify(qp, &a, mask);
}

static void do_rtr(void) {
  struct ibv_qp *qp = held(&qps, number(1, "qp"));
  struct ibv_qp_attr a = {.qp_state = IBV_QPS_RTR};
  int mask = IBV_QP_STATE;
  if (qp->qp_type != IBV_QPT_UD) {
    char *gid = value("gid");
    a.ah_attr = address(gid ? gid : "");
    a.path_mtu = mtu_of(value_of("mtu"));
    a.dest_qp_num = (uint32_t)value_of("dqpn");
    a.rq_psn = (uint32_t)value_of("psn");
    mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
  }
  if (qp->qp_type == IBV_QPT_RC) {
    a.max_dest_rd_atomic = (uint8_t)value_or("rd_atomic", 1);
    a.min_rnr_timer = (uint8_t)value_or("rnr_timer", 12);
    mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  }
  modify(qp, &a, mask);
}

static void do_rts(void) {
  struct ibv_qp *qp = held(&qps, number(1, "qp"));
  struct ibv_qp_attr a = {.qp_state = IBV_QPS_RTS, .sq_psn = (uint32_t)value_of("psn")};
  int mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
  if (qp->qp_type == IBV_QPT_RC) {
    /* 17 is 0.5 s: less gives spurious retransmissions on an emulated machine */
    a.timeout = (uint8_t)value_or("timeout", 17);
    a.retry_cnt = (uint8_t)value_or("retry", 7);
    a.rnr_retry = (uint8_t)value_or("rnr_retry", 7);
    a.max_rd_atomic = (uint8_t)value_or("rd_atomic", 1);
    mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
  }
  modify(qp, &a, mask);
}

static void do_modify(void) {
  struct ibv_qp *qp = held(&qps, number(1, "qp"));
  struct ibv_qp_attr a = {0};
  int mask = 0;
#define TAKE(name, bit, set) \
  if (value(name)) { \
    set; \
    mask |= bit; \
  }
  TAKE("state", IBV_QP_STATE, a.qp_state = state_of(value("state")))
  TAKE("cur_state", IBV_QP_CUR_STATE, a.cur_qp_state = state_of(value("cur_state")))
  TAKE("access", IBV_QP_ACCESS_FLAGS, a.qp_access_flags = (unsigned)access_of(value("access")))
  TAKE("qkey", IBV_QP_QKEY, a.qkey = (uint32_t)value_of("qkey"))
  TAKE("pkey", IBV_QP_PKEY_INDEX, a.pkey_index = (uint16_t)value_of("pkey"))
  TAKE("port", IBV_QP_PORT, a.port_num = (uint8_t)value_of("port"))
  TAKE("gid", IBV_QP_AV, a.ah_attr = address(value("gid")))
  TAKE("mtu", IBV_QP_PATH_MTU, a.path_mtu = mtu_of(value_of("mtu")))
  TAKE("dqpn", IBV_QP_DEST_QPN, a.dest_qp_num = (uint32_t)value_of("dqpn"))
  TAKE("rq_psn", IBV_QP_RQ_PSN, a.rq_psn = (uint32_t)value_of("rq_psn"))
  TAKE("sq_psn", IBV_QP_SQ_PSN, a.sq_psn = (uint32_t)value_of("sq_psn"))
  TAKE("dest_rd_atomic", IBV_QP_MAX_DEST_RD_ATOMIC, a.max_dest_rd_atomic = (uint8_t)value_of("dest_rd_atomic"))
  TAKE("max_rd_atomic", IBV_QP_MAX_QP_RD_ATOMIC, a.max_rd_atomic = (uint8_t)value_of("max_rd_atomic"))
  TAKE("rnr_timer", IBV_QP_MIN_RNR_TIMER, a.min_rnr_timer = (uint8_t)value_of("rnr_timer"))
  TAKE("timeout", IBV_QP_TIMEOUT, a.timeout = (uint8_t)value_of("timeout"))
  TAKE("retry", IBV_QP_RETRY_CNT, a.retry_cnt = (uint8_t)value_of("retry"))
  TAKE("rnr_retry", IBV_QP_RNR_RETRY, a.rnr_retry = (uint8_t)value_of("rnr_retry"))
  TAKE("sqd_notify", IBV_QP_EN_SQD_ASYNC_NOTIFY, a.en_sqd_async_notify = (uint8_t)value_of("sqd_notify"))
  TAKE("mig_state", IBV_QP_PATH_MIG_STATE, a.path_mig_state = (enum ibv_mig_state)value_of("mig_state"))
  TAKE("cap_send", IBV_QP_CAP, a.cap.max_send_wr = (uint32_t)value_of("cap_send"))
  TAKE("alt", IBV_QP_ALT_PATH, (a.alt_ah_attr = address(value("alt")), a.alt_port_num = 1))
  TAKE("rate_limit", IBV_QP_RATE_LIMIT, a.rate_limit = (uint32_t)value_of("rate_limit"))
#undef TAKE
  mask = (int)value_or("mask", (uint64_t)mask);
  modify(qp, &a, mask);
}

static void do_qp_state(void) {
  struct ibv_qp *qp = held(&qps, number(1, "qp"));
  struct ibv_qp_attr a = {0};
  struct ibv_qp_init_attr init;
  int mask = IBV_QP_STATE | IBV_QP_CUR_STATE | IBV_QP_RQ_PSN | IBV_QP_SQ_PSN | IBV_QP_DEST_QPN | IBV_QP_PATH_MTU | IBV_QP_TIMEOUT |
             IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER |
             IBV_QP_ACCESS_FLAGS | IBV_QP_QKEY | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_AV | IBV_QP_CAP | IBV_QP_PATH_MIG_STATE;
  int code = ibv_query_qp(qp, &a, mask, &init);
  if (code)
    fail_errno("ibv_query_qp", code);
  unsigned state = (unsigned)a.qp_state;
  say("ok state=%s rq_psn=0x%x sq_psn=0x%x dqpn=0x%x mtu=%d timeout=%u retry=%u rnr_retry=%u max_rd_atomic=%u dest_rd_atomic=%u "
      "rnr_timer=%u access=0x%x qkey=0x%x pkey=%u port=%u mig_state=%d draining=%u send=%u recv=%u sge=%u inline=%u sgid=%u hop=%u "
      "tclass=%u gid=",
      state < sizeof state_names / sizeof *state_names ? state_names[state] : "unknown", a.rq_psn, a.sq_psn, a.dest_qp_num,
      128 << a.path_mtu, a.timeout, a.retry_cnt, a.rnr_retry, a.max_rd_atomic, a.max_dest_rd_atomic, a.min_rnr_timer,
      a.qp_access_flags, a.qkey, a.pkey_index, a.port_num, a.path_mig_state, a.sq_draining, a.cap.max_send_wr, a.cap.max_recv_wr,
      a.cap.max_send_sge, a.cap.max_inline_data, a.ah_attr.grh.sgid_index, a.ah_attr.grh.hop_limit, a.ah_attr.grh.traffic_class);
  for (int i = 0; i < 16; i++)
    say("%02x", a.ah_attr.grh.dgid.raw[i]);
}

static void do_ah(void) {
  struct ibv_ah_attr a = address(word(1, "gid"));
  struct ibv_ah *ah = ibv_create_ah(domain(), &a);
  if (!ah)
    fail_errno("ibv_create_ah", 0);
  say("ok ah=%u", keep(&ahs, ah));
}

/* The sge=MR:OFF:LEN[:LKEY] arguments. They may lie outside their region (the device is to refuse that), unless it is our
 * library that reads the memory. */
static int gather(struct ibv_sge *list, bool must_be_there) {
  int count = 0;
  for (int i = 0; i < named_count; i++) {
    if (strncmp(named[i], "sge=", 4))
      continue;
    if (count == MAX_SGE)
      fail("more than %d sge", MAX_SGE);
    char copy[128], *part[4] = {0}, *rest;
    int parts = 0;
    snprintf(copy, sizeof copy, "%s", named[i] + 4);
    for (char *p = strtok_r(copy, ":", &rest); p && parts < 4; p = strtok_r(0, ":", &rest))
      part[parts++] = p;
    if (parts < 3)
      fail("%s: MR:OFF:LEN is wanted", named[i]);
    struct region *r = region(number_of(part[0], "mr"));
    uint64_t offset = number_of(part[1], "offset"), length = number_of(part[2], "length");
    if (must_be_there)
      range(r, offset, length);
    if (parts == 3 && !r->mr)
      fail("not registered: give an lkey");
    uint32_t lkey = parts == 4 ? (uint32_t)number_of(part[3], "lkey") : r->mr->lkey;
    list[count++] = (struct ibv_sge){.addr = (uintptr_t)r->memory + offset, .length = (uint32_t)length, .lkey = lkey};
  }
  return count;
}

static void advance(struct ibv_sge *list, int count, uint64_t stride) {
  for (int i = 0; i < count; i++)
    list[i].addr += stride;
}

static void do_post_send(void) {
  static const struct {
    const char *name;
    enum ibv_wr_opcode opcode;
  } operations[] = {{"send", IBV_WR_SEND},
                    {"send_imm", IBV_WR_SEND_WITH_IMM},
                    {"send_inv", IBV_WR_SEND_WITH_INV},
                    {"write", IBV_WR_RDMA_WRITE},
                    {"write_imm", IBV_WR_RDMA_WRITE_WITH_IMM},
                    {"read", IBV_WR_RDMA_READ},
                    {"cas", IBV_WR_ATOMIC_CMP_AND_SWP},
                    {"fadd", IBV_WR_ATOMIC_FETCH_AND_ADD},
                    {"bind_mw", IBV_WR_BIND_MW},
                    {"local_inv", IBV_WR_LOCAL_INV},
                    {"tso", IBV_WR_TSO},
                    {"driver1", IBV_WR_DRIVER1}};
  struct ibv_qp *qp = held(&qps, number(1, "qp"));
  char *name = word(2, "operation");
  unsigned k = 0;
  while (k < sizeof operations / sizeof *operations && strcmp(operations[k].name, name))
    k++;
  if (k == sizeof operations / sizeof *operations)
    fail("no operation %s", name);
  enum ibv_wr_opcode opcode = operations[k].opcode;
  uint64_t count = value_or("count", 1), stride = value_or("stride", 0), remote_stride = value_or("rstride", 0);
  if (flag("inline") && count > 1 && stride)
    fail("inline with a stride");
  struct ibv_sge list[MAX_SGE];
  struct ibv_send_wr wr = {.wr_id = value_or("wr_id", 0), .sg_list = list, .opcode = opcode}, *bad;
  wr.num_sge = gather(list, flag("inline"));
  wr.send_flags = (flag("signaled") ? IBV_SEND_SIGNALED : 0) | (flag("solicited") ? IBV_SEND_SOLICITED : 0) |
                  (flag("fence") ? IBV_SEND_FENCE : 0) | (flag("inline") ? IBV_SEND_INLINE : 0) |
                  (flag("ip_csum") ? IBV_SEND_IP_CSUM : 0);
  if (opcode == IBV_WR_SEND_WITH_IMM || opcode == IBV_WR_RDMA_WRITE_WITH_IMM)
    wr.imm_data = htonl((uint32_t)value_of("imm"));
  if (opcode == IBV_WR_SEND_WITH_INV || opcode == IBV_WR_LOCAL_INV)
    wr.invalidate_rkey = (uint32_t)value_of("inv");
  struct window *window = 0;
  if (opcode == IBV_WR_BIND_MW) {
    window = held(&mws, value_of("mw"));
    struct region *r = region(value_of("mr"));
    if (!value("access"))
      fail("bind_mw: access= is missing");
    wr.bind_mw.mw = window->mw;
    wr.bind_mw.rkey = (uint32_t)value_or("new_rkey", ibv_inc_rkey(window->rkey));
    wr.bind_mw.bind_info = (struct ibv_mw_bind_info){.mr = r->mr,
                                                     .addr = (uintptr_t)r->memory + value_of("off"),
                                                     .length = value_of("len"),
                                                     .mw_access_flags = (unsigned)access_of(value("access"))};
    if (!r->mr)
      fail("not registered");
  } else if (qp->qp_type == IBV_QPT_UD) {
    wr.wr.ud.ah = held(&ahs, value_of("ah"));
    wr.wr.ud.remote_qpn = (uint32_t)value_of("qpn");
    wr.wr.ud.remote_qkey = (uint32_t)value_or("qkey", 0x11111111);
  } else if (opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
    bool swap = opcode == IBV_WR_ATOMIC_CMP_AND_SWP;
    wr.wr.atomic.remote_addr = value_of("addr");
    wr.wr.atomic.rkey = (uint32_t)value_of("rkey");
    wr.wr.atomic.compare_add = value_of(swap ? "compare" : "add");
    wr.wr.atomic.swap = swap ? value_of("swap") : 0;
  } else if (opcode == IBV_WR_RDMA_WRITE || opcode == IBV_WR_RDMA_WRITE_WITH_IMM || opcode == IBV_WR_RDMA_READ) {
    wr.wr.rdma.remote_addr = value_of("addr");
    wr.wr.rdma.rkey = (uint32_t)value_of("rkey");
  }
  for (uint64_t i = 0; i < count; i++) {
    int code = ibv_post_send(qp, &wr, &bad);
    if (code)
      fail("ibv_post_send number %llu: %s errno=%d", (unsigned long long)i, strerror(code > 0 ? code : errno), code > 0 ? code : errno);
    wr.wr_id++;
    advance(list, wr.num_sge, stride);
    if (opcode == IBV_WR_RDMA_WRITE || opcode == IBV_WR_RDMA_WRITE_WITH_IMM || opcode == IBV_WR_RDMA_READ)
      wr.wr.rdma.remote_addr += remote_stride;
    else if (opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
      wr.wr.atomic.remote_addr += remote_stride;
  }
  say("ok");
  if (window) {
    window->rkey = wr.bind_mw.rkey;
    say(" rkey=0x%x", window->rkey);
  }
}

static void post_receives(struct ibv_qp *qp, struct ibv_srq *srq) {
  uint64_t count = value_or("count", 1), stride = value_or("stride", 0);
  struct ibv_sge list[MAX_SGE];
  struct ibv_recv_wr wr = {.wr_id = value_or("wr_id", 0), .sg_list = list}, *bad;
  wr.num_sge = gather(list, false);
  for (uint64_t i = 0; i < count; i++) {
    int code = srq ? ibv_post_srq_recv(srq, &wr, &bad) : ibv_post_recv(qp, &wr, &bad);
    if (code)
      fail("ibv_post_recv number %llu: %s errno=%d", (unsigned long long)i, strerror(code > 0 ? code : errno), code > 0 ? code : errno);
    wr.wr_id++;
    advance(list, wr.num_sge, stride);
  }
  say("ok");
}

static void do_post_recv(void) { post_receives(held(&qps, number(1, "qp")), 0); }
static void do_post_srq_recv(void) { post_receives(0, held(&srqs, number(1, "srq"))); }

static void do_poll(void) {
  struct queue *q = held(&cqs, number(1, "cq"));
  uint64_t wanted = number(2, "count"), got = 0;
  double until = seconds() + (double)number(3, "timeout") / 1000;
  struct ibv_wc *all = 0;
  uint64_t room = 0;
  int code = 0;
  while (got < wanted) {
    struct ibv_wc wc;
    code = ibv_poll_cq(q->cq, 1, &wc);
    if (code < 0)
      break;
    if (code > 0) {
      if (got == room) {
        room = room * 2 + 64;
        all = realloc(all, room * sizeof *all);
        if (!all)
          abort();
      }
      all[got++] = wc;
      continue;
    }
    if (seconds() >= until)
      break;
    sched_yield();
  }
  say("ok n=%llu", (unsigned long long)got);
  for (uint64_t i = 0; i < got; i++) {
    struct ibv_wc *w = &all[i];
    bool good = w->status == IBV_WC_SUCCESS;
    bool receive = good && w->opcode & IBV_WC_RECV;
    uint32_t extra = !receive ? 0 : w->wc_flags & IBV_WC_WITH_IMM ? ntohl(w->imm_data) : w->invalidated_rkey;
    /* Of a failed one only wr_id, status, vendor_err and the QPN mean anything. */
    say(" wc=%llu,%d,%d,%u,0x%x,0x%x,0x%x,0x%x,0x%x", (unsigned long long)w->wr_id, w->status, good ? (int)w->opcode : 0,
        good ? w->byte_len : 0, good ? w->wc_flags : 0, extra, good ? w->src_qp : 0, w->vendor_err, w->qp_num);
  }
  free(all);
  if (code < 0)
    fail_errno("ibv_poll_cq", code);
}

static void do_mw(void) {
  uint64_t type = number(1, "type");
  if (type != 1 && type != 2)
    fail("type 1 or 2");
  struct window *w = allocate(sizeof *w);
  w->mw = ibv_alloc_mw(domain(), type == 1 ? IBV_MW_TYPE_1 : IBV_MW_TYPE_2);
  if (!w->mw) {
    int code = errno;
    free(w);
    fail_errno("ibv_alloc_mw", code);
  }
  w->rkey = w->mw->rkey;
  say("ok mw=%u rkey=0x%x", keep(&mws, w), w->rkey);
}

static void do_bind(void) {
  struct ibv_qp *qp = held(&qps, number(1, "qp"));
  struct window *w = held(&mws, number(2, "mw"));
  struct region *r = region(value_of("mr"));
  if (!r->mr)
    fail("not registered");
  if (!value("access"))
    fail("bind: access= is missing");
  struct ibv_mw_bind bind = {.wr_id = value_or("wr_id", 0),
                             .send_flags = IBV_SEND_SIGNALED,
                             .bind_info = {.mr = r->mr,
                                           .addr = (uintptr_t)r->memory + value_of("off"),
                                           .length = value_of("len"),
                                           .mw_access_flags = (unsigned)access_of(value("access"))}};
  int code = ibv_bind_mw(qp, w->mw, &bind);
  if (code)
    fail_errno("ibv_bind_mw", code);
  w->rkey = w->mw->rkey;
  say("ok rkey=0x%x", w->rkey);
}

static void do_async(void) {
  struct pollfd p = {.fd = device()->async_fd, .events = POLLIN};
  if (poll(&p, 1, (int)number(1, "timeout")) <= 0) {
    say("ok event=none");
    return;
  }
  struct ibv_async_event event;
  if (ibv_get_async_event(device(), &event))
    fail_errno("ibv_get_async_event", 0);
  ibv_ack_async_event(&event);
  say("ok event=%d name=", event.event_type);
  for (const char *c = ibv_event_type_str(event.event_type); *c; c++)
    say("%c", *c == ' ' ? '_' : *c);
}

static void do_destroy(void) {
  char *kind = word(1, "kind");
  uint64_t handle = number(2, "handle");
  struct table *const tables[] = {&pds, &mrs, &cqs, &srqs, &qps, &ahs, &mws, 0};
  struct table *table = 0;
  for (int i = 0; tables[i]; i++)
    if (!strcmp(tables[i]->kind, kind))
      table = tables[i];
  if (!table)
    fail("no kind %s", kind);
  void *object = held(table, handle);
  int code = 0;
  if (table == &pds) {
    code = ibv_dealloc_pd(object);
  } else if (table == &mrs) {
    struct region *r = object;
    code = r->mr ? ibv_dereg_mr(r->mr) : 0;
    /* the memory stays where another registration may share it: `of=` */
    if (!code)
      r->mr = 0;
  } else if (table == &cqs) {
    struct queue *q = object;
    code = ibv_destroy_cq(q->cq);
    if (!code && q->channel)
      ibv_destroy_comp_channel(q->channel);
  } else if (table == &srqs) {
    code = ibv_destroy_srq(object);
  } else if (table == &qps) {
    code = ibv_destroy_qp(object);
  } else if (table == &ahs) {
    code = ibv_destroy_ah(object);
  } else {
    code = ibv_dealloc_mw(((struct window *)object)->mw);
  }
  if (code)
    fail_errno("destroy", code);
  table->slots[handle] = 0;
  say("ok");
}

static void do_sleep(void) {
  usleep((useconds_t)(number(1, "ms") * 1000));
  say("ok");
}

static const struct {
  const char *verb;
  void (*run)(void);
} commands[] = {{"hello", do_hello},
                {"devices", do_devices},
                {"device", do_device},
                {"port", do_port},
                {"gid", do_gid},
                {"pd", do_pd},
                {"mr", do_mr},
                {"dereg", do_dereg},
                {"fill", do_fill},
                {"check", do_check},
                {"hash", do_hash},
                {"read", do_read},
                {"write", do_write},
                {"cq", do_cq},
                {"arm", do_arm},
                {"event", do_event},
                {"srq", do_srq},
                {"srq_limit", do_srq_limit},
                {"srq_state", do_srq_state},
                {"qp", do_qp},
                {"init", do_init},
                {"rtr", do_rtr},
                {"rts", do_rts},
                {"modify", do_modify},
                {"qp_state", do_qp_state},
                {"ah", do_ah},
                {"post_send", do_post_send},
                {"post_recv", do_post_recv},
                {"post_srq_recv", do_post_srq_recv},
                {"poll", do_poll},
                {"mw", do_mw},
                {"bind", do_bind},
                {"async", do_async},
                {"destroy", do_destroy},
                {"sleep", do_sleep}};

/* Runs one command; its answer is in `answer`. */
static void obey(char *line) {
  answer_length = 0;
  if (setjmp(out_of_command))
    return;
  split(line);
  if (!word_count)
    fail("an empty line");
  for (unsigned i = 0; i < sizeof commands / sizeof *commands; i++)
    if (!strcmp(commands[i].verb, words[0])) {
      commands[i].run();
      return;
    }
  fail("no command %s", words[0]);
}

static void serve(FILE *in, FILE *out) {
  char *line = 0;
  size_t room = 0;
  while (getline(&line, &room, in) > 0) {
    line[strcspn(line, "\r\n")] = 0;
    if (!strcmp(line, "quit"))
      break;
    obey(line);
    fwrite(answer, 1, answer_length, out);
    fputc('\n', out);
    if (fflush(out))
      break;
  }
  free(line);
}

static void serve_socket(int fd) {
  int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  FILE *in = fdopen(fd, "r"), *out = fdopen(dup(fd), "w");
  if (in && out)
    serve(in, out);
}

static int serve_port(const char *port) {
  signal(SIGCHLD, SIG_IGN); /* nobody asks how a session ended */
  int listener = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1, zero = 0;
  struct sockaddr_in6 any6 = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)atoi(port))};
  struct sockaddr_in any4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
  struct sockaddr *address = (struct sockaddr *)&any6;
  socklen_t size = sizeof any6;
  if (listener < 0) { /* a host without IPv6 */
    listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    address = (struct sockaddr *)&any4;
    size = sizeof any4;
  } else {
    setsockopt(listener, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero);
  }
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  if (bind(listener, address, size) || listen(listener, 16)) {
    perror("verbs-agent: listen");
    return 1;
  }
  printf("listening on port %s\n", port);
  fflush(stdout);
  for (;;) {
    int fd = accept(listener, 0, 0);
    if (fd < 0)
      continue;
    if (fork() == 0) {
      close(listener);
      serve_socket(fd);
      exit(0);
    }
    close(fd);
  }
}

static int serve_peer(char *peer) {
  char *colon = strrchr(peer, ':');
  if (!colon)
    return 2;
  *colon = 0;
  struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list;
  if (getaddrinfo(peer, colon + 1, &hints, &list))
    return 1;
  int fd = socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (connect(fd, list->ai_addr, list->ai_addrlen)) {
    perror("verbs-agent: connect");
    return 1;
  }
  freeaddrinfo(list);
  serve_socket(fd);
  return 0;
}

int main(int count, char **arguments) {
  char *port = 0, *peer = 0;
  bool standard = false;
  for (int c; (c = getopt(count, arguments, "l:c:d:s")) != -1;) {
    if (c == 'l')
      port = optarg;
    else if (c == 'c')
      peer = optarg;
    else if (c == 'd')
      wanted_device = optarg;
    else if (c == 's')
      standard = true;
    else
      return 2;
  }
  signal(SIGPIPE, SIG_IGN);
  if (port)
    return serve_port(port);
  if (peer)
    return serve_peer(peer);
  if (!standard) {
    fprintf(stderr, "usage: verbs-agent -l PORT | -c HOST:PORT | -s  [-d DEVICE]\n");
    return 2;
  }
  serve(stdin, stdout);
  return 0;
}
