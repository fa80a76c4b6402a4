/* A stream of messages of one size from one process to another, whose receiver reads every byte. stream.c is the stream and knows
 * no system; ucx/, libfabric/ and sockets/ each carry it over theirs, by the functions declared here. */
#ifndef STREAM_H
#define STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One place of the messages that are under way at once; its index is its slot. The two ends have buffers of their own. */
struct slot {
	unsigned char *buffer;
	/* At the sender: the buffer may be filled again. At the receiver: a message is in it. */
	bool done;
};

/* The same in both processes, before they part. */
extern struct slot *slots;
extern size_t message_bytes;
extern unsigned depth;

/* At the sender: how many messages the receiver said it has read, since the start. Only ever grows. */
extern uint64_t acknowledged;

/* What a system does. Each ends the program where it cannot. */

/* Before there are two processes: what both ends need. ARGUMENT is the system's own on the command line. */
void peer_prepare(const char *argument);
/* In each process: connects it to the other one; `channel` is a Unix stream socket between them. */
void peer_connect(bool sender, int channel);
/* Sends the buffer of a slot that is done; sets `done` now or during peer_progress when the buffer may be filled again. */
void peer_send(unsigned slot);
/* Lets the next message come into a slot; sets `done` now or during peer_progress when it is there. */
void peer_receive(unsigned slot);
/* Tells the sender how many messages were read; may leave it out where an earlier one is still on its way: false. */
bool peer_acknowledge(uint64_t messages);
/* Takes what came and drives what is to go. Called only while something is expected, so it may wait. */
void peer_progress(void);
/* In a process between the two: connects it to both, and passes on so many messages and what was read of them. Calls `look` in place
 * of peer_progress, and `found` where that found something. Returns when the sender has heard of the last message. A system that has
 * no relay stops the program. */
void peer_relay(int sender_channel, int receiver_channel, uint64_t messages, void (*look)(void));
/* In each process, at the end. */
void peer_end(void);

/* Notes that a look found something. */
void found(void);

/* Prints what is wrong and ends the program. */
__attribute__((noreturn, format(printf, 1, 2))) void stop(const char *format, ...);

/* All bytes of something small over the channel. */
void channel_write(int channel, const void *bytes, size_t count);
void channel_read(int channel, void *bytes, size_t count);

#endif
