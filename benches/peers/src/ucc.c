/* UCC on host memory over UCX. The ranks are forked and exchange addresses through memory that they share.
 * PEERS_PERSISTENT=1: a cell's call is initialised once and posted often. */
#include "core.h"
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucc/api/ucc.h>
#include <unistd.h>

enum { RANKS = 64, ADDRESS = 64 << 10 };

/* The exchange by which UCC makes its contexts and teams: each rank's bytes, and of how many exchanges they are. A rank
 * begins one when the one before is over for it, so nobody is more than one ahead, and two places do for each. */
struct meeting {
    unsigned begun[RANKS];
    char bytes[RANKS][2][ADDRESS];
};

struct exchange {
    unsigned number;
    size_t size;
    char *receive;
};

static struct meeting *meeting;
static int rank_, ranks_;
static bool yields, persistent;
static ucc_context_h ucc;
static ucc_team_h team;
static ucc_coll_req_h prepared;

static void check(ucc_status_t status) {
    if (status >= 0) return;
    fprintf(stderr, "ucc: %s\n", ucc_status_string(status));
    exit(1);
}

static ucc_status_t exchange(void *send, void *receive, size_t size, void *info, void **request) {
    static struct exchange current;
    (void)info;
    if (size > ADDRESS) return UCC_ERR_NO_MEMORY;
    current = (struct exchange){current.number + 1, size, receive};
    memcpy(meeting->bytes[rank_][current.number % 2], send, size);
    __atomic_store_n(&meeting->begun[rank_], current.number, __ATOMIC_RELEASE);
    *request = &current;
    return UCC_OK;
}

static ucc_status_t exchanged(void *request) {
    struct exchange *current = request;
    for (int r = 0; r < ranks_; r++)
        if ((int)(__atomic_load_n(&meeting->begun[r], __ATOMIC_ACQUIRE) - current->number) < 0) return UCC_INPROGRESS;
    for (int r = 0; r < ranks_; r++)
        memcpy(current->receive + (size_t)r * current->size, meeting->bytes[r][current->number % 2], current->size);
    return UCC_OK;
}

static ucc_status_t forgotten(void *request) {
    (void)request;
    return UCC_OK;
}

static ucc_oob_coll_t out_of_band(void) {
    ucc_oob_coll_t way = {.allgather = exchange, .req_test = exchanged, .req_free = forgotten,
                          .n_oob_eps = (uint32_t)ranks_, .oob_ep = (uint32_t)rank_};
    return way;
}

static void progress(void) {
    ucc_context_progress(ucc);
    if (yields) sched_yield();
}

static void wait_for(ucc_coll_req_h request) {
    ucc_status_t status;
    while ((status = ucc_collective_test(request)) == UCC_INPROGRESS) progress();
    check(status);
}

static ucc_coll_buffer_info_t buffer(void *memory, size_t count, ucc_datatype_t type) {
    ucc_coll_buffer_info_t info = {.buffer = memory, .count = count, .datatype = type,
                                   .mem_type = UCC_MEMORY_TYPE_HOST};
    return info;
}

static ucc_coll_args_t arguments(const struct call *call) {
    static const ucc_datatype_t types[TYPES] = {UCC_DT_FLOAT32, UCC_DT_FLOAT16, UCC_DT_BFLOAT16};
    static const ucc_coll_type_t collectives[COLLECTIVES] = {
        UCC_COLL_TYPE_ALLREDUCE, UCC_COLL_TYPE_ALLGATHER, UCC_COLL_TYPE_REDUCE_SCATTER, UCC_COLL_TYPE_BCAST,
        UCC_COLL_TYPE_ALLTOALL, UCC_COLL_TYPE_REDUCE, UCC_COLL_TYPE_GATHER, UCC_COLL_TYPE_SCATTER};
    ucc_datatype_t type = types[call->type];
    size_t all = call->count * (size_t)ranks_, send = call->count, receive = call->count;
    char *to = call->receive;
    enum collective which = call->collective;
    if (which == ALL_GATHER || which == ALL_TO_ALL || which == GATHER) receive = all;
    if (which == REDUCE_SCATTER || which == ALL_TO_ALL || which == SCATTER) send = all;
    /* In place, a reduce-scatter is told of the whole buffer. */
    if (call->collective == REDUCE_SCATTER && call->in_place) to = (char *)call->send, receive = all;
    ucc_coll_args_t args = {.coll_type = collectives[call->collective], .op = UCC_OP_SUM, .root = 0};
    args.src.info = buffer(call->collective == BROADCAST ? to : (void *)call->send, send, type);
    args.dst.info = buffer(to, receive, type);
    if (call->in_place && call->collective != BROADCAST) {
        args.mask |= UCC_COLL_ARGS_FIELD_FLAGS;
        args.flags |= UCC_COLL_ARGS_FLAG_IN_PLACE;
    }
    return args;
}

static bool prepare(void *context, const struct call *call) {
    (void)context;
    if (call->collective == SEND_RECV) return false;
    /* It knows the type, but cannot add its values: it says so on the error output only, and never comes to an end. */
    if (call->type == FLOAT16 && (call->collective == ALL_REDUCE || call->collective == REDUCE_SCATTER)) return false;
    ucc_coll_args_t args = arguments(call);
    if (persistent) {
        args.mask |= UCC_COLL_ARGS_FIELD_FLAGS;
        args.flags |= UCC_COLL_ARGS_FLAG_PERSISTENT;
    }
    ucc_status_t status = ucc_collective_init(&args, &prepared, team);
    if (status == UCC_ERR_NOT_SUPPORTED || status == UCC_ERR_NOT_IMPLEMENTED) return false;
    check(status);
    if (!persistent) check(ucc_collective_finalize(prepared));
    return true;
}

static void release(void *context) {
    (void)context;
    if (persistent) check(ucc_collective_finalize(prepared));
}

/* A call of its own, from the beginning to the end. */
static void post(ucc_coll_args_t *args) {
    ucc_coll_req_h request;
    check(ucc_collective_init(args, &request, team));
    check(ucc_collective_post(request));
    wait_for(request);
    check(ucc_collective_finalize(request));
}

static void make(void *context, const struct call *call) {
    (void)context;
    if (persistent) {
        check(ucc_collective_post(prepared));
        wait_for(prepared);
        return;
    }
    ucc_coll_args_t args = arguments(call);
    post(&args);
}

static void barrier(void *context) {
    (void)context;
    ucc_coll_args_t args = {.coll_type = UCC_COLL_TYPE_BARRIER};
    post(&args);
}

static void largest(void *context, double *values, int count) {
    (void)context;
    ucc_coll_args_t args = {.mask = UCC_COLL_ARGS_FIELD_FLAGS, .flags = UCC_COLL_ARGS_FLAG_IN_PLACE,
                            .coll_type = UCC_COLL_TYPE_ALLREDUCE, .op = UCC_OP_MAX};
    args.src.info = args.dst.info = buffer(values, (size_t)count, UCC_DT_FLOAT64);
    post(&args);
}

static void join(void) {
    ucc_lib_params_t lib_params = {.mask = UCC_LIB_PARAM_FIELD_THREAD_MODE, .thread_mode = UCC_THREAD_SINGLE};
    ucc_context_params_t context_params = {.mask = UCC_CONTEXT_PARAM_FIELD_OOB, .oob = out_of_band()};
    ucc_team_params_t team_params = {.mask = UCC_TEAM_PARAM_FIELD_EP | UCC_TEAM_PARAM_FIELD_EP_RANGE |
                                             UCC_TEAM_PARAM_FIELD_OOB,
                                     .ep = (uint64_t)rank_, .ep_range = UCC_COLLECTIVE_EP_RANGE_CONTIG,
                                     .oob = out_of_band()};
    ucc_lib_config_h lib_config;
    ucc_context_config_h context_config;
    ucc_lib_h lib;
    ucc_status_t status;
    check(ucc_lib_config_read(NULL, NULL, &lib_config));
    check(ucc_init(&lib_params, lib_config, &lib));
    ucc_lib_config_release(lib_config);
    check(ucc_context_config_read(lib, NULL, &context_config));
    check(ucc_context_create(lib, &context_params, context_config, &ucc));
    ucc_context_config_release(context_config);
    check(ucc_team_create_post(&ucc, 1, &team_params, &team));
    while ((status = ucc_team_create_test(team)) == UCC_INPROGRESS) progress();
    check(status);
}

static int rank_main(int rank, int ranks, void *shared, int argc, char **argv) {
    const char *persist = getenv("PEERS_PERSISTENT");
    char version[64];
    meeting = shared;
    rank_ = rank;
    ranks_ = ranks;
    yields = ranks > sysconf(_SC_NPROCESSORS_ONLN);
    persistent = persist && *persist == '1';
    if (ranks > RANKS) return 2;
    join();
    snprintf(version, sizeof version, "UCC %s", ucc_get_version_string());
    struct library library = {.version = version, .rank = rank, .ranks = ranks, .prepare = prepare, .make = make,
                              .release = release, .barrier = barrier, .largest = largest};
    measure(&library, argc, argv);
    barrier(NULL);
    return 0; /* the process ends, and with it what the library holds */
}

int main(int argc, char **argv) { return fork_ranks(&argc, &argv, sizeof(struct meeting), rank_main); }
