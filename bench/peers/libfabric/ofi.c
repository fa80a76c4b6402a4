/* The stream of ../stream over libfabric's tagged messages: ARGUMENT is the provider, as in shm or "tcp;ofi_rxm". */
#include "../stream/stream.h"

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>
#include <stdlib.h>
#include <string.h>

enum { ACKNOWLEDGEMENTS = 16, COMPLETIONS = 64, ADDRESS_BYTES = 256 };

/* Tags. */
enum { MESSAGE = 1, ACKNOWLEDGEMENT = 2 };

/* What a completion leads to. The provider's part comes first. */
struct operation {
	struct fi_context2 of_provider;
	bool *done;
};

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_av *addresses;
static struct fid_cq *completions;
static struct fid_ep *endpoint;
static fi_addr_t far;
static struct operation *messages;
static struct acknowledgement {
	struct operation operation;
	uint64_t messages;
	bool done;
} acknowledgements[ACKNOWLEDGEMENTS];
static bool is_sender;
static const char *provider;

static void must(int code, const char *what)
{
	if (code)
		stop("%s: %s", what, fi_strerror(-code));
}

static void poll_completions(void)
{
	struct fi_cq_entry had[COMPLETIONS];
	ssize_t count = fi_cq_read(completions, had, COMPLETIONS);
	if (count == -FI_EAGAIN)
		return;
	if (count == -FI_EAVAIL) {
		struct fi_cq_err_entry error = {0};
		fi_cq_readerr(completions, &error, 0);
		stop("an operation failed: %s", fi_strerror(error.err));
	}
	must(count < 0 ? (int)count : 0, "fi_cq_read");
	for (ssize_t i = 0; i < count; i++)
		*((struct operation *)had[i].op_context)->done = true;
}

static void send_bytes(const void *bytes, size_t count, uint64_t tag, struct operation *operation, bool *done)
{
	ssize_t code;
	operation->done = done;
	/* Its queue is full. */
	while ((code = fi_tsend(endpoint, bytes, count, NULL, far, tag, operation)) == -FI_EAGAIN)
		poll_completions();
	must((int)code, "fi_tsend");
}

static void receive_bytes(void *bytes, size_t count, uint64_t tag, struct operation *operation, bool *done)
{
	ssize_t code;
	operation->done = done;
	while ((code = fi_trecv(endpoint, bytes, count, NULL, far, tag, 0, operation)) == -FI_EAGAIN)
		poll_completions();
	must((int)code, "fi_trecv");
}

void peer_prepare(const char *argument)
{
	provider = argument;
}

static void open_endpoint(void)
{
	struct fi_info *hints = fi_allocinfo();
	if (!hints)
		stop("no memory");
	hints->caps = FI_TAGGED;
	/* A context as large as any provider wants. */
	hints->mode = FI_CONTEXT | FI_CONTEXT2;
	hints->ep_attr->type = FI_EP_RDM;
	hints->domain_attr->threading = FI_THREAD_DOMAIN;
	hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	hints->fabric_attr->prov_name = strdup(provider);
	/* On TCP the same interface as Jet's. */
	const char *node = strncmp(provider, "tcp", 3) ? NULL : "127.0.0.1";
	must(fi_getinfo(FI_VERSION(1, 17), node, NULL, node ? FI_SOURCE : 0, hints, &info), provider);
	fi_freeinfo(hints);
	must(fi_fabric(info->fabric_attr, &fabric, NULL), "fi_fabric");
	must(fi_domain(fabric, info, &domain, NULL), "fi_domain");
	struct fi_av_attr table = {.type = FI_AV_UNSPEC, .count = 2};
	must(fi_av_open(domain, &table, &addresses, NULL), "fi_av_open");
	struct fi_cq_attr queue = {.format = FI_CQ_FORMAT_CONTEXT, .size = 2 * (depth + ACKNOWLEDGEMENTS)};
	must(fi_cq_open(domain, &queue, &completions, NULL), "fi_cq_open");
	must(fi_endpoint(domain, info, &endpoint, NULL), "fi_endpoint");
	must(fi_ep_bind(endpoint, &addresses->fid, 0), "fi_ep_bind");
	must(fi_ep_bind(endpoint, &completions->fid, FI_SEND | FI_RECV), "fi_ep_bind");
	must(fi_enable(endpoint), "fi_enable");
}

void peer_connect(bool sender, int channel)
{
	is_sender = sender;
	open_endpoint();
	char own[ADDRESS_BYTES], theirs[ADDRESS_BYTES];
	size_t bytes = sizeof own;
	must(fi_getname(&endpoint->fid, own, &bytes), "fi_getname");
	channel_write(channel, own, sizeof own);
	channel_read(channel, theirs, sizeof theirs);
	if (fi_av_insert(addresses, theirs, 1, &far, 0, NULL) != 1)
		stop("the other end's address is not accepted");
	messages = calloc(depth, sizeof *messages);
	if (!messages)
		stop("no memory");
	for (unsigned i = 0; i < ACKNOWLEDGEMENTS; i++) {
		struct acknowledgement *one = &acknowledgements[i];
		one->done = !sender;
		if (sender)
			receive_bytes(&one->messages, sizeof one->messages, ACKNOWLEDGEMENT, &one->operation, &one->done);
	}
}

void peer_send(unsigned slot)
{
	send_bytes(slots[slot].buffer, message_bytes, MESSAGE, &messages[slot], &slots[slot].done);
}

void peer_receive(unsigned slot)
{
	receive_bytes(slots[slot].buffer, message_bytes, MESSAGE, &messages[slot], &slots[slot].done);
}

bool peer_acknowledge(uint64_t count)
{
	static unsigned next;
	struct acknowledgement *one = &acknowledgements[next % ACKNOWLEDGEMENTS];
	if (!one->done)
		return false;
	one->done = false;
	one->messages = count;
	send_bytes(&one->messages, sizeof one->messages, ACKNOWLEDGEMENT, &one->operation, &one->done);
	next++;
	return true;
}

void peer_progress(void)
{
	static unsigned next;
	poll_completions();
	if (!is_sender)
		return;
	for (struct acknowledgement *one; (one = &acknowledgements[next % ACKNOWLEDGEMENTS])->done; next++) {
		acknowledged = one->messages;
		one->done = false;
		receive_bytes(&one->messages, sizeof one->messages, ACKNOWLEDGEMENT, &one->operation, &one->done);
	}
}

void peer_relay(int sender_channel, int receiver_channel, uint64_t messages, void (*look)(void))
{
	(void)sender_channel, (void)receiver_channel, (void)messages, (void)look;
	stop("no relay over this system");
}

void peer_end(void)
{
	fi_close(&endpoint->fid);
	fi_close(&completions->fid);
	fi_close(&addresses->fid);
	fi_close(&domain->fid);
	fi_close(&fabric->fid);
	fi_freeinfo(info);
}
