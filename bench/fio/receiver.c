/* The other end of the fio engine: registers names and consumes what comes, reading every byte of it.
 *
 *   receiver [--control-socket PATH] [--verify] [--stall NAME] NAME...
 *
 *   --verify      every message is a block that fio wrote with verify=crc32c (and do_verify=0): its header and its checksum are
 *                 looked at; one that is wrong is rejected with EILSEQ, which fails the job
 *   --stall NAME  this application, too, and it takes messages and gives none back until the end
 *
 * A thread for each name. Ends by SIGINT or SIGTERM, and says what came.
 */
#include <errno.h>
#include <inttypes.h>
#include <jet.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAMES_MAX = 64, STALLED_MAX = 4096, FIO_MAGIC = 0xacca, FIO_CRC32C = 5, HEADER_BYTES = 44 };

static volatile sig_atomic_t stop;
static int verify;
static const char *control_socket;

struct application {
    const char *name;
    int stalls;
    uint64_t messages, bytes, wrong, sum;
    int failed;
    pthread_t thread;
};

/* As fio 3.33 has it (verify.h): the header, then the data's checksum. */
struct fio_header {
    uint16_t magic, type;
    uint32_t length;
    uint64_t seed, offset;
    uint32_t seconds, nanoseconds;
    uint16_t thread, number;
    uint32_t header_crc, data_crc;
};

static uint32_t crc_table[256];

static uint32_t crc32c(uint32_t crc, const unsigned char *data, size_t bytes) {
    while (bytes--) crc = crc_table[(crc ^ *data++) & 0xff] ^ crc >> 8;
    return crc;
}

static void on_signal(int number) {
    (void)number;
    stop = 1;
}

static uint64_t read_all(const void *data, size_t bytes) {
    const uint64_t *words = data;
    uint64_t sum = 0;
    for (size_t i = 0; i < bytes / sizeof *words; i++) sum += words[i];
    return sum;
}

/* Whether a block is what fio wrote: as long as the smallest that the job writes, each stretch with a header of its own. */
static int is_right(const unsigned char *block, uint64_t bytes) {
    size_t crc_at = offsetof(struct fio_header, header_crc);
    struct fio_header header;
    for (; bytes; block += header.length, bytes -= header.length) {
        if (bytes < HEADER_BYTES) return 0;
        memcpy(&header, block, HEADER_BYTES);
        if (header.magic != FIO_MAGIC || header.type != FIO_CRC32C) return 0;
        if (header.length < HEADER_BYTES || header.length > bytes) return 0;
        if (crc32c(~0u, block, crc_at) != header.header_crc) return 0;
        if (crc32c(~0u, block + HEADER_BYTES, header.length - HEADER_BYTES) != header.data_crc) return 0;
    }
    return 1;
}

/* One message; what its end is. Below zero: the session is over. */
static int take(jet_session *session, jet_message *message, struct application *app, unsigned char **block, size_t *room) {
    jet_slice slice;
    int code;
    if (verify && message->bytes > *room) {
        *block = realloc(*block, *room = message->bytes);
        if (!*block) return -ENOMEM;
    }
    while ((code = jet_message_next(session, message, JET_FOREVER, &slice)) == JET_OK) {
        if (verify) memcpy(*block + slice.offset, slice.data, slice.bytes);
        else app->sum += read_all(slice.data, slice.bytes);
        jet_slice_release(session, &slice);
    }
    if (code == JET_E_WITHDRAWN) return ECANCELED;
    if (code < 0) return code;
    if (verify && !is_right(*block, message->bytes)) {
        app->wrong++;
        return EILSEQ;
    }
    return 0;
}

/* One registration, until the daemon or this program ends. */
static int serve(jet_session *session, struct application *app) {
    static jet_slice held[STALLED_MAX];
    unsigned char *block = NULL;
    size_t room = 0;
    int code = JET_OK, count = 0;
    while (!stop && code >= 0) {
        jet_message message;
        code = jet_session_receive(session, 100000000, &message);
        if (code != JET_OK) continue;
        app->messages++;
        app->bytes += message.bytes;
        if (app->stalls) {
            /* As an application that is stuck: it has the first slice in its hands, and does not come for more. */
            while (count < STALLED_MAX && jet_message_next(session, &message, 0, &held[count]) == JET_OK) count++;
            continue;
        }
        code = take(session, &message, app, &block, &room);
        if (code >= 0) code = jet_message_finish(session, &message, (uint32_t)code);
    }
    free(block);
    return code;
}

static void *run(void *argument) {
    struct application *app = argument;
    jet_session_options options;
    int told = 0;
    jet_session_options_init(&options);
    options.app = app->name;
    options.control_socket = control_socket;
    while (!stop) {
        jet_session *session;
        int code = jet_session_register(&options, &session);
        if (code == JET_E_UNREACHABLE && !told) {
            fprintf(stderr, "receiver: %s: %s; trying again until it is there\n", app->name, jet_error_text());
            told = 1;
        }
        if (code == JET_OK) {
            told = 0;
            code = serve(session, app);
            jet_session_free(session);
        }
        if (stop || code >= 0) break;
        /* A daemon that was stopped may be started again; anything else stays as it is. */
        if (code != JET_E_GONE && code != JET_E_UNREACHABLE) {
            fprintf(stderr, "receiver: %s: %s\n", app->name, jet_error_text());
            app->failed = 1;
            break;
        }
        struct timespec pause = {0, 50000000};
        nanosleep(&pause, NULL);
    }
    return NULL;
}

int main(int count, char **arguments) {
    static struct application apps[NAMES_MAX];
    int names = 0, failed = 0;
    struct sigaction action = {.sa_handler = on_signal};
    for (int i = 1; i < count; i++) {
        int more = i + 1 < count && arguments[i + 1][0] != '-';
        if (!strcmp(arguments[i], "--verify")) verify = 1;
        else if (!strcmp(arguments[i], "--control-socket") && more) control_socket = arguments[++i];
        else if (names == NAMES_MAX) names = NAMES_MAX + 1;
        else if (!strcmp(arguments[i], "--stall") && more) apps[names++] = (struct application){.name = arguments[++i], .stalls = 1};
        else if (arguments[i][0] == '-') names = NAMES_MAX + 1;
        else apps[names++] = (struct application){.name = arguments[i]};
        if (names > NAMES_MAX) break;
    }
    if (count == 2 && !strcmp(arguments[1], "--help")) {
        puts("usage: receiver [--control-socket PATH] [--verify] [--stall NAME] NAME...\n\n"
             "Registers the names, and reads every byte of what comes, until SIGINT or SIGTERM; then says what came.\n"
             "  --verify      messages are blocks of fio's verify=crc32c and are checked\n"
             "  --stall NAME  this one takes messages and gives none back");
        return 0;
    }
    if (names == 0 || names > NAMES_MAX) {
        fprintf(stderr, "usage: receiver [--control-socket PATH] [--verify] [--stall NAME] NAME..., at most %d names\n", NAMES_MAX);
        return 2;
    }
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? crc >> 1 ^ 0x82f63b78u : crc >> 1;
        crc_table[byte] = crc;
    }
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    for (int i = 0; i < names; i++)
        if (pthread_create(&apps[i].thread, NULL, run, &apps[i])) {
            fprintf(stderr, "receiver: no thread for %s\n", apps[i].name);
            return 1;
        }
    for (int i = 0; i < names; i++) {
        pthread_join(apps[i].thread, NULL);
        printf("%s: %" PRIu64 " messages, %" PRIu64 " bytes", apps[i].name, apps[i].messages, apps[i].bytes);
        if (verify) printf(", %" PRIu64 " wrong", apps[i].wrong);
        printf("\n");
        failed |= apps[i].failed || apps[i].wrong;
    }
    return failed;
}
