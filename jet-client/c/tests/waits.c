/* A wait with a timeout below zero lasts until its event: draining and closing end with the message, not
 * before. */
#include "check.h"
#include <pthread.h>

typedef int wait_call(jet_sender *sender, int64_t timeout_ns);

struct waiter {
    jet_sender *sender;
    jet_session *session;
};

/* Ends the message once the other thread waits: only that thread uses the sender, so the handle is busy
 * then. */
static void *end_it(void *argument) {
    struct waiter *waiter = argument;
    jet_message message;
    int code;
    ANSWERS(JET_OK, jet_session_receive(waiter->session, JET_FOREVER, &message));
    while ((code = jet_sender_flush(waiter->sender)) == JET_OK) step_aside();
    CHECK(code == JET_E_BUSY);
    ANSWERS(JET_OK, jet_message_finish(waiter->session, &message, 0));
    ANSWERS(JET_OK, jet_session_flush(waiter->session));
    return NULL;
}

static void waits(wait_call *call) {
    struct waiter waiter = {sender_to("waits", 1), session_of("waits")};
    jet_completion end;
    pthread_t thread;
    int code;
    ANSWERS(JET_OK, send_small(waiter.sender, 1, "x", 1));
    /* Nobody receives the message yet. */
    ANSWERS(JET_NOTHING, call(waiter.sender, 0));
    ANSWERS(JET_NOTHING, call(waiter.sender, 1000000));
    CHECK(!pthread_create(&thread, NULL, end_it, &waiter));
    /* At first the other thread's calls may use the handle. */
    while ((code = call(waiter.sender, JET_FOREVER)) == JET_E_BUSY) step_aside();
    ANSWERS(JET_OK, code);
    CHECK(!pthread_join(thread, NULL));
    ANSWERS(JET_OK, jet_sender_poll(waiter.sender, &end));
    CHECK(end.status == JET_CONSUMED);
    ANSWERS(JET_OK, call(waiter.sender, 0));
    ANSWERS(JET_OK, jet_sender_free(waiter.sender));
    ANSWERS(JET_OK, jet_session_free(waiter.session));
}

int main(void) {
    waits(jet_sender_drain);
    waits(jet_sender_close);
    return 0;
}
