/* The stream of ../stream over plain sockets: ARGUMENT is unix or tcp. One write for a message, blocking; the receiver reads a message
 * into each slot in turn. What is said back goes over the same connection. */
#include "../stream/stream.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static bool is_sender, tcp;
static int ends[2], listener, connection;
/* The receiver's slots that a message may come into, as indices that only grow. */
static uint64_t posted, filled;

static void must(bool good, const char *what)
{
	if (!good)
		stop("%s: %s", what, strerror(errno));
}

void peer_prepare(const char *argument)
{
	tcp = !strcmp(argument, "tcp");
	if (!tcp && strcmp(argument, "unix"))
		stop("the last argument is unix or tcp");
	if (!tcp) {
		must(!socketpair(AF_UNIX, SOCK_STREAM, 0, ends), "socketpair");
		return;
	}
	struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	listener = socket(AF_INET, SOCK_STREAM, 0);
	must(listener >= 0 && !bind(listener, (struct sockaddr *)&here, sizeof here) && !listen(listener, 1), "listen");
}

void peer_connect(bool sender, int channel)
{
	(void)channel;
	is_sender = sender;
	if (!tcp) {
		connection = ends[sender];
		close(ends[!sender]);
		return;
	}
	if (sender) {
		struct sockaddr_in there;
		socklen_t bytes = sizeof there;
		must(!getsockname(listener, (struct sockaddr *)&there, &bytes), "getsockname");
		connection = socket(AF_INET, SOCK_STREAM, 0);
		must(connection >= 0 && !connect(connection, (struct sockaddr *)&there, sizeof there), "connect");
	} else {
		connection = accept(listener, NULL, NULL);
		must(connection >= 0, "accept");
	}
	int yes = 1;
	must(!setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes), "TCP_NODELAY");
	close(listener);
}

static void write_all(const void *bytes, size_t count)
{
	for (size_t written = 0; written < count;) {
		ssize_t more = write(connection, (const char *)bytes + written, count - written);
		must(more >= 0, "write");
		written += (size_t)more;
	}
}

static void read_whole(void *bytes, size_t count)
{
	ssize_t had = recv(connection, bytes, count, MSG_WAITALL);
	must(had >= 0, "read");
	if ((size_t)had != count)
		stop("the other end closed the connection");
}

void peer_send(unsigned slot)
{
	write_all(slots[slot].buffer, message_bytes);
	slots[slot].done = true;
}

void peer_receive(unsigned slot)
{
	(void)slot;
	posted++;
}

bool peer_acknowledge(uint64_t messages)
{
	write_all(&messages, sizeof messages);
	return true;
}

void peer_progress(void)
{
	if (is_sender) {
		read_whole(&acknowledged, sizeof acknowledged);
	} else if (filled < posted) {
		struct slot *slot = &slots[filled++ % depth];
		read_whole(slot->buffer, message_bytes);
		slot->done = true;
	}
}

void peer_relay(int sender_channel, int receiver_channel, uint64_t messages, void (*look)(void))
{
	(void)sender_channel, (void)receiver_channel, (void)messages, (void)look;
	stop("no relay over this system");
}

void peer_end(void)
{
	close(connection);
}
