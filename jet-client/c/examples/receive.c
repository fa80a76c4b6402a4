/* Registers an application and prints what it receives: receive APP [CONTROL_SOCKET]. */
#include <jet.h>
#include <inttypes.h>
#include <stdio.h>

int main(int count, char **arguments) {
    if (count < 2 || count > 3) {
        fprintf(stderr, "usage: receive APP [CONTROL_SOCKET]\n");
        return 2;
    }
    jet_session_options options;
    jet_session *session;
    /* Line buffering: a message's line appears at once, also in a file. */
    setvbuf(stdout, NULL, _IOLBF, 0);
    jet_session_options_init(&options);
    options.app = arguments[1];
    options.control_socket = count == 3 ? arguments[2] : NULL;
    int code = jet_session_register(&options, &session);
    jet_message message;
    while (code >= 0 && (code = jet_session_receive(session, JET_FOREVER, &message)) >= 0) {
        jet_slice slice;
        uint64_t sum = 0;
        while ((code = jet_message_next(session, &message, JET_FOREVER, &slice)) == JET_OK) {
            const unsigned char *bytes = slice.data;
            for (size_t i = 0; i < slice.bytes; i++) sum += bytes[i];
            jet_slice_release(session, &slice);
        }
        if (code == JET_E_WITHDRAWN) {
            fprintf(stderr, "receive: %s\n", jet_error_text());
            jet_message_finish(session, &message, 5);
            code = JET_OK;
            continue;
        }
        if (code < 0) break;
        printf("message %" PRIu64 " of %016" PRIx64 ": %" PRIu64 " bytes, sum %" PRIu64 "%s\n", message.sequence,
               message.sender, message.bytes, sum, message.redelivered ? ", redelivered" : "");
        jet_message_finish(session, &message, 0);
    }
    fprintf(stderr, "receive: %s\n", jet_error_text());
    return 1;
}
