/* 07: buffers that peers map, a scaled sum, and several communicators at once.
 *
 * Memory from cclMemAlloc is mapped by the other processes of this host, so a large collective on it needs no copy into
 * the library's own. cclCommRegister makes it known to them beforehand, which the first call on it would do otherwise.
 *
 *   cc 07_memory_and_communicators.c $(pkg-config --cflags --libs rdmaccl) -o memory && ./memory
 */
#define _POSIX_C_SOURCE 200809L
#include <ccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define RANKS 2
#define COUNT 300000

#define CHECK(call)                                                                                         \
    do {                                                                                                    \
        cclResult_t result_ = (call);                                                                       \
        if (result_ != cclSuccess) {                                                                        \
            fprintf(stderr, "%s: %s: %s\n", #call, cclGetErrorString(result_), cclGetLastError(NULL));      \
            exit(EXIT_FAILURE);                                                                             \
        }                                                                                                   \
    } while (0)

static void expect(int rank, const char *what, const float *values, float value) {
    for (int i = 0; i < COUNT; i++)
        if (values[i] != value) {
            fprintf(stderr, "%s: rank %d has %g at %d, not %g\n", what, rank, (double)values[i], i, (double)value);
            exit(EXIT_FAILURE);
        }
}

static void run(int rank, cclUniqueId id) {
    const size_t bytes = COUNT * sizeof(float);
    cclComm_t model, data;
    void *memory[3], *handles[3];
    float *input, *sum, *scaled;

    CHECK(cclCommInitRank(&model, RANKS, id, rank));
    /* The same ranks once more. Communicators never wait for each other. */
    CHECK(cclCommSplit(model, 0, rank, &data, NULL));

    for (int i = 0; i < 3; i++) {
        CHECK(cclMemAlloc(&memory[i], bytes));
        CHECK(cclCommRegister(model, memory[i], bytes, &handles[i]));
    }
    input = memory[0], sum = memory[1], scaled = memory[2];
    for (int i = 0; i < COUNT; i++) input[i] = (float)(rank + 1);

    /* Each rank's contribution times a factor of its own, then the sum: 1 * 10 + 2 * 100. */
    float factor = rank == 0 ? 10.0f : 100.0f;
    cclRedOp_t op;
    CHECK(cclRedOpCreatePreMulSum(&op, &factor, cclFloat32, cclScalarHostImmediate, model));
    CHECK(cclAllReduce(input, scaled, COUNT, cclFloat32, op, model, NULL));
    CHECK(cclRedOpDestroy(op, model));
    expect(rank, "scaled sum", scaled, 210.0f);

    /* A group over both communicators: the ranks issue the two calls in different orders, which would be a deadlock
     * one by one. The order matters within one communicator only. */
    CHECK(cclGroupStart());
    for (int i = 0; i < 2; i++) {
        if (i == rank)
            CHECK(cclAllReduce(input, sum, COUNT, cclFloat32, cclSum, model, NULL));
        else
            CHECK(cclAllReduce(input, scaled, COUNT, cclFloat32, cclMax, data, NULL));
    }
    CHECK(cclGroupEnd());
    expect(rank, "sum", sum, 3.0f);
    expect(rank, "maximum", scaled, 2.0f);

    for (int i = 0; i < 3; i++) {
        CHECK(cclCommDeregister(model, handles[i]));
        CHECK(cclMemFree(memory[i]));
    }
    CHECK(cclCommDestroy(data));
    CHECK(cclCommDestroy(model));
    printf("rank %d: scaled sum, sum and maximum are right\n", rank);
    exit(EXIT_SUCCESS);
}

int main(void) {
    int ends[2], status, failed = 0;
    if (pipe(ends) != 0) return EXIT_FAILURE;
    for (int rank = 0; rank < RANKS; rank++) {
        pid_t child = fork();
        if (child < 0) return EXIT_FAILURE;
        if (child > 0) continue;
        cclUniqueId id;
        if (rank == 0) {
            CHECK(cclGetUniqueId(&id));
            if (write(ends[1], &id, sizeof id) != sizeof id) exit(EXIT_FAILURE);
        } else {
            close(ends[1]); /* so that the pipe ends if rank 0 does */
            if (read(ends[0], &id, sizeof id) != sizeof id) exit(EXIT_FAILURE);
        }
        run(rank, id);
    }
    close(ends[0]);
    close(ends[1]);
    while (wait(&status) > 0) failed |= status != 0;
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
