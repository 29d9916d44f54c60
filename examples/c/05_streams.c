/* 05: host streams: calls that go on while the program does something else.
 *
 * A call on a stream returns at once; the stream carries out its calls in the order in which they were issued. Until it
 * has done so, the buffers belong to the call: do not write what it reads, do not read what it writes.
 *
 *   cc 05_streams.c $(pkg-config --cflags --libs rdmaccl) -o streams && ./streams
 */
#include <ccl.h>
#include <stdio.h>
#include <stdlib.h>

#define RANKS 2
#define COUNT 200000
#define STEPS 3

#define CHECK(call)                                                                                         \
    do {                                                                                                    \
        cclResult_t result_ = (call);                                                                       \
        if (result_ != cclSuccess) {                                                                        \
            fprintf(stderr, "%s: %s: %s\n", #call, cclGetErrorString(result_), cclGetLastError(NULL));      \
            exit(EXIT_FAILURE);                                                                             \
        }                                                                                                   \
    } while (0)

static float values[RANKS][COUNT];

int main(void) {
    cclComm_t comm[RANKS];
    cclStream_t stream[RANKS];

    CHECK(cclCommInitAll(comm, RANKS, NULL));
    for (int r = 0; r < RANKS; r++) {
        CHECK(cclHostStreamCreate(&stream[r]));
        for (int i = 0; i < COUNT; i++) values[r][i] = 1.0f;
    }

    /* Nothing waits here, so one thread issues all ranks' calls without a group. Each step doubles the values, in
     * place, and begins when the step before it is over. */
    for (int step = 0; step < STEPS; step++)
        for (int r = 0; r < RANKS; r++)
            CHECK(cclAllReduce(values[r], values[r], COUNT, cclFloat32, cclSum, comm[r], stream[r]));

    /* Look whether it is done, and use the time. */
    unsigned long work = 0;
    for (;;) {
        cclResult_t state = cclHostStreamQuery(stream[0]);
        if (state == cclSuccess) break;
        if (state != cclInProgress) CHECK(state);
        work++;
    }
    /* Or wait, but not for ever: cclInProgress says that it takes longer, and the calls go on. */
    cclResult_t state = cclHostStreamWait(stream[1], 10000);
    if (state == cclInProgress) fprintf(stderr, "rank 1 is not done after 10 s\n");
    CHECK(state);

    for (int r = 0; r < RANKS; r++)
        for (int i = 0; i < COUNT; i++)
            if (values[r][i] != (float)(1 << STEPS)) {
                fprintf(stderr, "rank %d has %g in element %d\n", r, (double)values[r][i], i);
                return EXIT_FAILURE;
            }
    printf("%d steps on %d streams: every element is %d; looked %lu times meanwhile\n", STEPS, RANKS, 1 << STEPS, work);

    /* An error of a call on a stream is known when it happens, not when it was issued: ask the communicator. */
    for (int r = 0; r < RANKS; r++) {
        cclResult_t async;
        CHECK(cclCommGetAsyncError(comm[r], &async));
        CHECK(async);
        CHECK(cclHostStreamDestroy(stream[r]));
    }
    for (int r = 0; r < RANKS; r++) CHECK(cclCommDestroy(comm[r]));
    return EXIT_SUCCESS;
}
