/* A message ends with a reply: of any length, for each kind of message, and with any verdict. What cannot be
 * replied to can still be ended. */
#include "check.h"

enum { REPLY_MAX = 4096, LARGE = 100000 };

static jet_session *session;

static jet_sender *replied_to(int replies) {
    jet_sender_options options;
    jet_sender *sender;
    ANSWERS(JET_OK, jet_sender_options_init(&options));
    CHECK(!options.replies);
    options.address = setting("JET_ADDRESS");
    options.app = "replies";
    options.in_flight_max = 2;
    options.replies = replies;
    ANSWERS(JET_OK, jet_sender_connect(&options, &sender));
    return sender;
}

static unsigned char byte_at(uint64_t tag, size_t at) { return (unsigned char)(tag * 37 + at * 11 + at / 256 + 1); }

static void check_reply(const jet_completion *end, size_t bytes) {
    const unsigned char *reply = end->reply;
    CHECK(reply && end->reply_bytes == bytes);
    for (size_t at = 0; at < bytes; at++) CHECK(reply[at] == byte_at(end->tag, at));
}

static void check_no_reply(const jet_completion *end) { CHECK(!end->reply && !end->reply_bytes); }

/* How a message is sent. */
enum kind { COPIED, SMALL_BUFFER, LARGE_BUFFER, KINDS };

static jet_message received(jet_sender *sender, uint64_t tag, enum kind kind, int wants_reply) {
    jet_envelope envelope = envelope_of(tag);
    jet_message message;
    jet_buffer buffer;
    envelope.wants_reply = wants_reply;
    if (kind == COPIED) {
        ANSWERS(JET_OK, jet_send_small(sender, &envelope, "what?", 5, NULL));
    } else {
        size_t bytes = kind == SMALL_BUFFER ? REPLY_MAX : LARGE;
        ANSWERS(JET_OK, jet_buffer_get(sender, bytes, &buffer));
        memset(buffer.data, 7, bytes);
        if (kind == SMALL_BUFFER) ANSWERS(JET_OK, jet_send_small_buffer(sender, &envelope, &buffer, bytes, NULL));
        else ANSWERS(JET_OK, jet_send(sender, &envelope, &buffer, bytes, NULL));
    }
    message = received_from(sender, session);
    CHECK(message.tag == tag && message.wants_reply == wants_reply);
    return message;
}

/* Replies by the pattern of the tag. The caller's bytes are copied: they may change when the call is over. */
static int reply(jet_message *message, uint32_t code, size_t bytes) {
    unsigned char given[REPLY_MAX];
    for (size_t at = 0; at < bytes; at++) given[at] = byte_at(message->tag, at);
    int answered = jet_message_reply(session, message, code, bytes ? given : NULL, bytes);
    memset(given, 0, sizeof given);
    ANSWERS(JET_OK, jet_session_flush(session));
    return answered;
}

static jet_completion ended(jet_sender *sender) {
    jet_completion end;
    ANSWERS(JET_OK, jet_session_flush(session));
    ANSWERS(JET_OK, jet_sender_wait(sender, JET_FOREVER, &end));
    if (end.buffer.data) ANSWERS(JET_OK, jet_buffer_free(sender, &end.buffer));
    return end;
}

/* Takes all slices of a message, as an application does that reads it before it replies. */
static void read_all(jet_message *message) {
    jet_slice slice;
    while (jet_message_next(session, message, JET_FOREVER, &slice) == JET_OK) ANSWERS(JET_OK, jet_slice_release(session, &slice));
}

static void of_each_kind_and_length(jet_sender *sender) {
    static const size_t lengths[] = {0, 64, REPLY_MAX};
    for (unsigned i = 0; i < 3 * KINDS * 2; i++) {
        size_t bytes = lengths[i % 3];
        uint32_t code = i % 2 ? 28 : 0;
        jet_message message = received(sender, 100 + i, (enum kind)(i / 3 % KINDS), 1);
        read_all(&message);
        ANSWERS(JET_OK, reply(&message, code, bytes));
        CHECK(!message.key && !message.user_header);
        jet_completion end = ended(sender);
        CHECK(end.tag == 100 + i && end.code == code && end.status == (code ? JET_REJECTED : JET_CONSUMED));
        check_reply(&end, bytes);
    }
}

/* A reply is there until the next poll, whatever else comes meanwhile. */
static void kept_until_the_next_poll(jet_sender *sender) {
    jet_completion first, second;
    jet_message message = received(sender, 1, COPIED, 1);
    ANSWERS(JET_OK, reply(&message, 0, REPLY_MAX));
    first = ended(sender);
    message = received(sender, 2, COPIED, 1);
    ANSWERS(JET_OK, reply(&message, 0, REPLY_MAX));
    ANSWERS(JET_OK, jet_sender_drain(sender, JET_FOREVER));
    check_reply(&first, REPLY_MAX);
    ANSWERS(JET_OK, jet_sender_poll(sender, &second));
    CHECK(second.tag == 2);
    check_reply(&second, REPLY_MAX);
    ANSWERS(JET_NOTHING, jet_sender_poll(sender, &second));
}

/* What cannot be a reply changes nothing: the message can be replied to, or finished without. */
static void refused(jet_sender *sender) {
    static unsigned char too_long[REPLY_MAX + 1];
    jet_completion end;
    jet_message message = received(sender, 3, COPIED, 1), copy = message;
    ANSWERS(JET_E_SIZE, jet_message_reply(session, &message, 0, too_long, sizeof too_long));
    CHECK(strstr(jet_error_text(), "4097") && !memcmp(&message, &copy, sizeof copy));
    ANSWERS(JET_E_ARGUMENT, jet_message_reply(session, &message, 0, NULL, 1));
    ANSWERS(JET_OK, jet_message_finish(session, &message, 0));
    end = ended(sender);
    CHECK(end.tag == 3 && end.status == JET_CONSUMED);
    check_no_reply(&end);

    message = received(sender, 4, COPIED, 1);
    ANSWERS(JET_E_SIZE, jet_message_reply(session, &message, 0, too_long, sizeof too_long));
    copy = message;
    ANSWERS(JET_OK, reply(&message, 0, 64));
    /* A message has one end, and so one reply. */
    ANSWERS(JET_E_KEY, jet_message_reply(session, &message, 0, "again", 5));
    ANSWERS(JET_E_KEY, jet_message_reply(session, &copy, 0, "again", 5));
    ANSWERS(JET_E_KEY, jet_message_finish(session, &copy, 0));
    end = ended(sender);
    CHECK(end.tag == 4 && end.status == JET_CONSUMED);
    check_reply(&end, 64);
}

/* The reply may be a field of the message that it ends. */
static void part_of_the_message(jet_sender *sender) {
    jet_message message = received(sender, 9, COPIED, 1);
    uint64_t bytes;
    ANSWERS(JET_OK, jet_message_reply(session, &message, 0, &message.bytes, sizeof message.bytes));
    jet_completion end = ended(sender);
    CHECK(end.reply && end.reply_bytes == sizeof bytes);
    memcpy(&bytes, end.reply, sizeof bytes);
    CHECK(bytes == strlen("what?"));
}

static void not_wanted(jet_sender *sender, uint64_t tag, uint32_t code) {
    jet_message message = received(sender, tag, COPIED, 0), copy = message;
    ANSWERS(JET_E_NO_REPLY, jet_message_reply(session, &message, 0, "", 0));
    CHECK(strstr(jet_error_text(), "wants_reply") && !memcmp(&message, &copy, sizeof copy));
    ANSWERS(JET_OK, jet_message_finish(session, &message, code));
    jet_completion end = ended(sender);
    CHECK(end.tag == tag && end.code == code);
    check_no_reply(&end);
}

static void without_memory(void) {
    jet_sender *sender = replied_to(0);
    jet_envelope envelope = envelope_of(1);
    jet_buffer buffer;
    ANSWERS(JET_OK, jet_buffer_get(sender, LARGE, &buffer));
    envelope.wants_reply = 1;
    ANSWERS(JET_E_NO_REPLY, jet_send_small(sender, &envelope, "x", 1, NULL));
    CHECK(strstr(jet_error_text(), "jet_sender_options.replies"));
    ANSWERS(JET_E_NO_REPLY, jet_send_small_buffer(sender, &envelope, &buffer, 1, NULL));
    ANSWERS(JET_E_NO_REPLY, jet_send(sender, &envelope, &buffer, LARGE, NULL));
    CHECK(buffer.data && buffer.bytes == LARGE);
    not_wanted(sender, 8, 0);
    ANSWERS(JET_OK, jet_buffer_free(sender, &buffer));
    ANSWERS(JET_OK, jet_sender_free(sender));
}

int main(void) {
    session = session_of("replies");
    jet_sender *sender = replied_to(1);
    of_each_kind_and_length(sender);
    kept_until_the_next_poll(sender);
    refused(sender);
    part_of_the_message(sender);
    not_wanted(sender, 5, 0);
    not_wanted(sender, 6, 28);
    without_memory();
    /* A sender is freed while its last reply is there. */
    jet_message message = received(sender, 7, COPIED, 1);
    ANSWERS(JET_OK, reply(&message, 0, 64));
    jet_completion end = ended(sender);
    check_reply(&end, 64);
    ANSWERS(JET_OK, jet_sender_free(sender));
    ANSWERS(JET_OK, jet_session_free(session));
    return 0;
}
