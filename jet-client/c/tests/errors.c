/* Invalid arguments and states: each has a code of its own, and a text that says what to change. */
#include "check.h"

static void refused(int code, const char *words, const jet_sender_options *options) {
    jet_sender *sender = (jet_sender *)1;
    ANSWERS(code, jet_sender_connect(options, &sender));
    CHECK(!sender);
    CHECK(strstr(jet_error_text(), words));
}

int main(void) {
    jet_sender_options options;
    jet_session_options session_options;
    jet_session *session = (jet_session *)1;
    ANSWERS(JET_E_ARGUMENT, jet_sender_options_init(NULL));
    ANSWERS(JET_OK, jet_sender_options_init(&options));
    CHECK(options.size == sizeof options && options.in_flight_max == 256 && options.window_bytes == 64 << 20);
    CHECK(options.spin_max_ns == 200000 && options.region_bytes == 8 << 20 && options.reconnect_for_ns == 30000000000);
    refused(JET_E_ARGUMENT, "address is null", &options);
    options.address = "udp:there:1";
    refused(JET_E_ARGUMENT, "app is null", &options);
    options.app = "store";
    refused(JET_E_ARGUMENT, "none of shm, tcp, rdma", &options);
    options.address = "tcp:127.0.0.1:1";
    refused(JET_E_UNREACHABLE, "jet daemon", &options);
    options.address = setting("JET_ADDRESS");
    options.app = "bad name";
    refused(JET_E_ARGUMENT, "1 to 32 characters", &options);
    options.app = "\xff\xfe";
    refused(JET_E_ARGUMENT, "UTF-8", &options);
    options.app = "store";
    options.in_flight_max = 0;
    refused(JET_E_ARGUMENT, "in_flight_max", &options);
    options.in_flight_max = 256;
    options.source = "nowhere";
    refused(JET_E_ARGUMENT, "nowhere", &options);
    options.source = NULL;
    options.size = 1;
    refused(JET_E_ARGUMENT, "_init", &options);
    /* A caller that was compiled when the structure ended with the application's name: nothing behind that
     * field is written or read. */
    struct { jet_sender_options options; } guarded;
    memset(&guarded, 0x5a, sizeof guarded);
    size_t known = offsetof(jet_sender_options, source);
    ANSWERS(JET_OK, jet_sender_options_init_sized(&guarded.options, known));
    CHECK(guarded.options.size == known && !guarded.options.app);
    for (size_t at = known; at < sizeof guarded; at++) CHECK(((unsigned char *)&guarded)[at] == 0x5a);
    ANSWERS(JET_E_ARGUMENT, jet_sender_options_init_sized(&guarded.options, 7));
    ANSWERS(JET_E_ARGUMENT, jet_session_options_init_sized(NULL, sizeof session_options));
    /* An envelope of a caller that knows only the tag: the rest has its defaults. */
    struct { jet_envelope envelope; } short_envelope;
    memset(&short_envelope, 0x5a, sizeof short_envelope);
    ANSWERS(JET_OK, jet_envelope_init_sized(&short_envelope.envelope, offsetof(jet_envelope, user_header), 7));
    CHECK(short_envelope.envelope.size == offsetof(jet_envelope, user_header) && short_envelope.envelope.tag == 7);
    for (size_t at = offsetof(jet_envelope, user_header); at < sizeof short_envelope; at++)
        CHECK(((unsigned char *)&short_envelope)[at] == 0x5a);
    ANSWERS(JET_E_ARGUMENT, jet_envelope_init(NULL, 7));
    options.size = known;
    options.source = "nowhere";
    jet_sender *sender;
    ANSWERS(JET_OK, jet_sender_connect(&options, &sender));
    ANSWERS(JET_OK, jet_send_small(sender, &short_envelope.envelope, "x", 1, NULL));
    ANSWERS(JET_OK, jet_sender_free(sender));

    ANSWERS(JET_OK, jet_session_options_init(&session_options));
    CHECK(session_options.spin_max_ns == 200000);
    ANSWERS(JET_E_ARGUMENT, jet_session_register(&session_options, &session));
    CHECK(!session && strstr(jet_error_text(), "app is null"));
    session_options.app = "store";
    session_options.control_socket = "/nowhere/jetd.sock";
    ANSWERS(JET_E_UNREACHABLE, jet_session_register(&session_options, &session));
    CHECK(strstr(jet_error_text(), "/nowhere/jetd.sock"));
    session_options.control_socket = setting("JET_CONTROL");
    session_options.class_ = 99;
    ANSWERS(JET_E_REFUSED, jet_session_register(&session_options, &session));
    session_options.class_ = -1;
    ANSWERS(JET_E_ARGUMENT, jet_session_register(&session_options, &session));
    session_options.class_ = 0;
    ANSWERS(JET_OK, jet_session_register(&session_options, &session));
    jet_session *second;
    ANSWERS(JET_E_REFUSED, jet_session_register(&session_options, &second));
    CHECK(strstr(jet_error_text(), "under that name"));
    ANSWERS(JET_OK, jet_session_free(session));
    CHECK(strstr(jet_code_text(JET_E_GONE), "register again"));
    CHECK(strstr(jet_code_text(99), "no code"));
    CHECK(strstr(jet_status_text(JET_NO_APP), "registered") && strstr(jet_status_text(JET_PEER_LOST), "lost"));
    CHECK(strstr(jet_status_text(JET_CONSUMED), "consumed") && strstr(jet_status_text(10), "no end"));
    return 0;
}
