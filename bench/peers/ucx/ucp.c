/* The stream of ../stream over UCP's tagged messages. Which transports: UCX_TLS. */
#include "../stream/stream.h"

#include <stdlib.h>
#include <sys/socket.h>
#include <ucp/api/ucp.h>

enum { ACKNOWLEDGEMENTS = 16 };

/* Tags. */
enum { MESSAGE = 1, ACKNOWLEDGEMENT = 2 };

static ucp_context_h context;
static ucp_worker_h worker;
static ucp_ep_h endpoint;
static struct acknowledgement {
	uint64_t messages;
	bool done;
	/* At the sender: the receive. */
	ucs_status_ptr_t request;
} acknowledgements[ACKNOWLEDGEMENTS];
static bool is_sender;

static void must(ucs_status_t status, const char *what)
{
	if (status != UCS_OK)
		stop("%s: %s", what, ucs_status_string(status));
}

/* A request that did not end at once ends by a callback. */
static bool ended(ucs_status_ptr_t request, const char *what)
{
	if (UCS_PTR_IS_ERR(request))
		must(UCS_PTR_STATUS(request), what);
	return request == NULL;
}

static void on_sent(void *request, ucs_status_t status, void *done)
{
	must(status, "a send");
	*(bool *)done = true;
	ucp_request_free(request);
}

static void on_received(void *request, ucs_status_t status, const ucp_tag_recv_info_t *info, void *done)
{
	(void)info;
	/* Cancelled at the end. */
	if (status != UCS_ERR_CANCELED)
		must(status, "a receive");
	*(bool *)done = true;
	ucp_request_free(request);
}

static void send_bytes(const void *bytes, size_t count, ucp_tag_t tag, bool *done)
{
	ucp_request_param_t with = {
		.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
		.cb.send = on_sent,
		.user_data = done,
	};
	if (ended(ucp_tag_send_nbx(endpoint, bytes, count, tag, &with), "a send"))
		*done = true;
}

static ucs_status_ptr_t receive_bytes(void *bytes, size_t count, ucp_tag_t tag, bool *done)
{
	ucp_request_param_t with = {
		.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
		.cb.recv = on_received,
		.user_data = done,
	};
	ucs_status_ptr_t request = ucp_tag_recv_nbx(worker, bytes, count, tag, ~(ucp_tag_t)0, &with);
	if (ended(request, "a receive"))
		*done = true;
	return request;
}

void peer_prepare(const char *argument)
{
	(void)argument;
}

static void open_worker(void)
{
	ucp_config_t *config;
	must(ucp_config_read(NULL, NULL, &config), "UCX's configuration");
	ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_TAG};
	must(ucp_init(&params, config, &context), "ucp_init");
	ucp_config_release(config);
	ucp_worker_params_t single = {
		.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
		.thread_mode = UCS_THREAD_MODE_SINGLE,
	};
	must(ucp_worker_create(context, &single, &worker), "ucp_worker_create");
}

static ucp_ep_h connect_to(int channel)
{
	ucp_address_t *own;
	size_t bytes, far_bytes;
	must(ucp_worker_get_address(worker, &own, &bytes), "ucp_worker_get_address");
	channel_write(channel, &bytes, sizeof bytes);
	channel_write(channel, own, bytes);
	ucp_worker_release_address(worker, own);
	channel_read(channel, &far_bytes, sizeof far_bytes);
	ucp_address_t *far = malloc(far_bytes);
	if (!far)
		stop("no memory");
	channel_read(channel, far, far_bytes);
	ucp_ep_params_t to = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS, .address = far};
	ucp_ep_h made;
	must(ucp_ep_create(worker, &to, &made), "ucp_ep_create");
	free(far);
	return made;
}

static void expect_acknowledgements(void)
{
	for (unsigned i = 0; i < ACKNOWLEDGEMENTS; i++) {
		struct acknowledgement *one = &acknowledgements[i];
		one->request = receive_bytes(&one->messages, sizeof one->messages, ACKNOWLEDGEMENT, &one->done);
	}
}

void peer_connect(bool sender, int channel)
{
	is_sender = sender;
	open_worker();
	endpoint = connect_to(channel);
	if (sender)
		expect_acknowledgements();
	else
		for (unsigned i = 0; i < ACKNOWLEDGEMENTS; i++)
			acknowledgements[i].done = true;
}

void peer_relay(int sender_channel, int receiver_channel, uint64_t messages, void (*look)(void))
{
	/* It has the sender's part towards the receiver. */
	is_sender = true;
	open_worker();
	ucp_ep_h sender = connect_to(sender_channel), receiver = connect_to(receiver_channel);
	expect_acknowledgements();
	char ready;
	channel_read(receiver_channel, &ready, 1);
	for (unsigned slot = 0; slot < depth && slot < messages; slot++)
		peer_receive(slot);
	channel_write(sender_channel, &ready, 1);

	/* Of each slot: whether its message is on its way to the receiver. A slot takes another message when that was read. */
	uint64_t passed = 0, expected = depth, told = 0;
	uint64_t said = 0;
	bool said_is_gone = true, *gone = calloc(depth, sizeof *gone);
	if (!gone)
		stop("no memory");
	while (told < messages || !said_is_gone) {
		look();
		for (; passed < messages && passed < expected && slots[passed % depth].done; passed++) {
			slots[passed % depth].done = false;
			endpoint = receiver;
			send_bytes(slots[passed % depth].buffer, message_bytes, MESSAGE, &gone[passed % depth]);
			found();
		}
		if (acknowledged > told && said_is_gone) {
			said = acknowledged;
			said_is_gone = false;
			endpoint = sender;
			send_bytes(&said, sizeof said, ACKNOWLEDGEMENT, &said_is_gone);
			told = said;
			found();
		}
		for (; expected < messages && expected - depth < told && gone[expected % depth]; expected++) {
			gone[expected % depth] = false;
			peer_receive((unsigned)(expected % depth));
		}
	}
	free(gone);
	/* Until the sender has shut its end: it has heard of the last message. */
	for (char byte; recv(sender_channel, &byte, 1, MSG_DONTWAIT) < 0;)
		look();
	shutdown(receiver_channel, SHUT_WR);
}

void peer_send(unsigned slot)
{
	send_bytes(slots[slot].buffer, message_bytes, MESSAGE, &slots[slot].done);
}

void peer_receive(unsigned slot)
{
	receive_bytes(slots[slot].buffer, message_bytes, MESSAGE, &slots[slot].done);
}

bool peer_acknowledge(uint64_t messages)
{
	static unsigned next;
	struct acknowledgement *one = &acknowledgements[next % ACKNOWLEDGEMENTS];
	if (!one->done)
		return false;
	*one = (struct acknowledgement){.messages = messages};
	send_bytes(&one->messages, sizeof one->messages, ACKNOWLEDGEMENT, &one->done);
	next++;
	return true;
}

void peer_progress(void)
{
	static unsigned next;
	ucp_worker_progress(worker);
	if (!is_sender)
		return;
	for (struct acknowledgement *one; (one = &acknowledgements[next % ACKNOWLEDGEMENTS])->done; next++) {
		acknowledged = one->messages;
		one->done = false;
		one->request = receive_bytes(&one->messages, sizeof one->messages, ACKNOWLEDGEMENT, &one->done);
	}
}

void peer_end(void)
{
	/* Both ends have all they expect. */
	for (unsigned i = 0; is_sender && i < ACKNOWLEDGEMENTS; i++) {
		ucp_request_cancel(worker, acknowledgements[i].request);
		while (!acknowledgements[i].done)
			ucp_worker_progress(worker);
	}
	ucp_worker_destroy(worker);
	ucp_cleanup(context);
}
