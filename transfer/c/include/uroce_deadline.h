/* Deadline mode of uroce-transfer, for C: blocks of an object, of which the receiver has by a deadline what arrived, and
 * exactly what did not. docs/EXTENSIONS.md has every bit on the wire.
 *
 * Both ends are state machines without clock, thread or socket. Their owner hands them datagrams and the time, and sends
 * what they write, as SENDs of unreliable datagram queue pairs. Times are nanoseconds of any clock that never goes back.
 * An object is used by one thread at a time.
 */
#ifndef UROCE_DEADLINE_H
#define UROCE_DEADLINE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* No time at which anything is to be done. */
#define UROCE_DEADLINE_NEVER UINT64_MAX

typedef struct uroce_deadline_sender uroce_deadline_sender;
typedef struct uroce_deadline_receiver uroce_deadline_receiver;
typedef struct uroce_deadline_history uroce_deadline_history;

/* Blocks one after the other. */
struct uroce_deadline_run {
    uint32_t first;
    uint32_t count; /* at least 1 */
};

/* What a receiver asks for. */
struct uroce_deadline_request {
    uint64_t object;           /* its name */
    uint64_t version;          /* the version that is wanted; another one is of no use */
    uint64_t bytes;            /* length of the object */
    uint32_t block_bytes;      /* length of every block but the last */
    uint16_t symbol_bytes;     /* a multiple of 64, at most 4032: a datagram has 40 bytes beside it */
    uint16_t repair_per_mille; /* repair symbols for a thousand symbols of a block, rounded down; at most 1000 */
    uint64_t deadline_ns;      /* when the receiver stops */
    uint64_t patience_ns;      /* it fails when nothing is heard for so long; 0 for a second */
    const struct uroce_deadline_run *runs; /* the blocks that are wanted, the most important first; NULL for all */
    size_t run_count;
};

/* How a transfer has ended. */
enum uroce_deadline_end {
    UROCE_DEADLINE_GOES_ON = 0,
    UROCE_DEADLINE_COMPLETE = 1,  /* all wanted blocks are whole */
    UROCE_DEADLINE_PASSED = 2,    /* the deadline has passed, and blocks are missing */
    UROCE_DEADLINE_CANCELLED = 3,
    UROCE_DEADLINE_FAILED = 4,    /* it cannot go on: blocks that are whole stay so */
};

/* Begins a transfer. `id` is drawn at random: who does not see the datagrams must not guess it. NULL when the request asks
 * for what cannot be: `error` then says why, cut to `error_bytes` with its zero. */
uroce_deadline_receiver *uroce_deadline_receiver_new(uint64_t id, const struct uroce_deadline_request *request,
                                                     uint64_t now_ns, char *error, size_t error_bytes);
void uroce_deadline_receiver_free(uroce_deadline_receiver *receiver);

/* Takes a datagram that has arrived. Whatever it holds, no block becomes whole that is not. */
void uroce_deadline_receiver_handle_datagram(uroce_deadline_receiver *receiver, uint64_t now_ns, const void *datagram,
                                             size_t bytes);
/* Writes the next datagram that is to be sent now; returns its length, and 0 when there is none. The buffer has at least
 * 1024 bytes. */
size_t uroce_deadline_receiver_poll_transmit(uroce_deadline_receiver *receiver, uint64_t now_ns, void *into,
                                             size_t bytes);
/* When handle_timeout or poll_transmit has something to do, if nothing arrives before. */
uint64_t uroce_deadline_receiver_poll_timeout(const uroce_deadline_receiver *receiver);
void uroce_deadline_receiver_handle_timeout(uroce_deadline_receiver *receiver, uint64_t now_ns);

/* How the transfer has ended; of one that has failed `error` says why. */
enum uroce_deadline_end uroce_deadline_receiver_end(const uroce_deadline_receiver *receiver, char *error,
                                                    size_t error_bytes);
/* The bytes of a block that is whole, until the receiver is freed; NULL for all others. */
const void *uroce_deadline_receiver_block(const uroce_deadline_receiver *receiver, uint32_t block, size_t *bytes);
/* The next block that has become whole, each once: returns 1 and its number, or 0. */
int uroce_deadline_receiver_poll_block(uroce_deadline_receiver *receiver, uint32_t *block);
/* The bitmap of whole blocks: block 64 i + j is bit j of word i. It holds until the receiver is used next. */
const uint64_t *uroce_deadline_receiver_whole(const uroce_deadline_receiver *receiver, uint32_t *blocks);
/* The blocks that were asked for and are not whole, the most important first, as many runs as there is room for; returns how
 * many there are. A further request asks for them. */
size_t uroce_deadline_receiver_missing(const uroce_deadline_receiver *receiver, struct uroce_deadline_run *runs,
                                       size_t run_count);
/* Moves the deadline. Returns 0, or -1 when the transfer has ended or the deadline is not in the future. */
int uroce_deadline_receiver_set_deadline(uroce_deadline_receiver *receiver, uint64_t deadline_ns, uint64_t now_ns);
/* Ends the transfer: blocks that are whole stay so. */
void uroce_deadline_receiver_cancel(uroce_deadline_receiver *receiver);

/* What earlier requests to a peer took, and by it the deadline for the next one. Of requests with such deadlines so many of
 * a thousand are to be whole: 1 to 999; NULL for other numbers. */
uroce_deadline_history *uroce_deadline_history_new(uint16_t whole_per_mille);
void uroce_deadline_history_free(uroce_deadline_history *history);
/* Takes a request that has ended after so long. One that nobody answered missed its deadline; otherwise what has failed or
 * was cancelled does not count. */
void uroce_deadline_history_record(uroce_deadline_history *history, const uroce_deadline_receiver *receiver,
                                   uint64_t took_ns);
/* How long the next request may take, in nanoseconds, if it asks for so many bytes; 0 while fewer than eight are known. */
uint64_t uroce_deadline_history_deadline(const uroce_deadline_history *history, uint64_t bytes);

/* A sender to one peer. `seed` is drawn at random. A datagram has at most `datagram_bytes`, the path MTU. */
uroce_deadline_sender *uroce_deadline_sender_new(const uint8_t seed[32], size_t datagram_bytes);
void uroce_deadline_sender_free(uroce_deadline_sender *sender);

/* An object of the program. */
struct uroce_deadline_object {
    uint64_t object;      /* its name */
    uint64_t version;     /* of all its bytes */
    uint32_t block_bytes; /* length of every block but the last */
    const void *values;
    uint64_t bytes;
};

/* Offers an object, in the place of any other of its name; requests for another version of it end. Its bytes are read while
 * it is sent: they stay until it is withdrawn or the sender is freed. Returns 0, or -1 when it cannot be cut into such
 * blocks. */
int uroce_deadline_sender_offer(uroce_deadline_sender *sender, const struct uroce_deadline_object *object);
void uroce_deadline_sender_withdraw(uroce_deadline_sender *sender, uint64_t object);

void uroce_deadline_sender_handle_datagram(uroce_deadline_sender *sender, uint64_t now_ns, const void *datagram,
                                           size_t bytes);
/* As of a receiver; the buffer has at least as many bytes as a datagram can have. */
size_t uroce_deadline_sender_poll_transmit(uroce_deadline_sender *sender, uint64_t now_ns, void *into, size_t bytes);
uint64_t uroce_deadline_sender_poll_timeout(const uroce_deadline_sender *sender);
void uroce_deadline_sender_handle_timeout(uroce_deadline_sender *sender, uint64_t now_ns);
/* The number of requests that are served. */
size_t uroce_deadline_sender_requests(const uroce_deadline_sender *sender);

#ifdef __cplusplus
}
#endif
#endif
