/* A device with smaller limits than the one that is there: preloaded into a program that uses libibverbs.
 *
 *     LD_PRELOAD=limits.so JET_DEVICE_LIMITS=max_qp_init_rd_atom=16,max_qp_rd_atom=16,max_sge=30 PROGRAM
 *
 * Queries answer the lesser of what the device has and what is named, and what asks for more of a queue is refused with EINVAL, as such
 * a device does. How many queue pairs and queues there are is answered, and not counted: a program may have several NICs on the device,
 * and each makes what the answer lets it. What is posted is left to the device: it holds a queue pair to the depth of READs that it was
 * connected with.
 * A name that is not known ends the program: limits that nobody set would prove nothing. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* INT_MAX where nothing is named. */
static struct {
    const char *name;
    int most;
} limits[] = {
    {"max_qp", 0x7fffffff},         {"max_qp_wr", 0x7fffffff},           {"max_sge", 0x7fffffff},
    {"max_sge_rd", 0x7fffffff},     {"max_cq", 0x7fffffff},              {"max_cqe", 0x7fffffff},
    {"max_srq", 0x7fffffff},        {"max_srq_wr", 0x7fffffff},          {"max_srq_sge", 0x7fffffff},
    {"max_qp_rd_atom", 0x7fffffff}, {"max_qp_init_rd_atom", 0x7fffffff}, {"max_res_rd_atom", 0x7fffffff},
    {"max_inline_data", 0x7fffffff},
};
enum { COUNT = sizeof limits / sizeof *limits };

static int most(const char *name) {
    for (int i = 0; i < COUNT; i++)
        if (!strcmp(limits[i].name, name)) return limits[i].most;
    abort();
}

static void give_up(const char *what) {
    fprintf(stderr, "limits.so: JET_DEVICE_LIMITS: %s\n", what);
    exit(2);
}

__attribute__((constructor)) static void read_limits(void) {
    const char *given = getenv("JET_DEVICE_LIMITS");
    if (!given) give_up("is not set");
    char *copy = strdup(given), *rest = copy;
    for (char *pair; (pair = strsep(&rest, ",")) && *pair;) {
        char *value = strchr(pair, '='), *end;
        if (!value) give_up(pair);
        *value++ = 0;
        long number = strtol(value, &end, 10);
        if (end == value || *end || number < 0 || number > 0x7fffffff) give_up(value);
        int at = 0;
        while (at < COUNT && strcmp(limits[at].name, pair)) at++;
        if (at == COUNT) give_up(pair);
        limits[at].most = (int)number;
    }
    free(copy);
}

static void *next(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    if (!found) give_up(dlerror());
    return found;
}

static void lower(struct ibv_device_attr *attr) {
#define LOWER(field) \
    if (attr->field > most(#field)) attr->field = most(#field)
    LOWER(max_qp);
    LOWER(max_qp_wr);
    LOWER(max_sge);
    LOWER(max_sge_rd);
    LOWER(max_cq);
    LOWER(max_cqe);
    LOWER(max_srq);
    LOWER(max_srq_wr);
    LOWER(max_srq_sge);
    LOWER(max_qp_rd_atom);
    LOWER(max_qp_init_rd_atom);
    LOWER(max_res_rd_atom);
}

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr) {
    int (*real)(struct ibv_context *, struct ibv_device_attr *) = next("ibv_query_device");
    int status = real(context, attr);
    if (!status) lower(attr);
    return status;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context, struct ibv_comp_channel *channel, int vector) {
    struct ibv_cq *(*real)(struct ibv_context *, int, void *, struct ibv_comp_channel *, int) = next("ibv_create_cq");
    if (cqe > most("max_cqe")) return errno = EINVAL, NULL;
    return real(context, cqe, cq_context, channel, vector);
}

struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *init) {
    struct ibv_srq *(*real)(struct ibv_pd *, struct ibv_srq_init_attr *) = next("ibv_create_srq");
    if (init->attr.max_wr > (unsigned)most("max_srq_wr") || init->attr.max_sge > (unsigned)most("max_srq_sge")) return errno = EINVAL, NULL;
    return real(pd, init);
}

static int fits(const struct ibv_qp_init_attr *init) {
    return init->cap.max_send_wr <= (unsigned)most("max_qp_wr") && init->cap.max_recv_wr <= (unsigned)most("max_qp_wr") &&
           init->cap.max_send_sge <= (unsigned)most("max_sge") && init->cap.max_recv_sge <= (unsigned)most("max_sge") &&
           init->cap.max_inline_data <= (unsigned)most("max_inline_data");
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *init) {
    struct ibv_qp *(*real)(struct ibv_pd *, struct ibv_qp_init_attr *) = next("ibv_create_qp");
    if (!fits(init)) return errno = EINVAL, NULL;
    return real(pd, init);
}

int rdma_create_qp(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_qp_init_attr *init) {
    int (*real)(struct rdma_cm_id *, struct ibv_pd *, struct ibv_qp_init_attr *) = next("rdma_create_qp");
    if (!fits(init)) return errno = EINVAL, -1;
    return real(id, pd, init);
}
