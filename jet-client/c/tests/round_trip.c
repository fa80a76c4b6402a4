/* Both ends in one process, a thread each: small and large messages of all kinds arrive unchanged, each with
 * one end. */
#include "check.h"
#include <pthread.h>

enum { MESSAGES = 400, LARGE_MAX = 700000 };

static size_t length_of(unsigned n) {
    static const size_t lengths[] = {0, 1, 4096, 4097, 65536, 262144, 262145, LARGE_MAX, 17, 123456};
    return lengths[n % (sizeof lengths / sizeof *lengths)];
}

static unsigned char byte_at(uint64_t tag, uint64_t offset) { return (unsigned char)(tag * 31 + offset * 7 + offset / 4096); }

static void *receive(void *argument) {
    jet_session *session = argument;
    for (unsigned count = 0; count < MESSAGES; count++) {
        jet_message message;
        jet_slice slice;
        uint64_t seen = 0, expected = 0;
        int code;
        ANSWERS(JET_OK, jet_session_receive(session, JET_FOREVER, &message));
        CHECK(message.bytes == length_of((unsigned)message.tag) && !message.redelivered);
        CHECK(message.user_header_bytes == 9 && !memcmp(message.user_header, "a header", 9));
        while ((code = jet_message_next(session, &message, JET_FOREVER, &slice)) == JET_OK) {
            const unsigned char *bytes = slice.data;
            for (size_t i = 0; i < slice.bytes; i++) CHECK(bytes[i] == byte_at(message.tag, slice.offset + i));
            seen += slice.bytes;
            ANSWERS(JET_OK, jet_slice_release(session, &slice));
            CHECK(!slice.data);
        }
        CHECK(code == JET_END);
        expected = message.bytes;
        CHECK(seen == expected);
        /* Every fifth message is rejected. */
        ANSWERS(JET_OK, jet_message_finish(session, &message, message.tag % 5 == 4 ? 28 : 0));
        ANSWERS(JET_E_KEY, jet_message_finish(session, &message, 0));
    }
    ANSWERS(JET_OK, jet_session_flush(session));
    return NULL;
}

int main(void) {
    jet_session *session = session_of("round-trip");
    jet_sender *sender = sender_to("round-trip", 16);
    pthread_t receiver;
    static unsigned char seen[MESSAGES + 1], small[4096];
    unsigned sent = 0, ended = 0;
    uint64_t id;
    ANSWERS(JET_OK, jet_sender_id(sender, &id));
    CHECK(id != 0);
    CHECK(!pthread_create(&receiver, NULL, receive, session));
    while (ended < MESSAGES) {
        int code = JET_OK;
        jet_completion end;
        while (sent < MESSAGES && code == JET_OK) {
            size_t length = length_of(sent);
            jet_envelope envelope = envelope_of(sent);
            envelope.user_header = "a header";
            envelope.user_header_bytes = 9;
            uint64_t ticket = 0;
            if (length <= 4096 && sent % 2) {
                for (size_t i = 0; i < length; i++) small[i] = byte_at(sent, i);
                code = jet_send_small(sender, &envelope, small, length, &ticket);
            } else {
                jet_buffer buffer;
                unsigned char *bytes;
                uint64_t key;
                ANSWERS(JET_OK, jet_buffer_get(sender, length ? length : 1, &buffer));
                bytes = buffer.data;
                key = buffer.key;
                for (size_t i = 0; i < length; i++) bytes[i] = byte_at(sent, i);
                code = length <= 4096 ? jet_send_small_buffer(sender, &envelope, &buffer, length, &ticket)
                                      : jet_send(sender, &envelope, &buffer, length, &ticket);
                if (code == JET_OK) {
                    CHECK(!buffer.data);
                } else {
                    CHECK(code == JET_E_FULL && buffer.key == key && buffer.data == bytes);
                    ANSWERS(JET_OK, jet_buffer_free(sender, &buffer));
                }
            }
            if (code == JET_OK) CHECK(ticket == ++sent);
            else CHECK(code == JET_E_FULL);
        }
        ANSWERS(JET_OK, jet_sender_wait(sender, JET_FOREVER, &end));
        CHECK(end.ticket >= 1 && end.ticket <= MESSAGES && !seen[end.ticket]);
        CHECK(end.tag == end.ticket - 1 && !end.reply && !end.reply_bytes);
        seen[end.ticket] = 1;
        if ((end.ticket - 1) % 5 == 4) CHECK(end.status == JET_REJECTED && end.code == 28);
        else CHECK(end.status == JET_CONSUMED && end.code == 0);
        if (end.buffer.data) ANSWERS(JET_OK, jet_buffer_free(sender, &end.buffer));
        ended++;
    }
    CHECK(!pthread_join(receiver, NULL));
    jet_sender_stats stats;
    ANSWERS(JET_OK, jet_sender_stats_get(sender, &stats, sizeof stats));
    CHECK(stats.in_flight == 0 && stats.connected == 1 && stats.checksums == 1);
    jet_session_stats received;
    ANSWERS(JET_OK, jet_session_stats_get(session, &received, sizeof received));
    CHECK(received.messages == MESSAGES);
    ANSWERS(JET_OK, jet_sender_close(sender, JET_FOREVER));
    ANSWERS(JET_E_CLOSED, send_small(sender, 0, "x", 1));
    ANSWERS(JET_OK, jet_sender_free(sender));
    ANSWERS(JET_OK, jet_session_free(session));
    return 0;
}
