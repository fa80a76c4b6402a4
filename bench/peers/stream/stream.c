/* The stream: see stream.h.
 *
 *   stream BYTES DEPTH MESSAGES free|acked|relayed [ARGUMENT]
 *
 * prints messages a second. An eighth as many messages go before, uncounted; the clock stops when the receiver has said that it read
 * the last one.
 *   free:  the sender waits for nothing but its own buffers; at most DEPTH sends are not complete.
 *   acked: the receiver says of every message when it has read it; at most DEPTH are not read, as it is with Jet.
 *   relayed: as acked, with a third process between the two, which passes messages and what was read on, as Jet's daemon does. The
 *            three give their processor to others after every second look in vain, as Jet's do where they share processors: else
 *            they would wait for each other's time slices. */
#include "stream.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { LIMIT_SECONDS = 120, PAGE_BYTES = 4096, WARM_UP = 8, LOOKS_PER_YIELD = 2 };

struct slot *slots;
size_t message_bytes;
unsigned depth;
uint64_t acknowledged;

static bool acked, relayed;

void stop(const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	fputs("stream: ", stderr);
	vfprintf(stderr, format, arguments);
	fputc('\n', stderr);
	va_end(arguments);
	exit(1);
}

void channel_write(int channel, const void *bytes, size_t count)
{
	if (write(channel, bytes, count) != (ssize_t)count)
		stop("the other process is gone: %s", strerror(errno));
}

void channel_read(int channel, void *bytes, size_t count)
{
	if (recv(channel, bytes, count, MSG_WAITALL) != (ssize_t)count)
		stop("the other process is gone: %s", strerror(errno));
}

/* Reads every byte, as fast as the machine loads: four sums, as one alone would wait for itself. */
static uint64_t read_all(const unsigned char *buffer)
{
	const uint64_t *words = (const uint64_t *)(const void *)buffer;
	uint64_t sums[4] = {0};
	size_t word = 0, count = message_bytes / sizeof *words;
	for (; word + 4 <= count; word += 4)
		for (size_t lane = 0; lane < 4; lane++)
			sums[lane] += words[word + lane];
	for (; word < count; word++)
		sums[0] += words[word];
	return sums[0] + sums[1] + sums[2] + sums[3];
}

/* The bytes of a slot's messages are all the same; that the sum is right proves that they came and were read. */
static uint64_t sum_expected(unsigned slot)
{
	return message_bytes / 8 * (0x0101010101010101u * (uint64_t)(unsigned char)(slot + 1));
}

static void make_slots(bool sender)
{
	for (unsigned slot = 0; slot < depth; slot++) {
		void *buffer;
		if (posix_memalign(&buffer, PAGE_BYTES, message_bytes))
			stop("no memory");
		memset(buffer, sender ? (int)slot + 1 : 0, message_bytes);
		slots[slot] = (struct slot){.buffer = buffer, .done = sender};
	}
}

/* Looks since the last one that found something. */
static unsigned looks;

/* Looks once for what came. In three processes, gives way after every few looks in vain. */
static void look(void)
{
	peer_progress();
	if (relayed && ++looks % LOOKS_PER_YIELD == 0)
		sched_yield();
}

void found(void)
{
	looks = 0;
}

/* Sends until so many went since the start, and waits until they were read. */
static void send_until(uint64_t end)
{
	static uint64_t sent;
	while (sent < end || acknowledged < end) {
		while (sent < end && slots[sent % depth].done && (!acked || sent - acknowledged < depth)) {
			slots[sent % depth].done = false;
			peer_send((unsigned)(sent++ % depth));
			found();
		}
		look();
	}
}

static void receive_until(uint64_t end)
{
	uint64_t had = 0, told = 0;
	while (had < end) {
		look();
		for (struct slot *slot; had < end && (slot = &slots[had % depth])->done; had++) {
			if (read_all(slot->buffer) != sum_expected((unsigned)(had % depth)))
				stop("message %llu is not what was sent", (unsigned long long)had);
			slot->done = false;
			found();
			if (had + depth < end)
				peer_receive((unsigned)(had % depth));
		}
		/* The end of the messages that go before, and of all, is told in either case. */
		bool phase = had == end || (told < end / (WARM_UP + 1) && had >= end / (WARM_UP + 1));
		if (told < had && (acked || phase) && peer_acknowledge(had))
			told = had;
	}
	while (told < had) {
		if (peer_acknowledge(had))
			told = had;
		look();
	}
}

static double now_s(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static size_t number(const char *text, size_t least, size_t most)
{
	char *end;
	errno = 0;
	unsigned long long value = strtoull(text, &end, 10);
	if (errno || *end || end == text || value < least || value > most)
		stop("'%s' is no number from %zu to %zu", text, least, most);
	return (size_t)value;
}

/* Forks; the child ends with this process. */
static pid_t begin_child(void)
{
	pid_t parent = getpid(), child = fork();
	if (child < 0)
		stop("%s", strerror(errno));
	if (child == 0) {
		alarm(LIMIT_SECONDS);
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != parent)
			_exit(1);
	}
	return child;
}

static void wait_for(pid_t child, const char *what)
{
	int status;
	if (waitpid(child, &status, 0) != child || status)
		stop("%s did not end well", what);
}

int main(int argc, char **argv)
{
	if (argc < 5 || argc > 6 || (strcmp(argv[4], "free") && strcmp(argv[4], "acked") && strcmp(argv[4], "relayed")))
		stop("usage: stream BYTES DEPTH MESSAGES free|acked|relayed [ARGUMENT]");
	message_bytes = number(argv[1], 8, 1 << 24) / 8 * 8;
	depth = (unsigned)number(argv[2], 1, 1024);
	uint64_t before = (number(argv[3], 1, 1u << 31) + WARM_UP - 1) / WARM_UP, messages = before * WARM_UP;
	relayed = !strcmp(argv[4], "relayed");
	acked = relayed || !strcmp(argv[4], "acked");
	slots = calloc(depth, sizeof *slots);
	int channel[2];
	if (!slots || socketpair(AF_UNIX, SOCK_STREAM, 0, channel))
		stop("%s", strerror(errno));
	peer_prepare(argc > 5 ? argv[5] : "");

	pid_t relay = 0;
	if (relayed) {
		/* The relay has an end of each of two channels. */
		int further[2];
		if (socketpair(AF_UNIX, SOCK_STREAM, 0, further))
			stop("%s", strerror(errno));
		relay = begin_child();
		if (relay == 0) {
			close(channel[0]);
			close(further[1]);
			make_slots(false);
			peer_relay(channel[1], further[0], before + messages, look);
			peer_end();
			_exit(0);
		}
		close(channel[1]);
		close(further[0]);
		channel[1] = further[1];
	}
	pid_t child = begin_child();
	alarm(LIMIT_SECONDS);
	if (child == 0) {
		close(channel[0]);
		make_slots(false);
		peer_connect(false, channel[1]);
		for (unsigned slot = 0; slot < depth && slot < before + messages; slot++)
			peer_receive(slot);
		channel_write(channel[1], "", 1);
		receive_until(before + messages);
		/* Until the sender has it. */
		for (char byte; recv(channel[1], &byte, 1, MSG_DONTWAIT) < 0;)
			look();
		peer_end();
		_exit(0);
	}
	close(channel[1]);
	make_slots(true);
	peer_connect(true, channel[0]);
	char ready;
	channel_read(channel[0], &ready, 1);
	send_until(before);
	double start = now_s();
	send_until(before + messages);
	double seconds = now_s() - start;
	shutdown(channel[0], SHUT_WR);
	wait_for(child, "the receiver");
	if (relay)
		wait_for(relay, "the relay");
	peer_end();
	printf("%.1f\n", (double)messages / seconds);
	return 0;
}
