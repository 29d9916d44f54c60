/* Any MPI. */
#include "core.h"
#include <mpi.h>
#include <stdio.h>
#include <string.h>

static MPI_Datatype datatype(enum type type) {
    if (type == FLOAT32) return MPI_FLOAT;
#ifdef MPIX_C_FLOAT16
    if (type == FLOAT16) return MPIX_C_FLOAT16;
#endif
#ifdef MPIX_BFLOAT16
    if (type == BFLOAT16) return MPIX_BFLOAT16;
#endif
    return MPI_DATATYPE_NULL;
}

static bool prepare(void *context, const struct call *call) {
    (void)context;
    return datatype(call->type) != MPI_DATATYPE_NULL;
}

static void make(void *context, const struct call *call) {
    const void *send = call->in_place ? MPI_IN_PLACE : call->send;
    int count = (int)call->count;
    MPI_Datatype type = datatype(call->type);
    switch (call->collective) {
    case ALL_REDUCE: MPI_Allreduce(send, call->receive, count, type, MPI_SUM, MPI_COMM_WORLD); break;
    case ALL_GATHER: MPI_Allgather(send, count, type, call->receive, count, type, MPI_COMM_WORLD); break;
    case REDUCE_SCATTER:
        MPI_Reduce_scatter_block(send, call->receive, count, type, MPI_SUM, MPI_COMM_WORLD);
        break;
    case BROADCAST: MPI_Bcast(call->receive, count, type, 0, MPI_COMM_WORLD); break;
    case ALL_TO_ALL: MPI_Alltoall(send, count, type, call->receive, count, type, MPI_COMM_WORLD); break;
    case REDUCE: MPI_Reduce(send, call->receive, count, type, MPI_SUM, 0, MPI_COMM_WORLD); break;
    case GATHER: MPI_Gather(send, count, type, call->receive, count, type, 0, MPI_COMM_WORLD); break;
    case SCATTER: MPI_Scatter(send, count, type, call->receive, count, type, 0, MPI_COMM_WORLD); break;
    case SEND_RECV: {
        const struct library *library = context;
        int to = (library->rank + 1) % library->ranks, from = (library->rank + library->ranks - 1) % library->ranks;
        MPI_Sendrecv(send, count, type, to, 0, call->receive, count, type, from, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        break;
    }
    case COLLECTIVES: break;
    }
}

static void barrier(void *context) {
    (void)context;
    MPI_Barrier(MPI_COMM_WORLD);
}

static void largest(void *context, double *values, int count) {
    (void)context;
    MPI_Allreduce(MPI_IN_PLACE, values, count, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
}

static void *allocate(size_t bytes) {
    void *memory;
    MPI_Alloc_mem((MPI_Aint)bytes, MPI_INFO_NULL, &memory);
    return memory;
}

int main(int argc, char **argv) {
    char version[MPI_MAX_LIBRARY_VERSION_STRING];
    int length;
    MPI_Init(&argc, &argv);
    MPI_Get_library_version(version, &length);
    version[strcspn(version, "\n")] = 0;
    struct library library = {.version = version, .scatters_to_start = true, .prepare = prepare, .make = make,
                              .barrier = barrier, .largest = largest, .allocate = allocate};
    library.context = &library;
    MPI_Comm_rank(MPI_COMM_WORLD, &library.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &library.ranks);
    measure(&library, argc, argv);
    MPI_Finalize();
    return 0;
}
