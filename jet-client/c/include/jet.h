/* Jet's client library: receiving from the daemon (jetd) of this host, and sending to a daemon on any host.
 *
 * Promises: every message that was accepted has exactly one end. Received bytes are read where the NIC put
 * them. The library allocates nothing, takes no lock and makes no system call for a message, except to sleep.
 *
 * Rules
 *   - Functions return a code: 0 or more is success, below 0 is an error. jet_error_text() describes the
 *     error of the calling thread's last failing call.
 *   - A handle (jet_sender *, jet_session *) may be used by any thread, but by one at a time. A handle is a
 *     number, not an address. A call with a handle that was freed, or never was one, gets JET_E_HANDLE; with
 *     one that another thread is using, JET_E_BUSY.
 *   - Slices, messages and buffers belong to their handle, and have keys. A call with one that was given back
 *     gets JET_E_KEY. Freeing the handle frees them all; their bytes must not be touched after that.
 *   - Options structures and envelopes begin with their size. Fill them by their _init function, then change
 *     fields. A field that is set, and that an older library does not know, gets JET_E_ARGUMENT. For structures that the library fills, the functions that end in _sized take the size. The
 *     functions without it pass the size that this header has.
 *   - While the symbols' version is JET_0, fields may be added at the ends of all structures but jet_buffer
 *     and jet_slice, and functions and codes may be added. Nothing else changes.
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

/* Codes that functions return. */
enum {
    JET_OK = 0,             /* success */
    JET_NOTHING = 1,        /* nothing yet, or not in time */
    JET_END = 2,            /* all slices of the message were given */
    JET_E_ARGUMENT = -1,    /* a null pointer, no UTF-8, a structure of no known size, an invalid option */
    JET_E_HANDLE = -2,      /* no living handle of that kind: it was freed, or never was one */
    JET_E_BUSY = -3,        /* another thread is using the handle at this moment */
    JET_E_KEY = -4,         /* the slice, message or buffer is not, or no longer, one of this handle's */
    JET_E_FULL = -5,        /* too many messages are in flight: take ends, then try again */
    JET_E_SIZE = -6,        /* a length is greater than such a message, header or buffer may have */
    JET_E_CLOSED = -7,      /* the sender was closed */
    JET_E_UNREACHABLE = -8, /* nobody answers at the address or socket, or not in time, or this user may not use
                               the socket */
    JET_E_REFUSED = -9,     /* the other end refused, with a reason */
    JET_E_BROKEN = -10,     /* the other end sent something invalid: another version, or overwritten memory */
    JET_E_GONE = -11,       /* the daemon is gone: free the session, register again */
    JET_E_WITHDRAWN = -12,  /* the rest of the message will not arrive: its slices are not the message */
    JET_E_SYSTEM = -13,     /* the system refused: memory, descriptors */
    JET_E_LIMIT = -14,      /* too many handles: 4096 at once are the most */
    JET_E_INTERNAL = -15,   /* a bug in this library: the handle can only be freed */
    JET_E_HELD = -16,       /* the session holds all that it may, and more waits: give slices back */
    JET_E_NO_REPLY = -17    /* no reply can come to the message: its sender wants none, or has no memory */
};

/* Returns the text of this thread's last error, valid until its next error. Never null. */
const char *jet_error_text(void);

/* Returns the general meaning of a code. Never null. */
const char *jet_code_text(int code);

/* ------------------------------------------------------------------ sending */

typedef struct jet_sender jet_sender;

/* Options of a sender. Defaults are in brackets. */
struct jet_sender_options {
    size_t size;                 /* size of this structure: set by jet_sender_options_init() */
    const char *address;         /* where the receiver's daemon listens: shm:/run/jet/nic.sock, tcp:host:port,
                                    rdma:host:port */
    const char *app;             /* application that the messages are for */
    const char *source;          /* for rdma: local address of the connection; null: as the kernel routes */
    uint32_t in_flight_max;      /* messages that may be without an end, 1 to 65536 [256]; each takes 4 KiB */
    int crc;                     /* 1: messages carry a CRC32C, unless the receiver says it checks none [0] */
    uint64_t window_bytes;       /* bytes of large messages that may be in flight [64 MiB] */
    uint64_t connect_timeout_ns; /* longest time for the first connection [5 s] */
    uint64_t reconnect_for_ns;   /* time for which a lost connection is tried again, before its messages end
                                    as JET_PEER_LOST [30 s] */
    uint64_t retry_for_ns;       /* time for which messages are sent again after JET_BUSY [30 s] */
    int retry_all;               /* 1: also after JET_NO_APP, JET_APP_GONE and JET_DRAINING [0] */
    int replies;                 /* 1: messages may want replies. That takes 256 KiB, and 4 KiB for each of
                                    in_flight_max messages, 1024 at most; replies that find all of that in
                                    use are allocated [0] */
    uint64_t spin_max_ns;        /* longest time that a wait spins before it sleeps [200 us] */
    size_t region_bytes;         /* bytes that are registered at once for buffers [8 MiB] */
    uint64_t receiver_timeout_ns; /* longest time in which the receiver sends nothing while a message waits,
                                     or names nothing that the message waits for [30 s] */
};
typedef struct jet_sender_options jet_sender_options;

/* Registered memory to send from. The receiver READs the bytes where they lie. */
typedef struct jet_buffer {
    void *data;   /* first byte; null: there is no buffer */
    size_t bytes;
    uint64_t key;
} jet_buffer;

/* What a message says beside its bytes. One envelope may serve many messages. Defaults are in brackets. */
struct jet_envelope {
    size_t size;              /* size of this structure: set by jet_envelope_init() */
    uint64_t tag;             /* number for the application: set by jet_envelope_init() */
    const void *user_header;  /* bytes for the application, which are copied [null] */
    size_t user_header_bytes; /* at most 96 with a small message, 256 with a large one [0] */
    int class_;               /* admission class of a large message, 0 to 7, 0 the most urgent; small messages
                                 have no class [0] */
    int wants_reply;          /* 1: the application may reply. The sender needs jet_sender_options.replies;
                                 a receiver whose memory for replies is used up ends the message as JET_BUSY;
                                 one that has none at all passes it on as if no reply were wanted [0] */
    int64_t deadline_ns;      /* time from the call after which the message is taken back as by jet_cancel(),
                                 kept to a millisecond; 0: it is not sent [JET_FOREVER] */
};
typedef struct jet_envelope jet_envelope;

/* Ends of messages. Each message that was accepted has exactly one. */
enum {
    JET_CONSUMED = 0,  /* the application gave every slice back and finished the message */
    JET_REJECTED = 1,  /* the application refused the message, with its own code */
    JET_BUSY = 2,      /* the receiver has no room for another request */
    JET_NO_APP = 3,    /* no application of that name is registered */
    JET_DENIED = 4,    /* the receiver's configuration does not allow the class, or the application */
    JET_TOO_LARGE = 5, /* the message is longer than the receiver accepts */
    JET_CORRUPT = 6,   /* what arrived does not have the checksum, or the receiver's memory lost it */
    JET_APP_GONE = 7,  /* the application went away before it finished the message */
    JET_DRAINING = 8,  /* the daemon drains, and takes nothing new */
    JET_PEER_LOST = 9, /* the connection was lost, and could not be made again */
    JET_CANCELLED = 0x601 /* the message was taken back: no application consumed it, and none will */
};

/* Returns a description of an end. Never null. */
const char *jet_status_text(int status);

/* End of a message. */
typedef struct jet_completion {
    uint64_t ticket;     /* ticket of the message */
    uint64_t tag;        /* tag of the message */
    int status;          /* JET_CONSUMED ... */
    uint32_t code;       /* the application's code, where it rejected the message */
    uint64_t latency_ns; /* time from the submission until the end was polled */
    jet_buffer buffer;   /* the message's buffer, which is yours again: send it again, or free it by
                            jet_buffer_free(); data is null where the message was copied */
    const void *reply;   /* the application's reply, at most 4096 bytes. Null: there is none. A reply of 0
                            bytes is not null. Valid until the next call of jet_sender_poll() or
                            jet_sender_wait() with this sender, or until the sender is freed */
    size_t reply_bytes;
} jet_completion;

/* Counters of a sender, and its state. */
typedef struct jet_sender_stats {
    uint64_t in_flight;       /* messages whose end was not taken */
    uint64_t window_permille; /* share of its windows that the sender may use, in thousandths */
    uint64_t connected;       /* 1: the sender is connected */
    uint64_t checksums;       /* 1: messages carry a checksum: it was asked for, and the receiver checks */
} jet_sender_stats;

/* Fills as much of the options with defaults as this header knows. */
int jet_sender_options_init_sized(jet_sender_options *options, size_t size);
static inline int jet_sender_options_init(jet_sender_options *options) {
    return jet_sender_options_init_sized(options, sizeof *options);
}

/* Fills as much of the envelope with the tag, and with defaults, as this header knows. */
int jet_envelope_init_sized(jet_envelope *envelope, size_t size, uint64_t tag);
static inline int jet_envelope_init(jet_envelope *envelope, uint64_t tag) {
    return jet_envelope_init_sized(envelope, sizeof *envelope, tag);
}

/* Connects to a receiver. *sender is null where it fails. JET_E_UNREACHABLE and JET_E_REFUSED may pass. */
int jet_sender_connect(const jet_sender_options *options, jet_sender **sender);

/* Frees the handle and its buffers at once. Messages without an end may arrive or not. */
int jet_sender_free(jet_sender *sender);

/* Waits until every message has its end (JET_NOTHING: not in time). The ends can be polled afterwards. */
int jet_sender_drain(jet_sender *sender, int64_t timeout_ns);

/* Accepts no further messages, waits like jet_sender_drain(), and disconnects. The handle must still be
 * freed. */
int jet_sender_close(jet_sender *sender, int64_t timeout_ns);

/* Gets a registered buffer, or frees one that is not sent. A buffer that was sent comes back with its
 * message's completion. */
int jet_buffer_get(jet_sender *sender, size_t bytes, jet_buffer *buffer);
int jet_buffer_free(jet_sender *sender, jet_buffer *buffer);

/* Gets `count` buffers at once, from memory that no row had before: call it once for what you need, and use the
 * buffers again. Where `bytes` is a power of two of 4096 or more, each begins where the one
 * before ends: together they are one range of memory. */
int jet_buffer_get_row(jet_sender *sender, size_t bytes, size_t count, jet_buffer *buffers);

/* Sends a small message: at most 4096 bytes of payload, which are copied. ticket may be null. JET_E_FULL:
 * nothing was accepted. JET_E_NO_REPLY: the message wants a reply, and the sender has no memory for it. */
int jet_send_small(jet_sender *sender, const jet_envelope *envelope, const void *payload,
                   size_t payload_bytes, uint64_t *ticket);

/* Sends the first `bytes` bytes of a buffer, at most 4096, as a small message, without a copy where the NIC
 * can do without. The sender keeps the buffer until the completion, and *buffer is emptied. Where the call
 * fails, the buffer is still yours. */
int jet_send_small_buffer(jet_sender *sender, const jet_envelope *envelope, jet_buffer *buffer, size_t bytes,
                          uint64_t *ticket);

/* Sends the first `bytes` bytes of a buffer, at least one, as a large message. What becomes of the buffer is
 * as with jet_send_small_buffer(). */
int jet_send(jet_sender *sender, const jet_envelope *envelope, jet_buffer *buffer, size_t bytes,
             uint64_t *ticket);

/* Takes a message back: it is not sent any more, nor sent again. It has its end all the same, by which its
 * buffer comes back: JET_CANCELLED; or as it would have ended, where the application has all of it, or it is
 * small and was sent; or as its last attempt ended, where it was to be sent again; or JET_PEER_LOST, where it
 * was sent on a connection that ended. A ticket of no message, or of one that has ended, is ignored. */
int jet_cancel(jet_sender *sender, uint64_t ticket);

/* Gets the next end (JET_OK), if there is one (else JET_NOTHING). Both functions make progress: poll or wait
 * while messages are in flight. Waiting returns JET_NOTHING at once where nothing is in flight. Whatever they
 * return, the reply of the end before is gone. */
int jet_sender_poll_sized(jet_sender *sender, jet_completion *completion, size_t size);
static inline int jet_sender_poll(jet_sender *sender, jet_completion *completion) {
    return jet_sender_poll_sized(sender, completion, sizeof *completion);
}
int jet_sender_wait_sized(jet_sender *sender, int64_t timeout_ns, jet_completion *completion, size_t size);
static inline int jet_sender_wait(jet_sender *sender, int64_t timeout_ns, jet_completion *completion) {
    return jet_sender_wait_sized(sender, timeout_ns, completion, sizeof *completion);
}

/* Sends accepted messages now, as far as the daemon has given credit; otherwise the next poll or wait sends
 * them. What has no credit yet goes with a later flush, poll or wait: a sender that sleeps on its descriptor
 * wakes when credit comes. */
int jet_sender_flush(jet_sender *sender);

/* How to sleep until a sender has something to poll. */
typedef struct jet_sleep {
    int fd;             /* descriptor that becomes readable */
    uint32_t fd_number; /* changes when fd becomes another descriptor, because the device was removed */
    int64_t timeout_ns; /* time after which to poll even if nothing comes; below 0: never */
} jet_sleep;

/* For an event loop: call it before each sleep, when jet_sender_poll() had nothing. JET_OK: wait until
 * sleep->fd is readable, at most for sleep->timeout_ns, then poll. JET_NOTHING: something waits, so poll now.
 * Whoever used the sender since calls it again before it sleeps. */
int jet_sender_prepare_sleep_sized(jet_sender *sender, jet_sleep *sleep, size_t size);
static inline int jet_sender_prepare_sleep(jet_sender *sender, jet_sleep *sleep) {
    return jet_sender_prepare_sleep_sized(sender, sleep, sizeof *sleep);
}

/* Gets the sender's identity. The application sees it with every message; it stays the same over reconnects.
 * */
int jet_sender_id(jet_sender *sender, uint64_t *id);

/* Gets the sender's counters. size: sizeof(jet_sender_stats). */
int jet_sender_stats_get(jet_sender *sender, jet_sender_stats *stats, size_t size);

/* ---------------------------------------------------------------- receiving */

typedef struct jet_session jet_session;

/* Options of a registration. Defaults are in brackets. */
struct jet_session_options {
    size_t size;                   /* size of this structure: set by jet_session_options_init() */
    const char *control_socket;    /* the daemon's control socket; null: /run/jet/jetd.sock */
    const char *app;               /* name that senders address: 1 to 32 out of A-Z a-z 0-9 . _ - / : */
    int class_;                    /* admission class, 0 the most urgent; a sender may ask for a less urgent
                                      one [0] */
    int memory_instead_of_waiting; /* 1: take memory outside the cache instead of waiting for room [0] */
    uint64_t spin_max_ns;          /* longest time that a wait spins before it sleeps [200 us] */
    int shares_name;               /* 1: share the name with others of the same user that say so, too; each
                                      sender's messages go to one of them [0] */
    int reserved;                  /* 0 */
};
typedef struct jet_session_options jet_session_options;

/* A message that arrived, or is arriving. */
typedef struct jet_message {
    uint64_t key;
    uint64_t tag;            /* number that the sender attached to the message */
    uint64_t sequence;       /* sequence number that the sender gave the message, counting from 1 */
    uint64_t sender;         /* identity of the sender */
    uint64_t bytes;          /* length of the whole message */
    const void *user_header; /* valid until the message is finished */
    size_t user_header_bytes;
    int redelivered;         /* 1: it was sent before, and an application may have seen it */
    int wants_reply;         /* 1: the sender has memory for a reply: jet_message_reply() */
} jet_message;

/* Bytes of a message, where the NIC put them: read-only, at most 256 KiB. A slab's first byte is
 * page-aligned. */
typedef struct jet_slice {
    const void *data; /* first byte; null: there is no slice */
    size_t bytes;
    uint64_t offset;  /* offset of the first byte in the message; slices come in the order of arrival */
    uint64_t key;
} jet_slice;

/* Counters of a session. */
typedef struct jet_session_stats {
    uint64_t messages; /* messages received */
    uint64_t slices;   /* slices taken */
    uint64_t bytes;    /* bytes of these slices */
    uint64_t sleeps;   /* times that the session slept */
} jet_session_stats;

/* Fills as much of the options with defaults as this header knows. */
int jet_session_options_init_sized(jet_session_options *options, size_t size);
static inline int jet_session_options_init(jet_session_options *options) {
    return jet_session_options_init_sized(options, sizeof *options);
}

/* Registers an application with the daemon. *session is null where it fails. */
int jet_session_register(const jet_session_options *options, jet_session **session);

/* Ends the session: senders of unfinished messages get JET_APP_GONE. */
int jet_session_free(jet_session *session);

/* Gets the next message as it begins to arrive (JET_OK), if there is one (else JET_NOTHING). Errors are final
 * for the session, except for JET_E_HELD: nothing more arrives before slices are given back, or messages
 * finished. jet_error_text() says which limit that is. */
int jet_session_receive_sized(jet_session *session, int64_t timeout_ns, jet_message *message, size_t size);
static inline int jet_session_receive(jet_session *session, int64_t timeout_ns, jet_message *message) {
    return jet_session_receive_sized(session, timeout_ns, message, sizeof *message);
}

/* Gets the message's next slice (JET_OK). JET_END: all were given. JET_NOTHING: try again. JET_E_WITHDRAWN:
 * the rest will not arrive. Give slices back as you used them: a message may be larger than the pool. A
 * caller that waits while it keeps all that it may gets JET_E_HELD. */
int jet_message_next(jet_session *session, const jet_message *message, int64_t timeout_ns, jet_slice *slice);

/* Gives a slice back; *slice is emptied. Slices may be given back in any order. Another thread may read a
 * slice before, but this call counts as a use of the session. */
int jet_slice_release(jet_session *session, jet_slice *slice);

/* Ends a message: with code 0 as consumed, otherwise as rejected with that code (an errno, say). Its sender
 * gets the end when every slice was given back. *message is emptied. */
int jet_message_finish(jet_session *session, jet_message *message, uint32_t code);

/* Ends a message like jet_message_finish(), with a reply of at most 4096 bytes, which are copied. Its sender
 * gets the reply with the end, unless the message was withdrawn before all of it came. Where the sender connects again before it heard that, or the daemon is gone,
 * the message comes again, marked as redelivered, and is to be replied to again. JET_E_NO_REPLY: the sender
 * wants none. JET_E_SIZE: the reply is too long. Where the call fails, the message has not ended: end it
 * otherwise. */
int jet_message_reply(jet_session *session, jet_message *message, uint32_t code, const void *reply,
                      size_t reply_bytes);

/* Shows the daemon what was given back, now; otherwise the next receive or next shows it. */
int jet_session_flush(jet_session *session);

/* For an event loop: call jet_session_prepare_sleep() when receive and every message's next had nothing.
 * JET_OK: wait until the descriptor is readable, then try again. JET_NOTHING: something waits, or was read
 * since the last call, so try now, each message too. One event loop has the session. */
int jet_session_fd(jet_session *session, int *fd);
int jet_session_prepare_sleep(jet_session *session);

/* For an event loop, after jet_session_prepare_sleep() answered JET_OK and before it waits: JET_E_HELD where
 * nothing more arrives before slices are given back, or messages finished, and something waits for that. Else
 * JET_NOTHING: the descriptor becomes readable when that changes. The daemon says so after a second of
 * standstill. */
int jet_session_holds_all(jet_session *session);

/* Gets the session's counters. size: sizeof(jet_session_stats). */
int jet_session_stats_get(jet_session *session, jet_session_stats *stats, size_t size);

#ifdef __cplusplus
}
#endif

#endif
