/* A receiver that keeps every slice of a message larger than the pool gets an error. It gives some back, and
 * continues. One with an event loop of its own is told as well. */
#include "check.h"
#include <poll.h>

/* More bytes than the pool and escape memory have together. */
enum { PAGE = 4096, PAGES = 12 << 10, BYTES = PAGES * PAGE };

static jet_slice kept[PAGES];
static size_t kept_count;

static void give_half_back(jet_session *session) {
    size_t left = kept_count / 2;
    while (kept_count > left) ANSWERS(JET_OK, jet_slice_release(session, &kept[--kept_count]));
}

static void check_pages(const jet_slice *slice) {
    for (size_t at = 0; at < slice->bytes; at += PAGE) {
        uint64_t number;
        memcpy(&number, (const char *)slice->data + at, sizeof number);
        CHECK(number == (slice->offset + at) / PAGE);
    }
}

/* Waits in the library. */
static int wait_inside(jet_session *session, const jet_message *message, jet_slice *slice) {
    return jet_message_next(session, message, JET_FOREVER, slice);
}

/* Waits in poll(). */
static int wait_outside(jet_session *session, const jet_message *message, jet_slice *slice) {
    struct pollfd wait = {.events = POLLIN};
    ANSWERS(JET_OK, jet_session_fd(session, &wait.fd));
    for (;;) {
        int code = jet_message_next(session, message, 0, slice);
        if (code != JET_NOTHING) return code;
        code = jet_session_prepare_sleep(session);
        if (code == JET_NOTHING) continue;
        CHECK(code == JET_OK);
        code = jet_session_holds_all(session);
        if (code != JET_NOTHING) return code;
        CHECK(poll(&wait, 1, -1) == 1);
    }
}

static void keep_all(jet_session *session, jet_sender *sender,
                     int (*next)(jet_session *, const jet_message *, jet_slice *)) {
    jet_envelope envelope = envelope_of(1);
    jet_buffer buffer;
    jet_message message;
    jet_completion end;
    uint64_t seen = 0;
    unsigned told = 0;
    int code;
    ANSWERS(JET_OK, jet_buffer_get(sender, BYTES, &buffer));
    for (uint64_t page = 0; page < PAGES; page++) memcpy((char *)buffer.data + page * PAGE, &page, sizeof page);
    ANSWERS(JET_OK, jet_send(sender, &envelope, &buffer, BYTES, NULL));
    message = received_from(sender, session);
    ANSWERS(JET_NOTHING, jet_session_holds_all(session));
    while ((code = next(session, &message, &kept[kept_count])) != JET_END) {
        if (code == JET_OK) {
            seen += kept[kept_count].bytes;
            kept_count++;
            continue;
        }
        ANSWERS(JET_E_HELD, code);
        CHECK(strstr(jet_error_text(), "given back") && seen < BYTES && kept_count > 0);
        told++;
        /* The slices stay valid until they are given back. */
        for (size_t i = 0; i < kept_count; i++) check_pages(&kept[i]);
        give_half_back(session);
    }
    CHECK(seen == BYTES && told > 0);
    while (kept_count > 0) {
        check_pages(&kept[kept_count - 1]);
        give_half_back(session);
    }
    ANSWERS(JET_OK, jet_message_finish(session, &message, 0));
    ANSWERS(JET_OK, jet_session_flush(session));
    ANSWERS(JET_OK, jet_sender_wait(sender, JET_FOREVER, &end));
    CHECK(end.status == JET_CONSUMED);
    ANSWERS(JET_OK, jet_buffer_free(sender, &end.buffer));
}

int main(void) {
    jet_session *session = session_of("keeper");
    jet_sender *sender = sender_to("keeper", 1);
    keep_all(session, sender, wait_inside);
    keep_all(session, sender, wait_outside);
    ANSWERS(JET_E_HANDLE, jet_session_holds_all(NULL));
    ANSWERS(JET_OK, jet_sender_free(sender));
    ANSWERS(JET_OK, jet_session_free(session));
    return 0;
}
