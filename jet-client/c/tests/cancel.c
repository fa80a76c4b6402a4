/* Messages are taken back, by hand and by deadlines, and their buffers come back with their ends. */
#include "check.h"

/* More bytes than the pool and escape memory have together. */
enum { BYTES = 48 << 20 };

static jet_slice kept[BYTES / 4096];

/* Nothing is sent after its deadline, and one without limit is sent. */
static void deadlines(void) {
    jet_session *session = session_of("late");
    jet_sender *sender = sender_to("late", 4);
    jet_envelope envelope = envelope_of(1);
    jet_message message;
    jet_completion end;
    CHECK(envelope.deadline_ns == JET_FOREVER);
    envelope.deadline_ns = 0;
    ANSWERS(JET_OK, jet_send_small(sender, &envelope, "late", 4, NULL));
    ANSWERS(JET_OK, jet_sender_wait(sender, JET_FOREVER, &end));
    CHECK(end.tag == 1 && end.status == JET_CANCELLED);
    envelope.tag = 2;
    envelope.deadline_ns = INT64_MAX;
    ANSWERS(JET_OK, jet_send_small(sender, &envelope, "in time", 7, NULL));
    message = received_from(sender, session);
    CHECK(message.tag == 2);
    /* The application has it: it is not given back. */
    ANSWERS(JET_OK, jet_cancel(sender, 2));
    ANSWERS(JET_OK, jet_message_finish(session, &message, 28));
    ANSWERS(JET_OK, jet_session_flush(session));
    ANSWERS(JET_OK, jet_sender_wait(sender, JET_FOREVER, &end));
    CHECK(end.tag == 2 && end.status == JET_REJECTED && end.code == 28);
    ANSWERS(JET_OK, jet_cancel(sender, 2));
    ANSWERS(JET_OK, jet_cancel(sender, UINT64_MAX));
    ANSWERS(JET_NOTHING, jet_sender_poll(sender, &end));
    ANSWERS(JET_OK, jet_sender_free(sender));
    ANSWERS(JET_OK, jet_session_free(session));
}

int main(void) {
    jet_session *session = session_of("keeper");
    jet_sender *sender = sender_to("keeper", 1);
    jet_envelope envelope = envelope_of(1);
    jet_buffer buffer;
    jet_message message;
    jet_completion end;
    uint64_t ticket;
    size_t count = 0;
    int code;
    deadlines();
    CHECK(strstr(jet_status_text(JET_CANCELLED), "taken back"));
    ANSWERS(JET_OK, jet_buffer_get(sender, BYTES, &buffer));
    void *data = buffer.data;
    memset(buffer.data, 7, BYTES);
    ANSWERS(JET_OK, jet_send(sender, &envelope, &buffer, BYTES, &ticket));
    message = received_from(sender, session);
    /* The application keeps what there is room for. */
    while ((code = jet_message_next(session, &message, JET_FOREVER, &kept[count])) == JET_OK) count++;
    ANSWERS(JET_E_HELD, code);
    ANSWERS(JET_OK, jet_cancel(sender, ticket));
    ANSWERS(JET_OK, jet_sender_wait(sender, JET_FOREVER, &end));
    CHECK(end.status == JET_CANCELLED && end.ticket == ticket && end.buffer.data == data);
    memset(end.buffer.data, 9, BYTES);
    /* What it has stays as it is, and no more comes. */
    for (size_t at = 0; at < count; at++) {
        CHECK(*(const char *)kept[at].data == 7);
        ANSWERS(JET_OK, jet_slice_release(session, &kept[at]));
    }
    while ((code = jet_message_next(session, &message, JET_FOREVER, &kept[0])) == JET_OK) {
        ANSWERS(JET_OK, jet_slice_release(session, &kept[0]));
    }
    ANSWERS(JET_E_WITHDRAWN, code);
    ANSWERS(JET_OK, jet_message_finish(session, &message, 1));
    ANSWERS(JET_OK, jet_buffer_free(sender, &end.buffer));
    ANSWERS(JET_OK, jet_sender_free(sender));
    ANSWERS(JET_OK, jet_session_free(session));
    return 0;
}
