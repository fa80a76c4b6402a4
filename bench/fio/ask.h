/* What the engine asks of an application beside blocks.
 *
 * A question is a small message without payload whose user header is `struct ask`. The answer is the code that it is rejected with.
 * An application that knows of no questions consumes it, or rejects it with another code: it has answered nothing, and nothing is taken
 * for granted of it.
 */
#ifndef JET_FIO_ASK_H
#define JET_FIO_ASK_H

#include <stdint.h>
#include <string.h>

/* Of no block. */
#define ASK_OFFSET UINT64_MAX

enum {
    ASK_FACTS = 1,     /* what becomes of blocks */
    ASK_FSYNC = 2,     /* everything that was written and heard of is to be on the device when the answer comes */
    ASK_FDATASYNC = 3, /* the same, without what finding the data does not take */
};

struct ask {
    uint64_t offset; /* ASK_OFFSET */
    uint64_t bytes;  /* 0 */
    uint64_t what;
};

/* An answer: this, and what holds. */
#define ANSWER 0x6a660000u

enum {
    ANSWER_LOOKS = 1,    /* fio's header and checksum of each block are looked at */
    ANSWER_KEEPS = 2,    /* blocks are written to a file or a device */
    ANSWER_DSYNC = 4,    /* and have reached the device when their end is heard */
    ANSWER_SYNCED = 8,   /* what was asked for is done */
    ANSWER_REPLIES = 16, /* blocks that ask for a reply (reply.h) get it */
};

static inline int is_answer(uint32_t code) { return (code & 0xffff0000u) == ANSWER; }

/* What a message asks; 0: it is no question. */
static inline uint64_t asked(const void *user_header, size_t user_header_bytes, uint64_t bytes) {
    struct ask ask;
    if (user_header_bytes != sizeof ask || bytes) return 0;
    memcpy(&ask, user_header, sizeof ask);
    return ask.offset == ASK_OFFSET && !ask.bytes ? ask.what : 0;
}

#endif
