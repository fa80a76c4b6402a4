/* Replies to blocks: the engine's option reply=.
 *
 * A block that wants a reply says in its user header how long: `struct about`. The reply's bytes follow from the message's tag, so that
 * one that belongs to another block, or is none of the receiver's, is found.
 */
#ifndef JET_FIO_REPLY_H
#define JET_FIO_REPLY_H

#include <jet.h>
#include <stdint.h>
#include <string.h>

enum { REPLY_MAX = 4096 };

/* What the engine puts into the user header of a block, as far as that goes. */
struct about {
    uint64_t offset, bytes;
    uint64_t reply_bytes; /* only where a reply is wanted */
};

/* Bytes 8 * word and following of the reply to a message (SplitMix64). */
static inline uint64_t reply_word(uint64_t tag, uint64_t word) {
    uint64_t mixed = tag * 0xd1342543de82ef95u + (word + 1) * 0x9e3779b97f4a7c15u;
    mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9u;
    mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebu;
    return mixed ^ mixed >> 31;
}

static inline size_t reply_part(size_t bytes, size_t at) { return bytes - at < sizeof(uint64_t) ? bytes - at : sizeof(uint64_t); }

static inline void reply_fill(unsigned char *reply, size_t bytes, uint64_t tag) {
    for (size_t at = 0; at < bytes; at += sizeof(uint64_t)) {
        uint64_t word = reply_word(tag, at / sizeof word);
        memcpy(reply + at, &word, reply_part(bytes, at));
    }
}

static inline int reply_is_right(const unsigned char *reply, size_t bytes, uint64_t tag) {
    for (size_t at = 0; at < bytes; at += sizeof(uint64_t)) {
        uint64_t word = reply_word(tag, at / sizeof word);
        if (memcmp(reply + at, &word, reply_part(bytes, at))) return 0;
    }
    return 1;
}

/* Ends a block as jet_message_finish() does, with the reply that it asks for, if any. *replied counts them. */
static inline int finish_block(jet_session *session, jet_message *message, uint32_t code, uint64_t *replied) {
    unsigned char reply[REPLY_MAX];
    struct about about;
    int ended;
    if (!message->wants_reply || message->user_header_bytes < sizeof about) return jet_message_finish(session, message, code);
    memcpy(&about, message->user_header, sizeof about);
    if (about.reply_bytes > REPLY_MAX) return jet_message_finish(session, message, code);
    reply_fill(reply, about.reply_bytes, message->tag);
    ended = jet_message_reply(session, message, code, reply, about.reply_bytes);
    *replied += ended == JET_OK;
    return ended;
}

#endif
