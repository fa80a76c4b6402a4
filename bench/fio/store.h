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
    uint64_t replied;         /* of all, those that a reply was given to */
    uint64_t synced;          /* how often a sender asked for it and it was done */
};

/* Until *stop, or the session ends: a code below 0. Every message has its end when its last piece is written, as rejected with the
 * errno of the first that was not. Questions (ask.h) are answered; `facts` is what holds of blocks. */
int store(jet_session *session, struct disk *disk, const char *name, unsigned int facts, const volatile sig_atomic_t *stop,
          struct stored *stored);

#endif
