/* Ours, through the C ABI; -a takes cclMemAlloc's memory. */
#include "core.h"
#include "join.h"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const cclDataType_t types[TYPES] = {cclFloat32, cclFloat16, cclBfloat16};

static void make(void *context, const struct call *call) {
    const void *send = call->send;
    void *receive = call->receive;
    size_t count = call->count;
    cclDataType_t type = types[call->type];
    switch (call->collective) {
    case ALL_REDUCE: check(cclAllReduce(send, receive, count, type, cclSum, comm, NULL)); break;
    case ALL_GATHER: check(cclAllGather(send, receive, count, type, comm, NULL)); break;
    case REDUCE_SCATTER: check(cclReduceScatter(send, receive, count, type, cclSum, comm, NULL)); break;
    case BROADCAST: check(cclBroadcast(send, receive, count, type, 0, comm, NULL)); break;
    case ALL_TO_ALL: check(cclAlltoAll(send, receive, count, type, comm, NULL)); break;
    case REDUCE: check(cclReduce(send, receive, count, type, cclSum, 0, comm, NULL)); break;
    case GATHER: check(cclGather(send, receive, count, type, 0, comm, NULL)); break;
    case SCATTER: check(cclScatter(send, receive, count, type, 0, comm, NULL)); break;
    case SEND_RECV: {
        const struct library *library = context;
        check(cclGroupStart());
        check(cclSend(send, count, type, (library->rank + 1) % library->ranks, comm, NULL));
        check(cclRecv(receive, count, type, (library->rank + library->ranks - 1) % library->ranks, comm, NULL));
        check(cclGroupEnd());
        break;
    }
    case COLLECTIVES: break;
    }
}

static void barrier(void *context) {
    (void)context;
    check(cclBarrier(comm, NULL));
}

static void largest(void *context, double *values, int count) {
    (void)context;
    check(cclAllReduce(values, values, (size_t)count, cclFloat64, cclMax, comm, NULL));
}

static void *allocate(size_t bytes) {
    void *memory;
    check(cclMemAlloc(&memory, bytes));
    return memory;
}

static int rank_main(int rank, int ranks, void *shared, int argc, char **argv) {
    char version[32];
    int number;
    join(shared, rank, ranks);
    check(cclGetVersion(&number));
    snprintf(version, sizeof version, "rdmaccl (CCL %d)", number);
    struct library library = {.version = version, .rank = rank, .ranks = ranks, .make = make, .barrier = barrier,
                              .largest = largest, .allocate = allocate};
    library.context = &library;
    measure(&library, argc, argv);
    check(cclCommDestroy(comm));
    return 0;
}

int main(int argc, char **argv) { return fork_ranks(&argc, &argv, sizeof(struct meeting), rank_main); }
