/* Programs that were compiled with an older header, or with a newer one: their structures are shorter or longer
 * than the library's. Each structure is allocated as long as its program knows it, so that valgrind sees
 * whatever goes beyond. */
#include "check.h"

static void *allocated(size_t bytes) {
    void *memory = malloc(bytes);
    CHECK(memory);
    memset(memory, 0x5a, bytes);
    return memory;
}

/* Checks that the bytes of a structure that this header does not know were set to 0. */
static void is_zero_from(const void *structure, size_t known, size_t bytes) {
    for (size_t at = known; at < bytes; at++) CHECK(((const unsigned char *)structure)[at] == 0);
}

static void send_one(jet_sender *sender, uint64_t tag) {
    ANSWERS(JET_OK, send_small(sender, tag, "hello", 5));
    ANSWERS(JET_OK, jet_sender_flush(sender));
}

/* Waits for a message in a structure of that size. */
static void receive_sized(jet_sender *sender, jet_session *session, jet_message *message, size_t bytes) {
    int code;
    while ((code = jet_session_receive_sized(session, 5000000, message, bytes)) == JET_NOTHING)
        ANSWERS(JET_OK, jet_sender_flush(sender));
    ANSWERS(JET_OK, code);
}

int main(void) {
    jet_session *session = session_of("versions");
    jet_sender *sender = sender_to("versions", 4);
    size_t older_message = offsetof(jet_message, redelivered), newer_message = sizeof(jet_message) + 24;
    size_t older_end = offsetof(jet_completion, reply), newer_end = sizeof(jet_completion) + 24;
    jet_message *message = allocated(older_message);
    jet_completion *end = allocated(older_end);
    jet_slice slice;

    /* An older program. */
    send_one(sender, 1);
    receive_sized(sender, session, message, older_message);
    CHECK(message->tag == 1 && message->bytes == 5);
    ANSWERS(JET_OK, jet_message_next(session, message, JET_FOREVER, &slice));
    CHECK(slice.bytes == 5 && !memcmp(slice.data, "hello", 5));
    ANSWERS(JET_OK, jet_slice_release(session, &slice));
    ANSWERS(JET_E_NO_REPLY, jet_message_reply(session, message, 0, "x", 1));
    ANSWERS(JET_OK, jet_message_finish(session, message, 3));
    CHECK(!message->key);
    ANSWERS(JET_OK, jet_session_flush(session));
    ANSWERS(JET_OK, jet_sender_wait_sized(sender, JET_FOREVER, end, older_end));
    CHECK(end->tag == 1 && end->status == JET_REJECTED && end->code == 3 && !end->buffer.data);
    free(message);
    free(end);

    /* A newer one. */
    message = allocated(newer_message);
    end = allocated(newer_end);
    send_one(sender, 2);
    receive_sized(sender, session, message, newer_message);
    CHECK(message->tag == 2);
    is_zero_from(message, sizeof *message, newer_message);

    /* A size that no structure has: nothing is taken. */
    send_one(sender, 3);
    jet_message next;
    ANSWERS(JET_E_ARGUMENT, jet_session_receive_sized(session, JET_FOREVER, &next, 7));
    ANSWERS(JET_E_ARGUMENT, jet_session_receive_sized(session, JET_FOREVER, &next, SIZE_MAX));
    next = received_from(sender, session);
    CHECK(next.tag == 3);
    ANSWERS(JET_OK, jet_message_finish(session, message, 0));
    ANSWERS(JET_OK, jet_message_finish(session, &next, 0));
    ANSWERS(JET_OK, jet_session_flush(session));
    ANSWERS(JET_OK, jet_sender_drain(sender, JET_FOREVER));
    ANSWERS(JET_E_ARGUMENT, jet_sender_poll_sized(sender, end, 0));
    ANSWERS(JET_E_ARGUMENT, jet_sender_wait_sized(sender, JET_FOREVER, end, 7));
    ANSWERS(JET_OK, jet_sender_poll_sized(sender, end, newer_end));
    CHECK(end->tag == 2);
    is_zero_from(end, sizeof *end, newer_end);
    ANSWERS(JET_OK, jet_sender_poll(sender, end));
    CHECK(end->tag == 3);

    /* What only a newer library knows is refused where it is set, and not lost. */
    struct { jet_envelope envelope; uint64_t newer; } newer = {.envelope = envelope_of(4)};
    newer.envelope.size = sizeof newer;
    ANSWERS(JET_OK, jet_send_small(sender, &newer.envelope, "hello", 5, NULL));
    newer.newer = 1;
    ANSWERS(JET_E_ARGUMENT, jet_send_small(sender, &newer.envelope, "hello", 5, NULL));
    CHECK(strstr(jet_error_text(), "newer"));

    free(message);
    free(end);
    ANSWERS(JET_OK, jet_sender_free(sender));
    ANSWERS(JET_OK, jet_session_free(session));
    return 0;
}
