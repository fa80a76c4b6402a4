/* fio's way to Jet: each job is a sender, each write a message, each completion Jet's acknowledgement: the application has
 * consumed the message (a receiver that writes and syncs first acknowledges what is on its disk). With reply=BYTES the application's
 * reply, which comes with the end, is checked before the block completes.
 *
 *   [global]
 *   ioengine=external:/path/to/libjet_fio.so
 *   address=shm:/run/jet/nic.sock
 *   app=store
 *
 * What fio writes lies in registered memory from the start, and the receiver READs it from there: nothing is copied here. Where
 * the largest block is no power of two, or smaller than 4 KiB, it is, and that is said once.
 *
 * Built against one fio: bench/fio/build. The layout of fio's structures is no promise of its, nor is the number of its
 * engines' interface enough to tell two of them apart.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "fio.h"
#include "optgroup.h"

#include <jet.h>

#include "ask.h"
#include "reply.h"

/* Which fio this was built against: config by bench/fio/build. */
#ifndef BUILT_AGAINST
#error "BUILT_AGAINST names the fio: build this with bench/fio/build"
#endif

/* How soon a wait sees that the job was told to end. */
#define WAIT_SLICE_NS 100000000LL

enum { SMALL_MAX = 4096, USER_HEADER_MAX_SMALL = 96, USER_HEADER_MAX_LARGE = 256, MAGIC = 0x6a657466 };

struct jet_options {
    void *pad; /* fio takes an offset of 0 for none */
    unsigned int magic; /* a default that comes back, if fio's structures are what they are taken for */
    char *address;
    char *app;
    char *source;
    unsigned int class_;
    unsigned int header_bytes;
    unsigned int crc;
    unsigned int reconnect_s;
    unsigned int retry_s;
    unsigned int timeout_s;
    unsigned int reply_bytes;
};

#define OPTION(NAME, FIELD, TYPE, DEFAULT, HELP, ...) \
    { \
        .name = NAME, .lname = NAME, .type = TYPE, .off1 = offsetof(struct jet_options, FIELD), .def = DEFAULT, .help = HELP, \
        .category = FIO_OPT_C_ENGINE, .group = FIO_OPT_G_INVALID, ##__VA_ARGS__ \
    }

static struct fio_option options[] = {
    OPTION("address", address, FIO_OPT_STR_STORE, "shm:/run/jet/nic.sock",
           "Where the receiver's daemon listens: shm:/path, tcp:host:port, rdma:host:port"),
    OPTION("app", app, FIO_OPT_STR_STORE, "fio", "The application that the messages are for"),
    OPTION("source", source, FIO_OPT_STR_STORE, "", "For rdma: the address to leave from"),
    OPTION("class", class_, FIO_OPT_INT, "0", "Admission class of blocks above 4 KiB, 0 the most urgent", .minval = 0, .maxval = 7),
    OPTION("header_bytes", header_bytes, FIO_OPT_INT, "16",
           "User header of each message: its offset and length, then zeros; at most 96, or 256 where every block is above 4 KiB",
           .minval = 0, .maxval = USER_HEADER_MAX_LARGE),
    OPTION("crc", crc, FIO_OPT_BOOL, "0", "Messages carry a CRC32C that the receiver checks, unless it says that it checks none"),
    OPTION("reconnect_s", reconnect_s, FIO_OPT_INT, "30",
           "How long a daemon that is gone is waited for, in seconds; then its messages fail with ENOTCONN"),
    OPTION("retry_s", retry_s, FIO_OPT_INT, "30",
           "How long messages are sent again that find no application, no room, or a daemon that drains, in seconds"),
    OPTION("timeout_s", timeout_s, FIO_OPT_INT, "60",
           "How long a block may take, in seconds, before it fails with ETIMEDOUT: an application that never reads, say; 0: for ever"),
    OPTION("reply", reply_bytes, FIO_OPT_INT, "0",
           "Each block wants a reply of so many bytes of the application, which is checked: up to 4096; 0: none", .minval = 0,
           .maxval = REPLY_MAX),
    OPTION("jet_magic", magic, FIO_OPT_INT, "1785033830", "Not to be set: tells whether this engine fits this fio"),
    {.name = NULL},
};

/* One job. */
struct job {
    jet_sender *sender;
    jet_buffer *buffers;   /* one for each of its blocks in flight; data is null while it is sent */
    struct io_u **sent;    /* whose block is in the buffer */
    struct io_u **ready;   /* what ended, */
    struct io_u **events;  /* and of it what fio was told of */
    unsigned int count, ready_count, ended;
    char *base;            /* of the buffers, which are one stretch */
    size_t stride;         /* from one to the next */
    char *copies;          /* where fio writes instead, if blocks must be copied */
    unsigned int waiting;  /* sent and not ended */
    size_t reply_bytes;    /* that each block's end is to bring */
    uint64_t question;     /* the ticket of the one that is asked */
    int answered;          /* it has its end, */
    int end, code;         /* which is this */
};

static int fail(struct thread_data *td, int error, const char *what) {
    log_err("fio: jet: %s: %s\n", what, jet_error_text());
    td_verror(td, error, "jet");
    return 1;
}

/* What a script may go by: an option that cannot be is not a daemon that is not there. */
static int errno_of(int code) {
    switch (code) {
    case JET_E_ARGUMENT:
    case JET_E_SIZE: return EINVAL;
    case JET_E_UNREACHABLE:
    case JET_E_REFUSED: return ECONNREFUSED;
    case JET_E_BROKEN: return EPROTO;
    case JET_E_LIMIT: return EMFILE;
    default: return EIO;
    }
}

/* Whether the fio that runs is the one that this was built against. */
static int fits(struct thread_data *td) {
    const char *running = dlsym(RTLD_DEFAULT, "fio_version_string");
    const struct jet_options *o = td->eo;
    if (!running || strcmp(running, FIO_VERSION)) {
        log_err("fio: jet: this engine was built against %s, and this is %s: build it again (bench/fio/build)\n", BUILT_AGAINST,
                running ? running : "another fio");
        return 0;
    }
    if (td->io_ops->version != FIO_IOOPS_VERSION || !o || o->magic != MAGIC) {
        log_err("fio: jet: this fio has other structures than the one that this engine was built against (%s), though the same "
                "version: build it again where it runs (bench/fio/build)\n", BUILT_AGAINST);
        return 0;
    }
    return 1;
}

static int jet_setup(struct thread_data *td) {
    if (!fits(td)) return 1;
    if (td_read(td) || td_trim(td)) {
        log_err("fio: jet: this engine sends only: rw=write or rw=randwrite\n");
        return 1;
    }
    if (td->o.verify && td->o.do_verify) {
        log_err("fio: jet: nothing is read back: do_verify=0, and let the receiver verify (bench/fio/receiver --verify)\n");
        return 1;
    }
    if (td->o.sync_file_range || td->o.fsync_on_close) {
        log_err("fio: jet: %s is about a file of this host, and there is none: %s\n",
                td->o.fsync_on_close ? "fsync_on_close" : "sync_file_range", td->o.fsync_on_close ? "end_fsync=1" : "fsync= or fdatasync=");
        return 1;
    }
    /* There is no file, but fio goes through one. */
    if (!td->files_index) {
        add_file(td, "jet", 0, 0);
        td->o.nr_files = td->o.nr_files ? td->o.nr_files : 1;
        td->o.open_files++;
    }
    if (!td->o.size && !td->o.time_based) {
        log_err("fio: jet: say how much is sent: size=, or time_based and runtime=\n");
        return 1;
    }
    td->files[0]->real_file_size = td->o.size ? td->o.size : 1ULL << 40;
    return 0;
}

/* An end as an error number. */
static int error_of(int end, uint32_t code) {
    switch (end) {
    case JET_CONSUMED: return 0;
    case JET_REJECTED: return code && code < 4096 ? (int)code : EREMOTEIO;
    case JET_BUSY: return EBUSY;
    case JET_NO_APP: return ENOENT;
    case JET_DENIED: return EACCES;
    case JET_TOO_LARGE: return EMSGSIZE;
    case JET_CORRUPT: return EBADMSG;
    case JET_APP_GONE: return ECONNRESET;
    case JET_DRAINING: return ESHUTDOWN;
    default: return ENOTCONN;
    }
}

/* What an error number means here. */
static const char *details_of(int error) {
    switch (error) {
    case ENOTCONN: return "jet: the daemon was gone for longer than reconnect_s";
    case ENOENT: return "jet: no application of that name for longer than retry_s";
    case EBUSY: return "jet: the receiver had no room for longer than retry_s";
    case EACCES: return "jet: the receiver does not admit this sender or class";
    case EMSGSIZE: return "jet: larger than the receiver takes (read.message_bytes_max)";
    case ECONNRESET: return "jet: the application went away before it finished the message";
    case ESHUTDOWN: return "jet: the daemon was draining for longer than retry_s";
    case ETIMEDOUT: return "jet: no end within timeout_s: does the application read?";
    case EBADMSG: return "jet: the bytes that arrived do not have the checksum";
    case ENOMSG: return "jet: no reply came with the end: does the application reply, and has its daemon memory for replies (limits.reply_bytes)?";
    case EPROTO: return "jet: the reply is not the one that belongs to the block: build engine and receiver again (bench/fio/build)";
    case EOPNOTSUPP: return "jet: the application does not do what was asked";
    default: return "jet: the application refused the message";
    }
}

static int wait_one(struct thread_data *td, int64_t timeout_ns);

static int64_t patience_ns(const struct thread_data *td) {
    const struct jet_options *o = td->eo;
    return o->timeout_s ? o->timeout_s * 1000000000LL : JET_FOREVER;
}

/* Asks the application and waits for the end: an error number, or 0 and what it answers. Blocks that end meanwhile are ready then. */
static int ask(struct thread_data *td, uint64_t what, unsigned int *holds) {
    struct job *job = td->io_ops_data;
    struct ask question = {.offset = ASK_OFFSET, .what = what};
    jet_envelope envelope;
    int code;
    jet_envelope_init(&envelope, 0);
    envelope.user_header = &question;
    envelope.user_header_bytes = sizeof question;
    /* What was given up is in flight still, and takes its place. */
    while ((code = jet_send_small(job->sender, &envelope, NULL, 0, &job->question)) == JET_E_FULL)
        if ((code = wait_one(td, patience_ns(td))) != JET_OK) return code == JET_NOTHING ? ETIMEDOUT : EIO;
    if (code < 0) {
        log_err("fio: jet: the application cannot be asked: %s\n", jet_error_text());
        return EIO;
    }
    for (job->answered = 0; !job->answered;)
        if ((code = wait_one(td, patience_ns(td))) != JET_OK) return code == JET_NOTHING ? ETIMEDOUT : EIO;
    *holds = 0;
    if (job->end == JET_REJECTED && is_answer(job->code)) *holds = job->code & 0xffff;
    /* Consumed, it was no question to who got it. */
    else if (job->end != JET_CONSUMED) return error_of(job->end, job->code);
    return 0;
}

/* Whether what the job asks of blocks is what the application does with them. Says what not. */
static int fulfills(struct thread_data *td) {
    const struct jet_options *o = td->eo;
    const struct thread_options *wanted = &td->o;
    int syncs = wanted->fsync_blocks || wanted->fdatasync_blocks || wanted->end_fsync;
    unsigned int holds;
    int error;
    if (!wanted->verify && !syncs && !wanted->sync_io && !o->reply_bytes) return 0;
    error = ask(td, ASK_FACTS, &holds);
    if (error) {
        log_err("fio: jet: what '%s' does with blocks is not known: %s (%s)\n", o->app, strerror(error), details_of(error));
        return error;
    }
    if (wanted->verify && !(holds & (ANSWER_LOOKS | ANSWER_KEEPS)))
        log_err("fio: jet: verify=: '%s' neither looks at blocks nor keeps them, so nobody would: receiver --verify, or receiver --write and "
                "then fio --verify_only where they are\n", o->app);
    else if (syncs && !(holds & ANSWER_KEEPS))
        log_err("fio: jet: fsync=, fdatasync=, end_fsync=: '%s' keeps no blocks that could be synced: receiver --write\n", o->app);
    else if (wanted->sync_io && !(holds & ANSWER_DSYNC))
        log_err("fio: jet: sync=: '%s' does not sync each block before it is heard of: receiver --write PATH --dsync\n", o->app);
    else if (o->reply_bytes && !(holds & ANSWER_REPLIES))
        log_err("fio: jet: reply=: '%s' gives no replies: bench/fio/receiver of this build does\n", o->app);
    else
        return 0;
    return EOPNOTSUPP;
}

static int jet_init(struct thread_data *td) {
    const struct jet_options *o = td->eo;
    struct job *job = calloc(1, sizeof *job);
    jet_sender_options options;
    if (!job) {
        td_verror(td, ENOMEM, "calloc");
        return 1;
    }
    if (o->header_bytes > USER_HEADER_MAX_SMALL && td->o.min_bs[DDIR_WRITE] <= SMALL_MAX) {
        log_err("fio: jet: header_bytes=%u is for blocks above 4 KiB only: 96 at most\n", o->header_bytes);
        free(job);
        return 1;
    }
    if (o->reply_bytes > REPLY_MAX) {
        log_err("fio: jet: reply=%u: a reply has at most 4096 bytes\n", o->reply_bytes);
        free(job);
        return 1;
    }
    if (o->class_ > 7) {
        log_err("fio: jet: class must be 0 to 7\n");
        free(job);
        return 1;
    }
    jet_sender_options_init(&options);
    options.address = o->address;
    options.app = o->app;
    options.source = o->source && *o->source ? o->source : NULL;
    options.in_flight_max = td->o.iodepth;
    options.crc = o->crc;
    options.replies = o->reply_bytes != 0;
    job->reply_bytes = o->reply_bytes;
    options.reconnect_for_ns = o->reconnect_s * 1000000000ULL;
    options.retry_for_ns = o->retry_s * 1000000000ULL;
    options.retry_all = o->retry_s != 0;
    int code = jet_sender_connect(&options, &job->sender);
    if (code < 0) {
        free(job);
        return fail(td, errno_of(code), "no connection");
    }
    jet_sender_stats stats;
    if (o->crc && jet_sender_stats_get(job->sender, &stats, sizeof stats) == JET_OK && !stats.checksums)
        log_info("fio: jet: the receiver checks no checksums (read.checksums = \"off\"), so none are made\n");
    td->io_ops_data = job;
    code = fulfills(td);
    if (code) td_verror(td, code, "jet");
    return code != 0;
}

/* fio's memory for blocks: the registered buffers themselves, where these are one stretch. */
static int jet_iomem_alloc(struct thread_data *td, size_t total) {
    struct job *job = td->io_ops_data;
    size_t block = td_max_bs(td);
    size_t piece = block < SMALL_MAX ? SMALL_MAX : block;
    job->count = td->o.iodepth;
    job->buffers = calloc(job->count, sizeof *job->buffers);
    job->sent = calloc(job->count, sizeof *job->sent);
    job->ready = calloc(job->count, sizeof *job->ready);
    job->events = calloc(job->count, sizeof *job->events);
    if (!job->buffers || !job->sent || !job->ready || !job->events) {
        td_verror(td, ENOMEM, "calloc");
        return 1;
    }
    if (jet_buffer_get_row(job->sender, piece, job->count, job->buffers) < 0)
        return fail(td, ENOMEM, "no registered memory for iodepth blocks");
    job->base = job->buffers[0].data;
    job->stride = job->count > 1 ? (size_t)((char *)job->buffers[1].data - job->base) : piece;
    if (job->stride == block && total <= block * job->count) {
        td->orig_buffer = job->base;
        return 0;
    }
    if (td->thread_number == 1)
        log_info("fio: jet: blocks of %zu bytes are copied once more: no power of two of 4096 or more, or memory that is to be "
                 "aligned\n", block);
    job->copies = calloc(1, total);
    td->orig_buffer = job->copies;
    if (!job->copies) {
        td_verror(td, ENOMEM, "calloc");
        return 1;
    }
    return 0;
}

static void jet_iomem_free(struct thread_data *td) { td->orig_buffer = NULL; }

static void jet_cleanup(struct thread_data *td) {
    struct job *job = td->io_ops_data;
    if (!job) return;
    /* What is in flight when a job is ended early need not arrive. */
    if (!job->waiting) jet_sender_close(job->sender, 1000000000);
    jet_sender_free(job->sender);
    free(job->buffers);
    free(job->sent);
    free(job->ready);
    free(job->events);
    free(job->copies);
    free(job);
    td->io_ops_data = NULL;
}

/* Which buffer a block goes out of: its own, or any that is free. */
static unsigned int buffer_of(const struct job *job, const struct io_u *io_u) {
    unsigned int at;
    if (!job->copies) return ((char *)io_u->xfer_buf - job->base) / job->stride;
    for (at = 0; at < job->count && !job->buffers[at].data; at++) {}
    return at;
}

/* An error number where the end of a consumed block has not the reply that belongs to it. */
static int reply_error(const struct job *job, const struct io_u *io_u, const jet_completion *end) {
    if (!job->reply_bytes) return 0;
    if (!end->reply) return ENOMSG;
    return end->reply_bytes == job->reply_bytes && reply_is_right(end->reply, end->reply_bytes, io_u->offset) ? 0 : EPROTO;
}

/* The buffer that comes back says which block ended. One that had taken too long was given up: nobody waits for it. A question has
 * none. */
static void take(struct job *job, const jet_completion *end) {
    unsigned int at;
    if (!end->buffer.data) {
        /* Or an answer that came too late. */
        if (end->ticket != job->question) return;
        job->answered = 1;
        job->end = end->status;
        job->code = end->code;
        return;
    }
    at = ((char *)end->buffer.data - job->base) / job->stride;
    job->buffers[at] = end->buffer;
    if (!job->sent[at]) return;
    job->sent[at]->error = error_of(end->status, end->code);
    if (!job->sent[at]->error) job->sent[at]->error = reply_error(job, job->sent[at], end);
    job->ready[job->ready_count++] = job->sent[at];
    job->sent[at] = NULL;
    job->waiting--;
}

/* Waits for one end, at most so long (below zero: for ever) and until the job is told to end. JET_OK, JET_NOTHING, or an error. */
static int wait_one(struct thread_data *td, int64_t timeout_ns) {
    struct job *job = td->io_ops_data;
    jet_completion end;
    int code;
    do {
        int64_t slice = timeout_ns < 0 || timeout_ns > WAIT_SLICE_NS ? WAIT_SLICE_NS : timeout_ns;
        code = jet_sender_wait(job->sender, slice, &end);
        if (timeout_ns > 0) timeout_ns -= slice;
    } while (code == JET_NOTHING && timeout_ns && !td->terminate);
    if (code == JET_OK) take(job, &end);
    return code;
}

/* fio leaves it to the engine when a block is on its way: else that of a sync would be after its end. */
static void is_issued(struct thread_data *td, struct io_u *io_u) {
    if (!fio_fill_issue_time(td)) return;
    fio_gettime(&io_u->issue_time, NULL);
    if (td->o.read_iolog_file) memcpy(&td->last_issue, &io_u->issue_time, sizeof td->last_issue);
}

/* Every block before it has its end, then the application syncs what it wrote, as fio's engine for libaio does it. Where it does not
 * sync, that is an error: it may be another one than was asked at the start. */
static enum fio_q_status synced(struct thread_data *td, struct io_u *io_u) {
    struct job *job = td->io_ops_data;
    unsigned int holds = 0;
    if (job->waiting) return FIO_Q_BUSY;
    is_issued(td, io_u);
    io_u->error = ask(td, io_u->ddir == DDIR_DATASYNC ? ASK_FDATASYNC : ASK_FSYNC, &holds);
    if (!io_u->error && !(holds & ANSWER_SYNCED)) io_u->error = EOPNOTSUPP;
    if (io_u->error) log_err("fio: jet: not synced: %s (%s)\n", strerror(io_u->error), details_of(io_u->error));
    return FIO_Q_COMPLETED;
}

static enum fio_q_status jet_queue(struct thread_data *td, struct io_u *io_u) {
    const struct jet_options *o = td->eo;
    struct job *job = td->io_ops_data;
    unsigned char header[USER_HEADER_MAX_LARGE] = {0};
    struct about about = {io_u->offset, io_u->xfer_buflen, o->reply_bytes};
    jet_envelope envelope;
    size_t bytes = io_u->xfer_buflen;
    unsigned int at;
    int code;

    fio_ro_check(td, io_u);
    if (io_u->ddir == DDIR_SYNC || io_u->ddir == DDIR_DATASYNC) return synced(td, io_u);
    is_issued(td, io_u);
    if (io_u->ddir != DDIR_WRITE) {
        io_u->error = EOPNOTSUPP;
        return FIO_Q_COMPLETED;
    }
    /* Its buffer is away still where the block before it was given up. */
    at = buffer_of(job, io_u);
    while (at >= job->count || !job->buffers[at].data) {
        code = wait_one(td, patience_ns(td));
        if (code != JET_OK) {
            io_u->error = code == JET_NOTHING ? ETIMEDOUT : EIO;
            return FIO_Q_COMPLETED;
        }
        at = buffer_of(job, io_u);
    }
    if (job->copies) memcpy(job->buffers[at].data, io_u->xfer_buf, bytes);
    jet_envelope_init(&envelope, io_u->offset);
    envelope.user_header = header;
    envelope.user_header_bytes = o->header_bytes;
    envelope.class_ = (int)o->class_;
    envelope.wants_reply = o->reply_bytes != 0;
    /* How long the reply is must be known to who gives it. */
    if (o->reply_bytes && envelope.user_header_bytes < sizeof about) envelope.user_header_bytes = sizeof about;
    memcpy(header, &about, envelope.user_header_bytes < sizeof about ? envelope.user_header_bytes : sizeof about);
    code = bytes <= SMALL_MAX ? jet_send_small_buffer(job->sender, &envelope, &job->buffers[at], bytes, NULL)
                              : jet_send(job->sender, &envelope, &job->buffers[at], bytes, NULL);
    if (code == JET_E_FULL) return FIO_Q_BUSY;
    if (code < 0) {
        log_err("fio: jet: a block of %zu bytes was not taken: %s\n", bytes, jet_error_text());
        io_u->error = code == JET_E_SIZE ? EMSGSIZE : EIO;
        return FIO_Q_COMPLETED;
    }
    job->sent[at] = io_u;
    job->waiting++;
    return FIO_Q_QUEUED;
}

static int jet_commit(struct thread_data *td) {
    struct job *job = td->io_ops_data;
    return jet_sender_flush(job->sender) < 0 ? fail(td, EIO, "cannot send") : 0;
}

static int jet_getevents(struct thread_data *td, unsigned int min, unsigned int max, const struct timespec *limit) {
    struct job *job = td->io_ops_data;
    int64_t patience = limit ? limit->tv_sec * 1000000000LL + limit->tv_nsec : patience_ns(td);
    jet_completion end;
    unsigned int at;
    int code = JET_OK;
    while (code == JET_OK && job->ready_count < max)
        if ((code = jet_sender_poll(job->sender, &end)) == JET_OK) take(job, &end);
    while (code >= 0 && job->ready_count < min && job->waiting) {
        if ((code = wait_one(td, patience)) != JET_NOTHING) continue;
        if (limit && !td->terminate) break;
        /* Nothing ended for as long as one may take, or before the job was told to end: what is out is given up. */
        for (at = 0; at < job->count; at++) {
            if (!job->sent[at]) continue;
            job->sent[at]->error = ETIMEDOUT;
            job->ready[job->ready_count++] = job->sent[at];
            job->sent[at] = NULL;
            job->waiting--;
        }
    }
    if (code < 0) {
        fail(td, EIO, "cannot wait");
        return -EIO;
    }
    job->ended = job->ready_count < max ? job->ready_count : max;
    memcpy(job->events, job->ready, job->ended * sizeof *job->ready);
    job->ready_count -= job->ended;
    memmove(job->ready, job->ready + job->ended, job->ready_count * sizeof *job->ready);
    return job->ended;
}

static struct io_u *jet_event(struct thread_data *td, int event) {
    struct job *job = td->io_ops_data;
    return event >= 0 && (unsigned int)event < job->ended ? job->events[event] : NULL;
}

static char *jet_errdetails(struct io_u *io_u) { return strdup(details_of(io_u->error)); }

static int jet_open_file(struct thread_data *td, struct fio_file *f) { return 0; }
static int jet_close_file(struct thread_data *td, struct fio_file *f) { return 0; }
static int jet_invalidate(struct thread_data *td, struct fio_file *f) { return 0; }

struct ioengine_ops ioengine = {
    .name = "jet",
    .version = FIO_IOOPS_VERSION,
    .flags = FIO_DISKLESSIO | FIO_NOEXTEND | FIO_NODISKUTIL | FIO_ASYNCIO_SETS_ISSUE_TIME,
    .setup = jet_setup,
    .init = jet_init,
    .queue = jet_queue,
    .commit = jet_commit,
    .getevents = jet_getevents,
    .event = jet_event,
    .errdetails = jet_errdetails,
    .cleanup = jet_cleanup,
    .open_file = jet_open_file,
    .close_file = jet_close_file,
    .invalidate = jet_invalidate,
    .iomem_alloc = jet_iomem_alloc,
    .iomem_free = jet_iomem_free,
    .option_struct_size = sizeof(struct jet_options),
    .options = options,
};
