/* The other end of the fio engine: registers names and consumes what comes, reading every byte of it or writing it to disk.
 *
 *   receiver [--control-socket PATH] [--verify | --write PATH [--writers N] [--dsync]] [--stall NAME] NAME...
 *
 *   --verify      every message is a block that fio wrote with verify=crc32c (and do_verify=0): its header and its checksum are
 *                 looked at; one that is wrong is rejected with EILSEQ, which fails the job
 *   --write PATH  blocks go to this file or device, each to its offset, or to a file of the application's name in this directory; from
 *                 the slabs, past the page cache where that can be. One that cannot be written is rejected with the errno
 *   --writers N   so many at once for each application, each by a thread of its own [16]
 *   --dsync       a block's end is heard when the device has it (O_DSYNC); without, when the system has it, and the device when the
 *                 job syncs (fsync= and the like)
 *   --stall NAME  this application, too, and it takes messages and gives none back until the end
 *
 * A block that asks for a reply (the engine's reply=) gets it, whatever becomes of it.
 *
 * A thread for each name. Ends by SIGINT or SIGTERM, and says what came.
 */
#include "ask.h"
#include "reply.h"
#include "store.h"

#include <errno.h>
#include <inttypes.h>
#include <jet.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { NAMES_MAX = 64, STALLED_MAX = 4096, FIO_MAGIC = 0xacca, FIO_CRC32C = 5, HEADER_BYTES = 44 };

static volatile sig_atomic_t stop;
static int verify, writers = 16, synced;
static const char *control_socket, *write_to;

struct application {
    const char *name;
    int stalls;
    struct stored stored;
    uint64_t wrong, sum;
    struct disk *disk; /* null: nothing is written */
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
        if (!app->stalls && asked(message.user_header, message.user_header_bytes, message.bytes)) {
            /* Nothing is kept, so nothing is ever synced. */
            jet_slice none;
            while ((code = jet_message_next(session, &message, JET_FOREVER, &none)) == JET_OK) jet_slice_release(session, &none);
            if (code >= 0) code = jet_message_finish(session, &message, ANSWER | ANSWER_REPLIES | (verify ? ANSWER_LOOKS : 0));
            continue;
        }
        app->stored.messages++;
        app->stored.bytes += message.bytes;
        if (app->stalls) {
            /* As an application that is stalled: it keeps the first slices, and takes no more. */
            while (count < STALLED_MAX && jet_message_next(session, &message, 0, &held[count]) == JET_OK) count++;
            continue;
        }
        code = take(session, &message, app, &block, &room);
        if (code >= 0) code = finish_block(session, &message, (uint32_t)code, &app->stored.replied);
    }
    free(block);
    return code;
}

/* Opens what an application's blocks go to; below 0 where it cannot, which is said. */
static int open_disk(struct application *app) {
    char path[4096];
    struct stat status;
    int in_directory = !stat(write_to, &status) && S_ISDIR(status.st_mode);
    int length = snprintf(path, sizeof path, "%s%s%s", write_to, in_directory ? "/" : "", in_directory ? app->name : "");
    if (length < 0 || (size_t)length >= sizeof path) errno = ENAMETOOLONG;
    else app->disk = disk_open(path, writers, synced);
    if (!app->disk) {
        fprintf(stderr, "receiver: %s: cannot write to %s: %s\n", app->name, path, strerror(errno));
        return -1;
    }
    int refusal = disk_direct_refusal(app->disk);
    if (refusal)
        fprintf(stderr, "receiver: %s: %s takes no O_DIRECT (%s); writing through the page cache\n", app->name, path,
                strerror(refusal));
    return 0;
}

static void *run(void *argument) {
    struct application *app = argument;
    jet_session_options options;
    int told = 0;
    jet_session_options_init(&options);
    options.app = app->name;
    options.control_socket = control_socket;
    if (write_to && !app->stalls && open_disk(app) < 0) {
        app->failed = 1;
        return NULL;
    }
    while (!stop) {
        jet_session *session;
        int code = jet_session_register(&options, &session);
        if (code == JET_E_UNREACHABLE && !told) {
            fprintf(stderr, "receiver: %s: %s; trying again until it is there\n", app->name, jet_error_text());
            told = 1;
        }
        if (code == JET_OK) {
            told = 0;
            unsigned int facts = ANSWER_KEEPS | ANSWER_REPLIES | (synced ? ANSWER_DSYNC : 0);
            code = app->disk ? store(session, app->disk, app->name, facts, &stop, &app->stored) : serve(session, app);
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

/* What came to an application, on a line. Whether all of it was as it should be. */
static int print_totals(const struct application *app) {
    printf("%s: %" PRIu64 " messages, %" PRIu64 " bytes", app->name, app->stored.messages, app->stored.bytes);
    if (verify) printf(", %" PRIu64 " wrong", app->wrong);
    if (app->disk) {
        uint64_t direct, buffered;
        disk_written(app->disk, &direct, &buffered);
        printf(", %" PRIu64 " refused; written: %" PRIu64 " bytes past the page cache, %" PRIu64 " through it, synced %" PRIu64 " times",
               app->stored.refused, direct, buffered, app->stored.synced);
    }
    if (app->stored.replied) printf("; replied to %" PRIu64, app->stored.replied);
    printf("\n");
    return !app->failed && !app->wrong && !app->stored.refused;
}

/* Whether what is asked of --write can be; says what not. */
static int check_write(const struct application *apps, int names) {
    struct stat status;
    int in_directory = !stat(write_to, &status) && S_ISDIR(status.st_mode), write = 0;
    for (int i = 0; i < names; i++) {
        write += !apps[i].stalls;
        if (in_directory && strchr(apps[i].name, '/')) {
            fprintf(stderr, "receiver: %s cannot be a file's name in %s\n", apps[i].name, write_to);
            return 0;
        }
    }
    if (verify) fprintf(stderr, "receiver: --verify keeps nothing, --write looks at nothing: give one of them\n");
    else if (writers < 1 || writers > 64) fprintf(stderr, "receiver: --writers is 1 to 64\n");
    else if (write > 1 && !in_directory) fprintf(stderr, "receiver: %d names cannot write to one file: name a directory\n", write);
    else return 1;
    return 0;
}

static const char usage[] =
    "usage: receiver [--control-socket PATH] [--verify | --write PATH [--writers N] [--dsync]] [--stall NAME] NAME...";

int main(int count, char **arguments) {
    static struct application apps[NAMES_MAX];
    int names = 0, failed = 0;
    struct sigaction action = {.sa_handler = on_signal};
    for (int i = 1; i < count; i++) {
        int more = i + 1 < count && arguments[i + 1][0] != '-';
        if (!strcmp(arguments[i], "--verify")) verify = 1;
        else if (!strcmp(arguments[i], "--dsync")) synced = 1;
        else if (!strcmp(arguments[i], "--control-socket") && more) control_socket = arguments[++i];
        else if (!strcmp(arguments[i], "--write") && more) write_to = arguments[++i];
        else if (!strcmp(arguments[i], "--writers") && more) writers = atoi(arguments[++i]);
        else if (names == NAMES_MAX) names = NAMES_MAX + 1;
        else if (!strcmp(arguments[i], "--stall") && more) apps[names++] = (struct application){.name = arguments[++i], .stalls = 1};
        else if (arguments[i][0] == '-') names = NAMES_MAX + 1;
        else apps[names++] = (struct application){.name = arguments[i]};
        if (names > NAMES_MAX) break;
    }
    if (count == 2 && !strcmp(arguments[1], "--help")) {
        printf("%s\n\n", usage);
        puts("Registers the names, and reads every byte of what comes, until SIGINT or SIGTERM; then says what came.\n"
             "  --verify      messages are blocks of fio's verify=crc32c and are checked\n"
             "  --write PATH  blocks go to this file or device, each to its offset, or to files of the names in this directory;\n"
             "                one that cannot be written is rejected with the errno\n"
             "  --writers N   so many at once for each name, 1 to 64 [16]\n"
             "  --dsync       a block's end is heard when the device has it\n"
             "  --stall NAME  this one takes messages and gives none back");
        return 0;
    }
    if (names == 0 || names > NAMES_MAX) {
        fprintf(stderr, "%s, at most %d names\n", usage, NAMES_MAX);
        return 2;
    }
    if (write_to && !check_write(apps, names)) return 2;
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? crc >> 1 ^ 0x82f63b78u : crc >> 1;
        crc_table[byte] = crc;
    }
    /* A file size limit is an error of a write (EFBIG), not this program's end. */
    signal(SIGXFSZ, SIG_IGN);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    for (int i = 0; i < names; i++)
        if (pthread_create(&apps[i].thread, NULL, run, &apps[i])) {
            fprintf(stderr, "receiver: no thread for %s\n", apps[i].name);
            return 1;
        }
    for (int i = 0; i < names; i++) {
        pthread_join(apps[i].thread, NULL);
        failed |= !print_totals(&apps[i]);
        if (apps[i].disk) disk_close(apps[i].disk);
    }
    return failed;
}
