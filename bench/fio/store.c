/* See store.h.
 *
 * A message's pieces are written by several threads while the next ones come, and what is written is given back at once: a message
 * that is larger than the pool goes through it as well. Nothing here waits for one of the two, pieces and messages, alone.
 */
#include "store.h"

#include "ask.h"
#include "reply.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WAIT_MS = 100 };

/* A message that has no end: a block, or a question. */
struct block {
    jet_message message;
    uint64_t asks; /* what; 0: it is a block */
    uint64_t offset;
    unsigned int out; /* pieces that are being written */
    int whole;        /* all its slices were given, or none will come */
    int error;
};

struct write {
    struct piece piece; /* first: a piece that comes back is this */
    jet_slice slice;    /* none of a sync */
    struct block *block;
};

/* Where a message belongs, or why that cannot be told. */
static int place(const jet_message *message, uint64_t *offset) {
    struct about about;
    size_t needed = offsetof(struct about, reply_bytes);
    if (message->user_header_bytes < needed) return EINVAL;
    memcpy(&about, message->user_header, needed);
    *offset = about.offset;
    return about.bytes == message->bytes && about.offset <= INT64_MAX - about.bytes ? 0 : EINVAL;
}

static int finish(jet_session *session, struct block *block, const char *name, unsigned int facts, struct stored *stored) {
    int code;
    if (block->out || !block->whole) return JET_OK;
    if (block->asks) {
        int synced = block->asks != ASK_FACTS && !block->error;
        stored->synced += synced;
        if (block->error) fprintf(stderr, "receiver: %s: what was written is not synced: %s\n", name, strerror(block->error));
        code = jet_message_finish(session, &block->message,
                                  block->error ? (uint32_t)block->error : ANSWER | facts | (synced ? ANSWER_SYNCED : 0));
        free(block);
        return code;
    }
    if (block->error && !stored->refused++)
        fprintf(stderr, "receiver: %s: a block of %" PRIu64 " bytes at %" PRIu64 " is refused: %s\n", name, block->message.bytes,
                block->offset, strerror(block->error));
    code = finish_block(session, &block->message, (uint32_t)block->error, &stored->replied);
    free(block);
    return code;
}

/* Gives back what was written: how many pieces, or an error of the session's. */
static int give_back(jet_session *session, struct disk *disk, const char *name, unsigned int facts, struct stored *stored,
                     unsigned int *out) {
    struct piece *piece;
    int count = 0, code = JET_OK;
    while ((piece = disk_take(disk))) {
        struct write *write = (struct write *)piece;
        struct block *block = write->block;
        if (piece->error && !block->error) block->error = piece->error;
        block->out--;
        *out -= 1;
        count++;
        int released = write->slice.data ? jet_slice_release(session, &write->slice) : JET_OK;
        free(write);
        if (code >= 0) code = released;
        released = finish(session, block, name, facts, stored);
        if (code >= 0) code = released;
    }
    return code < 0 ? code : count;
}

/* One slice of a message goes to the disk; JET_NOTHING: none came. */
static int take(jet_session *session, struct disk *disk, struct block *block, unsigned int *out) {
    jet_slice slice;
    struct write *write;
    int code = jet_message_next(session, &block->message, 0, &slice);
    if (code == JET_E_WITHDRAWN) block->error = ECANCELED;
    if (code == JET_END || code == JET_E_WITHDRAWN) block->whole = 1;
    if (code != JET_OK) return code;
    write = block->error ? NULL : malloc(sizeof *write);
    if (!write) {
        /* The rest comes, and is not kept. */
        if (!block->error) block->error = ENOMEM;
        return jet_slice_release(session, &slice);
    }
    *write = (struct write){.slice = slice, .block = block};
    write->piece.data = slice.data;
    write->piece.bytes = slice.bytes;
    write->piece.offset = block->offset + slice.offset;
    block->out++;
    *out += 1;
    disk_submit(disk, &write->piece);
    return JET_OK;
}

/* What a sender hears of is written before: it need not be waited for. What no other message is asked for is not done. */
static void sync_for(struct disk *disk, struct block *block, unsigned int *out) {
    struct write *write;
    if (block->asks != ASK_FSYNC && block->asks != ASK_FDATASYNC) return;
    write = calloc(1, sizeof *write);
    if (!write) {
        block->error = ENOMEM;
        return;
    }
    write->block = block;
    write->piece.what = block->asks == ASK_FSYNC ? PIECE_FSYNC : PIECE_FDATASYNC;
    block->out++;
    *out += 1;
    disk_submit(disk, &write->piece);
}

int store(jet_session *session, struct disk *disk, const char *name, unsigned int facts, const volatile sig_atomic_t *stop,
          struct stored *stored) {
    struct block *block = NULL; /* whose slices come */
    unsigned int out = 0;
    int fd, code = jet_session_fd(session, &fd);
    while (code >= 0 && (!*stop || out)) {
        int worked = code = give_back(session, disk, name, facts, stored, &out);
        if (code >= 0 && !block && !*stop) {
            jet_message message;
            code = jet_session_receive(session, 0, &message);
            if (code == JET_OK) {
                block = calloc(1, sizeof *block);
                if (!block) {
                    code = JET_E_SYSTEM;
                    break;
                }
                block->message = message;
                block->asks = asked(message.user_header, message.user_header_bytes, message.bytes);
                if (block->asks) {
                    sync_for(disk, block, &out);
                } else {
                    block->error = place(&message, &block->offset);
                    stored->messages++;
                    stored->bytes += message.bytes;
                }
            }
        }
        if (code >= 0 && block) {
            code = take(session, disk, block, &out);
            worked += code != JET_NOTHING;
            if (code == JET_E_WITHDRAWN) code = JET_OK;
            if (block->whole) {
                code = code < 0 ? code : finish(session, block, name, facts, stored);
                block = NULL;
            }
        }
        if (code < 0 || worked) continue;
        struct pollfd fds[] = {{.fd = disk_fd(disk), .events = POLLIN}, {.fd = fd, .events = POLLIN}};
        code = jet_session_prepare_sleep(session);
        if (code == JET_OK && poll(fds, 2, WAIT_MS) < 0 && errno != EINTR) code = JET_E_SYSTEM;
    }
    /* The pool is unmapped with the session: nobody may write from it then. */
    while (out) {
        struct pollfd bell = {.fd = disk_fd(disk), .events = POLLIN};
        if (poll(&bell, 1, -1) > 0) (void)give_back(session, disk, name, facts, stored, &out);
    }
    free(block);
    return code;
}
