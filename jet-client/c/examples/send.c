/* Sends a file to an application behind a daemon: send ADDRESS APP FILE. */
#include <jet.h>
#include <stdio.h>
#include <string.h>

enum { MESSAGE_BYTES = 1 << 20 };

static int fail(const char *what) {
    fprintf(stderr, "send: %s: %s\n", what, jet_error_text());
    return 1;
}

int main(int count, char **arguments) {
    if (count != 4) {
        fprintf(stderr, "usage: send ADDRESS APP FILE, as in send tcp:127.0.0.1:7450 store big.iso\n");
        return 2;
    }
    FILE *file = fopen(arguments[3], "rb");
    if (!file) {
        perror(arguments[3]);
        return 1;
    }
    jet_sender_options options;
    jet_sender *sender;
    jet_sender_options_init(&options);
    options.address = arguments[1];
    options.app = arguments[2];
    options.in_flight_max = 16;
    if (jet_sender_connect(&options, &sender) < 0) return fail("cannot connect");

    jet_buffer spare = {0};
    uint64_t offset = 0, refused = 0;
    for (int more = 1; more;) {
        /* Each buffer is sent as soon as it is full; buffers that come back are used again. */
        if (!spare.data && jet_buffer_get(sender, MESSAGE_BYTES, &spare) < 0) return fail("no buffer");
        size_t bytes = fread(spare.data, 1, MESSAGE_BYTES, file);
        if (ferror(file)) {
            perror(arguments[3]);
            return 1;
        }
        more = bytes == MESSAGE_BYTES;
        jet_envelope envelope;
        jet_envelope_init(&envelope, offset);
        int code = bytes ? jet_send(sender, &envelope, &spare, bytes, NULL) : JET_OK;
        offset += bytes;
        /* The end of a message makes room for the next one. At the end of the file, wait for all ends. */
        while (code == JET_E_FULL || !more) {
            jet_completion end;
            int waited = jet_sender_wait(sender, JET_FOREVER, &end);
            if (waited < 0) return fail("cannot wait");
            if (waited == JET_NOTHING) break;
            if (end.status != JET_CONSUMED && refused++ == 0)
                fprintf(stderr, "send: message %llu: %s\n", (unsigned long long)end.ticket, jet_status_text(end.status));
            if (end.buffer.data) jet_buffer_free(sender, &end.buffer);
            if (code == JET_E_FULL) code = jet_send(sender, &envelope, &spare, bytes, NULL);
        }
        if (code < 0) return fail("cannot send");
    }
    printf("%llu bytes sent, %llu messages not consumed\n", (unsigned long long)offset, (unsigned long long)refused);
    jet_sender_close(sender, JET_FOREVER);
    jet_sender_free(sender);
    fclose(file);
    return refused != 0;
}
