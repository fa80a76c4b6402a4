/* A session whose messages are blocks of fio's and go to a file, each to its offset, from the slabs where they lie. */
#ifndef JET_FIO_STORE_H
#define JET_FIO_STORE_H

#include "disk.h"

#include <jet.h>
#include <signal.h>
#include <stdint.h>

struct stored {
    uint64_t messages, bytes; /* that came */
    uint64_t refused;         /* of these, those rejected: with the errno that is said first on stderr */
};

/* Until *stop, or the session ends: a code below 0. Every message has its end when its last piece is written, as rejected with the
 * errno of the first that was not. */
int store(jet_session *session, struct disk *disk, const char *name, const volatile sig_atomic_t *stop, struct stored *stored);

#endif
