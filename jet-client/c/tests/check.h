/* Checks for all tests: a failure prints its place and the reason. */
#ifndef CHECK_H
#define CHECK_H

#include <jet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <threads.h>
#include <time.h>

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, jet_error_text()); \
            exit(1); \
        } \
    } while (0)

/* Checks that a call returns this code. */
#define ANSWERS(code, call) \
    do { \
        int answered = (call); \
        if (answered != (code)) { \
            fprintf(stderr, "%s:%d: %s answers %d instead of %s: %s\n", __FILE__, __LINE__, #call, answered, #code, \
                    jet_error_text()); \
            exit(1); \
        } \
    } while (0)

/* Sleeps for a millisecond, with no handle in use: to call between two tries. Under valgrind one thread runs
 * at a time, and the next one runs when it makes a system call. Without this sleep, all system calls of a
 * thread may be within calls that use the handle: then every try of another thread finds it busy. */
static inline void step_aside(void) {
    thrd_sleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

static inline const char *setting(const char *name) {
    const char *value = getenv(name);
    if (!value) {
        fprintf(stderr, "%s is not set: run this by tests/run\n", name);
        exit(2);
    }
    return value;
}

static inline jet_sender *sender_to(const char *app, uint32_t in_flight_max) {
    jet_sender_options options;
    jet_sender *sender;
    ANSWERS(JET_OK, jet_sender_options_init(&options));
    options.address = setting("JET_ADDRESS");
    options.app = app;
    options.in_flight_max = in_flight_max;
    options.crc = 1;
    ANSWERS(JET_OK, jet_sender_connect(&options, &sender));
    return sender;
}

static inline jet_envelope envelope_of(uint64_t tag) {
    jet_envelope envelope;
    ANSWERS(JET_OK, jet_envelope_init(&envelope, tag));
    return envelope;
}

/* Sends a small message without a user header. */
static inline int send_small(jet_sender *sender, uint64_t tag, const void *payload, size_t bytes) {
    jet_envelope envelope = envelope_of(tag);
    return jet_send_small(sender, &envelope, payload, bytes, NULL);
}

static inline jet_session *session_of(const char *app) {
    jet_session_options options;
    jet_session *session;
    ANSWERS(JET_OK, jet_session_options_init(&options));
    options.control_socket = setting("JET_CONTROL");
    options.app = app;
    ANSWERS(JET_OK, jet_session_register(&options, &session));
    return session;
}

/* Waits for the next message of a session, while its sender gets its turns. The sender needs them to learn of
 * new credit: one flush sends only what it has credit for by then. */
static inline jet_message received_from(jet_sender *sender, jet_session *session) {
    jet_message message;
    int code;
    do {
        ANSWERS(JET_OK, jet_sender_flush(sender));
        code = jet_session_receive(session, 5000000, &message);
    } while (code == JET_NOTHING);
    ANSWERS(JET_OK, code);
    return message;
}

#endif
