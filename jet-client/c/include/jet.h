/* Jet's client library: receiving from the daemon (jetd) of this host, and sending to a daemon anywhere.
 *
 * What it promises: every message that was taken has exactly one end; bytes are read where the NIC put them; nothing is
 * allocated, locked or asked of the system per message, but to sleep.
 *
 * Rules
 *   - Functions answer a code: 0 or more is well, below 0 an error. jet_error_text() says in words what was wrong with the
 *     calling thread's last failing call.
 *   - A handle (jet_sender *, jet_session *) may be used by any thread, by one at a time. It is a number, not an address:
 *     one that was freed, or never was one, or is in use elsewhere, is told so (JET_E_HANDLE, JET_E_BUSY).
 *   - Slices, messages and buffers belong to their handle, and have keys: one that was given back is told so (JET_E_KEY).
 *     Freeing the handle frees them all; their bytes must not be touched after that.
 *   - Options structures begin with their size: fill them by their _init function, then change what is to be different. Fields
 *     may be added at their ends; functions and codes may be added; nothing else changes while the symbols' version is JET_0.
 *   - After fork() a child must not use its parent's handles; it makes its own.
 *   - Timeouts are in nanoseconds: 0 does not wait, below 0 waits without limit.
 */
#ifndef JET_H
#define JET_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define JET_FOREVER ((int64_t)-1)

/* Codes. */
enum {
    JET_OK = 0,             /* done */
    JET_NOTHING = 1,        /* nothing there yet, or not in time */
    JET_END = 2,            /* all slices of the message were given */
    JET_E_ARGUMENT = -1,    /* a null pointer, no UTF-8, a structure of no known size, an option that cannot be */
    JET_E_HANDLE = -2,      /* no living handle of that kind: freed, or never one */
    JET_E_BUSY = -3,        /* the handle is in use by another thread at this moment */
    JET_E_KEY = -4,         /* the slice, message or buffer is not, or no longer, one of this handle's */
    JET_E_FULL = -5,        /* as many messages as may be are in flight: take ends, then try again */
    JET_E_SIZE = -6,        /* a length beyond what such a message, header or buffer may have */
    JET_E_CLOSED = -7,      /* the sender was closed */
    JET_E_UNREACHABLE = -8, /* nobody answers there, or not in time */
    JET_E_REFUSED = -9,     /* the other end refused, and says why */
    JET_E_BROKEN = -10,     /* the other end said what cannot be: another version, or somebody who scribbles */
    JET_E_GONE = -11,       /* the daemon is gone: free the session, register again */
    JET_E_WITHDRAWN = -12,  /* the rest of the message will not come: do not take what came for it */
    JET_E_SYSTEM = -13,     /* the system refused: memory, descriptors */
    JET_E_LIMIT = -14,      /* 4096 handles at once are the most */
    JET_E_INTERNAL = -15,   /* a bug in this library: the handle can only be freed */
    JET_E_HELD = -16        /* the session holds all that it may, and more waits: give slices back, then ask again */
};

/* The text behind this thread's last error, until its next one. Never null. */
const char *jet_error_text(void);

/* What a code means, in general. Never null. */
const char *jet_code_text(int code);

/* ------------------------------------------------------------------ sending */

typedef struct jet_sender jet_sender;

struct jet_sender_options {
    size_t size;                 /* of this structure: set by jet_sender_options_init() */
    const char *address;         /* where the receiver's daemon listens: shm:/run/jet/nic.sock, tcp:host:port, rdma:host:port */
    const char *app;             /* the application that the messages are for */
    const char *source;          /* for rdma: the address to leave from; null: as the kernel routes */
    uint32_t in_flight_max;      /* messages that may be without an end, 1 to 65536 [256]; each takes 4 KiB */
    int crc;                     /* messages carry a CRC32C, unless the receiver says that it checks none [0] */
    uint64_t window_bytes;       /* bytes of large messages that may be in flight [64 MiB] */
    uint64_t connect_timeout_ns; /* how long the first connection may take [5 s] */
    uint64_t reconnect_for_ns;   /* how long a lost one is tried again before its messages end PeerLost [30 s] */
    uint64_t retry_for_ns;       /* how long ends that may pass are retried [30 s]: Busy, and with retry_all ... */
    int retry_all;               /* ... NoApp, AppGone and Draining, too [0] */
    int reserved;
    uint64_t spin_max_ns;        /* the longest that a wait spins before it sleeps [50 us] */
    size_t region_bytes;         /* bytes registered at once for buffers [8 MiB] */
    uint64_t silence_max_ns;     /* how long the receiver may say nothing while a message waits [30 s] */
};
typedef struct jet_sender_options jet_sender_options;

/* Memory to send from. The receiver READs it where it lies. */
typedef struct jet_buffer {
    void *data;   /* null: none */
    size_t bytes;
    uint64_t key;
} jet_buffer;

/* How a message ended. Each that was taken has exactly one end. */
enum {
    JET_CONSUMED = 0,  /* the application gave every slice back and finished the message */
    JET_REJECTED = 1,  /* the application refused it, with its own code */
    JET_BUSY = 2,      /* the receiver has no room for another request */
    JET_NO_APP = 3,    /* no application of that name is registered */
    JET_DENIED = 4,    /* not admitted */
    JET_TOO_LARGE = 5, /* longer than the receiver takes */
    JET_CORRUPT = 6,   /* what arrived does not have the checksum, or the receiver's memory lost it */
    JET_APP_GONE = 7,  /* the application went away before it finished the message */
    JET_DRAINING = 8,  /* the daemon takes nothing new */
    JET_PEER_LOST = 9  /* the connection was lost, and not found again */
};

/* What an end means, in words: never null. */
const char *jet_status_text(int status);

typedef struct jet_completion {
    uint64_t ticket;     /* which message */
    int status;          /* JET_CONSUMED ... */
    uint32_t code;       /* the application's, where it rejected the message */
    uint64_t latency_ns; /* from the submission to the end */
    jet_buffer buffer;   /* the message's, yours again: fill and send it, or jet_buffer_free(); data is null where it was copied */
} jet_completion;

typedef struct jet_sender_stats {
    uint64_t in_flight;       /* messages without an end that was taken */
    uint64_t window_permille; /* the share of its windows that the receiver lets it use */
    uint64_t connected;       /* 1: a connection stands */
    uint64_t checksums;       /* 1: messages carry one: it was asked for, and the receiver checks */
} jet_sender_stats;

/* Fills as much of the options as this header knows. */
int jet_sender_options_init_sized(jet_sender_options *options, size_t size);
static inline int jet_sender_options_init(jet_sender_options *options) {
    return jet_sender_options_init_sized(options, sizeof *options);
}

/* Connects. *sender is null where it fails. JET_E_UNREACHABLE and JET_E_REFUSED may pass. */
int jet_sender_connect(const jet_sender_options *options, jet_sender **sender);

/* Frees the handle and its buffers at once: messages without an end may arrive or not. */
int jet_sender_free(jet_sender *sender);

/* Waits until every message has its end (JET_NOTHING: not in time); the ends are there to be polled. */
int jet_sender_drain(jet_sender *sender, int64_t timeout_ns);

/* As jet_sender_drain(), and takes nothing new, and disconnects. The handle is still to be freed. */
int jet_sender_close(jet_sender *sender, int64_t timeout_ns);

/* Registered memory. Comes back with its message's completion; jet_buffer_free() is for what is not sent. */
int jet_buffer_get(jet_sender *sender, size_t bytes, jet_buffer *buffer);
int jet_buffer_free(jet_sender *sender, jet_buffer *buffer);

/* `count` of them at once. Where `bytes` is a power of two of 4096 or more each begins where the one before ends: together they
 * are one stretch of memory. */
int jet_buffer_get_row(jet_sender *sender, size_t bytes, size_t count, jet_buffer *buffers);

/* Sends a small message: at most 4096 bytes of payload, which are copied, and 96 of user header. ticket may be null.
 * JET_E_FULL: nothing was taken. */
int jet_send_small(jet_sender *sender, uint64_t tag, const void *user_header, size_t user_header_bytes,
                   const void *payload, size_t payload_bytes, uint64_t *ticket);

/* Sends the first `bytes` bytes of a buffer. class 0 to 7: as a large message of that class (0 the most urgent), with at most 256
 * bytes of user header. class -1: as a small one, at most 4096 bytes, without a copy where the NIC can. The buffer is the
 * sender's until the completion, and *buffer is emptied; where it fails it is still yours. */
int jet_send_buffer(jet_sender *sender, uint64_t tag, const void *user_header, size_t user_header_bytes,
                    jet_buffer *buffer, size_t bytes, int class_, uint64_t *ticket);

/* The next end: JET_OK, or JET_NOTHING. Both make progress: poll or wait while messages are in flight. Waiting answers
 * JET_NOTHING at once where nothing is in flight. */
int jet_sender_poll(jet_sender *sender, jet_completion *completion);
int jet_sender_wait(jet_sender *sender, int64_t timeout_ns, jet_completion *completion);

/* Sends what was taken, now; else the next poll or wait does. */
int jet_sender_flush(jet_sender *sender);

/* The sender's identity, which the application sees with every message, kept over reconnects. */
int jet_sender_id(jet_sender *sender, uint64_t *id);

/* size: sizeof(jet_sender_stats). */
int jet_sender_stats_get(jet_sender *sender, jet_sender_stats *stats, size_t size);

/* ---------------------------------------------------------------- receiving */

typedef struct jet_session jet_session;

struct jet_session_options {
    size_t size;                   /* of this structure: set by jet_session_options_init() */
    const char *control_socket;    /* the daemon's; null: /run/jet/jetd.sock */
    const char *app;               /* the name that senders address: 1 to 32 out of A-Z a-z 0-9 . _ - / : */
    int class_;                    /* admission class, 0 the most urgent; a sender may ask for a less urgent one [0] */
    int memory_instead_of_waiting; /* take memory outside the cache instead of waiting for room in it [0] */
    uint64_t spin_max_ns;          /* the longest that a wait spins before it sleeps [50 us] */
};
typedef struct jet_session_options jet_session_options;

/* A message that arrived, or is arriving. */
typedef struct jet_message {
    uint64_t key;
    uint64_t tag;            /* the sender's word */
    uint64_t sequence;       /* the sender's number for it, counting from 1 */
    uint64_t sender;         /* the sender's identity */
    uint64_t bytes;          /* its whole length */
    const void *user_header; /* until the message is finished */
    size_t user_header_bytes;
    int redelivered;         /* it was sent before: this application, or one before it, may have seen it */
    int reserved;
} jet_message;

/* Bytes of a message, where the NIC put them: read-only, at most 256 KiB. A slab's first byte is page-aligned. */
typedef struct jet_slice {
    const void *data; /* null: none */
    size_t bytes;
    uint64_t offset;  /* where in the message they begin; slices come in the order of arrival */
    uint64_t key;
} jet_slice;

typedef struct jet_session_stats {
    uint64_t messages; /* received */
    uint64_t slices;   /* taken */
    uint64_t bytes;    /* of these */
    uint64_t sleeps;   /* times that it slept */
} jet_session_stats;

/* Fills as much of the options as this header knows. */
int jet_session_options_init_sized(jet_session_options *options, size_t size);
static inline int jet_session_options_init(jet_session_options *options) {
    return jet_session_options_init_sized(options, sizeof *options);
}

/* Registers. *session is null where it fails. */
int jet_session_register(const jet_session_options *options, jet_session **session);

/* Ends the session: senders of unfinished messages hear JET_APP_GONE. */
int jet_session_free(jet_session *session);

/* The next message, as it begins to arrive: JET_OK, or JET_NOTHING. Errors are final for the session, but JET_E_HELD: nothing more
 * comes before slices are given back, or messages finished; jet_error_text() says which limit that is. */
int jet_session_receive(jet_session *session, int64_t timeout_ns, jet_message *message);

/* The next slice: JET_OK; JET_END: all were given; JET_NOTHING: ask again; JET_E_WITHDRAWN: the rest will not come. Give slices back
 * as you used them: a message may be larger than the pool, and who waits while it keeps all that it may hears JET_E_HELD. */
int jet_message_next(jet_session *session, const jet_message *message, int64_t timeout_ns, jet_slice *slice);

/* Gives a slice back, in any order; *slice is emptied. Another thread may read it before, this call is the session's. */
int jet_slice_release(jet_session *session, jet_slice *slice);

/* Ends a message: code 0 as consumed, else as rejected with that code (an errno, say). Its sender hears of it when every slice
 * was given back. *message is emptied. */
int jet_message_finish(jet_session *session, jet_message *message, uint32_t code);

/* Shows the daemon what was given back, now; else the next receive or next does. */
int jet_session_flush(jet_session *session);

/* For an event loop: when receive and every message's next had nothing, jet_session_prepare_sleep() answers JET_OK: wait until
 * the descriptor is readable, then ask again; or JET_NOTHING: something came meanwhile, ask now. */
int jet_session_fd(jet_session *session, int *fd);
int jet_session_prepare_sleep(jet_session *session);

/* size: sizeof(jet_session_stats). */
int jet_session_stats_get(jet_session *session, jet_session_stats *stats, size_t size);

#ifdef __cplusplus
}
#endif

#endif
