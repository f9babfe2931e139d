/* NCCL's network for verbs, without a GPU: "nccl LIBRARY PORT [HOST]". Finds the table of its functions (ncclNet_t of
   versions 11 and 12) in libnccl.so.2, and sends messages of memory in both directions at once; every byte is compared. The
   two ends find each other by TCP, where they exchange what the network's listen() gives them. */
#define _GNU_SOURCE
#include "check.h"
#include <dlfcn.h>
#include <link.h>
#include <stdarg.h>
#include <sys/socket.h>
#include <time.h>

enum { ROUNDS = 8, BYTES = 4 << 20, AT_ONCE = 4, HANDLE = 1024, HOST_MEMORY = 1, SECONDS = 60 };

typedef void logger(int level, unsigned long flags, const char *file, int line, const char *format, ...);

struct net {
    const char *name;
    int (*init)(void **ctx, uint64_t id, int *traffic_class, logger *log, void *profiler);
    int (*devices)(int *count);
    int (*properties)(int device, void *properties);
    int (*listen)(void *ctx, int device, void *handle, void **listener);
    int (*connect)(void *ctx, int device, void *handle, void **sender, void **offload);
    int (*accept)(void *listener, void **receiver, void **offload);
    int (*reg)(void *comm, void *data, size_t bytes, int type, void **key);
    void *reg_dmabuf;
    int (*dereg)(void *comm, void *key);
    int (*isend)(void *sender, void *data, size_t bytes, int tag, void *key, void *profiled, void **request);
    int (*irecv)(void *receiver, int count, void **data, size_t *bytes, int *tags, void **keys, void **profiled, void **request);
    void *iflush;
    int (*test)(void *request, int *done, int *bytes);
    int (*close_send)(void *sender);
    int (*close_recv)(void *receiver);
    int (*close_listen)(void *listener);
};

/* Warnings are level 2. */
static void say(int level, unsigned long flags, const char *file, int line, const char *format, ...)
{
    va_list arguments;
    if (level > 2)
        return;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
}

static int profile(void)
{
    return 0;
}

struct segment {
    uintptr_t begin, end;
};

static int is_in(uintptr_t at, struct segment segment)
{
    return at >= segment.begin && at < segment.end;
}

/* The table begins with the name "IB", and all that we call leads into the library's code. */
static int find_table(struct dl_phdr_info *info, size_t size, void *found)
{
    struct segment code = { 0 }, data = { 0 };
    if (!strstr(info->dlpi_name, "libnccl.so"))
        return 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *header = &info->dlpi_phdr[i];
        struct segment this = { info->dlpi_addr + header->p_vaddr, info->dlpi_addr + header->p_vaddr + header->p_memsz };
        if (header->p_type == PT_LOAD && header->p_flags & PF_X)
            code = this;
        else if (header->p_type == PT_LOAD && header->p_flags & PF_W)
            data = this;
    }
    size_t words = sizeof(struct net) / sizeof(uintptr_t);
    for (uintptr_t at = data.begin; at + sizeof(struct net) <= data.end; at += sizeof(uintptr_t)) {
        const uintptr_t *word = (const uintptr_t *)at;
        if (!is_in(word[0], code) || memcmp((const char *)word[0], "IB", 3) != 0)
            continue;
        size_t functions = 1;
        while (functions < words && is_in(word[functions], code))
            functions++;
        if (functions == words) {
            *(const struct net **)found = (const struct net *)at;
            return 1;
        }
    }
    return 0;
}

static int meet(int port, const char *host)
{
    int on = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(port) };
    if (host) {
        CHECK(inet_pton(AF_INET, host, &address.sin_addr) == 1);
        CHECK(connect(listener, (struct sockaddr *)&address, sizeof address) == 0);
        return listener;
    }
    CHECK(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
    CHECK(bind(listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(listener, 1) == 0);
    int peer = accept(listener, NULL, NULL);
    CHECK(peer >= 0);
    close(listener);
    return peer;
}

static void exchange(int peer, const void *ours, void *theirs, size_t bytes)
{
    CHECK(write(peer, ours, bytes) == (ssize_t)bytes && recv(peer, theirs, bytes, MSG_WAITALL) == (ssize_t)bytes);
}

/* Bytes that differ from end to end, message to message and word to word. */
static uint32_t word_of(int end, int message, size_t index)
{
    uint32_t word = (uint32_t)index * 2654435761u ^ (uint32_t)message << 8 ^ (uint32_t)end << 31;
    return word ^ word >> 15;
}

static void play(const struct net *net, void *sender, void *receiver, int end)
{
    static uint32_t out[AT_ONCE][BYTES / 4], in[AT_ONCE][BYTES / 4];
    void *out_key, *in_key;
    CHECK(net->reg(sender, out, sizeof out, HOST_MEMORY, &out_key) == 0);
    CHECK(net->reg(receiver, in, sizeof in, HOST_MEMORY, &in_key) == 0);
    for (int round = 0; round < ROUNDS; round++) {
        void *requests[2][AT_ONCE] = { { 0 } };
        int done[2][AT_ONCE] = { { 0 } }, left = 2 * AT_ONCE;
        memset(in, 0, sizeof in);
        for (int at = 0; at < AT_ONCE; at++)
            for (size_t i = 0; i < BYTES / 4; i++)
                out[at][i] = word_of(end, round * AT_ONCE + at, i);
        time_t until = time(NULL) + SECONDS;
        while (left > 0) {
            CHECK(time(NULL) < until);
            for (int at = 0; at < AT_ONCE; at++) {
                void *data = in[at];
                size_t bytes = BYTES;
                int tag = at, size;
                if (!requests[0][at])
                    CHECK(net->irecv(receiver, 1, &data, &bytes, &tag, &in_key, NULL, &requests[0][at]) == 0);
                if (!requests[1][at])
                    CHECK(net->isend(sender, out[at], BYTES, tag, out_key, NULL, &requests[1][at]) == 0);
                for (int way = 0; way < 2; way++) {
                    if (requests[way][at] && !done[way][at]) {
                        CHECK(net->test(requests[way][at], &done[way][at], &size) == 0);
                        CHECK(!done[way][at] || size == BYTES);
                        left -= done[way][at];
                    }
                }
            }
        }
        for (int at = 0; at < AT_ONCE; at++)
            for (size_t i = 0; i < BYTES / 4; i++)
                CHECK(in[at][i] == word_of(!end, round * AT_ONCE + at, i));
    }
    CHECK(net->dereg(sender, out_key) == 0 && net->dereg(receiver, in_key) == 0);
}

int main(int count, char **words)
{
    const struct net *net = NULL;
    char handle[HANDLE] = { 0 }, theirs[HANDLE];
    void *ctx = NULL, *listener = NULL, *sender = NULL, *receiver = NULL, *offload[2] = { 0 };
    int devices = 0, traffic_class = -1;
    CHECK(count >= 3);
    if (!dlopen(words[1], RTLD_NOW)) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    CHECK(dl_iterate_phdr(find_table, &net) == 1 && net);
    CHECK(net->init(&ctx, 1, &traffic_class, say, profile) == 0);
    CHECK(net->devices(&devices) == 0 && devices == 1);
    CHECK(net->listen(ctx, 0, handle, &listener) == 0);
    int peer = meet(atoi(words[2]), words[3]);
    exchange(peer, handle, theirs, HANDLE);
    time_t until = time(NULL) + SECONDS;
    while (!sender || !receiver) {
        CHECK(time(NULL) < until);
        if (!sender)
            CHECK(net->connect(ctx, 0, theirs, &sender, &offload[0]) == 0);
        if (!receiver)
            CHECK(net->accept(listener, &receiver, &offload[1]) == 0);
    }
    play(net, sender, receiver, words[3] != NULL);
    /* Both have all, before one of them goes. */
    exchange(peer, "end", theirs, 4);
    CHECK(net->close_send(sender) == 0 && net->close_recv(receiver) == 0 && net->close_listen(listener) == 0);
    puts("all bytes compared");
    return 0;
}
