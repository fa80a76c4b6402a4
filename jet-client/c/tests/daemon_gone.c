/* The daemon is killed: the session reports it, and the sender gives its message up when its time is over.
 * Runs as the last test. */
#include "check.h"
#include <signal.h>

int main(void) {
    jet_session *session = session_of("victim");
    jet_sender_options options;
    jet_sender *sender;
    jet_message message;
    jet_completion end;
    ANSWERS(JET_OK, jet_sender_options_init(&options));
    options.address = setting("JET_ADDRESS");
    options.app = "victim";
    options.reconnect_for_ns = 300000000;
    ANSWERS(JET_OK, jet_sender_connect(&options, &sender));
    ANSWERS(JET_OK, send_small(sender, 1, "never ended", 11));
    message = received_from(sender, session);
    CHECK(!kill(atoi(setting("JET_PID")), SIGKILL));
    ANSWERS(JET_E_GONE, jet_session_receive(session, JET_FOREVER, &message));
    CHECK(strstr(jet_error_text(), "register again"));
    ANSWERS(JET_OK, jet_sender_wait(sender, JET_FOREVER, &end));
    CHECK(end.status == JET_PEER_LOST);
    ANSWERS(JET_OK, jet_sender_free(sender));
    ANSWERS(JET_OK, jet_session_free(session));
    return 0;
}
