/* 01: one process, one thread, four ranks.
 *
 * cclCommInitAll makes all ranks of a communicator in this process. One thread drives them: it issues the call of every
 * rank between cclGroupStart and cclGroupEnd. Without the group the first rank's call would wait for the other ranks,
 * whose calls this thread had not come to yet.
 *
 *   cc 01_one_process.c $(pkg-config --cflags --libs rdmaccl) -o one_process && ./one_process
 */
#include <ccl.h>
#include <stdio.h>
#include <stdlib.h>

#define RANKS 4
#define COUNT 1000

/* Every call returns a code; cclGetLastError has the words: who, what, and what to do. */
#define CHECK(call)                                                                                         \
    do {                                                                                                    \
        cclResult_t result_ = (call);                                                                       \
        if (result_ != cclSuccess) {                                                                        \
            fprintf(stderr, "%s: %s: %s\n", #call, cclGetErrorString(result_), cclGetLastError(NULL));      \
            exit(EXIT_FAILURE);                                                                             \
        }                                                                                                   \
    } while (0)

int main(void) {
    static float send[RANKS][COUNT], recv[RANKS][COUNT];
    cclComm_t comm[RANKS];

    /* The list of devices is NULL: host memory has none to choose from. */
    CHECK(cclCommInitAll(comm, RANKS, NULL));

    /* Rank r contributes r + 1 in every element, so every element of the sum is 1 + 2 + 3 + 4. */
    for (int r = 0; r < RANKS; r++)
        for (int i = 0; i < COUNT; i++) send[r][i] = (float)(r + 1);

    CHECK(cclGroupStart());
    for (int r = 0; r < RANKS; r++)
        CHECK(cclAllReduce(send[r], recv[r], COUNT, cclFloat32, cclSum, comm[r], NULL));
    CHECK(cclGroupEnd()); /* the stream is NULL: when this returns, the results are there */

    for (int r = 0; r < RANKS; r++)
        for (int i = 0; i < COUNT; i++)
            if (recv[r][i] != 10.0f) {
                fprintf(stderr, "rank %d has %g in element %d, not 10\n", r, (double)recv[r][i], i);
                return EXIT_FAILURE;
            }

    for (int r = 0; r < RANKS; r++) CHECK(cclCommDestroy(comm[r]));
    printf("%d ranks in one process: every element is 10\n", RANKS);
    return EXIT_SUCCESS;
}
