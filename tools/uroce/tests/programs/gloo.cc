/* Sums over gloo's transport for verbs, between two ranks: gloo RANK DEVICE FOLDER. Every element is compared. */
#include <gloo/allreduce_ring.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/ibverbs/device.h>
#include <cstdio>
#include <cstdlib>
#include <unistd.h>

/* Each takes two of gloo's eight slots. */
static const int ROUNDS = 3;

/* `run` ends when the peer's last message is here. Its own last one may still be on its way then, and the destructor aborts
   when it is: what has arrived says nothing of what was sent. */
struct Ring : gloo::AllreduceRing<int> {
    using gloo::AllreduceRing<int>::AllreduceRing;

    void finish()
    {
        sendNotificationBuf_->waitSend();
    }
};

static int wrong(const std::shared_ptr<gloo::Context> &context, int rank)
{
    std::vector<int> data(100000);
    for (size_t i = 0; i < data.size(); i++)
        data[i] = i * (rank + 1);
    std::vector<int *> parts = {data.data()};
    Ring ring(context, parts, data.size());
    ring.run();
    ring.finish();
    int count = 0;
    for (size_t i = 0; i < data.size(); i++)
        count += data[i] != int(i) * 3;
    return count;
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    int rank = atoi(argv[1]);
    gloo::transport::ibverbs::attr attributes;
    attributes.name = argv[2];
    attributes.port = 1;
    attributes.index = 1;
    /* Neither is destroyed: the destructor of a connection does not wait for the device's thread, which may be at work on it. */
    auto &device = *new std::shared_ptr<gloo::transport::Device>(gloo::transport::ibverbs::CreateDevice(attributes));
    auto &context = *new std::shared_ptr<gloo::rendezvous::Context>(new gloo::rendezvous::Context(rank, 2));
    gloo::rendezvous::FileStore store(argv[3]);
    context->connectFullMesh(store, device);
    for (int round = 0; round < ROUNDS; round++) {
        if (int count = wrong(context, rank)) {
            fprintf(stderr, "round %d: %d elements are wrong\n", round, count);
            return 1;
        }
    }
    /* What the peer sent last is acknowledged before this end goes. */
    usleep(100000);
    printf("%d rounds checked\n", ROUNDS);
    return 0;
}
