/* Writes from memory that does not move, several at a time: a thread each, for there is no other way that every kernel has.
 *
 * What lies on page boundaries, in memory and in the file, goes past the page cache (O_DIRECT) where the file system allows it.
 */
#ifndef JET_FIO_DISK_H
#define JET_FIO_DISK_H

#include <stddef.h>
#include <stdint.h>

/* What is done with a piece: it is written, or what was written is put on the device, with or without what finding it does not take. */
enum { PIECE_WRITE, PIECE_FSYNC, PIECE_FDATASYNC };

/* One write, or one sync. The caller keeps it until it comes back from disk_take(). */
struct piece {
    int what;
    const void *data;
    size_t bytes;
    uint64_t offset;
    int error; /* of a piece that came back: an errno, or 0 */
    struct piece *next;
};

struct disk;

/* Opens a file, or a device, that is made where there is none, and starts so many threads, 1 to 64. `synced`: a write ends when the
 * device has it (O_DSYNC). Null: errno says why. */
struct disk *disk_open(const char *path, int writers, int synced);

/* Why nothing goes past the page cache; 0: it does. */
int disk_direct_refusal(const struct disk *disk);

/* Readable when a piece may have come back; to be cleared by disk_take(). */
int disk_fd(const struct disk *disk);

void disk_submit(struct disk *disk, struct piece *piece);

/* A piece that came back; null: none now. */
struct piece *disk_take(struct disk *disk);

/* Bytes written so far: past the page cache, and through it. To be asked when every piece came back. */
void disk_written(const struct disk *disk, uint64_t *direct, uint64_t *buffered);

/* Ends the threads. Every piece came back before. */
void disk_close(struct disk *disk);

#endif
