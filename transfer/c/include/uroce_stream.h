/* Streams of uroce-transfer, for C: bytes that leave while the next ones are computed, in chunks, and at the other end how many
 * parts are whole. docs/EXTENSIONS.md has every bit of the messages.
 *
 * Both ends are state machines without clock, thread or socket, and do not touch queue pairs:
 *
 *   - their owner exchanges messages of 64 bytes over any reliable channel, such as a TCP connection: the receiver's
 *     invitation first, then the sender's answer that it begins;
 *   - the sender posts a WRITE with immediate data on an RC queue pair for each chunk that it is told to post, and tells of
 *     the completions;
 *   - the receiver keeps receives posted, and tells of each that a WRITE took. Bytes come straight into its memory.
 *
 * Times are nanoseconds of any clock that never goes back. An object is used by one thread at a time. Texts of errors are
 * cut to `error_bytes` with their zero.
 */
#ifndef UROCE_STREAM_H
#define UROCE_STREAM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Length of each message. */
#define UROCE_STREAM_MESSAGE_BYTES 64
/* No time at which anything is to be done. */
#define UROCE_STREAM_NEVER UINT64_MAX

typedef struct uroce_stream_sender uroce_stream_sender;
typedef struct uroce_stream_receiver uroce_stream_receiver;
typedef struct uroce_stream_warm_up uroce_stream_warm_up;

/* What both ends must have alike. */
struct uroce_stream {
    uint64_t name;
    uint64_t version;           /* of all bytes: a receiver that has some goes on with no others */
    const uint64_t *part_bytes; /* the lengths of the parts, in their order; a part can have no bytes, but not all of them */
    size_t part_count;          /* 1 to 2^20 */
};

/* Where a stream goes: at the receiver, of its first byte. */
struct uroce_stream_place {
    uint64_t address;
    uint32_t rkey;
    uint32_t outstanding; /* the receives that are kept posted for chunks, at least 1 */
};

/* How an end has ended. */
enum uroce_stream_end {
    UROCE_STREAM_GOES_ON = 0,
    UROCE_STREAM_COMPLETE = 1, /* all parts are whole at the receiver */
    UROCE_STREAM_FAILED = 2,   /* it cannot go on: parts that are whole stay so, and a further connection goes on from there */
};

/* ------------------------------------------------------------------------------------------------------- the receiver */

/* Receives a stream, of which the first `held` bytes are at their place already. It fails when nothing comes for `patience_ns`
 * (0 for 10 s), which is longer than a part is computed. NULL when it cannot be: `error` then says why. */
uroce_stream_receiver *uroce_stream_receiver_new(const struct uroce_stream *stream, const struct uroce_stream_place *place,
                                                 uint64_t held, uint64_t patience_ns, uint64_t now_ns, char *error,
                                                 size_t error_bytes);
void uroce_stream_receiver_free(uroce_stream_receiver *receiver);
/* Writes the next message to the sender, 64 bytes, and returns 1; or 0 when there is none. */
int uroce_stream_receiver_poll_message(uroce_stream_receiver *receiver, void *into);
void uroce_stream_receiver_handle_message(uroce_stream_receiver *receiver, uint64_t now_ns, const void *message,
                                          size_t bytes);
/* A receive has completed by a WRITE: its immediate data as a number (ntohl), and its bytes (byte_len). */
void uroce_stream_receiver_handle_notification(uroce_stream_receiver *receiver, uint64_t now_ns, uint32_t immediate,
                                               uint32_t bytes);
/* A receive has failed, or the channel has closed. What has arrived before is to be told first. */
void uroce_stream_receiver_handle_broken(uroce_stream_receiver *receiver);
void uroce_stream_receiver_handle_timeout(uroce_stream_receiver *receiver, uint64_t now_ns);
/* When handle_timeout has something to do, if nothing comes before. */
uint64_t uroce_stream_receiver_poll_timeout(const uroce_stream_receiver *receiver);
/* The bytes that are there, from the first on, and the parts that are whole. What comes after them is undefined. */
uint64_t uroce_stream_receiver_whole_bytes(const uroce_stream_receiver *receiver);
size_t uroce_stream_receiver_whole_parts(const uroce_stream_receiver *receiver);
/* How it has ended; of one that has failed `error` says why. */
enum uroce_stream_end uroce_stream_receiver_end(const uroce_stream_receiver *receiver, char *error, size_t error_bytes);

/* --------------------------------------------------------------------------------------------------------- the sender */

/* A chunk to be posted: IBV_WR_RDMA_WRITE_WITH_IMM, signaled. */
struct uroce_stream_post {
    uint64_t offset; /* where it begins in the stream */
    uint64_t address;
    uint32_t bytes; /* 1 to 2^31 */
    uint32_t rkey;
    uint32_t immediate; /* as a number: imm_data is its htonl */
};

/* A sender with at most `outstanding` chunks on their way, at least 1: what the send queue holds. It fails when the invitation
 * does not come, or a chunk on its way does not complete, for `patience_ns` (0 for 10 s). NULL when the stream cannot be. */
uroce_stream_sender *uroce_stream_sender_new(const struct uroce_stream *stream, size_t outstanding, uint64_t patience_ns,
                                             uint64_t now_ns, char *error, size_t error_bytes);
void uroce_stream_sender_free(uroce_stream_sender *sender);
int uroce_stream_sender_poll_message(uroce_stream_sender *sender, void *into);
void uroce_stream_sender_handle_message(uroce_stream_sender *sender, uint64_t now_ns, const void *message, size_t bytes);
/* Returns 1 once the sender is invited and has not begun: where the stream goes, with as many chunks on their way as may be,
 * and the bytes that the receiver has. Until it has begun it may write anything behind these. */
int uroce_stream_sender_invited(const uroce_stream_sender *sender, struct uroce_stream_place *place, uint64_t *held);
/* Begins with chunks of `chunk_bytes`, 1 to 2^31, of which there are at most 2^24. Returns 0, or -1: `error` then says why. */
int uroce_stream_sender_begin(uroce_stream_sender *sender, uint64_t chunk_bytes, uint64_t now_ns, char *error,
                              size_t error_bytes);
/* The first `parts` parts are ready to be sent. They are not written any more until the stream has ended. */
void uroce_stream_sender_handle_ready(uroce_stream_sender *sender, size_t parts);
/* Returns 1 and the next chunk to be posted now; or 0, when its bytes are not ready, or enough chunks are on their way. */
int uroce_stream_sender_poll_post(uroce_stream_sender *sender, uint64_t now_ns, struct uroce_stream_post *post);
/* A chunk has completed with success; they do so in order. */
void uroce_stream_sender_handle_completion(uroce_stream_sender *sender, uint64_t now_ns);
/* A chunk has failed, or the channel has closed: nothing more is posted. */
void uroce_stream_sender_handle_broken(uroce_stream_sender *sender);
void uroce_stream_sender_handle_timeout(uroce_stream_sender *sender, uint64_t now_ns);
uint64_t uroce_stream_sender_poll_timeout(const uroce_stream_sender *sender);
/* The bytes that are known to be at the receiver, from the first on, and the parts that are whole there. */
uint64_t uroce_stream_sender_whole_bytes(const uroce_stream_sender *sender);
size_t uroce_stream_sender_whole_parts(const uroce_stream_sender *sender);
enum uroce_stream_end uroce_stream_sender_end(const uroce_stream_sender *sender, char *error, size_t error_bytes);

/* ------------------------------------------------------------------------------------------------ the length of a chunk */

/* What a connection does with chunks. */
struct uroce_stream_conditions {
    double rate_bps;        /* payload that it carries, in bits a second, above 0 */
    uint64_t round_trip_ns; /* from posting a short message until its completion */
    uint64_t message_ns;    /* what a message costs the sender beside its bytes */
    uint64_t outstanding;   /* messages on their way at once, at least 1 */
};

/* Bytes that are computed together. */
struct uroce_stream_part {
    uint64_t ready_ns; /* when they are there, since the beginning of the stream; no earlier than the part before */
    uint64_t bytes;
};

/* Measures a connection, by WRITEs without immediate data of at most `longest_bytes`, at least 1, of which at most `outstanding`
 * are on their way. */
uroce_stream_warm_up *uroce_stream_warm_up_new(uint64_t longest_bytes, size_t outstanding);
void uroce_stream_warm_up_free(uroce_stream_warm_up *warm_up);
/* The length of the next message to be posted now; 0 when there is none until the next completion. */
uint64_t uroce_stream_warm_up_poll_post(uroce_stream_warm_up *warm_up, uint64_t now_ns);
void uroce_stream_warm_up_handle_completion(uroce_stream_warm_up *warm_up, uint64_t now_ns);
/* Returns 1 and what was measured, once it is known and all messages have completed; before, 0. */
int uroce_stream_warm_up_conditions(const uroce_stream_warm_up *warm_up, struct uroce_stream_conditions *conditions);

/* The length of chunks with which a stream takes the least time, to 1 %, of whose parts the first `held` bytes are at the
 * receiver already; of such lengths the longest. A power of two, 2^12 to 2^31. */
uint64_t uroce_stream_choose(const struct uroce_stream_conditions *conditions, const struct uroce_stream_part *parts,
                             size_t part_count, uint64_t held);
/* How long it takes with chunks of `chunk_bytes`, at least 1, from its beginning until the last one completes. */
uint64_t uroce_stream_total_ns(const struct uroce_stream_conditions *conditions, const struct uroce_stream_part *parts,
                               size_t part_count, uint64_t held, uint64_t chunk_bytes);

#ifdef __cplusplus
}
#endif
#endif
