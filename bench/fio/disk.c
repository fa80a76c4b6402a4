/* See disk.h. */
#include "disk.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { WRITERS_MAX = 64, PAGE = 4096 };

struct disk {
    int direct, buffered; /* descriptors; -1: none */
    int direct_refusal;
    int bell;
    pthread_mutex_t lock; /* over all below */
    pthread_cond_t work;
    struct piece *first, **last; /* to be written, in order */
    struct piece *done;
    uint64_t direct_bytes, buffered_bytes;
    int closing, writers;
    pthread_t threads[WRITERS_MAX];
};

/* Writes all of it; 0 or an errno. */
static int write_all(int fd, const char *data, size_t bytes, uint64_t offset) {
    while (bytes) {
        ssize_t wrote = pwrite(fd, data, bytes, (off_t)offset);
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote < 0) return errno;
        if (wrote == 0) return ENOSPC;
        data += wrote;
        bytes -= (size_t)wrote;
        offset += (size_t)wrote;
    }
    return 0;
}

/* 0 or an errno. Both descriptors are of one file: what went past the page cache is in its device's cache, which this empties, too. */
static int sync_all(int fd, int what) {
    int code;
    while ((code = what == PIECE_FSYNC ? fsync(fd) : fdatasync(fd)) < 0 && errno == EINTR) {}
    return code < 0 ? errno : 0;
}

static void *write_pieces(void *argument) {
    struct disk *disk = argument;
    const uint64_t one = 1;
    pthread_mutex_lock(&disk->lock);
    for (;;) {
        while (!disk->first && !disk->closing) pthread_cond_wait(&disk->work, &disk->lock);
        struct piece *piece = disk->first;
        if (!piece) break;
        disk->first = piece->next;
        if (!disk->first) disk->last = &disk->first;
        pthread_mutex_unlock(&disk->lock);

        int on_pages = ((uintptr_t)piece->data | piece->bytes | piece->offset) % PAGE == 0;
        int direct = disk->direct >= 0 && on_pages;
        piece->error = piece->what == PIECE_WRITE
                           ? write_all(direct ? disk->direct : disk->buffered, piece->data, piece->bytes, piece->offset)
                           : sync_all(disk->buffered, piece->what);

        pthread_mutex_lock(&disk->lock);
        if (!piece->error && direct) disk->direct_bytes += piece->bytes;
        if (!piece->error && !direct) disk->buffered_bytes += piece->bytes;
        piece->next = disk->done;
        disk->done = piece;
        /* It fails only where 2^64 - 1 are waiting to be read. */
        while (write(disk->bell, &one, sizeof one) < 0 && errno == EINTR) {}
    }
    pthread_mutex_unlock(&disk->lock);
    return NULL;
}

struct disk *disk_open(const char *path, int writers, int synced) {
    int flags = O_WRONLY | O_CREAT | O_CLOEXEC | (synced ? O_DSYNC : 0);
    struct disk *disk = calloc(1, sizeof *disk);
    if (!disk) return NULL;
    disk->last = &disk->first;
    disk->direct = -1;
    disk->bell = -1;
    pthread_mutex_init(&disk->lock, NULL);
    pthread_cond_init(&disk->work, NULL);
    disk->buffered = open(path, flags, 0644);
    if (disk->buffered < 0) goto failed;
    disk->direct = open(path, flags | O_DIRECT, 0644);
    disk->direct_refusal = disk->direct < 0 ? errno : 0;
    disk->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (disk->bell < 0) goto failed;
    for (; disk->writers < writers && disk->writers < WRITERS_MAX; disk->writers++) {
        errno = pthread_create(&disk->threads[disk->writers], NULL, write_pieces, disk);
        if (errno) goto failed;
    }
    return disk;
failed:;
    int why = errno;
    disk_close(disk);
    errno = why;
    return NULL;
}

int disk_direct_refusal(const struct disk *disk) { return disk->direct_refusal; }

int disk_fd(const struct disk *disk) { return disk->bell; }

void disk_submit(struct disk *disk, struct piece *piece) {
    piece->next = NULL;
    pthread_mutex_lock(&disk->lock);
    *disk->last = piece;
    disk->last = &piece->next;
    pthread_cond_signal(&disk->work);
    pthread_mutex_unlock(&disk->lock);
}

struct piece *disk_take(struct disk *disk) {
    uint64_t rung;
    pthread_mutex_lock(&disk->lock);
    struct piece *piece = disk->done;
    if (piece) disk->done = piece->next;
    /* With nothing left nothing is to be heard: a piece that comes back rings again. */
    else if (read(disk->bell, &rung, sizeof rung) < 0) {}
    pthread_mutex_unlock(&disk->lock);
    return piece;
}

void disk_written(const struct disk *disk, uint64_t *direct, uint64_t *buffered) {
    *direct = disk->direct_bytes;
    *buffered = disk->buffered_bytes;
}

void disk_close(struct disk *disk) {
    pthread_mutex_lock(&disk->lock);
    disk->closing = 1;
    pthread_cond_broadcast(&disk->work);
    pthread_mutex_unlock(&disk->lock);
    for (int i = 0; i < disk->writers; i++) pthread_join(disk->threads[i], NULL);
    if (disk->bell >= 0) close(disk->bell);
    if (disk->direct >= 0) close(disk->direct);
    if (disk->buffered >= 0) close(disk->buffered);
    pthread_mutex_destroy(&disk->lock);
    pthread_cond_destroy(&disk->work);
    free(disk);
}
