/* One thread waits in poll() for a session and a sender, and never inside the library. */
#include "check.h"
#include <poll.h>

enum { MESSAGES = 200 };

/* Takes all that there is; returns how many messages it finished. */
static unsigned take(jet_session *session) {
    jet_message message;
    unsigned count = 0;
    int code;
    while ((code = jet_session_receive(session, 0, &message)) == JET_OK) {
        ANSWERS(JET_OK, jet_message_finish(session, &message, 0));
        count++;
    }
    CHECK(code == JET_NOTHING);
    ANSWERS(JET_OK, jet_session_flush(session));
    return count;
}

/* Takes all ends that there are. */
static unsigned ends(jet_sender *sender) {
    jet_completion end;
    unsigned count = 0;
    int code;
    while ((code = jet_sender_poll(sender, &end)) == JET_OK) {
        CHECK(end.status == JET_CONSUMED);
        count++;
    }
    CHECK(code == JET_NOTHING);
    return count;
}

int main(void) {
    jet_session *session = session_of("loop");
    jet_sender *sender = sender_to("loop", MESSAGES);
    jet_sleep sleep;
    struct pollfd waits[2];
    unsigned taken = 0, ended = 0, slept = 0;
    ANSWERS(JET_E_ARGUMENT, jet_sender_prepare_sleep(sender, NULL));
    ANSWERS(JET_OK, jet_session_fd(session, &waits[0].fd));
    waits[0].events = waits[1].events = POLLIN;
    /* A daemon that is quick enough leaves no time to sleep: then there are more messages than these. The last one ends, too. */
    for (unsigned sent = 0; ended < MESSAGES || !slept || ended < sent;) {
        /* One at a time, so that both sides sleep between. */
        if (sent == ended) {
            ANSWERS(JET_OK, send_small(sender, sent, "x", 1));
            sent++;
        }
        taken += take(session);
        ended += ends(sender);
        if (ended == sent) continue;
        int receives = jet_session_prepare_sleep(session);
        int sends = jet_sender_prepare_sleep(sender, &sleep);
        CHECK((receives == JET_OK || receives == JET_NOTHING) && (sends == JET_OK || sends == JET_NOTHING));
        if (receives != JET_OK || sends != JET_OK) continue;
        waits[1].fd = sleep.fd;
        /* The sender is heard in time: well before a test is given up. */
        int timeout_ms = sleep.timeout_ns < 0 ? -1 : (int)(sleep.timeout_ns / 1000000) + 1;
        CHECK(sleep.fd >= 0 && sleep.fd_number == 0);
        CHECK(poll(waits, 2, timeout_ms) >= 0);
        slept++;
    }
    CHECK(taken == ended);
    ANSWERS(JET_OK, jet_sender_free(sender));
    ANSWERS(JET_OK, jet_session_free(session));
    return 0;
}
