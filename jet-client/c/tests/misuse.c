/* Callers that break the rules: each gets an error, and no memory of others is touched. */
#include "check.h"
#include <pthread.h>

static jet_session *waiting;

static void *wait_for_message(void *argument) {
    jet_message message;
    (void)argument;
    int code;
    /* At first the other thread's calls may use the handle. Once this one waits, they get an error. */
    while ((code = jet_session_receive(waiting, JET_FOREVER, &message)) == JET_E_BUSY) step_aside();
    CHECK(code == JET_OK);
    ANSWERS(JET_OK, jet_message_finish(waiting, &message, 0));
    ANSWERS(JET_OK, jet_session_flush(waiting));
    return NULL;
}

int main(void) {
    jet_sender *sender = sender_to("nobody", 2);
    jet_session *session = session_of("misuse"), *other = session_of("other");
    jet_buffer buffer, copy, none = {0};
    jet_completion end;
    jet_message message = {0};
    jet_slice slice = {0};

    /* Null pointers, also where bytes are expected. */
    ANSWERS(JET_E_HANDLE, jet_sender_free(NULL));
    ANSWERS(JET_E_HANDLE, jet_session_free(NULL));
    ANSWERS(JET_E_HANDLE, jet_sender_poll(NULL, &end));
    ANSWERS(JET_E_ARGUMENT, jet_sender_poll(sender, NULL));
    ANSWERS(JET_E_ARGUMENT, jet_session_receive(session, 0, NULL));
    ANSWERS(JET_E_ARGUMENT, jet_message_next(session, NULL, 0, &slice));
    ANSWERS(JET_E_ARGUMENT, jet_slice_release(session, NULL));
    ANSWERS(JET_E_ARGUMENT, jet_message_finish(session, NULL, 0));
    jet_sender *unmade = sender;
    ANSWERS(JET_E_ARGUMENT, jet_sender_connect(NULL, &unmade));
    CHECK(!unmade);
    ANSWERS(JET_E_ARGUMENT, send_small(sender, 0, NULL, 5));
    ANSWERS(JET_E_ARGUMENT, jet_send_small(sender, NULL, "x", 1, NULL));
    ANSWERS(JET_E_ARGUMENT, jet_message_reply(session, NULL, 0, "x", 1));
    jet_envelope envelope = envelope_of(0), invalid = envelope;
    invalid.user_header_bytes = 7;
    ANSWERS(JET_E_ARGUMENT, jet_send_small(sender, &invalid, "x", 1, NULL));

    /* Handles that never were handles, or are of the other kind. */
    ANSWERS(JET_E_HANDLE, jet_sender_poll((jet_sender *)(uintptr_t)0xdeadbeef, &end));
    ANSWERS(JET_E_HANDLE, jet_sender_poll((jet_sender *)&end, &end));
    ANSWERS(JET_E_HANDLE, jet_sender_poll((jet_sender *)session, &end));
    ANSWERS(JET_E_HANDLE, jet_session_flush((jet_session *)sender));
    CHECK(strstr(jet_error_text(), "freed"));

    /* Buffers: freed twice, made up, a copy of one that was sent, too short, too long. */
    ANSWERS(JET_OK, jet_buffer_get(sender, 8192, &buffer));
    copy = buffer;
    ANSWERS(JET_E_SIZE, jet_send(sender, &envelope, &buffer, 8193, NULL));
    ANSWERS(JET_E_SIZE, jet_send(sender, &envelope, &buffer, 0, NULL));
    ANSWERS(JET_E_SIZE, jet_send_small_buffer(sender, &envelope, &buffer, 4097, NULL));
    ANSWERS(JET_E_ARGUMENT, jet_send(sender, NULL, &buffer, 8192, NULL));
    /* Envelopes: a class that is none, a header that is too long, a size that no structure has. */
    static const int no_class[] = {-1, 256};
    for (int i = 0; i < 2; i++) {
        invalid = envelope;
        invalid.class_ = no_class[i];
        ANSWERS(JET_E_ARGUMENT, jet_send(sender, &invalid, &buffer, 8192, NULL));
        CHECK(strstr(jet_error_text(), "class"));
        ANSWERS(JET_E_ARGUMENT, jet_send_small(sender, &invalid, "x", 1, NULL));
    }
    static const char header[257];
    invalid = envelope;
    invalid.user_header = header;
    invalid.user_header_bytes = 257;
    ANSWERS(JET_E_SIZE, jet_send(sender, &invalid, &buffer, 8192, NULL));
    invalid.user_header_bytes = 97;
    ANSWERS(JET_E_SIZE, jet_send_small_buffer(sender, &invalid, &buffer, 1, NULL));
    ANSWERS(JET_E_SIZE, jet_send_small(sender, &invalid, "x", 1, NULL));
    invalid = envelope;
    invalid.size = 1;
    ANSWERS(JET_E_ARGUMENT, jet_send(sender, &invalid, &buffer, 8192, NULL));
    CHECK(strstr(jet_error_text(), "_init"));
    CHECK(buffer.data == copy.data && buffer.key == copy.key);
    /* Less than the buffer is sent, and the whole buffer comes back. */
    ANSWERS(JET_OK, jet_send(sender, &envelope, &buffer, 5000, NULL));
    ANSWERS(JET_E_KEY, jet_send(sender, &envelope, &copy, 8192, NULL));
    ANSWERS(JET_E_KEY, jet_buffer_free(sender, &copy));
    ANSWERS(JET_E_KEY, jet_buffer_free(sender, &buffer));
    ANSWERS(JET_E_KEY, jet_buffer_free(sender, &none));
    copy.key = UINT64_MAX;
    ANSWERS(JET_E_KEY, jet_buffer_free(sender, &copy));
    ANSWERS(JET_E_SYSTEM, jet_buffer_get(sender, SIZE_MAX, &copy));
    ANSWERS(JET_OK, jet_sender_wait(sender, JET_FOREVER, &end));
    CHECK(end.status == JET_NO_APP && end.buffer.data == copy.data && end.buffer.bytes == 8192);
    ANSWERS(JET_OK, jet_buffer_free(sender, &end.buffer));

    /* A row of buffers is one range of memory; more buffers than memory allows are an error. */
    jet_buffer row[5];
    ANSWERS(JET_OK, jet_buffer_get_row(sender, 16384, 5, row));
    for (int i = 1; i < 5; i++) CHECK((char *)row[i].data == (char *)row[i - 1].data + 16384);
    for (int i = 0; i < 5; i++) ANSWERS(JET_OK, jet_buffer_free(sender, &row[i]));
    ANSWERS(JET_E_ARGUMENT, jet_buffer_get_row(sender, 16384, 5, NULL));
    ANSWERS(JET_E_SYSTEM, jet_buffer_get_row(sender, 16384, SIZE_MAX / 2, row));
    /* With the bytes that are cut already, this wraps around the address space once. */
    ANSWERS(JET_E_SYSTEM, jet_buffer_get_row(sender, 4096, SIZE_MAX / 4096, row));

    /* Pointers that are not aligned, and sizes that no structure has. */
    _Alignas(16) char crooked[512];
    jet_session_stats counted;
    jet_sender_stats sent;
    void *odd = crooked + 1;
    ANSWERS(JET_E_ARGUMENT, jet_session_stats_get(session, odd, sizeof counted));
    ANSWERS(JET_E_ARGUMENT, jet_sender_stats_get(sender, odd, sizeof sent));
    ANSWERS(JET_E_ARGUMENT, jet_session_stats_get(session, &counted, 0));
    ANSWERS(JET_E_ARGUMENT, jet_session_stats_get(session, &counted, SIZE_MAX));
    ANSWERS(JET_E_ARGUMENT, jet_message_next(session, odd, 0, &slice));
    ANSWERS(JET_E_ARGUMENT, jet_message_finish(session, odd, 0));
    ANSWERS(JET_E_ARGUMENT, jet_sender_options_init(odd));
    ANSWERS(JET_E_ARGUMENT, jet_message_reply(session, odd, 0, "x", 1));
    ANSWERS(JET_E_ARGUMENT, jet_envelope_init(odd, 0));
    ANSWERS(JET_E_ARGUMENT, jet_send_small(sender, odd, "x", 1, NULL));
    ANSWERS(JET_E_ARGUMENT, jet_send_small(sender, &envelope, "x", 1, odd));
    ANSWERS(JET_OK, jet_buffer_get(sender, 4096, &buffer));
    ANSWERS(JET_E_ARGUMENT, jet_send(sender, &envelope, &buffer, 4096, odd));
    ANSWERS(JET_E_ARGUMENT, jet_send_small_buffer(sender, odd, &buffer, 4096, NULL));
    ANSWERS(JET_OK, jet_buffer_free(sender, &buffer));
    ANSWERS(JET_OK, jet_session_stats_get(session, &counted, sizeof counted));

    /* More messages in flight than are allowed. */
    ANSWERS(JET_OK, send_small(sender, 0, "x", 1));
    ANSWERS(JET_OK, send_small(sender, 0, "x", 1));
    ANSWERS(JET_E_FULL, send_small(sender, 0, "x", 1));
    ANSWERS(JET_E_SIZE, send_small(sender, 0, &end, 4097));
    ANSWERS(JET_OK, jet_sender_drain(sender, JET_FOREVER));
    ANSWERS(JET_OK, jet_sender_poll(sender, &end));
    ANSWERS(JET_OK, jet_sender_poll(sender, &end));
    ANSWERS(JET_NOTHING, jet_sender_poll(sender, &end));
    ANSWERS(JET_NOTHING, jet_sender_wait(sender, JET_FOREVER, &end));

    /* Messages and slices: used before there are any, used twice, used with another session. */
    ANSWERS(JET_E_KEY, jet_message_next(session, &message, 0, &slice));
    ANSWERS(JET_E_KEY, jet_message_finish(session, &message, 0));
    ANSWERS(JET_E_KEY, jet_slice_release(session, &slice));
    ANSWERS(JET_NOTHING, jet_session_receive(session, 0, &message));
    jet_sender *mine = sender_to("misuse", 4);
    ANSWERS(JET_OK, send_small(mine, 7, "hello", 5));
    message = received_from(mine, session);
    ANSWERS(JET_OK, jet_message_next(session, &message, JET_FOREVER, &slice));
    CHECK(slice.bytes == 5 && !memcmp(slice.data, "hello", 5));
    ANSWERS(JET_E_KEY, jet_slice_release(other, &slice));
    ANSWERS(JET_E_KEY, jet_message_finish(other, &message, 0));
    jet_slice again = slice;
    jet_message twice = message;
    ANSWERS(JET_OK, jet_slice_release(session, &slice));
    ANSWERS(JET_E_KEY, jet_slice_release(session, &again));
    ANSWERS(JET_OK, jet_message_finish(session, &message, 0));
    ANSWERS(JET_E_KEY, jet_message_next(session, &twice, 0, &slice));
    ANSWERS(JET_E_KEY, jet_message_finish(session, &twice, 0));
    ANSWERS(JET_OK, jet_session_flush(session));
    ANSWERS(JET_OK, jet_sender_wait(mine, JET_FOREVER, &end));
    CHECK(end.status == JET_CONSUMED && !end.buffer.data);

    /* A handle used by two threads at once. */
    pthread_t thread;
    int code;
    waiting = other;
    CHECK(!pthread_create(&thread, NULL, wait_for_message, NULL));
    while ((code = jet_session_flush(other)) == JET_OK) step_aside();
    CHECK(code == JET_E_BUSY);
    ANSWERS(JET_E_BUSY, jet_session_free(other));
    jet_sender *to_other = sender_to("other", 1);
    ANSWERS(JET_OK, send_small(to_other, 9, "x", 1));
    ANSWERS(JET_OK, jet_sender_wait(to_other, JET_FOREVER, &end));
    CHECK(end.status == JET_CONSUMED);
    CHECK(!pthread_join(thread, NULL));
    ANSWERS(JET_OK, jet_sender_free(to_other));

    /* A session freed while a slice is held, used after that, freed twice. */
    ANSWERS(JET_OK, send_small(mine, 8, "bye", 3));
    message = received_from(mine, session);
    ANSWERS(JET_OK, jet_message_next(session, &message, JET_FOREVER, &slice));
    ANSWERS(JET_OK, jet_session_free(session));
    ANSWERS(JET_E_HANDLE, jet_slice_release(session, &slice));
    ANSWERS(JET_E_HANDLE, jet_session_receive(session, 0, &message));
    ANSWERS(JET_E_HANDLE, jet_session_free(session));
    ANSWERS(JET_OK, jet_sender_wait(mine, JET_FOREVER, &end));
    CHECK(end.status == JET_APP_GONE);
    ANSWERS(JET_OK, jet_session_free(other));
    ANSWERS(JET_OK, jet_sender_free(mine));
    ANSWERS(JET_OK, jet_sender_free(sender));
    ANSWERS(JET_E_HANDLE, send_small(sender, 0, "x", 1));
    return 0;
}
